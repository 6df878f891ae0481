"""What a run cost: billed seconds x instances x price, and what spot saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blackwell.hardware import INSTANCES
from blackwell.report.jobs import machine_seconds, number
from blackwell.report.model import Transition
from blackwell.spec import CapacityKind


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """One attempt's cost in US dollars; None where no price is known or the capacity was paid for before."""

    usd: float | None
    on_demand_usd: float | None
    hourly_usd: float | None
    """Per hour of wall clock with all instances: what a second without progress costs."""
    basis: str


def attempt_cost(
    job: Mapping[str, Any],
    stretches: list[Transition],
    entry: Mapping[str, Any],
    kind: str | None,
    instance_type: str | None,
    instances: int,
) -> AttemptCost:
    """Cost of one attempt.

    The user's own hourly_price is what an hour of wall clock costs, so it meets the seconds with instances. A list
    price on demand meets BillableTimeInSeconds, from which SageMaker has taken the spot discount already.
    """
    wall = machine_seconds(job, stretches)
    billable = number(job.get("BillableTimeInSeconds"))
    listed = INSTANCES[instance_type].price if instance_type is not None and instance_type in INSTANCES else None
    own = number(entry.get("hourly_price"))
    on_demand = listed.usd_per_hour * instances * wall / 3600 if listed is not None else None
    if own is not None:
        usd = own * instances * wall / 3600
        return AttemptCost(
            usd, on_demand, own * instances, f"seconds with instances x {instances} x ${own:g}/h (hourly_price)"
        )
    if kind == CapacityKind.TRAINING_PLAN:
        return AttemptCost(None, on_demand, None, "prepaid by the training plan")
    if listed is None:
        return AttemptCost(None, None, None, "no price is known for this instance type; give hourly_price")
    seconds = billable if billable is not None else wall
    usd = listed.usd_per_hour * instances * seconds / 3600
    hourly = usd / wall * 3600 if wall else None
    return AttemptCost(
        usd,
        on_demand,
        hourly,
        f"billable seconds x {instances} x ${listed.usd_per_hour:g}/h ({listed.label}, {listed.date})",
    )


def spot_savings_percent(job: Mapping[str, Any]) -> float | None:
    """(1 - BillableTimeInSeconds / TrainingTimeInSeconds) x 100, as DescribeTrainingJob defines it; None off spot."""
    training, billable = number(job.get("TrainingTimeInSeconds")), number(job.get("BillableTimeInSeconds"))
    if not job.get("EnableManagedSpotTraining") or not training or billable is None:
        return None
    return (1 - billable / training) * 100
