"""JobEvent: a training job of ours changed its state; wakes whoever waits for its end.

Events may come twice, late, in any order, or not at all (then the guard does this): only what DescribeTrainingJob
says now counts.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lambdas.common import jobs
from lambdas.common.log import about, logger
from lambdas.common.settle import settle
from lambdas.common.store import RunStore

log = logger("job_event")


class Detail(BaseModel):
    """The part of the event's detail that is used."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(alias="TrainingJobName")
    arn: str = Field(alias="TrainingJobArn")


def handler(event: dict[str, Any], context: object) -> dict[str, str]:
    detail = Detail.model_validate(event["detail"])
    job = jobs.describe(detail.name)
    owner = jobs.owner(jobs.tags(detail.arn)) if job is not None else None
    if job is None or owner is None:
        return {"result": "not a job of a run"}
    run, attempt = owner
    about(log, run, attempt)
    store = RunStore()
    record = store.run(run)
    if record is None:
        return {"result": "unknown run"}
    result = settle(store, record, store.attempt(run, attempt), job)
    log.info(result, extra={"status": job["TrainingJobStatus"], "secondary": job.get("SecondaryStatus")})
    return {"result": result}
