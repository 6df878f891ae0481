"""Small stand-ins for AWS clients, for what a teardown calls: enough state to show what was done, and in which order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError


def refused(code: str, operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, operation)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.after_sleep: list[Any] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for action in self.after_sleep:
            action(self.now)


class Paged:
    """A paginator over the answers of one method."""

    def __init__(self, pages: Any) -> None:
        self._pages = pages

    def paginate(self, **arguments: Any) -> Iterator[dict[str, Any]]:
        yield from self._pages(**arguments)


@dataclass
class FakeSageMaker:
    """Jobs by name: {status, tags, environment}; `calls` in order."""

    jobs: dict[str, dict[str, Any]]
    calls: list[str] = field(default_factory=list)
    tags_read: int = 0

    def get_paginator(self, operation: str) -> Paged:
        return Paged({"list_training_jobs": self._list, "list_tags": self._tags}[operation])

    def _list(self, NameContains: str, StatusEquals: str | None = None) -> Iterator[dict[str, Any]]:
        names = [n for n in self.jobs if NameContains in n and StatusEquals in (None, self.jobs[n]["status"])]
        for start in range(0, len(names), 2):  # small pages, to see that all are read
            yield {
                "TrainingJobSummaries": [
                    {"TrainingJobName": n, "TrainingJobArn": f"arn:{n}", "TrainingJobStatus": self.jobs[n]["status"]}
                    for n in names[start : start + 2]
                ]
            }

    def _tags(self, ResourceArn: str) -> Iterator[dict[str, Any]]:
        self.tags_read += 1
        tags = self.jobs[ResourceArn.removeprefix("arn:")]["tags"]
        yield {"Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        return {"Environment": self.jobs[TrainingJobName].get("environment", {})}

    def stop_training_job(self, TrainingJobName: str) -> None:
        self.calls.append(f"stop {TrainingJobName}")
        if self.jobs[TrainingJobName]["status"] not in ("InProgress", "Stopping"):
            raise refused("ValidationException")
        self.jobs[TrainingJobName]["status"] = "Stopping"

    def delete_training_job(self, TrainingJobName: str) -> None:
        self.calls.append(f"delete {TrainingJobName}")
        if self.jobs[TrainingJobName]["status"] in ("InProgress", "Stopping"):
            raise refused("ValidationException")
        del self.jobs[TrainingJobName]


@dataclass
class FakeNetwork:
    """Network interfaces by security group."""

    interfaces: dict[str, list[str]] = field(default_factory=dict)

    def get_paginator(self, operation: str) -> Paged:
        assert operation == "describe_network_interfaces"
        return Paged(self._list)

    def _list(self, Filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        (wanted,) = Filters
        assert wanted["Name"] == "group-id"
        for group in wanted["Values"]:
            yield {"NetworkInterfaces": [{"NetworkInterfaceId": name} for name in self.interfaces.get(group, [])]}


@dataclass
class FakeS3:
    """Versions and uploads of buckets; DeleteObjects refuses the keys in `locked`."""

    versions: dict[str, list[tuple[str, str]]]
    markers: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    uploads: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    puts: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _there(self, bucket: str) -> None:
        if bucket not in self.versions:
            raise refused("NoSuchBucket")

    def get_bucket_policy(self, Bucket: str) -> dict[str, str]:
        self._there(Bucket)
        if Bucket not in self.policies:
            raise refused("NoSuchBucketPolicy")
        return {"Policy": json.dumps(self.policies[Bucket])}

    def put_bucket_policy(self, Bucket: str, Policy: str) -> None:
        self._there(Bucket)
        self.policies[Bucket] = json.loads(Policy)

    def put_object(self, Bucket: str, Key: str, Body: bytes) -> None:
        self.puts.append((Bucket, Key, json.loads(Body)))

    def get_paginator(self, operation: str) -> Paged:
        assert operation == "list_multipart_uploads"

        def pages(Bucket: str) -> Iterator[dict[str, Any]]:
            self._there(Bucket)
            yield {"Uploads": [{"Key": k, "UploadId": u} for k, u in self.uploads.get(Bucket, [])]}

        return Paged(pages)

    def abort_multipart_upload(self, Bucket: str, Key: str, UploadId: str) -> None:
        self.uploads[Bucket].remove((Key, UploadId))

    def list_object_versions(
        self, Bucket: str, MaxKeys: int, KeyMarker: str = "", VersionIdMarker: str = ""
    ) -> dict[str, Any]:
        self._there(Bucket)
        self.calls += 1
        kinds = [(*v, "Versions") for v in self.versions[Bucket]] + [
            (*m, "DeleteMarkers") for m in self.markers.get(Bucket, [])
        ]
        rows = sorted(kinds)
        if KeyMarker:
            rows = [r for r in rows if (r[0], r[1]) > (KeyMarker, VersionIdMarker)]
        page, rest = rows[:MaxKeys], rows[MaxKeys:]
        answer: dict[str, Any] = {"Versions": [], "DeleteMarkers": [], "IsTruncated": bool(rest)}
        for key, version, kind in page:
            answer[kind].append({"Key": key, "VersionId": version})
        if rest:
            answer["NextKeyMarker"], answer["NextVersionIdMarker"] = page[-1][0], page[-1][1]
        return answer

    def delete_objects(self, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        assert len(Delete["Objects"]) <= 1_000
        doomed = {(o["Key"], o["VersionId"]) for o in Delete["Objects"] if o["Key"] not in self.locked}
        with self.lock:
            self.calls += 1
            self.versions[Bucket] = [v for v in self.versions[Bucket] if v not in doomed]
            self.markers[Bucket] = [m for m in self.markers.get(Bucket, []) if m not in doomed]
        return {
            "Errors": [{"Key": o["Key"], "Code": "AccessDenied"} for o in Delete["Objects"] if o["Key"] in self.locked]
        }


@dataclass
class FakeStates:
    """Running executions by state machine."""

    running: dict[str, list[str]]
    stopped: list[str] = field(default_factory=list)

    def get_paginator(self, _: str) -> Paged:
        def pages(stateMachineArn: str, statusFilter: str) -> Iterator[dict[str, Any]]:
            if stateMachineArn not in self.running:
                raise refused("StateMachineDoesNotExist")
            yield {"executions": [{"executionArn": e} for e in self.running[stateMachineArn]]}

        return Paged(pages)

    def stop_execution(self, executionArn: str, error: str, cause: str) -> None:
        self.stopped.append(executionArn)
        for executions in self.running.values():
            if executionArn in executions:
                executions.remove(executionArn)


@dataclass
class FakeBuilds:
    """Builds of the project by id."""

    builds: dict[str, str]

    def get_paginator(self, _: str) -> Paged:
        return Paged(lambda projectName, sortOrder: iter([{"ids": list(self.builds)}]))

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        return {"builds": [{"id": i, "buildStatus": self.builds[i]} for i in ids]}

    def stop_build(self, id: str) -> None:  # noqa: A002
        self.builds[id] = "STOPPED"


@dataclass
class FakeLogs:
    """Streams by group."""

    groups: dict[str, list[str]]

    def get_paginator(self, _: str) -> Paged:
        def pages(logGroupName: str, logStreamNamePrefix: str) -> Iterator[dict[str, Any]]:
            if logGroupName not in self.groups:
                raise refused("ResourceNotFoundException")
            yield {
                "logStreams": [
                    {"logStreamName": s} for s in list(self.groups[logGroupName]) if s.startswith(logStreamNamePrefix)
                ]
            }

        return Paged(pages)

    def delete_log_stream(self, logGroupName: str, logStreamName: str) -> None:
        self.groups[logGroupName].remove(logStreamName)

    def delete_log_group(self, logGroupName: str) -> None:
        if self.groups.pop(logGroupName, None) is None:
            raise refused("ResourceNotFoundException")
