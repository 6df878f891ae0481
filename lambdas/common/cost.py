"""What a run's jobs have cost so far, counted as its report counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blackwell.remedy import utc_now
from blackwell.report.cost import attempt_cost
from blackwell.report.jobs import timeline
from blackwell.runs import AttemptItem
from blackwell.spec import CapacityKind, JobSpec
from lambdas.common import jobs


@dataclass(frozen=True, slots=True)
class Spending:
    """US dollars for all jobs of a run so far, and what an hour of its newest job costs."""

    usd: float
    hourly_usd: float


def spending(spec: JobSpec, attempts: Sequence[AttemptItem]) -> Spending | None:
    """None without a budget, and where a price is not known. Prepaid plans count as nothing."""
    if spec.budget is None:
        return None
    total = hourly = 0.0
    for attempt in attempts:
        entry = spec.capacity[attempt.capacity_index]
        if attempt.job_arn is None or entry.kind is CapacityKind.TRAINING_PLAN:
            continue
        job = jobs.describe(attempt.job_name)
        if job is None:
            continue
        cost = attempt_cost(
            job,
            timeline(job, utc_now()),
            entry.model_dump(mode="json"),
            entry.kind,
            entry.instance_type,
            int(job["ResourceConfig"].get("InstanceCount") or entry.instance_count),
        )
        if cost.usd is None:
            return None
        total += cost.usd
        hourly = cost.hourly_usd or 0.0
    return Spending(total, hourly)


def spent_usd(spec: JobSpec, attempts: Sequence[AttemptItem]) -> float | None:
    """US dollars for all jobs so far; None as `spending`."""
    found = spending(spec, attempts)
    return found.usd if found else None
