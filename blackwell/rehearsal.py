"""A rehearsal: the same job for 20 steps on one instance, within 15 minutes and one hour's price, before the whole run.

It uses the image, the data and every setting of the run, and as much work per GPU; only steps, instances and limits
differ. What it measures replaces the prediction of time and cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from blackwell.planning import Plan
from blackwell.spec import CapacityKind, JobSpec, parse_job_spec

STEPS = 20
MIN_STEPS = 3
"""Where 20 would take too long; the first step warms up."""
MAX_SECONDS = 900
MAX_HOURS_OF_PRICE = 1.0
"""The rehearsal's budget, in hours of its instance."""
NAME_SUFFIX = "-rehearsal"
RUN_NAME_MAX = 80  # names.RUN_ID


def rehearsal_name(run: str) -> str:
    """The rehearsal's own run, beside the one that it is for."""
    return f"{run[: RUN_NAME_MAX - len(NAME_SUFFIX)]}{NAME_SUFFIX}"


def rehearsal_spec(plan: Plan) -> JobSpec:
    """The rehearsal of a planned job: its first capacity entry, one instance, every `auto` as the plan decided it."""
    resolved = plan.resolved
    entry, training = resolved.capacity[0], resolved.training
    document = resolved.model_dump(mode="json", by_alias=True)
    whole = training.global_batch_size or 1
    micro = training.micro_batch_size if isinstance(training.micro_batch_size, int) else 1
    unit = micro * max(1, plan.entries[0].ranks // entry.instance_count)  # one pass over the ranks of one instance
    share = max(unit, whole // entry.instance_count // unit * unit)
    steps = STEPS
    if plan.throughput is not None:  # half of the time is for starting up
        steps = min(STEPS, max(MIN_STEPS, int(MAX_SECONDS / 2 / plan.throughput.step_seconds)))
    document["training"] |= {
        "steps": steps,
        "tokens": None,
        "global_batch_size": share,
        "warmup_steps": min(training.warmup_steps, steps),
        "validation_interval_steps": None,
        "profile_steps": None,
        "checkpoint": document["training"]["checkpoint"] | {"interval_steps": steps},
    }
    limits: dict[str, Any] = {"instance_count": 1, "max_runtime_seconds": MAX_SECONDS}
    if entry.kind is CapacityKind.SPOT:
        limits["max_wait_seconds"] = max(entry.max_wait_seconds or 0, MAX_SECONDS)
    document["capacity"] = [document["capacity"][0] | limits]
    document["remedies"] |= {"max_attempts": 1}
    document["resume_from"] = None
    price = plan.cost.price_per_instance_hour
    prepaid = entry.kind is CapacityKind.TRAINING_PLAN
    document["budget"] = None if price is None or prepaid else {"max_cost_usd": round(price * MAX_HOURS_OF_PRICE, 4)}
    return parse_job_spec(document)


class Revised(BaseModel):
    """The whole run's time and cost, from what the rehearsal measured. None where something needed is not known."""

    model_config = ConfigDict(frozen=True)

    tokens_per_second: float | None
    """Of the whole run, over all instances."""
    measured_tokens_per_second: float | None
    """Of the rehearsal, on one instance."""
    memory_peak_gb: float | None
    predicted_peak_gb: float
    first_loss: float | None
    final_loss: float | None
    expected_seconds: float | None
    """Billed seconds of each instance."""
    expected_usd: float | None
    basis: str


def revise(plan: Plan, rehearsed: Plan, report: Mapping[str, Any]) -> Revised:
    """What the rehearsal's report means for the run. `rehearsed` is the rehearsal's own plan.

    Where speed is modelled, more instances cost what the model says; where it is not, they count in full.
    """
    measured = report.get("tokens_per_second")
    instances = plan.resolved.capacity[0].instance_count
    factor, basis = float(instances), f"measured on one instance x {instances}"
    if plan.throughput is not None and rehearsed.throughput is not None:
        factor = plan.throughput.tokens_per_second / rehearsed.throughput.tokens_per_second
        basis = f"measured on one instance x {factor:.2f}, the model's factor for {instances}"
    speed = measured * factor if measured else None
    cost, seconds, usd = plan.cost, None, None
    if speed and plan.tokens is not None:
        overhead = cost.startup_seconds + cost.checkpoint_seconds + cost.interruption_seconds
        seconds = plan.tokens / speed + overhead
        if cost.price_per_instance_hour is not None:
            usd = seconds / 3600 * cost.price_per_instance_hour * instances
    return Revised(
        tokens_per_second=speed,
        measured_tokens_per_second=measured,
        memory_peak_gb=report.get("memory_peak_gb"),
        predicted_peak_gb=rehearsed.memory.peak_gb,
        first_loss=report.get("first_loss"),
        final_loss=report.get("final_loss"),
        expected_seconds=seconds,
        expected_usd=usd,
        basis=basis,
    )
