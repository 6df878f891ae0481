"""What happens when a job has ended, whoever notices first: the event, the guard, or the step that begins to wait.

Everything here may be called twice, late, or by two callers at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from blackwell.remedy import utc_now
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.verdict import TERMINAL_STATUSES, Verdict, classify_job
from lambdas.common import jobs
from lambdas.common.aws import client, error_code
from lambdas.common.environment import environment
from lambdas.common.store import RunStore

_CLOSED_TOKEN = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")


def ended(job: Mapping[str, Any]) -> bool:
    return job.get("TrainingJobStatus") in TERMINAL_STATUSES


def answer(token: str, job: Mapping[str, Any]) -> bool:
    """Wakes the step that waits with `token`; False where it waits no more (answered, or waits with a newer one)."""
    output = {"job_name": job["TrainingJobName"], "status": job["TrainingJobStatus"]}
    try:
        client("stepfunctions").send_task_success(taskToken=token, output=json.dumps(output))
    except ClientError as error:
        if error_code(error) in _CLOSED_TOKEN:
            return False
        raise
    return True


def settle(store: RunStore, run: RunItem, attempt: AttemptItem, job: Mapping[str, Any]) -> str:
    """Does what an ended job asks for, and says what that was.

    A run that lives gets its answer. A run that was stopped meanwhile has nobody who waits: its attempt is closed here
    and its report written once more, now that the job's end is known.
    """
    if not ended(job):
        return "running"
    if run.status is RunStatus.RUNNING:
        if attempt.task_token is None:
            return "nobody waits yet"
        return "answered" if answer(attempt.task_token, job) else "answered before"
    if attempt.status is AttemptStatus.ENDED:
        return "closed before"
    close(store, attempt, job)
    ask_for_report(run.run)
    return "closed"


def close(store: RunStore, attempt: AttemptItem, job: Mapping[str, Any]) -> None:
    """Writes the verdict on an attempt whose job has ended and whose run asks for no remedy."""
    ending = classify_job(job, stopped_for=attempt.stopped_for)
    store.update_attempt(
        attempt.run,
        attempt.attempt,
        status=AttemptStatus.ENDED.value,
        verdict=ending.verdict.value,
        cause=ending.cause,
        ended_at=utc_now().isoformat(),
    )


def _close_without_job(store: RunStore, attempt: AttemptItem, why: Verdict) -> None:
    """Should Launch be at work just now, it opens the attempt again with its job, sees the run's end and stops it."""
    store.update_attempt(
        attempt.run,
        attempt.attempt,
        status=AttemptStatus.ENDED.value,
        verdict=why.value,
        cause="no job was created",
        ended_at=utc_now().isoformat(),
    )


def abandon(store: RunStore, run: str, why: Verdict) -> bool:
    """Stops the run's job, where it has one; True where a job is left to end."""
    open_attempts = [a for a in store.attempts(run) if a.status is not AttemptStatus.ENDED]
    alive = False
    for attempt in open_attempts:
        job = jobs.describe(attempt.job_name)
        if job is None or jobs.owner(jobs.tags(job["TrainingJobArn"])) != (run, attempt.attempt):
            _close_without_job(store, attempt, why)  # never created, or a job of somebody else that has this name
            continue
        if ended(job):
            close(store, attempt, job)
            continue
        alive = True
        if attempt.stopped_for is None:
            store.update_attempt(run, attempt.attempt, stopped_for=why.value)
        jobs.stop(attempt.job_name)
    return alive


def ask_for_report(run: str) -> None:
    """Has the report written and published by the report function, without waiting: no state machine will."""
    payload = json.dumps({"run": run, "notify": True}).encode()
    client("lambda").invoke(FunctionName=environment().report_function, InvocationType="Event", Payload=payload)


def end_with_execution(store: RunStore, record: RunItem, status: str, cause: str | None = None) -> str:
    """Marks the run, then stops its job. In this order Launch, which looks at the mark, can leave no orphan."""
    verdict = Verdict.STOPPED if status == "ABORTED" else Verdict.WORKFLOW_FAILED
    marked = store.end_run(
        record.run,
        status=RunStatus.of(verdict).value,
        verdict=verdict.value,
        cause=cause or f"the execution is {status}",
        ended_at=utc_now().isoformat(),
    )
    alive = abandon(store, record.run, verdict)
    # a run that had ended before and told nobody: its report did not come to its end
    if not alive and (marked or not record.notified):
        ask_for_report(record.run)
    return f"{'marked' if marked else 'ended before'}{', its job is stopping' if alive else ''}"
