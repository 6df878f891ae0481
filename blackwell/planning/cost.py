"""What a run costs: hours of work, start-up, checkpoints and expected interruptions, times a price with its source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from blackwell.hardware import Instance, Price
from blackwell.planning.checkpoints import Checkpoints
from blackwell.spec import CapacityEntry, CapacityKind

Basis = Literal["on_demand", "spot", "prepaid_plan"]
BASIS: dict[CapacityKind, Basis] = {
    CapacityKind.ON_DEMAND: "on_demand",
    CapacityKind.SPOT: "spot",
    CapacityKind.TRAINING_PLAN: "prepaid_plan",
}
GPU_STARTUP_SECONDS = 900.0
"""Instances, a 20 GB image, health check, communicator set-up: assumed until runs were measured."""
CPU_STARTUP_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected cost of the whole run in US dollars; None where no price is known."""

    basis: Basis
    price_per_hour: float | None
    price_source: str
    price_verified: bool
    compute_seconds: float
    startup_seconds: float
    checkpoint_seconds: float
    interruptions: float
    interruption_seconds: float
    expected_usd: float | None
    low_usd: float | None
    high_usd: float | None
    prepaid_share_usd: float | None
    """A training plan's share of its upfront fee; already paid, so no budget stops it."""

    @property
    def seconds(self) -> float:
        """Expected billed seconds of one instance."""
        return self.compute_seconds + self.startup_seconds + self.checkpoint_seconds + self.interruption_seconds


def startup_seconds(instance: Instance, measured: float | None = None) -> float:
    """Billed seconds before the first step."""
    return measured if measured is not None else GPU_STARTUP_SECONDS if instance.gpus else CPU_STARTUP_SECONDS


def price_of(entry: CapacityEntry, instance: Instance, refreshed: Price | None) -> tuple[float | None, str, bool]:
    """Price per instance and hour, its source in words, and whether it is what SageMaker bills."""
    if entry.hourly_price is not None:
        return entry.hourly_price, "hourly_price of the job spec", True
    price = refreshed or instance.price
    if price is None:
        return None, "no public price found", False
    words = f"{price.label}, {price.region}, {price.date}"
    if entry.kind is CapacityKind.SPOT:
        return price.usd_per_hour, f"on-demand ceiling, spot has no published price: {words}", False
    return price.usd_per_hour, words, price.verified


def plan_cost(
    entry: CapacityEntry, instance: Instance, checkpoints: Checkpoints, *, step_seconds: float | None, steps: int | None,
    band: float, refreshed: Price | None = None, measured_startup: float | None = None,
    plan_usd_per_instance_hour: float | None = None,
) -> Cost:  # fmt: skip
    """Expected cost. Interruptions repeat start-up and lose half an interval and the upload each."""
    startup = startup_seconds(instance, measured_startup)
    compute = (step_seconds or 0.0) * (steps or 0)
    saves = (steps or 0) // checkpoints.interval_steps
    saving = saves * checkpoints.stall_seconds
    base = compute + saving
    rate = 1 / (checkpoints.hours_between_interruptions * 3600)
    lost = checkpoints.expected_lost_seconds_per_interruption + startup
    # Every interruption adds time in which further ones happen: base / (1 - rate x lost).
    factor = 1 / max(0.05, 1 - rate * lost)
    interruptions = rate * (base + startup) * factor
    interrupted = interruptions * lost
    price, source, verified = price_of(entry, instance, refreshed)
    total = base + startup + interrupted
    prepaid = None
    usd: float | None = None
    if entry.kind is CapacityKind.TRAINING_PLAN and entry.hourly_price is None:
        price, source, verified = (
            plan_usd_per_instance_hour,
            "share of the training plan's upfront fee",
            plan_usd_per_instance_hour is not None,
        )
    known = price is not None and step_seconds is not None and steps is not None and math.isfinite(total)
    if known and price is not None:
        usd = price * entry.instance_count * total / 3600
    if entry.kind is CapacityKind.TRAINING_PLAN:
        prepaid, usd = usd, 0.0 if usd is not None else None
    return Cost(
        basis=BASIS[entry.kind], price_per_hour=price, price_source=source, price_verified=verified, compute_seconds=compute,
        startup_seconds=startup, checkpoint_seconds=saving, interruptions=interruptions, interruption_seconds=interrupted,
        expected_usd=usd, low_usd=None if usd is None else usd / (1 + band), high_usd=None if usd is None else usd * (1 + band),
        prepaid_share_usd=prepaid,
    )  # fmt: skip
