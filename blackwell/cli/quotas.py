"""`python -m blackwell quotas`: what the account may run, and what to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blackwell.cli.common import AsJson, Profile, Region, aws_errors, clients, console, print_json

app = typer.Typer(add_completion=False)
_DEFAULT_TYPES = ("ml.p6-b200.48xlarge", "ml.p6-b300.48xlarge")


@app.command()
def quotas(
    instance_types: Annotated[list[str] | None, typer.Argument(help="Instance types.", metavar="TYPE")] = None,
    job: Annotated[Path | None, typer.Option("--job", help="Take the types of this job spec.")] = None,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Read the quotas of training jobs by name, and say which one a job needs raised."""
    from blackwell.account import quotas as read

    wanted: dict[str, int] = dict.fromkeys(instance_types or _DEFAULT_TYPES, 1)
    if job is not None:
        from blackwell.spec_file import load_job_file

        wanted = {}
        for entry in load_job_file(job).capacity:
            wanted[entry.instance_type] = max(entry.instance_count, wanted.get(entry.instance_type, 0))
    with aws_errors():
        found, missing = read(clients(profile, region), wanted)
    if as_json:
        print_json({"quotas": [quota.as_dict() for quota in found], "not_listed": missing})
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("quota", "instances", "code", "what to do"):
        table.add_column(head, justify="right" if head == "instances" else "left", overflow="fold")
    for quota in found:
        need = next(count for kind, count in wanted.items() if quota.name.startswith(f"{kind} "))
        ask = "" if quota.value >= need else f"ask for {need}" + ("" if quota.adjustable else " (through support)")
        table.add_row(quota.name, f"{quota.value:g}", quota.code, ask)
    out = console()
    if found:
        out.print(table)
    for name in missing:
        out.print(f"not listed in this region: {name}")
    if any(quota.value < 1 for quota in found):
        out.print(
            "ask with: aws service-quotas request-service-quota-increase --service-code sagemaker "
            "--quota-code CODE --desired-value N",
            soft_wrap=True,
        )
