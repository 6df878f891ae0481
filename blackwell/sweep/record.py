"""What one point's run measured, kept small enough to compare hundreds: from the run's report and its log lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from blackwell.runs import RunStatus
from blackwell.sweep.convergence import Curve
from blackwell.sweep.expand import PlannedPoint
from blackwell.telemetry import parse_step
from blackwell.verdict import Verdict

MAX_CURVE = 4_000
"""Points of a kept curve; of longer runs the means of equal stretches are kept, the same stretches for every run."""


class PointRecord(BaseModel):
    """A run of the sweep, measured. Money in US dollars, memory in GB of 10^9 bytes, losses in nats per token."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="null")

    id: str
    digest: str
    run: str
    status: RunStatus | None
    """None where the run left no trace."""
    verdict: Verdict | None = None
    cause: str | None = None
    steps: int = 0
    tokens_trained: int = 0
    first_loss: float | None = None
    final_loss: float | None = None
    tokens_per_second: float | None = None
    mfu_percent: float | None = None
    memory_peak_gb: float | None = None
    cost_usd: float | None = None
    usd_per_billion_tokens: float | None = None
    goodput: float | None = None
    backend: str | None = None
    profile: dict[str, float] = {}
    """Seconds per step by kind, from the profile window."""
    data_wait_share: float | None = None
    """Of the time of all steps."""
    curve_step: list[int] = []
    curve_loss: list[float | None] = []
    curve_grad_norm: list[float | None] = []

    @property
    def completed(self) -> bool:
        return self.status is RunStatus.COMPLETED

    def curve(self) -> Curve:
        """For the convergence verdict."""
        return Curve(
            step=self.curve_step,
            loss=[math.nan if value is None else value for value in self.curve_loss],
            grad_norm=[math.nan if value is None else value for value in self.curve_grad_norm],
            diverged=self.verdict is Verdict.DIVERGED,
        )


def measure(
    point: PlannedPoint,
    run: str,
    *,
    status: RunStatus | None,
    verdict: Verdict | None,
    cause: str | None,
    report: Mapping[str, Any] | None,
    lines: Iterable[str],
) -> PointRecord:
    """The record of a run that has ended.

    Args:
        report: the run's report.json; None where there is none.
        lines: log lines of all its jobs, attempt by attempt; where a step was taken twice the later line counts.
    """
    losses: dict[int, float] = {}
    norms: dict[int, float] = {}
    waited = worked = 0.0
    for line in lines:
        parsed = parse_step(line)
        if parsed is None or parsed[0] != run:
            continue
        record = parsed[1]
        losses[record.step] = math.nan if record.loss is None else record.loss
        norms[record.step] = math.nan if record.grad_norm is None else record.grad_norm
        waited += record.data_wait_seconds
        worked += record.step_seconds
    found = report or {}
    every = max(1, math.ceil((point.steps or max(losses, default=1)) / MAX_CURVE))
    steps, kept_losses = _thin(losses, every)
    _, kept_norms = _thin(norms, every)
    cost, goodput = found.get("cost") or {}, found.get("goodput") or {}
    return PointRecord(
        id=point.id,
        digest=point.digest,
        run=run,
        status=status,
        verdict=verdict,
        cause=cause,
        steps=max(losses, default=0),
        tokens_trained=found.get("tokens_trained") or 0,
        first_loss=found.get("first_loss"),
        final_loss=found.get("final_loss"),
        tokens_per_second=found.get("tokens_per_second"),
        mfu_percent=found.get("mfu_percent"),
        memory_peak_gb=found.get("memory_peak_gb"),
        cost_usd=cost.get("total_usd"),
        usd_per_billion_tokens=cost.get("usd_per_billion_tokens"),
        goodput=goodput.get("goodput"),
        backend=found.get("backend"),
        profile=found.get("profile") or {},
        data_wait_share=waited / worked if worked > 0 else None,
        curve_step=steps,
        curve_loss=kept_losses,
        curve_grad_norm=kept_norms,
    )


def _thin(values: Mapping[int, float], every: int) -> tuple[list[int], list[float | None]]:
    """(last step, mean) of each stretch of `every` steps; not finite where any of it is not."""
    stretches: dict[int, list[tuple[int, float]]] = {}
    for step in sorted(values):
        stretches.setdefault((step - 1) // every, []).append((step, values[step]))
    steps = [stretch[-1][0] for stretch in stretches.values()]
    means = [fmean(value for _, value in stretch) for stretch in stretches.values()]
    return steps, [_rounded(mean) for mean in means]


def _rounded(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None
