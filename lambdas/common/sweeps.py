"""A sweep's documents in the artifacts bucket."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from blackwell.names import SweepPlaces, s3_uri
from blackwell.sweep.expand import SweepPlan
from blackwell.sweep.record import PointRecord
from blackwell.sweep.spec import SweepSpec, parse_sweep_spec
from lambdas.common.aws import client, error_code
from lambdas.common.environment import environment

SPEC, PLAN, FINDINGS = "spec.json", "plan.json", "findings.json"
REPORT, REPORT_PAGE = "report.json", "report.html"
_TYPES = {"json": "application/json", "html": "text/html; charset=utf-8"}


def write(key: str, content: Any) -> str:
    """Writes JSON (or text, for a page) and returns its S3 URI."""
    body = content if isinstance(content, str) else json.dumps(content, allow_nan=False)
    bucket = environment().artifacts_bucket
    client("s3").put_object(Bucket=bucket, Key=key, Body=body.encode(), ContentType=_TYPES[key.rpartition(".")[2]])
    return s3_uri(bucket, key)


def read(key: str) -> Any:
    """A JSON document; None where it does not exist."""
    try:
        answer = client("s3").get_object(Bucket=environment().artifacts_bucket, Key=key)
    except ClientError as error:
        if error_code(error) in ("NoSuchKey", "404", "AccessDenied"):  # AccessDenied: missing, without s3:ListBucket
            return None
        raise
    return json.loads(answer["Body"].read())


def read_spec(sweep: str) -> SweepSpec:
    """The sweep's spec as the user gave it. Raises LookupError where there is none."""
    return parse_sweep_spec(_must(SweepPlaces(sweep).document(SPEC)))


def read_plan(sweep: str) -> SweepPlan:
    """Raises LookupError where the sweep was not planned."""
    return SweepPlan.model_validate(_must(SweepPlaces(sweep).document(PLAN)))


def read_record(sweep: str, point: str, digest: str) -> PointRecord | None:
    """What the point's newest run measured; None where none was, or its job was another one."""
    document = read(SweepPlaces(sweep).record(point))
    record = PointRecord.model_validate(document) if document is not None else None
    return record if record is not None and record.digest == digest else None


def _must(key: str) -> Any:
    document = read(key)
    if document is None:
        raise LookupError(f"there is no {key}")
    return document
