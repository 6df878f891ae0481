"""`python -m blackwell submit JOB.json`: plan, show the cost, ask, start, follow."""

from __future__ import annotations

import json
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
from blackwell.cli.starting import Yes, consent, read_spec, refusing
from blackwell.planning import Plan, plan_job
from blackwell.spec import JobSpec
from blackwell.spec_file import load_job_file

if TYPE_CHECKING:
    from blackwell.client import Client

app = typer.Typer(add_completion=False)
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
    spec = read_spec(job, load_job_file, as_json=as_json)
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
    with refusing(as_json=as_json):
        plan = plan_job(spec)
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
        with refusing(as_json=as_json):
            handle = client.submit(spec, run)
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
    """Consent before money is spent."""
    entry = plan.resolved.capacity[0]
    on = f"{entry.instance_count} x {entry.instance_type}"
    consent("run", plan.cost.expected_usd, lambda words: f"Start it on {on} for {words}?")
