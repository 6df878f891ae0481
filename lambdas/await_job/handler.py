"""AwaitJob: registers the state's task token, THEN looks at the job, and answers itself where the job has ended.

In this order no end can fall between: either the event finds the token, or this look finds the end.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from lambdas.common import jobs
from lambdas.common.errors import LaunchRefused
from lambdas.common.log import about, logger
from lambdas.common.settle import answer, ended
from lambdas.common.store import RunStore

log = logger("await_job")


class AwaitEvent(BaseModel):
    """`entered_at` orders the tokens: the state machine enters the state again every few hours."""

    run: str
    attempt: int
    task_token: str
    entered_at: str


def handler(event: dict[str, Any], context: object) -> None:
    request = AwaitEvent.model_validate(event)
    about(log, request.run, request.attempt)
    store = RunStore()
    item = store.attempt(request.run, request.attempt)
    if not store.register_token(request.run, request.attempt, request.task_token, request.entered_at):
        log.info("a later state waits already")
        return
    job = jobs.describe(item.job_name)
    if job is None:
        raise LaunchRefused(f"there is no training job {item.job_name}")
    if ended(job):
        answer(request.task_token, job)
        log.info("the job had ended", extra={"status": job["TrainingJobStatus"]})
