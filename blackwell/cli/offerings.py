"""`python -m blackwell offerings`: training plans that a job would fit into, with their price."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from blackwell.cli.common import AsJson, Profile, Region, aws_errors, clients, console, fail, money, print_json

app = typer.Typer(add_completion=False)
_HOURS_PER_DAY = 24  # plans are sold by whole days


@app.command()
def offerings(
    job: Annotated[
        Path | None, typer.Argument(help="Job spec whose size and time to look for.", metavar="JOB.json")
    ] = None,
    instance_type: Annotated[str, typer.Option("--type", help="Instance type.")] = "ml.p6-b200.48xlarge",
    count: Annotated[int, typer.Option("--count", min=1, max=64, help="Instances.")] = 1,
    days: Annotated[int | None, typer.Option("--days", min=1, max=182, help="Whole days.")] = None,
    after: Annotated[datetime | None, typer.Option("--after", help="Earliest start (UTC).")] = None,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Search training plans and print what an instance hour costs in each. Nothing is bought."""
    from blackwell.account import offerings as search

    if job is not None:
        from blackwell.planning import plan_job
        from blackwell.spec_file import load_job_file

        plan = plan_job(load_job_file(job))
        entry = plan.resolved.capacity[0]
        instance_type, count = entry.instance_type, entry.instance_count
        if days is None and plan.cost.expected_seconds is not None:
            days = math.ceil(plan.cost.expected_seconds / 3600 / _HOURS_PER_DAY)
    days = days or 1
    start = after.replace(tzinfo=UTC) if after is not None and after.tzinfo is None else after
    with aws_errors():
        found = search(clients(profile, region), instance_type, count, days * _HOURS_PER_DAY, after=start)
    if as_json:
        print_json({"offerings": [offering.as_dict() for offering in found]})
        return
    if not found:
        fail(f"no training plan for {count} x {instance_type} over {days} day(s) is on offer now")
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("starts (UTC)", "days", "instances", "zones", "upfront", "per instance hour", "offering"):
        table.add_column(
            head,
            justify="right" if head in ("days", "instances", "upfront", "per instance hour") else "left",
            overflow="fold",
        )
    for offering in found:
        table.add_row(
            f"{offering.starts:%Y-%m-%d %H:%M}" if offering.starts else "",
            f"{offering.hours / _HOURS_PER_DAY:g}",
            f"{offering.instance_count} x {offering.instance_type}",
            ", ".join(offering.zones),
            money(offering.upfront),
            money(offering.per_instance_hour),
            offering.offering_id,
        )
    out = console()
    out.print(table)
    out.print(
        "buy one with: aws sagemaker create-training-plan --training-plan-name NAME --training-plan-offering-id OFFERING\n"
        "It is paid upfront and cannot be cancelled.",
        soft_wrap=True,
    )
