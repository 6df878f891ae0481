"""The steps of a teardown, in their order. A step does what it can now and returns what is left (nothing: done).

Every step may be repeated: what is gone already counts as done. No step touches anything that the targets do not name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from blackwell.names import STAGE_TAG, split_s3_uri
from blackwell.trainer_config import ENV_CONTROL_URI
from lambdas.teardown.targets import Targets

GONE = {
    "NoSuchBucket", "NoSuchBucketPolicy", "NoSuchUpload", "ResourceNotFound", "ResourceNotFoundException",
    "StateMachineDoesNotExist", "ExecutionDoesNotExist", "StateMachineDeleting",
}  # fmt: skip
"""Error codes that mean: it is not there any more."""
GRACE_SECONDS = 300
"""With retained data, how long jobs may take to write a checkpoint before they are stopped."""
QUIET_SECONDS = 30
"""After work was stopped, how long the buckets must stay empty: what was stopped still ends its books (the run's report),
and a bucket policy takes some seconds to be in force everywhere."""
DENY_SID = "TeardownNoMoreWrites"
DELETE_BATCH = 1_000
"""DeleteObjects takes at most this many."""
DELETE_THREADS = 8
ACTIVE = ("InProgress", "Stopping")


@dataclass
class Teardown:
    """What every step works with. `client` makes a boto3 client by service name."""

    targets: Targets
    client: Callable[..., Any]
    begun: float
    busy_at: float | None = None
    """When a step last found something running or newly written; None: never."""
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    poll_seconds: float = 5.0
    _clients: dict[str, Any] = field(default_factory=dict)

    def aws(self, service: str) -> Any:
        """One client per service."""
        if service not in self._clients:
            self._clients[service] = self.client(service)
        return self._clients[service]


Step = Callable[[Teardown, float], list[str]]
"""(teardown, Unix time to be back at) -> what is left."""


def _gone(error: ClientError) -> bool:
    return error.response["Error"]["Code"] in GONE


def _pages(client: Any, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """Items of all pages; none where the parent is gone."""
    try:
        for page in client.get_paginator(operation).paginate(**arguments):
            yield from page.get(key, [])
    except ClientError as error:
        if not _gone(error):
            raise


def stop_executions(t: Teardown, until: float) -> list[str]:
    """Stops every running execution of our state machines; its end also stops its job."""
    states, left = t.aws("stepfunctions"), []
    for machine in t.targets.state_machines:
        for execution in _pages(
            states, "list_executions", "executions", stateMachineArn=machine, statusFilter="RUNNING"
        ):
            try:
                states.stop_execution(
                    executionArn=execution["executionArn"], error="Teardown", cause="the stack is being destroyed"
                )
            except ClientError as error:
                if not _gone(error):
                    raise
            left.append(execution["executionArn"])
            t.busy_at = t.clock()
    return left


def stop_builds(t: Teardown, until: float) -> list[str]:
    """Stops running image builds, which would push into a repository that goes away."""
    builds, left = t.aws("codebuild"), []
    ids = list(
        _pages(builds, "list_builds_for_project", "ids", projectName=t.targets.build_project, sortOrder="DESCENDING")
    )
    for start in range(0, len(ids), 100):  # BatchGetBuilds takes 100
        for build in builds.batch_get_builds(ids=ids[start : start + 100])["builds"]:
            if build["buildStatus"] == "IN_PROGRESS":
                builds.stop_build(id=build["id"])
                left.append(build["id"])
    return left


def _our_jobs(t: Teardown, **which: str) -> Iterator[tuple[str, str]]:
    """(name, status) of the jobs with our prefix and our stage's tag; `which` narrows what ListTrainingJobs lists."""
    sagemaker, prefix = t.aws("sagemaker"), f"{t.targets.job_prefix}-"
    for job in _pages(sagemaker, "list_training_jobs", "TrainingJobSummaries", NameContains=prefix, **which):
        name = job["TrainingJobName"]
        if not name.startswith(prefix):
            continue
        tags = {
            tag["Key"]: tag["Value"]
            for tag in _pages(sagemaker, "list_tags", "Tags", ResourceArn=job["TrainingJobArn"])
        }
        if tags.get(STAGE_TAG) == t.targets.stage:
            yield name, job["TrainingJobStatus"]


def _active_jobs(t: Teardown) -> list[tuple[str, str]]:
    """(name, status) of those of our jobs that run; past jobs, of which there may be thousands, are not asked about."""
    found = [job for status in ACTIVE for job in _our_jobs(t, StatusEquals=status)]
    t.busy_at = t.clock() if found else t.busy_at
    return found


def checkpoint_jobs(t: Teardown, until: float) -> list[str]:
    """Where the data is kept: asks jobs for a last checkpoint through their control file, and waits for their end.

    Before anything is stopped: the end of an execution stops its job by SIGTERM, which leaves 120 s, and a large
    checkpoint takes longer. A run that ends this way is `stopped`, so its workflow starts no other job.
    """
    if not t.targets.retain_data or t.clock() >= t.begun + GRACE_SECONDS:
        return []
    left = _active_jobs(t)
    for name, status in left:
        if status == "InProgress":
            _ask_to_stop(t, name)
    return [name for name, _ in left]


def stop_jobs(t: Teardown, until: float) -> list[str]:
    """Stops our jobs and waits until none runs. SIGTERM gives the trainer 120 s for a last checkpoint."""
    left = _active_jobs(t)
    for name, status in left:
        if status == "InProgress":
            _stop_job(t, name)
    return [name for name, _ in left]


def _stop_job(t: Teardown, name: str) -> None:
    try:
        t.aws("sagemaker").stop_training_job(TrainingJobName=name)
    except ClientError as error:
        # between List and Stop the job may have ended: ValidationException "... is in ... state"
        if not _gone(error) and error.response["Error"]["Code"] != "ValidationException":
            raise


def _ask_to_stop(t: Teardown, name: str) -> None:
    """Writes the run's control file; the same id again changes nothing."""
    job = t.aws("sagemaker").describe_training_job(TrainingJobName=name)
    uri = job.get("Environment", {}).get(ENV_CONTROL_URI)
    if uri is None:  # a job without network reads no control file
        _stop_job(t, name)
        return
    bucket, key = split_s3_uri(uri)
    command = {"id": f"teardown-{t.begun:.0f}", "action": "stop_after_step"}
    t.aws("s3").put_object(Bucket=bucket, Key=key, Body=json.dumps(command).encode())


def delete_jobs(t: Teardown, until: float) -> list[str]:
    """Deletes the records of our jobs; all have ended by now. What was deleted is not listed again."""
    left: list[str] = []
    for name, _ in _our_jobs(t):
        if t.clock() >= until:
            return [*left, "records of past jobs"]
        try:
            t.aws("sagemaker").delete_training_job(TrainingJobName=name)
        except ClientError as error:
            if not _gone(error):
                left.append(f"{name} ({error.response['Error']['Code']})")
    return left


def _buckets(t: Teardown) -> list[str]:
    return [] if t.targets.retain_data else [t.targets.artifacts_bucket, t.targets.checkpoint_bucket]


def deny_writes(t: Teardown, until: float) -> list[str]:
    """Denies new objects, so that emptying the buckets ends; only after the jobs ended, which wrote their checkpoints."""
    s3 = t.aws("s3")
    for bucket in _buckets(t):
        try:
            policy = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchBucket":
                continue
            if not _gone(error):
                raise
            policy = {"Version": "2012-10-17", "Statement": []}
        others = [s for s in policy["Statement"] if s.get("Sid") != DENY_SID]
        deny = {
            "Sid": DENY_SID,
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:PutObject",
            "Resource": f"arn:{t.targets.partition}:s3:::{bucket}/*",
        }
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({**policy, "Statement": [*others, deny]}))
    return []


