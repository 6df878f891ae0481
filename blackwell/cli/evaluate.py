"""`python -m blackwell evaluate TABLE.csv`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blackwell.evaluate import evaluate as score
from blackwell.findings import Finding, FindingsError
from blackwell.planning.table import read_table

app = typer.Typer(add_completion=False)

REFUSED = 2


@app.command()
def evaluate(
    table: Annotated[Path, typer.Argument(help="CSV table with the columns of blackwell/planning/data/measured.csv.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    unseen: Annotated[
        bool,
        typer.Option(
            "--unseen",
            help="For the table that the constants were fitted on: score each row with constants fitted without its group.",
        ),
    ] = False,
) -> None:
    """Score the planner on measured configurations. Exits 0 whenever it scored, 2 for an unusable table."""
    try:
        rows = read_table(table)
    except FindingsError as refused:
        _refuse(refused.findings, as_json=as_json)
    except OSError as error:
        _refuse(
            [Finding(id="BTS-120", message=f"cannot be read: {error.strerror or error}", given=str(table))],
            as_json=as_json,
        )
    constants = None
    if unseen:
        from blackwell.planning.folds import stored_folds, unseen_constants

        constants = unseen_constants(rows, stored_folds())
    scores = score(rows, constants)
    print(json.dumps(scores, indent=2, allow_nan=False) if as_json else "\n".join(_lines(scores)))


def _lines(scores: dict[str, Any]) -> list[str]:
    def shown(value: Any) -> str:
        return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = [f"{name:<44}{shown(value):>10}" for name, value in scores.items() if not isinstance(value, dict)]
    for name in ("false_fits", "false_refusals", "coverage", "rows", "skipped"):
        lines.append(f"{name:<44}{', '.join(f'{k} {shown(v)}' for k, v in scores[name].items())}")
    for name in ("by_source", "by_stack"):
        lines += ["", name]
        for key, entry in scores[name].items():
            lines.append(
                f"  {key[:48]:<50}memory {shown(entry['memory_mape_percent']):>7} % of {entry['memory_rows']:<4} speed {shown(entry['throughput_mape_percent']):>7} % of {entry['throughput_rows']}"
            )
    for name, entries in scores["worst"].items():
        lines += ["", f"rows that carry the {name} error"]
        lines += [
            f"  {e['row'][:60]:<62}{shown(e['predicted']):>10} for {shown(e['measured']):>10}  {shown(e['error_percent'])} %"
            for e in entries
        ]
    return lines


def _refuse(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"findings": [f.model_dump(mode="json") for f in findings]}, indent=2))
    else:
        for finding in findings[:50]:
            typer.echo(finding.line(), err=True)
    raise typer.Exit(REFUSED)
