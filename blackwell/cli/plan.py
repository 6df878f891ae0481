"""`python -m blackwell plan JOB.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from blackwell.findings import Finding, FindingsError
from blackwell.planning import Facts, Plan, plan_job
from blackwell.spec import JobSpec
from blackwell.spec_file import load_job_file

app = typer.Typer(add_completion=False)

REFUSED = 2


@app.command()
def plan(
    job: Annotated[Path, typer.Argument(help="Job spec, JSON or YAML.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print the formulas with numbers put in.")] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Rank configurations by precision, batch, checkpointing, sequence.")
    ] = False,
    picture: Annotated[Path | None, typer.Option("--picture", help="With --grid: write the picture as SVG.")] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", help="Facts that AWS knows (prices, plans, measured runs), a JSON file.")
    ] = None,
) -> None:
    """Plan a job without touching AWS. Exits 0 when it can run, 2 when findings refuse it."""
    try:
        spec = load_job_file(job)
        made = plan_job(spec, _facts(facts))
    except FindingsError as refused:
        _refuse(refused.findings, as_json=as_json)
    except OSError as error:
        _refuse(
            [Finding(id="BTS-002", message=f"cannot be read: {error.strerror or error}", given=str(job))],
            as_json=as_json,
        )
    if as_json:
        print(made.model_dump_json(indent=2, by_alias=True))
    elif grid:
        _grid(spec, picture)
    else:
        from blackwell.cli.plan_text import plan_lines

        print("\n".join(plan_lines(made)))
        if explain:
            from blackwell.planning.explain import explain_plan

            print("\n" + "\n".join(explain_plan(made.resolved)))
    raise typer.Exit(0 if made.ok else REFUSED)


def _grid(spec: JobSpec, picture: Path | None) -> None:
    from blackwell.planning.grid import grid_lines, grid_points, grid_svg

    points = grid_points(spec)
    print("\n".join(grid_lines(points)))
    if picture is not None:
        picture.write_text(grid_svg(points), encoding="utf-8")


def _facts(path: Path | None) -> Facts | None:
    if path is None:
        return None
    from pydantic import ValidationError

    from blackwell.findings import from_validation_error

    try:
        return Facts.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise FindingsError(from_validation_error(error)) from None


def _refuse(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"findings": [f.model_dump(mode="json") for f in findings]}, indent=2))
    else:
        for finding in findings:
            print(finding.line(), file=sys.stderr)
    raise typer.Exit(REFUSED)


__all__ = ["Plan", "app"]
