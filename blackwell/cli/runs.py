"""`python -m blackwell runs`: the runs of the stack, newest first."""

from __future__ import annotations

from typing import Annotated

import typer

from blackwell.cli.common import STAGE, AsJson, Profile, Region, Stage, aws_errors, connect, console, print_json
from blackwell.runs import RunItem, RunStatus

app = typer.Typer(add_completion=False)


@app.command()
def runs(
    status: Annotated[RunStatus | None, typer.Option("--status", case_sensitive=False, help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of the stack, newest first."""
    with aws_errors():
        found = [item for item in connect(stage, profile, region).runs() if status in (None, item.status)]
    shown = found[:limit]
    if as_json:
        print_json([item.model_dump(mode="json", exclude_none=True) for item in shown])
        return
    if not shown:
        print("no runs")
        return
    _table(shown)
    if len(found) > limit:
        print(f"{len(found) - limit} more; --limit shows them")


def _table(items: list[RunItem]) -> None:
    from rich.table import Table

    from blackwell.cli.report_text import STYLES

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("run", "status", "verdict", "started (UTC)", "what"):
        table.add_column(head, overflow="fold")
    for item in items:
        what = ", ".join(f"{name} {value}" for name, value in item.spec.items() if isinstance(value, str | int | float))
        style = STYLES[item.status]
        table.add_row(
            item.run, f"[{style}]{item.status}[/]", item.verdict or "", item.started_at[:16].replace("T", " "), what
        )
    console().print(table)
