"""A run's documents in the artifacts bucket."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from blackwell.names import RunPlaces
from blackwell.spec import JobSpec, parse_job_spec
from lambdas.common.aws import client, error_code
from lambdas.common.environment import environment

SPEC, PLAN, FINDINGS = "spec.json", "plan.json", "findings.json"
REPORT, REPORT_PAGE = "report.json", "report.html"
_TYPES = {"json": "application/json", "html": "text/html; charset=utf-8"}


def write(run: str, name: str, content: Any) -> str:
    """Writes JSON (or text, for a page) and returns its S3 URI."""
    body = content if isinstance(content, str) else json.dumps(content, indent=2, allow_nan=False)
    client("s3").put_object(
        Bucket=environment().artifacts_bucket,
        Key=RunPlaces(run).document(name),
        Body=body.encode(),
        ContentType=_TYPES[name.rpartition(".")[2]],
    )
    return environment().document_uri(run, name)


def read(run: str, name: str) -> Any:
    """A JSON document; None where it does not exist."""
    try:
        answer = client("s3").get_object(Bucket=environment().artifacts_bucket, Key=RunPlaces(run).document(name))
    except ClientError as error:
        if error_code(error) in ("NoSuchKey", "404", "AccessDenied"):  # AccessDenied: missing, without s3:ListBucket
            return None
        raise
    return json.loads(answer["Body"].read())


def read_spec(run: str) -> JobSpec:
    """The run's spec as the user gave it. Raises LookupError where the run has none."""
    document = read(run, SPEC)
    if document is None:
        raise LookupError(f"run {run!r} has no spec")
    return parse_job_spec(document)
