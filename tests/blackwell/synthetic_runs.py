"""All runs of a stack as the dashboard sees them, in every state: for tests and pictures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from synthetic_run import loss_at

from blackwell.report.curves import thin
from blackwell.report.live import SPARK_POINTS, LiveRun, LiveRuns
from blackwell.report.model import Series
from blackwell.runs import RunStatus
from blackwell.verdict import Verdict

NOW = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)


def curve(steps: int) -> Series:
    return thin(range(1, steps + 1), [loss_at(step) for step in range(1, steps + 1)], SPARK_POINTS)


def live_run(run: str, status: RunStatus, **changes: Any) -> LiveRun:
    ended = None if status is RunStatus.RUNNING else NOW - timedelta(minutes=20)
    fields = {
        "started": NOW - timedelta(hours=5), "ended": ended, "step": 640, "planned_steps": 1_000, "loss": 2.51,
        "tokens_per_second": 209_000.0, "spent_usd": 311.4, "budget_usd": 900.0, "attempts": 2, "restarts": 1,
        "curve": curve(640),
    }  # fmt: skip
    return LiveRun(run=run, status=status, **(fields | changes))


def live_runs(**changes: Any) -> LiveRuns:
    runs = [
        live_run("8b-mxfp8-long", RunStatus.RUNNING, stage="AwaitJob", job_status="Training", seconds_left=912.0),
        live_run(
            "14b-nvfp4", RunStatus.RUNNING, stage="EnsureImage", step=None, loss=None, tokens_per_second=None,
            curve=Series(), attempts=0, restarts=0, spent_usd=0.0,
        ),
        live_run("8b-bf16", RunStatus.COMPLETED, verdict=Verdict.COMPLETED, step=1_000, curve=curve(1_000)),
        live_run("8b-fp8", RunStatus.FAILED, verdict=Verdict.DIVERGED, cause="the loss rose by 2.1 nats at step 640"),
        live_run("1b-budget", RunStatus.STOPPED, verdict=Verdict.BUDGET_REACHED, cause="$900 of $900 are spent"),
        live_run(
            "64b-typo", RunStatus.REJECTED, verdict=Verdict.REJECTED, cause="2 findings", step=None, loss=None,
            tokens_per_second=None, curve=Series(), attempts=0, restarts=0, spent_usd=None, planned_steps=None,
        ),
    ]  # fmt: skip
    return LiveRuns(**({"stack": "BlackwellTrainingStack", "at": NOW, "runs": runs, "not_shown": 12} | changes))
