"""What completed runs measured, kept in the run table by instance type: it corrects the predictions of later plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from blackwell.planning import MeasuredRun
from blackwell.planning.runs import measured_run
from blackwell.runs import decode, encode, key
from lambdas.common.aws import client
from lambdas.common.environment import environment

MEASURED_PREFIX = "measured#"  # `#` is in no run id
NEWEST = 20
"""Runs of an instance type that a plan looks at."""


def remember(
    plan: Mapping[str, Any] | None, report: Mapping[str, Any], at: datetime, image: str | None = None
) -> MeasuredRun | None:
    """Keeps what a completed run measured; None where its documents do not say enough."""
    run = measured_run(plan or {}, report, image)
    if run is None:
        return None
    values = run.model_dump(mode="json", exclude_none=True)
    names = {f"#f{i}": name for i, name in enumerate(values)}
    client("dynamodb").update_item(
        TableName=environment().run_table,
        Key=key(f"{MEASURED_PREFIX}{run.instance_type}", int(at.timestamp())),
        UpdateExpression="SET " + ", ".join(f"{n} = :f{i}" for i, n in enumerate(names)),
        ExpressionAttributeNames=names,
        ExpressionAttributeValues=encode({f":f{i}": value for i, value in enumerate(values.values())}),
    )
    return run


def recall(instance_types: Iterable[str]) -> list[MeasuredRun]:
    """The newest measured runs of these instance types."""
    found: list[MeasuredRun] = []
    for instance_type in dict.fromkeys(instance_types):
        answer = client("dynamodb").query(
            TableName=environment().run_table,
            KeyConditionExpression="#run = :run",
            ExpressionAttributeNames={"#run": "run"},
            ExpressionAttributeValues=encode({":run": f"{MEASURED_PREFIX}{instance_type}"}),
            ScanIndexForward=False,
            Limit=NEWEST,
        )
        for item in answer["Items"]:
            values = decode(item)
            found.append(MeasuredRun.model_validate({k: v for k, v in values.items() if k in MeasuredRun.model_fields}))
    return found
