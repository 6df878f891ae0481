"""The run's control file: a JSON object in S3 that asks a running job for something, once per id.

    {"id": "<unique>", "action": "checkpoint_now" | "stop_after_step" | "profile" | "stacks", "step": 120}

Rank 0 reads it on a thread, so that a slow S3 never costs a step; the loop takes what has come and shares it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from blackwell.names import split_s3_uri

POLL_SECONDS = 10.0
ENV_POLL_SECONDS = "BLACKWELL_CONTROL_POLL_SECONDS"
"""Seconds between two readings, where POLL_SECONDS is too slow or too often."""


class Action(IntEnum):
    """What can be asked for; numbers, because they travel in the step's all-reduce."""

    NONE = 0
    CHECKPOINT_NOW = 1
    STOP_AFTER_STEP = 2
    PROFILE = 3
    STACKS = 4


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    action: Action
    step: int = 0
    """For STOP_AFTER_STEP: the last step to take; 0 stops after the running one."""


def parse(text: str) -> Request | None:
    """The request in a control file; None for anything else, which is ignored rather than fatal."""
    try:
        document: Any = json.loads(text)
        action = Action[str(document["action"]).upper()]
        return Request(str(document["id"]), action, int(document.get("step") or 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def reader(uri: str) -> Callable[[], str | None]:
    """A function that reads the control file; it gives None where there is none. Takes s3:// and file:// URIs."""
    if uri.startswith("file://"):
        path = Path(unquote(urlparse(uri).path))
        return lambda: path.read_text() if path.is_file() else None
    import boto3
    from botocore.exceptions import ClientError

    bucket, key = split_s3_uri(uri)
    client = boto3.client("s3")

    def read() -> str | None:
        try:
            body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404", "NoSuchBucket"):
                return None
            raise
        return body.decode()

    return read


class ControlFile:
    """Polls the control file in the background; `take` gives each request once."""

    def __init__(
        self, read: Callable[[], str | None], note: Callable[[str], None], seconds: float = POLL_SECONDS
    ) -> None:
        self._read, self._note, self._seconds = read, note, seconds
        self._seen: str | None = None
        self._pending: Request | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._failed = False

    def start(self) -> None:
        """Requests that were there before this start are old: they are remembered, not obeyed.

        A job that restarts would otherwise stop again because of the request that stopped it.
        """
        self.poll()
        with self._lock:
            self._pending = None
        threading.Thread(target=self._loop, name="control-file", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def poll(self) -> None:
        """Reads the file once. A failing read is reported once and never stops the training."""
        try:
            text = self._read()
        except Exception as error:
            if not self._failed:
                self._note(f"the control file cannot be read: {type(error).__name__}: {error}")
            self._failed = True
            return
        self._failed = False
        request = parse(text) if text else None
        if request is not None and request.id != self._seen:
            with self._lock:
                self._seen, self._pending = request.id, request

    def take(self) -> Request | None:
        """The newest request that was not taken yet."""
        with self._lock:
            request, self._pending = self._pending, None
        return request

    def _loop(self) -> None:
        while not self._closed.wait(self._seconds):
            self.poll()
