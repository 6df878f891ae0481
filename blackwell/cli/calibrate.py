"""`python -m blackwell calibrate`: the one way in which fitted constants come to be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer

from blackwell.planning.stacks import CONSTANTS_FILE, FOLDS_FILE

app = typer.Typer(add_completion=False)

DATA = Path(__file__).parents[1] / "planning" / "data"


@app.command()
def calibrate(
    table: Annotated[Path, typer.Option("--table", help="Measured configurations.")] = DATA / "measured.csv",
    out: Annotated[Path, typer.Option("--out", help="Folder that gets constants.json and folds.json.")] = DATA,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="Measured runs of this stack (JSON list): print their correction factors instead."),
    ] = None,
) -> None:
    """Fit the constants of every stack, with cross-validation by group. Takes a few minutes; the result is always the same."""
    if runs is not None:
        from blackwell.planning.runs import correction_lines, read_runs

        print("\n".join(correction_lines(read_runs(runs))))
        return
    from blackwell.evaluate import evaluate
    from blackwell.planning import calibration
    from blackwell.planning.folds import unseen_constants
    from blackwell.planning.table import read_table

    rows = read_table(table)
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    folds = calibration.fit_folds(rows)
    unseen = unseen_constants(rows, folds)
    fitted = calibration.with_bands(calibration.fit(rows), rows, unseen)
    banded = [calibration.same_bands(fold, fitted) for fold in folds]
    _write(out / CONSTANTS_FILE, calibration.document(fitted, digest))
    _write(out / FOLDS_FILE, {"folds": [calibration.document(fold, digest) for fold in banded]})
    scores = evaluate(rows, unseen_constants(rows, banded))
    for name, value in scores.items():
        if name.endswith("percent") or name in ("false_fits", "false_refusals", "coverage"):
            print(f"unseen groups: {name} {value}")


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
