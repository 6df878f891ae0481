"""What the guard sees of a running job, as numbers for alarms and dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median

from blackwell import metrics
from blackwell.telemetry import parse_step
from lambdas.common.jobs import LogLine

RECENT_STEPS = 5
"""Newest logged steps whose median speed is compared with the steps before."""


def numbers(
    lines: Sequence[LogLine], *, now: datetime, spent_usd: float | None, budget_usd: float | None
) -> dict[str, float | None]:
    """Metrics of one job from the newest lines of its log. What cannot be known yet is None."""
    steps = [(at, parsed[1]) for at, line in lines if (parsed := parse_step(line))]
    speeds = [record.tokens_per_second for _, record in steps if record.tokens_per_second > 0]
    recent, before = speeds[-RECENT_STEPS:], speeds[:-RECENT_STEPS]
    return {
        metrics.SPEND_FRACTION: spent_usd / budget_usd if spent_usd is not None and budget_usd else None,
        metrics.SILENCE_SECONDS: max(0.0, now.timestamp() - steps[-1][0] / 1000) if steps else None,
        metrics.DURABLE_AGE_SECONDS: steps[-1][1].checkpoint_durable_lag_seconds if steps else None,
        metrics.THROUGHPUT_RATIO: median(recent) / median(before) if len(before) >= RECENT_STEPS else None,
    }
