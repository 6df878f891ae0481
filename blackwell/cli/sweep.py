"""`python -m blackwell sweep SWEEP.json`: plan a grid of runs, show the cost, ask, start, follow, compare."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackwell.cli.common import (
    FAILED,
    REFUSED,
    STAGE,
    AsJson,
    Profile,
    Region,
    Stage,
    aws_errors,
    console,
    fail,
    money,
    print_json,
    refuse,
    session,
)
from blackwell.cli.starting import Yes, consent, read_spec, refusing
from blackwell.names import stack_name
from blackwell.runs import RunStatus
from blackwell.spec_file import load_spec_file
from blackwell.sweep.expand import SweepPlan, expand
from blackwell.sweep.spec import SweepSpec, parse_sweep_spec

if TYPE_CHECKING:
    from rich.table import Table

    from blackwell.sweep.client import SweepClient, SweepHandle
    from blackwell.sweep.report import SweepReport

app = typer.Typer(add_completion=False)
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Follow the sweep to its end and print the comparison.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show points and cost; start nothing.")]
Stop = Annotated[bool, typer.Option("--stop", help="Stop the sweep of this name, and its runs.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the report's page to this file.")]
_SPEC_SUFFIXES = (".json", ".yaml", ".yml")


@app.command()
def sweep(
    given: Annotated[
        str, typer.Argument(help="Sweep spec, JSON or YAML; or the name of a sweep, for its report.", metavar="SWEEP")
    ],
    watch: Watch = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    stop: Stop = False,
    html: Html = None,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Plan a sweep, show what it costs and start it; points that are done already are not run again.

    With a sweep's name: print its report, follow it with --watch, or stop it with --stop.
    """
    if not given.lower().endswith(_SPEC_SUFFIXES):
        with aws_errors():
            _known(_client(stage, profile, region), given, html, watch=watch, stop=stop, as_json=as_json)
        return
    if stop:
        fail("--stop goes with a sweep's name", REFUSED)
    spec = read_spec(Path(given), lambda path: load_spec_file(path, parse_sweep_spec), as_json=as_json)
    planned = expand(spec).plan
    if not planned.ok:
        if not as_json:
            _print_plan(planned)
        refuse(planned.findings, as_json=as_json)
    if plan:
        print_json(planned.model_dump(mode="json")) if as_json else _print_plan(planned)
        return
    if not as_json:
        _print_plan(planned)
    if not yes:
        _ask(planned)
    with aws_errors():
        client = _client(stage, profile, region)
        with refusing(as_json=as_json):
            _start(client, spec, html, watch=watch or html is not None, as_json=as_json)


def _client(stage: str, profile: str | None, region: str | None) -> SweepClient:
    from blackwell.client import StackOutputs
    from blackwell.sweep.client import SweepClient

    made = session(profile, region)
    return SweepClient(StackOutputs.read(made, stack_name(stage)), made)


def _known(client: SweepClient, name: str, html: Path | None, *, watch: bool, stop: bool, as_json: bool) -> None:
    """What is done with a sweep that was started before."""
    if stop:
        client.stop(name)
        print(f"stopped {name}; start it again to go on with what is missing")
        return
    handle = client.running(name)
    if handle is not None and watch:
        _watch(client, handle, html, as_json=as_json)
    else:
        _show_report(client, name, html, as_json=as_json)


def _start(client: SweepClient, spec: SweepSpec, html: Path | None, *, watch: bool, as_json: bool) -> None:
    handle = client.submit(spec)
    if not watch:
        if as_json:
            print_json({"sweep": handle.sweep, "execution_arn": handle.execution_arn})
        else:
            print(f"started {handle.sweep}; its report, once it ends: python -m blackwell sweep {handle.sweep}")
        return
    _watch(client, handle, html, as_json=as_json)


