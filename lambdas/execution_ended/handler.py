"""execution_ended: an execution was aborted, timed out or failed; its run ends and its job is stopped with it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lambdas.common.log import about, logger
from lambdas.common.settle import end_with_execution
from lambdas.common.store import RunStore

log = logger("execution_ended")


class Detail(BaseModel):
    """The part of the event's detail that is used."""

    model_config = ConfigDict(extra="ignore")

    execution_arn: str = Field(alias="executionArn")
    name: str
    status: str
    cause: str | None = None


def handler(event: dict[str, Any], context: object) -> dict[str, str]:
    detail = Detail.model_validate(event["detail"])
    about(log, detail.name)
    store = RunStore()
    record = store.run(detail.name)
    if record is None or record.execution_arn != detail.execution_arn:
        return {"result": "no such run"}
    result = end_with_execution(store, record, detail.status, detail.cause)
    log.info(result, extra={"status": detail.status})
    return {"result": result}