def empty_buckets(t: Teardown, until: float) -> list[str]:
    """Deletes all versions, delete markers and unfinished uploads."""
    return [left for bucket in _buckets(t) for left in _empty_bucket(t, bucket, until)]


def stay_empty(t: Teardown, until: float) -> list[str]:
    """Empties again whatever was on its way, until nothing came for a while; at once where nothing had been running."""
    if t.busy_at is None or not _buckets(t):
        return []
    for bucket in _buckets(t):
        if _first_object(t, bucket) is not None:
            t.busy_at = t.clock()
    left = empty_buckets(t, until)
    quiet = t.clock() - t.busy_at
    return left or ([f"writes on their way (none for {quiet:.0f} s)"] if quiet < QUIET_SECONDS else [])


def _first_object(t: Teardown, bucket: str) -> str | None:
    try:
        page = t.aws("s3").list_object_versions(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        if _gone(error):
            return None
        raise
    found = (*page.get("Versions", []), *page.get("DeleteMarkers", []))
    return found[0]["Key"] if found else None


def _empty_bucket(t: Teardown, bucket: str, until: float) -> list[str]:
    s3 = t.aws("s3")
    for upload in _pages(s3, "list_multipart_uploads", "Uploads", Bucket=bucket):
        try:
            s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except ClientError as error:
            if not _gone(error):
                raise
    failed: list[str] = []
    with ThreadPoolExecutor(DELETE_THREADS) as pool:
        while True:
            try:
                page = s3.list_object_versions(Bucket=bucket, MaxKeys=DELETE_BATCH)
            except ClientError as error:
                if _gone(error):
                    return []
                raise
            batches = [page]
            while page.get("IsTruncated") and len(batches) < DELETE_THREADS:
                page = s3.list_object_versions(
                    Bucket=bucket, MaxKeys=DELETE_BATCH,
                    KeyMarker=page["NextKeyMarker"], VersionIdMarker=page.get("NextVersionIdMarker", "null"),
                )  # fmt: skip
                batches.append(page)
            doomed = [
                [
                    {"Key": v["Key"], "VersionId": v["VersionId"]}
                    for v in (*b.get("Versions", []), *b.get("DeleteMarkers", []))
                ]
                for b in batches
            ]
            doomed = [batch for batch in doomed if batch]
            if not doomed:
                return []
            failed = [
                f for answer in pool.map(lambda batch: _delete_objects(s3, bucket, batch), doomed) for f in answer
            ]
            if failed or t.clock() >= until:
                return failed or [f"objects in {bucket}"]


def _delete_objects(s3: Any, bucket: str, batch: list[dict[str, str]]) -> list[str]:
    """What could not be deleted, with the reason: DeleteObjects reports errors per key and does not raise."""
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
    return [f"s3://{bucket}/{e.get('Key')} ({e.get('Code')})" for e in answer.get("Errors", [])]


def delete_log_streams(t: Teardown, until: float) -> list[str]:
    """Our jobs' streams in the account's shared group, and groups that a late log line of ours brought into being."""
    logs = t.aws("logs")
    group, prefix = t.targets.training_log_group, f"{t.targets.job_prefix}-"
    for stream in _pages(logs, "describe_log_streams", "logStreams", logGroupName=group, logStreamNamePrefix=prefix):
        _ignore_gone(logs.delete_log_stream, logGroupName=group, logStreamName=stream["logStreamName"])
        if t.clock() >= until:
            return [f"log streams {prefix}* in {group}"]
    for name in t.targets.log_groups:
        _ignore_gone(logs.delete_log_group, logGroupName=name)
    return []


def wait_for_interfaces(t: Teardown, until: float) -> list[str]:
    """Waits until SageMaker took its network interfaces away; until then neither subnet nor security group can go."""
    if not t.targets.security_group:
        return []
    found = _pages(
        t.aws("ec2"), "describe_network_interfaces", "NetworkInterfaces",
        Filters=[{"Name": "group-id", "Values": [t.targets.security_group]}],
    )  # fmt: skip
    return [f"network interface {interface['NetworkInterfaceId']}" for interface in found]


def _ignore_gone(call: Callable[..., Any], **arguments: Any) -> None:
    try:
        call(**arguments)
    except ClientError as error:
        if not _gone(error):
            raise


STEPS: tuple[Step, ...] = (
    checkpoint_jobs, stop_executions, stop_builds, stop_jobs, delete_jobs, deny_writes, empty_buckets,
    # once more: whatever was started meanwhile
    stop_executions, stop_jobs, delete_jobs, wait_for_interfaces, delete_log_streams, stay_empty,
)  # fmt: skip
