"""What a run's jobs have cost so far, counted as its report counts it."""

from __future__ import annotations

from collections.abc import Sequence

from blackwell.remedy import utc_now
from blackwell.report.cost import attempt_cost
from blackwell.report.jobs import timeline
from blackwell.runs import AttemptItem
from blackwell.spec import CapacityKind, JobSpec
from lambdas.common import jobs


def spent_usd(spec: JobSpec, attempts: Sequence[AttemptItem]) -> float | None:
    """US dollars for all jobs so far; None where a price is not known. Prepaid plans count as nothing."""
    if spec.budget is None:
        return None
    total = 0.0
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
    return total
