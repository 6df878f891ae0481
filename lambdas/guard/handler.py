"""Guard: every few minutes, for every run: what an event should have done, and what nobody else watches.

Reconciles lost events, runs without a living execution and jobs that outlived their run; watches budget, silence and
the age of the newest durable checkpoint. It asks the trainer first, through the run's control file, and stops the job
once its checkpoint is durable, or after a limit: SageMaker's 120 s are too short for a large checkpoint.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.verdict import Verdict
from lambdas.common import documents, jobs
from lambdas.common.aws import client, error_code
from lambdas.common.log import logger
from lambdas.common.settle import abandon, end_with_execution, ended, settle
from lambdas.common.store import RunStore
from lambdas.guard.watch import watch

log = logger("guard")

_SERVICES: tuple[Any, ...] = ("s3", "sagemaker", "stepfunctions", "logs", "lambda")
AT_ONCE = 8
"""Runs looked after side by side; each costs a handful of calls that wait for AWS."""


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    store = RunStore()
    runs = list(store.unfinished())
    for service in _SERVICES:  # clients are safe to share between threads, making them is not
        client(service)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a round must be over before the next one, with a sweep's runs, too
        results = dict(zip(runs, pool.map(lambda run: _look_safely(store, run), runs), strict=True))
    log.info("guarded", extra={"results": results})
    return {"runs": len(results), "results": results}


def _look_safely(store: RunStore, run: str) -> str:
    """One run's trouble must not hide the others."""
    try:
        return _look(store, run)
    except Exception as error:
        log.exception("the guard could not look after this run", extra={"run": run})
        return f"{type(error).__name__}: {error}"


def _look(store: RunStore, run: str) -> str:
    record = store.run(run)
    if record is None:
        return "gone"
    if record.status is RunStatus.RUNNING:
        status = _execution_status(record)
        if status != "RUNNING":
            return f"execution {status}: {end_with_execution(store, record, status)}"
    attempts = [a for a in store.attempts(run) if a.status is AttemptStatus.LAUNCHED]
    return "; ".join(_look_at_job(store, record, attempt) for attempt in attempts) or "no job"


def _look_at_job(store: RunStore, record: RunItem, attempt: AttemptItem) -> str:
    job = jobs.describe(attempt.job_name)
    if job is None:
        return "the job is gone"
    if ended(job):
        return settle(store, record, attempt, job)
    if record.status is not RunStatus.RUNNING:
        abandon(store, record.run, record.verdict or Verdict.STOPPED)
        return "stopped a job that outlived its run"
    return watch(store, attempt, job, documents.read_spec(record.run))


def _execution_status(record: RunItem) -> str:
    try:
        return str(client("stepfunctions").describe_execution(executionArn=record.execution_arn)["status"])
    except ClientError as error:
        if error_code(error) == "ExecutionDoesNotExist":
            return "GONE"
        raise
