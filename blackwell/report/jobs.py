"""What SageMaker's description of a job says, in the report's terms: times, statuses, capacity, cause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from blackwell.report.inputs import AttemptInputs
from blackwell.report.model import Transition
from blackwell.spec import CapacityKind
from blackwell.verdict import FailureRecord

WAITING = frozenset({"Starting", "Pending", "LaunchingMLInstances", "Interrupted"})
"""Secondary statuses in which the job has no instances, so that nobody bills it."""
ENDED = frozenset({"Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"})
"""Secondary statuses that a job stays in: their time is none of the job's."""
_FIRST_LINE = re.compile(r"[^\r\n]+")


def moment(value: Any) -> datetime | None:
    """An aware datetime from a datetime, ISO text, or seconds since 1970; None where there is none."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return datetime.fromtimestamp(float(value), UTC)
    if isinstance(value, str) and value:
        try:
            return moment(datetime.fromisoformat(value.replace("Z", "+00:00")))
        except ValueError:
            try:
                return moment(float(value))
            except ValueError:
                return None
    try:  # DynamoDB's Decimal
        return None if value is None else datetime.fromtimestamp(float(value), UTC)
    except (TypeError, ValueError):
        return None


def number(value: Any) -> float | None:
    """A float from any number (DynamoDB's Decimal too) or numeric text; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def timeline(job: Mapping[str, Any], now: datetime) -> list[Transition]:
    """SecondaryStatusTransitions as stretches of time; an open one ends where the next begins, the last one now."""
    raw = [t for t in job.get("SecondaryStatusTransitions") or [] if moment(t.get("StartTime")) is not None]
    raw.sort(key=lambda t: (moment(t["StartTime"]) or now, moment(t.get("EndTime")) or now))
    stretches: list[Transition] = []
    for position, item in enumerate(raw):
        status = str(item.get("Status", ""))
        begin = moment(item["StartTime"]) or now
        following = moment(raw[position + 1]["StartTime"]) if position + 1 < len(raw) else None
        end = moment(item.get("EndTime")) or following
        if end is None:
            end = begin if status in ENDED else max(begin, now)
        stretches.append(
            Transition(
                status=status,
                start=begin,
                end=max(begin, end),
                seconds=max(0.0, (end - begin).total_seconds()),
                message=str(item.get("StatusMessage") or ""),
                billed=status not in WAITING and status not in ENDED,
            )
        )
    return stretches


def machine_seconds(job: Mapping[str, Any], stretches: list[Transition]) -> float:
    """Wall-clock seconds with instances: TrainingTimeInSeconds, else what the transitions show."""
    spent = number(job.get("TrainingTimeInSeconds"))
    if spent is None:
        spent = number(job.get("BillableTimeInSeconds")) if not _is_spot(job) else None
    return spent if spent is not None else sum(t.seconds for t in stretches if t.billed)


def _is_spot(job: Mapping[str, Any]) -> bool:
    return bool(job.get("EnableManagedSpotTraining"))


def capacity_kind(attempt: AttemptInputs, entry: Mapping[str, Any]) -> str | None:
    """spot, training-plan or on-demand: as the job itself says, else as the capacity entry it was made from."""
    resources = attempt.job.get("ResourceConfig") or {}
    if attempt.job:
        if _is_spot(attempt.job):
            return CapacityKind.SPOT
        return CapacityKind.TRAINING_PLAN if resources.get("TrainingPlanArn") else CapacityKind.ON_DEMAND
    kind = entry.get("kind")
    return str(kind) if kind else None


def cause(attempt: AttemptInputs) -> str:
    """First line of why the job failed; empty where it did not."""
    reason = str(attempt.job.get("FailureReason") or attempt.item.get("cause") or attempt.item.get("reason") or "")
    record = FailureRecord.decode(reason)
    text = record.cause if record is not None and record.cause else reason
    first = _FIRST_LINE.search(text.strip())
    return first[0].strip() if first else ""


def failure(attempt: AttemptInputs) -> FailureRecord | None:
    """The launcher's own record of the failure, where there is one."""
    return FailureRecord.decode(str(attempt.job.get("FailureReason") or ""))
