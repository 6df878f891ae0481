"""`python -m blackwell submit JOB.json`: plan, show the cost, ask, start, follow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackwell.cli.common import (
    REFUSED,
    STAGE,
    AsJson,
    Profile,
    Region,
    Stage,
    aws_errors,
    connect,
    fail,
    money,
    print_json,
    refuse,
)
from blackwell.findings import FindingsError
from blackwell.planning import Plan, plan_job
from blackwell.spec import JobSpec
from blackwell.spec_file import load_job_file

if TYPE_CHECKING:
    from blackwell.client import Client

app = typer.Typer(add_completion=False)
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start, print the run's name, do not follow.")]
Rehearse = Annotated[bool, typer.Option("--rehearse", help="First 20 steps on one instance; plan again from them.")]
Name = Annotated[str | None, typer.Option("--run", help="Name of the run; default: the time.")]


@app.command()
def submit(
    job: Annotated[Path, typer.Argument(help="Job spec, JSON or YAML.", metavar="JOB.json")],
    run: Name = None,
    yes: Yes = False,
    detach: Detach = False,
    rehearse: Rehearse = False,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Plan a job, show what it costs, start its run and follow it. Ctrl-C detaches, the run goes on."""
    try:
        spec = load_job_file(job)
    except FindingsError as refused:
        refuse(refused.findings, as_json=as_json)
    except OSError as error:
        fail(f"{job} cannot be read: {error.strerror or error}", REFUSED)
    start(
        spec, run, yes=yes, detach=detach, rehearsed=rehearse, stage=stage, profile=profile, region=region,
        as_json=as_json,
    )  # fmt: skip


def start(
    spec: JobSpec,
    run: str | None,
    *,
    yes: bool,
    detach: bool,
    stage: str,
    profile: str | None,
    region: str | None,
    as_json: bool,
    rehearsed: bool = False,
) -> None:
    """Plans, asks, starts and follows; used by `resume` too."""
    try:
        plan = plan_job(spec)
    except FindingsError as refused:
        refuse(refused.findings, as_json=as_json)
    if not plan.ok:
        refuse(plan.findings, as_json=as_json)
    if not as_json:
        _show(plan)
    if not yes:
        _ask(plan)
    with aws_errors():
        client = connect(stage, profile, region)
        if rehearsed:
            run = _rehearse(client, plan, run, yes=yes, as_json=as_json)
        try:
            handle = client.submit(spec, run)
        except FindingsError as refused:
            refuse(refused.findings, as_json=as_json)
        if as_json:
            document = {"run": handle.run, "execution_arn": handle.execution_arn}
            print_json(document) if detach else print(json.dumps(document), flush=True)
        else:
            print(f"started {handle.run}", flush=True)
        if not detach:
            from blackwell.cli.follow import Outlook, follow

            follow(client, handle.run, Outlook.of(plan), as_json=as_json)


def _rehearse(client: Client, plan: Plan, run: str | None, *, yes: bool, as_json: bool) -> str:
    """The rehearsal, and consent once more now that its figures are known; the run's name."""
    from blackwell.cli.rehearse import rehearse
    from blackwell.client import new_run_name

    name = run or new_run_name()
    revised = rehearse(client, plan, name, as_json=as_json)
    budget = plan.resolved.budget
    if budget is not None and revised.expected_usd is not None and revised.expected_usd > budget.max_cost_usd:
        words = f"{money(revised.expected_usd)} is over the budget of {money(budget.max_cost_usd)}"
        fail(f"after the rehearsal {words}; nothing else was started", REFUSED)
    if not yes and not typer.confirm("Start the whole run?", default=False, err=True):
        fail("the whole run was not started", REFUSED)
    return name


def _show(plan: Plan) -> None:
    from blackwell.cli.plan_text import plan_lines

    print("\n".join(plan_lines(plan)))
    print()


def _ask(plan: Plan) -> None:
    """Consent before money is spent; without a terminal there is nobody to ask."""
    entry = plan.resolved.capacity[0]
    cost = plan.cost.expected_usd
    words = f"about {money(cost)}" if cost is not None else "an unknown amount (no price is known)"
    if not sys.stdin.isatty():
        fail(f"this run costs {words}; there is no terminal to ask on, so say --yes", REFUSED)
    question = f"Start it on {entry.instance_count} x {entry.instance_type} for {words}?"
    if not typer.confirm(question, default=False, err=True):
        fail("nothing was started", REFUSED)
