"""`python -m blackwell show RUN`: where a run stands."""

from __future__ import annotations

from typing import Any

import typer

from blackwell.cli.common import (
    STAGE,
    AsJson,
    Profile,
    Region,
    Run,
    Stage,
    aws_errors,
    connect,
    console,
    exit_code,
    named,
    print_json,
)
from blackwell.client import RunState
from blackwell.findings import Finding

app = typer.Typer(add_completion=False)


@app.command()
def show(
    run: Run = "latest", stage: Stage = STAGE, profile: Profile = None, region: Region = None, as_json: AsJson = False
) -> None:
    """Show where a run stands. The exit code says how it ended."""
    with aws_errors():
        client = connect(stage, profile, region)
        state = client.status(named(client, run))
    if as_json:
        print_json(_document(state))
    else:
        _print(state)
    raise typer.Exit(exit_code(state.final_status))


def _document(state: RunState) -> dict[str, Any]:
    return {
        "run": state.run,
        "status": state.status,
        "verdict": state.verdict,
        "execution_status": state.execution_status,
        "stage": state.stage,
        "job_status": state.job_status,
        "cause": state.cause,
        "findings": list(state.findings),
        "item": state.item.model_dump(mode="json", exclude_none=True) if state.item else None,
        "attempts": [a.model_dump(mode="json", exclude_none=True, exclude={"task_token"}) for a in state.attempts],
    }


def _print(state: RunState) -> None:
    from rich.table import Table
    from rich.text import Text

    from blackwell.cli.report_text import STYLES

    out = console()
    title = Text(state.run, style="bold")
    word = state.verdict or (state.status.value.lower() if state.status else state.execution_status.lower())
    title.append(f"  {word}", style=STYLES[state.status] if state.status else "")
    out.print(title)
    if state.stage:
        out.print(f"now: {state.stage}" + (f" ({state.job_status})" if state.job_status else ""))
    item = state.item
    if item is not None:
        out.print(
            f"started {_second(item.started_at)}" + (f", ended {_second(item.ended_at)}" if item.ended_at else "")
        )
        if item.cause and state.ended:
            out.print(Text(item.cause))
    if state.attempts:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("attempt", "status", "verdict", "job", "cause", "then"):
            table.add_column(head, overflow="fold")
        for a in state.attempts:
            then = str((a.remedy or {}).get("remedy") or "")
            table.add_row(str(a.attempt), a.status, a.verdict or "", Text(a.job_name), Text(a.cause or ""), then)
        out.print(table)
    for finding in state.findings:
        out.print(Text(Finding.model_validate(finding).line()))
    if item is not None and item.report_uri:
        out.print(Text(f"report: {item.report_uri}"), soft_wrap=True)
    if not state.ended:
        out.print(Text(f"follow it: python -m blackwell logs -f {state.run}"))


def _second(time: str) -> str:
    """An ISO 8601 time in UTC, however exact, to the second."""
    return f"{time[:19].replace('T', ' ')} UTC"
