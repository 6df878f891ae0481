"""A finished sweep with everything in it, as the workflow's functions leave it: for tests and pictures."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from blackwell.runs import RunStatus
from blackwell.sweep.compare import build_sweep_report
from blackwell.sweep.expand import PlannedPoint, SweepPlan, expand
from blackwell.sweep.record import PointRecord, measure
from blackwell.sweep.report import SweepReport
from blackwell.sweep.spec import SweepSpec, parse_sweep_spec
from blackwell.telemetry import StepRecord, format_step
from blackwell.verdict import Verdict

NOW = datetime(2026, 12, 1, 6, 0, tzinfo=UTC)
STEPS = 600
SPEED = {"bf16": 150_000.0, "fp8": 220_000.0, "mxfp8": 210_000.0, "nvfp4": 230_000.0}
WORSE = {"nvfp4": 0.15}
"""Nats that a precision ends above the others."""


def spec(**changes: Any) -> SweepSpec:
    return parse_sweep_spec(
        {
            "name": "synthetic",
            "base": {
                "model": "8b", "data": {"train": "datasets/corpus/"},
                "training": {"precision": "bf16", "micro_batch_size": 2, "global_batch_size": 128, "seq_length": 8192,
                             "activation_checkpointing": "none", "steps": STEPS},
                "capacity": [{"kind": "on-demand", "instance_type": "ml.p6-b200.48xlarge"}],
            },
            "grid": {"precision": ["bf16", "fp8", "mxfp8", "nvfp4"], "micro_batch_size": [2, 3]},
            "full_run_tokens": 100_000_000_000,
            **changes,
        }
    )  # fmt: skip


def lines(run: str, point: PlannedPoint, *, steps: int = STEPS, gap: float = 0.0) -> list[str]:
    """The run's log: data noise that is the seed's and the step's, a little of its own, the gap growing to its size."""
    own = random.Random(point.id)
    return [
        format_step(
            StepRecord(
                step=step, time=1.8e9 + step, learning_rate=3e-4, step_seconds=2.0, data_wait_seconds=0.02, grad_norm=1.0,
                loss=2 + 9 * (step + 4) ** -0.42 + random.Random(f"{point.axes.seed} {step}").gauss(0, 0.03)
                + own.gauss(0, 0.004) + gap * step / STEPS,
                tokens_per_second=SPEED[point.axes.precision],
            ),
            run,
        )
        for step in range(1, steps + 1)
    ]  # fmt: skip


def run_report(point: PlannedPoint, **changes: Any) -> dict[str, Any]:
    """The figures of report.json that a sweep reads."""
    rate = SPEED[point.axes.precision]
    return {
        "tokens_trained": STEPS * 128 * 8192,
        "first_loss": 11.0,
        "final_loss": 2.6,
        "tokens_per_second": rate,
        "memory_peak_gb": 140.0,
        "cost": {"total_usd": 100.0, "usd_per_billion_tokens": 2.5e7 / rate},
        "goodput": {"goodput": 0.9},
        "backend": "te",
        "profile": {"gemm": 1.0, "attention": 0.2, "quantize": 0.1, "other": 0.3, "exposed communication": 0.2,
                    "idle": 0.2, "step": 2.0},
        **changes,
    }  # fmt: skip


def record(point: PlannedPoint, **changes: Any) -> PointRecord:
    """A completed run of the point, unless `changes` say otherwise."""
    run = f"synthetic-{point.id}-abc123"
    arguments: dict[str, Any] = {
        "status": RunStatus.COMPLETED, "verdict": Verdict.COMPLETED, "cause": None, "report": run_report(point),
        "lines": lines(run, point, gap=WORSE.get(point.axes.precision, 0.0)),
    }  # fmt: skip
    return measure(point, run, **(arguments | changes))


def records(plan: SweepPlan) -> dict[str, PointRecord]:
    return {point.id: record(point) for point in plan.points}


def report(**changes: Any) -> SweepReport:
    """The report on the whole sweep; a run that diverged and one without any trace are in it."""
    found = spec(**changes)
    plan = expand(found).plan
    measured = records(plan)
    diverged = next(p for p in plan.points if p.axes.precision == "mxfp8")
    measured[diverged.id] = record(
        diverged, status=RunStatus.FAILED, verdict=Verdict.DIVERGED, cause="the loss rose", report=None,
        lines=lines(f"synthetic-{diverged.id}-abc123", diverged, steps=250, gap=2.0),
    )  # fmt: skip
    return build_sweep_report(found, plan, measured, NOW)