def _watch(client: SweepClient, handle: SweepHandle, html: Path | None, *, as_json: bool) -> None:
    """Follows the sweep to its end and prints its report; Ctrl-C leaves it running."""
    try:
        _follow(client, handle, quiet=as_json)
    except KeyboardInterrupt:
        print(f"\ndetached; {handle.sweep} goes on (`sweep {handle.sweep} --watch`, `--stop`)", file=sys.stderr)
        raise typer.Exit(0) from None
    failure = client.failure(handle)
    if failure is not None:
        fail(f"the sweep's execution ended {failure}", FAILED)
    _show_report(client, handle.sweep, html, as_json=as_json)


def _follow(client: SweepClient, handle: SweepHandle, *, quiet: bool) -> None:
    done, total = 0, 0
    for happened in client.follow(handle):
        if isinstance(happened, SweepPlan):
            total = len(happened.points)
            continue
        done += 1
        record = happened.record
        ended = (record.verdict or "no trace") if record.status is not RunStatus.COMPLETED else "completed"
        loss = f", loss {record.final_loss:.4f}" if record.final_loss is not None else ""
        if not quiet:
            print(f"[{done}/{total}] {happened.point}: {ended}{loss}", flush=True)


def _show_report(client: SweepClient, name: str, html: Path | None, *, as_json: bool) -> None:
    """Prints the report; exit code 0 where every run completed, else 3."""
    report = client.report(name)
    if html is not None:
        html.write_bytes(client.page(name))
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        out = console()
        out.print(report.headline, style="bold")
        for line in report.explanation:
            out.print(line)
        out.print(_report_table(report))
        if html is not None:
            print(f"wrote {html}")
    raise typer.Exit(0 if report.ok else FAILED)


def _report_table(report: SweepReport) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("point")
    for name in ("tokens/s", "x baseline", "memory GB", "$ per 1e9 tokens", "final loss"):
        table.add_column(name, justify="right")
    table.add_column("loss is")
    table.add_column("bound by")
    for point in report.points:
        rate, memory, cost = point.tokens_per_second, point.memory_peak_gb, point.usd_per_billion_tokens
        table.add_row(
            point.id + (" (baseline)" if point.baseline else " (emulated)" if point.emulated else ""),
            f"{rate.measured:,.0f}" if rate.measured is not None else "-",
            f"{rate.to_baseline:.2f}" if rate.to_baseline is not None else "-",
            f"{memory.measured:,.1f}" if memory.measured is not None else "-",
            money(cost.measured) if cost.measured is not None else "-",
            f"{point.final_loss:.4f}" if point.final_loss is not None else str(point.verdict or "-"),
            str(point.convergence.verdict) if point.convergence else "",
            str(point.bottleneck.bound) if point.bottleneck else "",
        )
    return table


def _print_plan(plan: SweepPlan) -> None:
    for line in plan_lines(plan):
        print(line)


def plan_lines(plan: SweepPlan) -> Iterator[str]:
    """The sweep's plan, plain text."""
    width = max((len(point.id) for point in plan.points), default=5) + 2
    yield f"sweep {plan.sweep}: {len(plan.points)} points, {plan.max_concurrency} at a time"
    yield f"  {'point':<{width}}{'GB':>8}{'tokens/s':>12}{'cost':>12}"
    for point in plan.points:
        rate = f"{point.tokens_per_second:,.0f}" if point.tokens_per_second is not None else "-"
        cost = ("up to " if point.usd_is_ceiling else "") + money(point.usd)
        mark = "  baseline" if point.id == plan.baseline else "  emulated" if point.emulated else ""
        yield f"  {point.id:<{width}}{point.memory_peak_gb:>8.1f}{rate:>12}{cost:>12}{mark}"
    if plan.dropped:
        yield f"dropped: {len(plan.dropped)}"
        for dropped in plan.dropped:
            yield f"  {dropped.id}: {dropped.reasons[0].line()}"
    budget = f" of a budget of {money(plan.budget_usd)}" if plan.budget_usd is not None else ""
    yield f"total cost: {money(plan.total_usd)}{budget}"


def _ask(plan: SweepPlan) -> None:
    """Consent before money is spent."""
    consent("sweep", plan.total_usd, lambda words: f"Start {len(plan.points)} runs for {words}?")
