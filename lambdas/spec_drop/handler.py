"""spec_drop: a job spec was put under jobs/ in the artifacts bucket; starts its run.

The run's name comes from the object's key and version, so an event that comes twice starts nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import PurePosixPath
from typing import Any

from botocore.exceptions import ClientError
from pydantic import BaseModel, ConfigDict, Field

from blackwell.findings import FindingsError
from blackwell.spec import parse_json
from lambdas.common.aws import client, error_code
from lambdas.common.environment import environment
from lambdas.common.log import about, logger

log = logger("spec_drop")

NAME_MAX = 60
INPUT_MAX = 200_000
"""Bytes: StartExecution takes 262,144, and the spec travels inside a state's payload too."""


class S3Object(BaseModel):
    """The object of an `Object Created` event."""

    model_config = ConfigDict(extra="ignore")

    key: str
    etag: str = ""
    version_id: str | None = Field(default=None, alias="version-id")
    sequencer: str = ""


def handler(event: dict[str, Any], context: object) -> dict[str, str]:
    dropped = S3Object.model_validate(event["detail"]["object"])
    if dropped.key.endswith("/"):  # how the console makes a folder
        return {"run": "", "result": "a folder, no spec"}
    run = run_name(dropped)
    about(log, run)
    version: dict[str, Any] = {"VersionId": dropped.version_id} if dropped.version_id else {}
    body = client("s3").get_object(Bucket=environment().artifacts_bucket, Key=dropped.key, **version)["Body"]
    text = body.read(INPUT_MAX + 1).decode("utf-8-sig", "replace")
    try:
        client("stepfunctions").start_execution(
            stateMachineArn=environment().state_machine_arn, name=run, input=execution_input(text)
        )
    except ClientError as error:
        if error_code(error) != "ExecutionAlreadyExists":
            raise
        return {"run": run, "result": "started before"}
    log.info("started", extra={"key": dropped.key})
    return {"run": run, "result": "started"}


def run_name(dropped: S3Object) -> str:
    """`<file name>-<hash of key and version>`: legal for a run, another one for each version of the object."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", PurePosixPath(dropped.key).stem).strip("-_") or "job"
    identity = f"{dropped.key}\n{dropped.version_id or dropped.sequencer or dropped.etag}"
    return f"{stem[:NAME_MAX]}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def execution_input(text: str) -> str:
    """The spec itself; text that StartExecution would refuse, or bend, travels as a JSON string: Plan then says why."""
    if len(text.encode()) > INPUT_MAX:
        return json.dumps(text[:1_000])
    try:
        parse_json(text)
    except FindingsError:
        return json.dumps(text)
    return text
