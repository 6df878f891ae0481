"""What completed runs of this stack measured, and how it corrects the predictions of later plans.

The correction is the median of measured over predicted, drawn towards no correction by the weight of one run, per
instance type. The workflow stores a `MeasuredRun` with every completed run and passes the list as `Facts.runs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from blackwell.findings import Finding, FindingsError, from_validation_error


class MeasuredRun(BaseModel):
    """What a completed run measured beside what its plan had predicted. Memory in GB, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    instance_type: str
    ranks: int = Field(ge=1)
    predicted_memory_gb: float = Field(gt=0)
    measured_memory_gb: float | None = Field(default=None, gt=0)
    """Peak of reserved memory."""
    predicted_step_seconds: float | None = Field(default=None, gt=0)
    measured_step_seconds: float | None = Field(default=None, gt=0)
    """Median after warm-up."""
    startup_seconds: float | None = Field(default=None, gt=0)
    """From the start of billing to the first step."""
    image: str | None = None
    """Digest of the image that ran."""


def measured_run(plan: Mapping[str, Any], report: Mapping[str, Any], image: str | None = None) -> MeasuredRun | None:
    """What a completed run teaches: its `plan.json` beside its `report.json`; None where they do not say enough.

    Plans that were themselves corrected are told apart by nothing here: a correction of a corrected plan converges.
    """
    try:
        entry, memory, speed = plan["entries"][0], plan["memory"], plan.get("throughput") or {}
        rate = report.get("tokens_per_second")
        tokens = speed.get("tokens_per_step")
        run = MeasuredRun(
            instance_type=entry["instance_type"],
            ranks=entry["ranks"],
            predicted_memory_gb=memory["peak_gb"],
            measured_memory_gb=report.get("memory_peak_gb") or None,
            predicted_step_seconds=speed.get("step_seconds"),
            measured_step_seconds=tokens / rate if tokens and rate else None,
            startup_seconds=report.get("startup_seconds") or None,
            image=image,
        )
    except (KeyError, IndexError, TypeError, ValidationError):
        return None
    return run if run.measured_memory_gb or run.measured_step_seconds else None


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors for predictions; 1 where nothing was measured."""

    memory: float = 1.0
    step: float = 1.0
    startup_seconds: float | None = None
    runs: int = 0


def correction(runs: Sequence[MeasuredRun], instance_type: str) -> Correction:
    """The factors for one instance type."""
    mine = [r for r in runs if r.instance_type == instance_type]
    startups = [r.startup_seconds for r in mine if r.startup_seconds is not None]
    return Correction(
        memory=_factor([r.measured_memory_gb / r.predicted_memory_gb for r in mine if r.measured_memory_gb]),
        step=_factor(
            [
                r.measured_step_seconds / r.predicted_step_seconds
                for r in mine
                if r.measured_step_seconds and r.predicted_step_seconds
            ]
        ),
        startup_seconds=median(startups) if startups else None,
        runs=len(mine),
    )


def _factor(ratios: Sequence[float]) -> float:
    return float(median(ratios)) ** (len(ratios) / (len(ratios) + 1)) if ratios else 1.0


def read_runs(path: Path) -> list[MeasuredRun]:
    """Reads a JSON list of runs.

    Raises:
        FindingsError: text that is no such list.
        OSError: the file cannot be read.
    """
    try:
        return TypeAdapter(list[MeasuredRun]).validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise FindingsError(from_validation_error(error)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FindingsError([Finding(id="BTS-002", message=str(error))]) from None


def correction_lines(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """The corrections as text."""
    yield f"stack blackwell: calibrated on {len(runs)} runs"
    for name in sorted({r.instance_type for r in runs}):
        found = correction(runs, name)
        startup = "not measured" if found.startup_seconds is None else f"{found.startup_seconds:.0f} s"
        yield f"  {name}: {found.runs} runs, memory x {found.memory:.3f}, step x {found.step:.3f}, start-up {startup}"
