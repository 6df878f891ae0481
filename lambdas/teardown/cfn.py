"""Answers to CloudFormation for custom resources of ours: always sent, once, also when the work fails."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

REASON_MAX = 1_000
"""CloudFormation refuses an answer over 4 KiB; the reason is the only part of ours that can grow."""


def answer(
    event: Mapping[str, Any], *, ok: bool, physical_id: str, reason: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """PUTs the result to the event's pre-signed ResponseURL.

    Raises:
        OSError: when the URL can't be reached.
    """
    body = json.dumps(
        {
            "Status": "SUCCESS" if ok else "FAILED",
            "Reason": reason[:REASON_MAX],
            "PhysicalResourceId": physical_id,
            "StackId": event["StackId"],
            "RequestId": event["RequestId"],
            "LogicalResourceId": event["LogicalResourceId"],
            "Data": dict(data or {}),
        }
    ).encode()
    # no content type: the URL was signed with an empty one
    request = urllib.request.Request(event["ResponseURL"], data=body, method="PUT", headers={"content-type": ""})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310  CloudFormation's own https URL
        pass


@contextlib.contextmanager
def answering(event: Mapping[str, Any], *, physical_id: str) -> Iterator[None]:
    """Answers SUCCESS when the block ends, FAILED with the error when it raises; the error is not raised further."""
    try:
        yield
    except Exception as error:
        answer(event, ok=False, physical_id=physical_id, reason=f"{type(error).__name__}: {error}")
    else:
        answer(event, ok=True, physical_id=physical_id)
