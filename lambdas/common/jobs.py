"""Training jobs: describe, stop, whose they are, and what they logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from blackwell.names import ATTEMPT_TAG, RUN_TAG
from blackwell.telemetry import TRAINING_LOG_GROUP
from lambdas.common.aws import client, error_code, error_message

LogLine = tuple[int, str]
"""(milliseconds since 1970, text)."""


def describe(job_name: str) -> dict[str, Any] | None:
    """DescribeTrainingJob's answer; None where there is no such job."""
    try:
        return dict(client("sagemaker").describe_training_job(TrainingJobName=job_name))
    except ClientError as error:
        if error_code(error) == "ResourceNotFound" or "not found" in error_message(error).lower():
            return None
        raise


def stop(job_name: str) -> bool:
    """Asks SageMaker to stop the job (SIGTERM, 120 s, SIGKILL); False where it has ended or never was."""
    try:
        client("sagemaker").stop_training_job(TrainingJobName=job_name)
    except ClientError as error:
        if error_code(error) in ("ResourceNotFound", "ValidationException"):  # a job that has ended cannot be stopped
            return False
        raise
    return True


def owner(tags: Sequence[Mapping[str, Any]]) -> tuple[str, int] | None:
    """(run, attempt) of a job from its tags; None for a job that is not ours. Events write keys in lower case too."""
    values = {str(t.get("Key", t.get("key"))): str(t.get("Value", t.get("value"))) for t in tags}
    run, attempt = values.get(RUN_TAG), values.get(ATTEMPT_TAG, "")
    return (run, int(attempt)) if run and attempt.isdigit() else None


def tags(job_arn: str) -> list[Any]:
    pages = client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=job_arn)
    return [tag for page in pages for tag in page["Tags"]]


def streams(job_name: str) -> list[str]:
    """The job's log streams, first instance first."""
    try:
        pages = (
            client("logs")
            .get_paginator("describe_log_streams")
            .paginate(logGroupName=TRAINING_LOG_GROUP, logStreamNamePrefix=f"{job_name}/")
        )
        return sorted(stream["logStreamName"] for page in pages for stream in page["logStreams"])
    except ClientError as error:
        if error_code(error) == "ResourceNotFoundException":  # no job has logged yet
            return []
        raise


def lines(job_name: str) -> Iterator[LogLine]:
    """Everything the job logged, stream by stream, each in its order."""
    for stream in streams(job_name):
        token: str | None = None
        while True:
            more: dict[str, Any] = {"nextToken": token} if token else {}
            page = client("logs").get_log_events(
                logGroupName=TRAINING_LOG_GROUP, logStreamName=stream, startFromHead=True, **more
            )
            for event in page["events"]:
                yield event.get("timestamp", 0), event.get("message", "")
            following = page.get("nextForwardToken")
            if following is None or following == token:  # the end answers with the token that was sent
                break
            token = following


def tail(job_name: str, limit: int = 200) -> list[LogLine]:
    """The last lines of each of the job's streams."""
    found: list[LogLine] = []
    for stream in streams(job_name):
        page = client("logs").get_log_events(
            logGroupName=TRAINING_LOG_GROUP, logStreamName=stream, startFromHead=False, limit=limit
        )
        found += [(event.get("timestamp", 0), event.get("message", "")) for event in page["events"]]
    return sorted(found)
