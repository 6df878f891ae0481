"""Checkpoints: size, time, how often, and what an interruption costs.

The interval follows Young (1974) and Daly (2006): sqrt(2 x cost of a checkpoint x time between interruptions), for a
synchronous or an asynchronous save. What is at risk is the interval plus the time until the newest checkpoint is
durable in S3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blackwell.hardware import GB, Instance
from blackwell.model import ModelShape
from blackwell.spec import CapacityKind, Workload

STATE_BYTES = {Workload.LM: 12.0, Workload.LAYERS: 6.0}
"""Per parameter: fp32 weight and two fp32 moments; bf16 for the layers workload."""
HOST_COPY_GB_PER_SECOND = 10.0
"""GPU to pinned host memory, per GPU (PCIe 5 gives 25 to 50): what an asynchronous save stalls training for."""
DISK_GB_PER_SECOND = 2.0
"""Local NVMe or EBS, per instance, serialising and hashing included."""
SYNC_GB_PER_SECOND = 0.5
"""SageMaker's sync of /opt/ml/checkpoints, per instance: unverified, no published figure."""
DIRECT_GB_PER_SECOND = 5.0
"""Straight to S3 from one instance with many connections (AWS states up to 100 Gbps): unverified here."""
SYNC_LIMIT_SECONDS = 60.0
"""Above this upload time by SageMaker's sync, straight upload is advised."""
MINIMUM_INTERVAL_SECONDS = 60.0

NODE_HOURS_BETWEEN_FAILURES = 6_334.0
"""419 unexpected interruptions in 54 days on 16,384 H100 = 2,048 nodes: Llama 3 paper, arXiv 2407.21783."""
SPOT_HOURS_BETWEEN_INTERRUPTIONS = 12.0
"""A cautious assumption; AWS publishes no rate for these types."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Figures of one run's checkpoints. Times are seconds, sizes decimal GB."""

    size_gb: float
    stall_seconds: float
    """Training stands still this long per checkpoint."""
    upload_seconds: float
    """Until every byte is durable in S3."""
    transport: str
    hours_between_interruptions: float
    interruption_basis: str
    optimal_interval_seconds: float
    interval_steps: int
    interval_seconds: float
    at_risk_seconds: float
    """Work lost by an interruption at the worst moment: the interval and the upload."""
    expected_lost_seconds_per_interruption: float


def interruption_rate(kind: CapacityKind, instances: int, given_hours: float | None) -> tuple[float, str]:
    """Mean hours between interruptions of the whole job, and where the figure is from."""
    if given_hours is not None and kind is CapacityKind.SPOT:
        return given_hours, "measured rate given to the planner"
    hardware = NODE_HOURS_BETWEEN_FAILURES / instances
    if kind is CapacityKind.SPOT:
        rate = 1 / hardware + instances / SPOT_HOURS_BETWEEN_INTERRUPTIONS
        return 1 / rate, "assumed: one spot interruption in 12 hours and instance; AWS publishes no rate"
    return hardware, "hardware failures of the Llama 3 paper (arXiv 2407.21783): one in 6,334 node hours"


def plan_checkpoints(
    shape: ModelShape, workload: Workload, instance: Instance, instances: int, *, kind: CapacityKind, asynchronous: bool,
    transport: str, interval_steps: int | None, step_seconds: float | None, steps: int | None,
    hours_between_interruptions: float | None = None, startup_seconds: float = 0.0,
) -> Checkpoints:  # fmt: skip
    """Sizes and times; `interval_steps` None asks for the best interval, `step_seconds` None means not modelled."""
    size = shape.num_parameters * STATE_BYTES[workload] / GB
    each = size / instances
    ranks = max(1, instance.gpus)
    write = each / DISK_GB_PER_SECOND
    stall = each / ranks / HOST_COPY_GB_PER_SECOND if asynchronous and instance.gpus else write
    network = instance.network_gbps / 8
    sync, direct = (each / min(rate, network * 0.8) for rate in (SYNC_GB_PER_SECOND, DIRECT_GB_PER_SECOND))
    chosen = transport if transport != "auto" else "s3" if sync > SYNC_LIMIT_SECONDS else "sagemaker_sync"
    upload = direct if chosen == "s3" else write + sync
    hours, basis = interruption_rate(kind, instances, hours_between_interruptions)
    best = math.sqrt(2 * max(stall, 0.05) * hours * 3600)
    best = max(best, MINIMUM_INTERVAL_SECONDS, upload)  # a save may not start before the last one is durable
    if interval_steps is None:
        if step_seconds is None:
            interval_steps = max(1, (steps or 1000) // 8)
        else:
            interval_steps = max(1, round(best / step_seconds))
        if steps is not None:
            # At least four in a run, so that even a short one can be resumed.
            interval_steps = max(1, min(interval_steps, steps // 4))
    interval = interval_steps * (step_seconds or 0.0)
    return Checkpoints(
        size_gb=size, stall_seconds=stall, upload_seconds=upload, transport=chosen, hours_between_interruptions=hours,
        interruption_basis=basis, optimal_interval_seconds=best, interval_steps=interval_steps, interval_seconds=interval,
        at_risk_seconds=interval + upload, expected_lost_seconds_per_interruption=interval / 2 + upload + startup_seconds,
    )  # fmt: skip
