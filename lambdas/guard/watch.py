"""The guard's eye on one running job: budget, silence, durable checkpoints; asks, then stops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from blackwell.names import RunPlaces
from blackwell.remedy import utc_now
from blackwell.runs import AttemptItem
from blackwell.spec import JobSpec
from blackwell.telemetry import parse_step
from blackwell.verdict import Verdict
from lambdas.common import checkpoints, jobs
from lambdas.common.aws import client
from lambdas.common.cost import Spending, spending
from lambdas.common.environment import environment
from lambdas.common.metrics import publish
from lambdas.common.store import RunStore
from lambdas.guard.measure import numbers

STOP_AFTER = timedelta(minutes=20)
"""How long the trainer has to make a durable checkpoint once it is asked to stop."""
START_UP_LIMIT = timedelta(minutes=90)
"""How long the first step may take after secondary status Training began: compilation, loading, resuming."""
RESTART_TIME = timedelta(minutes=10)
"""How long the launcher may take to restart hung workers before the guard steps in."""
CHECKPOINT_TIME = timedelta(minutes=2)
"""What a stop with a checkpoint usually takes once the trainer has read the control file."""
BUDGET_MARGIN = (0.8, 0.98)
"""Shares of the budget between which the stop is asked for: small budgets are not stopped before the first, none is
used up beyond the second, because the checkpoint costs, too."""


def watch(store: RunStore, attempt: AttemptItem, job: Mapping[str, Any], spec: JobSpec) -> str:
    """Looks at a job in progress and says what was done."""
    if attempt.stopped_for is not None:
        return _stop_when_durable(attempt)
    paid = spending(spec, store.attempts(attempt.run))
    if spec.budget is not None and paid is not None and paid.usd >= _stop_at_usd(spec.budget.max_cost_usd, paid):
        return _ask_to_stop(store, attempt, Verdict.BUDGET_REACHED)
    if job.get("SecondaryStatus") != "Training":
        return "waiting"
    tail = jobs.tail(attempt.job_name)
    budget = spec.budget.max_cost_usd if spec.budget else None
    spent = paid.usd if paid else None
    publish(attempt.run, numbers(tail, now=utc_now(), spent_usd=spent, budget_usd=budget))
    silent = _silence(tail, job, spec)
    if silent is not None:
        return _ask_to_stop(store, attempt, Verdict.HUNG) + f" after {silent} of silence"
    return _want_checkpoint(attempt, tail) or "watching"


def _stop_at_usd(budget_usd: float, paid: Spending) -> float:
    """What may be spent until the job is asked to stop: until the next look and its checkpoint more is spent."""
    until_stopped = timedelta(minutes=environment().guard_minutes) + CHECKPOINT_TIME
    reserve = paid.hourly_usd * until_stopped / timedelta(hours=1)
    least, most = (share * budget_usd for share in BUDGET_MARGIN)
    return min(max(budget_usd - reserve, least), most)


def _want_checkpoint(attempt: AttemptItem, tail: Sequence[jobs.LogLine]) -> str | None:
    """Asks for a checkpoint, once per step of the newest durable one, where that has become too old."""
    records = [found[1] for _, line in tail if (found := parse_step(line))]
    if not records or environment().network_isolation:
        return None
    lag = records[-1].checkpoint_durable_lag_seconds
    if lag is None or lag < environment().durable_lag_minutes * 60:
        return None
    places = RunPlaces(attempt.run)
    durable = checkpoints.newest_durable(environment().checkpoint_bucket, places.checkpoints)
    newest = durable.step if durable else 0
    _control(attempt.run, {"id": f"{attempt.attempt}-after-{newest}", "action": "checkpoint_now"})
    return f"asked for a checkpoint: the newest durable one is {lag:.0f} s old"


def _silence(tail: Sequence[jobs.LogLine], job: Mapping[str, Any], spec: JobSpec) -> timedelta | None:
    """How long nothing was logged, where that is too long; before the first step start-up has a limit of its own."""
    now = utc_now()
    steps = [at for at, line in tail if parse_step(line)]
    begun = _training_since(job)
    if begun is None:
        return None
    last = datetime.fromtimestamp(max(steps) / 1000, tz=now.tzinfo) if steps else None
    if last is not None and last >= begun:
        own = (
            timedelta(seconds=spec.training.hang_timeout_seconds) + RESTART_TIME
        )  # the launcher's watchdog comes first
        quiet, limit = now - last, max(timedelta(minutes=environment().silence_minutes), own)
    else:
        quiet, limit = now - begun, START_UP_LIMIT
    return quiet if quiet > limit else None


def _training_since(job: Mapping[str, Any]) -> datetime | None:
    begun = [t["StartTime"] for t in job.get("SecondaryStatusTransitions", []) if t.get("Status") == "Training"]
    return begun[-1] if begun else None


def _ask_to_stop(store: RunStore, attempt: AttemptItem, why: Verdict) -> str:
    store.update_attempt(attempt.run, attempt.attempt, stopped_for=why.value, stop_asked_at=utc_now().isoformat())
    if why is Verdict.HUNG or environment().network_isolation:  # a hung trainer reads no file
        jobs.stop(attempt.job_name)
        return f"stopped: {why}"
    control = {"id": f"{attempt.attempt}-{why}", "action": "stop_after_step", "reason": why.value}
    _control(attempt.run, control)
    return f"asked to stop: {why}"


def _control(run: str, request: dict[str, Any]) -> None:
    """Writes the run's control file; rank 0 acts once per id."""
    client("s3").put_object(
        Bucket=environment().artifacts_bucket,
        Key=RunPlaces(run).control,
        Body=json.dumps(request).encode(),
        ContentType="application/json",
    )


def _stop_when_durable(attempt: AttemptItem) -> str:
    if attempt.stop_asked_at is None:
        jobs.stop(attempt.job_name)
        return "stopping"
    asked = datetime.fromisoformat(attempt.stop_asked_at)
    places = RunPlaces(attempt.run)
    durable = checkpoints.newest_durable(environment().checkpoint_bucket, places.checkpoints)
    saved = durable is not None and durable.written_at >= asked
    if saved or utc_now() - asked > STOP_AFTER:
        jobs.stop(attempt.job_name)
        return "stopped: the checkpoint is durable" if saved else "stopped: no checkpoint came in time"
    return "asked; waiting for the checkpoint"
