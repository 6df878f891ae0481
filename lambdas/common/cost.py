"""What a run's jobs have cost so far: billable seconds x instances x price, and what stays unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from blackwell.hardware import INSTANCES
from blackwell.remedy import utc_now
from blackwell.runs import AttemptItem
from blackwell.spec import CapacityEntry, CapacityKind, JobSpec
from lambdas.common import jobs


def spent_usd(spec: JobSpec, attempts: Sequence[AttemptItem]) -> float | None:
    """US dollars for all jobs so far; None where a price is not known. Prepaid plans count as nothing."""
    if spec.budget is None:
        return None
    total = 0.0
    for attempt in attempts:
        if attempt.job_arn is None:
            continue
        price = hourly_price(spec.capacity[attempt.capacity_index])
        if price is None:
            return None
        job = jobs.describe(attempt.job_name)
        total += price * billed_instance_hours(job) if job is not None else 0.0
    return total


def hourly_price(entry: CapacityEntry) -> float | None:
    """US dollars per instance and hour; 0 for a prepaid plan, the on-demand price where spot's is not known."""
    if entry.kind is CapacityKind.TRAINING_PLAN:
        return 0.0
    if entry.hourly_price is not None:
        return entry.hourly_price
    known = INSTANCES.get(entry.instance_type)
    return known.price.usd_per_hour if known is not None and known.price is not None else None


def billed_instance_hours(job: Mapping[str, Any]) -> float:
    """BillableTimeInSeconds where SageMaker says it, else the wall clock since training began."""
    seconds = job.get("BillableTimeInSeconds")
    begun = job.get("TrainingStartTime")
    if seconds is None and isinstance(begun, datetime):
        seconds = ((job.get("TrainingEndTime") or utc_now()) - begun).total_seconds()
    return float(seconds or 0) / 3600 * int(job["ResourceConfig"].get("InstanceCount") or 1)
