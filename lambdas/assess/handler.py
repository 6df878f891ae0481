"""Assess: how the attempt ended -> its verdict -> what to do next (blackwell.verdict and blackwell.remedy decide).

The decision is written down before it is carried out, so a repeated call repeats it.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from blackwell.attempt import plan_attempt
from blackwell.names import RunPlaces, job_name
from blackwell.remedy import Decision, decide, utc_now
from blackwell.runs import AttemptItem, AttemptStatus
from blackwell.telemetry import parse_step
from blackwell.verdict import Ending, Verdict, classify_job, classify_launch_error
from lambdas.common import checkpoints, documents, jobs
from lambdas.common.cost import spent_usd
from lambdas.common.environment import environment
from lambdas.common.log import about, logger
from lambdas.common.settle import abandon, ended
from lambdas.common.store import RunStore

log = logger("assess")


class LaunchError(BaseModel):
    """Step Functions' error output: `Cause` is JSON where a function raised."""

    Error: str
    Cause: str = ""

    @property
    def message(self) -> str:
        try:
            return str(json.loads(self.Cause)["errorMessage"])
        except (ValueError, KeyError, TypeError):
            return self.Cause or self.Error


class AssessEvent(BaseModel):
    """`launch_error` is there where the job could not be created."""

    run: str
    attempt: int
    launch_error: LaunchError | None = None


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = AssessEvent.model_validate(event)
    about(log, request.run, request.attempt)
    store = RunStore()
    item = store.attempt(request.run, request.attempt)
    if item.remedy is None:
        item = _assess(store, item, request.launch_error)
    decision = Decision.model_validate(item.remedy)
    if decision.action == "launch":
        _prepare(store, item, decision)
    else:
        store.update_run(item.run, verdict=decision.verdict.value, cause=decision.why)
    log.info("assessed", extra={"verdict": item.verdict, "decision": decision.model_dump(mode="json")})
    return {
        "action": decision.action,
        "attempt": item.attempt + 1 if decision.action == "launch" else item.attempt,
        "wait_seconds": decision.wait_seconds,
        "verdict": decision.verdict.value,
    }


def _assess(store: RunStore, item: AttemptItem, launch_error: LaunchError | None) -> AttemptItem:
    job = jobs.describe(item.job_name) if launch_error is None else None
    ending = _ending(item, job, launch_error)
    if ending.verdict is Verdict.WORKFLOW_FAILED:
        abandon(store, item.run, ending.verdict)  # Launch may have died after it created the job
    places = RunPlaces(item.run)
    stored = checkpoints.stored(environment().checkpoint_bucket, places.checkpoints)
    durable = [checkpoint.step for checkpoint in stored if checkpoint.durable]
    changes: dict[str, Any] = {
        "status": AttemptStatus.ENDED.value,
        "verdict": ending.verdict.value,
        "cause": ending.cause,
        "ended_at": item.ended_at or utc_now().isoformat(),
        "last_step": _last_step(item) if job is not None else None,
        "durable_step": max(durable, default=None),
        "durable_steps": durable,
        "failure": ending.record.model_dump(mode="json") if ending.record else None,
    }
    closed = item.model_copy(update=changes | {"verdict": ending.verdict, "status": AttemptStatus.ENDED})
    earlier = [a for a in store.attempts(item.run) if a.attempt < item.attempt]
    spec = documents.read_spec(item.run)
    resolved = plan_attempt(spec, 0, item.overrides).resolved
    whole = resolved.model_copy(update={"capacity": spec.capacity})
    history = [*earlier, closed]
    decision = decide(whole, history, now=utc_now(), spent_usd=spent_usd(spec, history))
    changes["remedy"] = decision.model_dump(mode="json")
    store.update_attempt(item.run, item.attempt, **changes)
    return closed.model_copy(update={"remedy": changes["remedy"]})


def _ending(item: AttemptItem, job: dict[str, Any] | None, launch_error: LaunchError | None) -> Ending:
    if launch_error is not None:
        return classify_launch_error(launch_error.Error, launch_error.message)
    if job is None:
        return Ending(Verdict.WORKFLOW_FAILED, f"the training job {item.job_name} is gone")
    if not ended(job):
        return Ending(Verdict.WORKFLOW_FAILED, f"the training job {item.job_name} is still {job['TrainingJobStatus']}")
    return classify_job(job, stopped_for=item.stopped_for)


def _last_step(item: AttemptItem) -> int | None:
    steps = [found[1].step for _, line in jobs.tail(item.job_name) if (found := parse_step(line))]
    return max(steps, default=None)


def _prepare(store: RunStore, item: AttemptItem, decision: Decision) -> None:
    number = item.attempt + 1
    store.create_attempt(
        AttemptItem(
            run=item.run,
            attempt=number,
            status=AttemptStatus.PLANNED,
            job_name=job_name(environment().job_prefix, item.run, number),
            capacity_index=decision.capacity_index,
            overrides=decision.overrides,
            skip_data=decision.skip_data,
            why=decision.why,
            planned_at=utc_now().isoformat(),
        )
    )
