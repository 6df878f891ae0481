"""The sweep report as data: what `sweeps/<name>/report.json` holds. Units as in the run report."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from blackwell.findings import Finding
from blackwell.report.model import Series
from blackwell.runs import RunStatus
from blackwell.sweep.convergence import Judgement
from blackwell.sweep.expand import Axes, DroppedPoint
from blackwell.verdict import Verdict

SWEEP_REPORT_VERSION = 1


class _Report(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Bound(StrEnum):
    """What limits a point's speed: the kind of work that takes the largest part of a step."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    DATA = "data"
    OVERHEAD = "overhead"


class Bottleneck(_Report):
    """From the profile window, and for data from all steps."""

    bound: Bound
    shares: dict[Bound, float]
    """Of a step's time; together 1."""


class Ratio(_Report):
    """One figure against the baseline's and against the plan's; null where either is not known."""

    measured: float | None
    to_baseline: float | None = None
    """measured / the baseline's measured"""
    predicted: float | None = None
    to_prediction: float | None = None
    """measured / predicted"""


class PointReport(_Report):
    """One point: its run, its figures, its verdict."""

    id: str
    axes: Axes
    run: str
    status: RunStatus | None
    """None where the run left no trace."""
    verdict: Verdict | None = None
    cause: str | None = None
    baseline: bool = False
    repeat: bool = False
    """The baseline with another seed."""
    emulated: bool = False
    """Its numbers are the format's, its speed is not."""
    steps: int = 0
    planned_steps: int | None = None
    tokens: int = 0
    final_loss: float | None = None
    tokens_per_second: Ratio
    memory_peak_gb: Ratio
    cost_usd: Ratio
    usd_per_billion_tokens: Ratio
    mfu_percent: float | None = None
    bottleneck: Bottleneck | None = None
    """None without a profile."""
    convergence: Judgement | None = None
    """None for the baseline, and where the data was not the baseline's."""


class PrecisionVerdict(_Report):
    """The verdict on one precision, from the point that differs from the baseline in nothing else if there is one."""

    precision: str
    point: str
    emulated: bool
    judgement: Judgement


class Recommendation(_Report):
    """What to run, why, and what it saves against the baseline on the full run."""

    point: str
    axes: Axes
    reason: str
    speedup: float | None = None
    full_run_tokens: int | None = None
    saves_usd: float | None = None
    saves_seconds: float | None = None


class Curves(_Report):
    """One point's curves for plotting."""

    point: str
    loss: Series
    """Smoothed."""
    gap: Series
    """Smoothed loss minus the baseline's; empty for the baseline."""


class SweepReport(_Report):
    """What a sweep found."""

    version: Annotated[int, Field(ge=1)] = SWEEP_REPORT_VERSION
    sweep: str
    created: datetime
    headline: str
    explanation: list[str]
    baseline: str
    tolerance_nats: float
    noise_nats: float | None = None
    points: list[PointReport]
    dropped: list[DroppedPoint]
    precisions: list[PrecisionVerdict]
    recommendation: Recommendation | None
    planned_usd: float | None
    total_usd: float | None
    """Of all runs whose cost is known."""
    budget_usd: float | None
    findings: list[Finding]
    curves: list[Curves]

    @property
    def completed(self) -> int:
        """Points whose run completed."""
        return sum(point.status is RunStatus.COMPLETED for point in self.points)

    @property
    def ok(self) -> bool:
        """Every point's run completed."""
        return self.completed == len(self.points)
