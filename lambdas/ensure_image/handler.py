"""EnsureImage: the image of this content is in the repository, or exactly one build makes it.

Called again and again by the state machine until the image is there. Executions that need the same image wait for the
same build: the lock in the run table says which. A dead holder's lease runs out, and StartBuild's idempotency token,
made of tag and generation, gives whoever takes over the very build that the dead one may have started.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError
from pydantic import BaseModel

from blackwell.remedy import utc_now
from blackwell.runs import BuildLock
from lambdas.common.aws import client, error_code
from lambdas.common.environment import environment
from lambdas.common.errors import ImageFailed
from lambdas.common.log import about, logger
from lambdas.common.store import RunStore

log = logger("ensure_image")

LEASE = timedelta(seconds=60)
"""Longer than a holder needs from the lock to StartBuild's answer."""
POLL_SECONDS = (5, 120)
"""Between looks at a build: an eighth of its age, within these bounds, so that hours of building stay few events."""


_COMPLAINT = re.compile(r"^(?!\[Container\]).*(\berror\b|: failed\b|denied|refused)", re.IGNORECASE)


class ImageEvent(BaseModel):
    """`build_id` is the build that this execution saw before, if any."""

    run: str
    build_id: str | None = None


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = ImageEvent.model_validate(event)
    about(log, request.run)
    store, tag = RunStore(), environment().image_tag
    image = find_image(tag)
    if image is not None:
        store.update_run(request.run, image=image)
        return {"ready": True, "image": image, "build_id": request.build_id}
    build_id = _build(store, tag, request.build_id)
    log.info("waiting for a build", extra={"build_id": build_id, "tag": tag})
    return {"ready": False, "build_id": build_id, "wait_seconds": _wait(build_id)}


def _wait(build_id: str | None) -> int:
    builds = client("codebuild").batch_get_builds(ids=[build_id])["builds"] if build_id else []
    begun = builds[0].get("startTime") if builds else None
    age = (utc_now() - begun).total_seconds() if begun else 0.0
    return int(min(max(age / 8, POLL_SECONDS[0]), POLL_SECONDS[1]))


def find_image(tag: str) -> str | None:
    """repository@digest of the image with this tag; None where there is none."""
    try:
        details = client("ecr").describe_images(
            repositoryName=environment().repository_name, imageIds=[{"imageTag": tag}]
        )["imageDetails"]
    except ClientError as error:
        if error_code(error) == "ImageNotFoundException":
            return None
        raise
    return f"{environment().repository_uri}@{details[0]['imageDigest']}" if details else None


def _build(store: RunStore, tag: str, seen_build: str | None) -> str | None:
    """The build to wait for; None while another execution is just about to start it."""
    lock = store.build_lock(tag)
    if lock is None:
        return _start(store, tag, generation=1, seen=None)
    if lock.build_id is None:
        expired = datetime.fromisoformat(lock.lease_until) < utc_now()
        return _start(store, tag, generation=lock.generation, seen=lock) if expired else None
    return _follow(store, tag, lock, lock.build_id, seen_build)


def _follow(store: RunStore, tag: str, lock: BuildLock, build_id: str, seen_build: str | None) -> str | None:
    builds = client("codebuild").batch_get_builds(ids=[build_id])["builds"]
    status = str(builds[0]["buildStatus"]) if builds else "NOT_FOUND"
    if status == "IN_PROGRESS":
        return build_id
    if seen_build == build_id:  # the build that this execution waited for has ended
        image = find_image(tag)
        if image is None:
            raise ImageFailed(_why(build_id, status, builds[0] if builds else {}))
        return build_id
    return _start(store, tag, generation=lock.generation + 1, seen=lock)  # an earlier execution's build, long over


def _start(store: RunStore, tag: str, *, generation: int, seen: BuildLock | None) -> str | None:
    lease_until = (utc_now() + LEASE).isoformat()
    if not store.take_build_lock(tag, generation=generation, lease_until=lease_until, seen=seen):
        return None
    build = client("codebuild").start_build(
        projectName=environment().build_project, idempotencyToken=f"{tag[:50]}-{generation}"
    )["build"]
    store.set_build(tag, generation, str(build["id"]))
    log.info("started a build", extra={"build_id": build["id"], "tag": tag})
    return str(build["id"])


def _why(build_id: str, status: str, build: Any) -> str:
    messages = [
        f"{phase.get('phaseType')}: {context.get('message')}"
        for phase in build.get("phases", [])
        if phase.get("phaseStatus") not in (None, "SUCCEEDED")
        for context in phase.get("contexts", [])
        if context.get("message")
    ]
    logs = build.get("logs", {})
    said = _last_complaint(logs) or "; ".join(messages) or "no phase says why"
    return f"build {build_id} is {status}: {said[:600]}; log group {logs.get('groupName')}"


def _last_complaint(logs: Any) -> str | None:
    """The last line of the build's log that speaks of a failure: the self-test's, for instance."""
    group, stream = logs.get("groupName"), logs.get("streamName")
    if not group or not stream:
        return None
    try:
        events = client("logs").get_log_events(
            logGroupName=group, logStreamName=stream, limit=100, startFromHead=False
        )["events"]
    except ClientError:
        return None
    found = [e["message"].strip() for e in events if _COMPLAINT.search(e["message"])]
    return found[-1] if found else None
