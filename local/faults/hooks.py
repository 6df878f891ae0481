"""Where faults reach into the server: API calls before and after their effect, events, and functions' processes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import psutil
from ministack.services import eventbridge

from local.faults.engine import FaultEngine
from local.faults.model import ApiFailure
from local.overlay.context import MARKER_ENV, OverlayContext, Response
from local.overlay.gateway import ApiCall

_FUNCTION_ENV = "AWS_LAMBDA_FUNCTION_NAME"


def install(context: OverlayContext, engine: FaultEngine) -> None:
    """Puts the faults in front of every API call and every AWS event."""
    context.interceptors.append(lambda call: before_call(engine, call))
    EventFaults(context, engine).install()


def error_response(code: str, message: str, status: int) -> Response:
    """An error as the JSON protocols of AWS say it."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return status, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-errortype": code}, body


def _failure(fault: ApiFailure) -> Response:
    return error_response(fault.code, fault.message, fault.status)


def before_call(engine: FaultEngine, call: ApiCall) -> Response | None:
    """The error that answers a call instead of its service, or None."""
    if not call.operation:
        return None
    text = call.body.decode("utf-8", "replace")
    if kill := engine.lambda_kill(call.service, call.operation, text, when="before"):
        kill_function(kill.function)
        return error_response("InternalFailure", "the caller was killed", 500)
    fault = engine.api_failure(call.service, call.operation, text, after_effect=False)
    return None if fault is None else _failure(fault)


def after_call(engine: FaultEngine, service: str, operation: str, text: str) -> Response | None:
    """The error that takes the place of an answer whose call has done its work, or None."""
    if kill := engine.lambda_kill(service, operation, text, when="after"):
        kill_function(kill.function)
    fault = engine.api_failure(service, operation, text, after_effect=True)
    return None if fault is None else _failure(fault)


def kill_function(name: str) -> int:
    """SIGKILL to every worker of this server that runs a function whose name contains `name`; returns how many."""
    killed = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if MARKER_ENV in environment and name.lower() in environment.get(_FUNCTION_ENV, "").lower():
                process.kill()
                killed += 1
    return killed


class EventFaults:
    """Stands in front of EventBridge's PutEvents, for events of AWS's own services."""

    def __init__(self, context: OverlayContext, engine: FaultEngine) -> None:
        self._context = context
        self._engine = engine
        self._put: Callable[..., Any] = eventbridge._put_events
        self._held: list[Mapping[str, Any]] = []
        self._lock = threading.Lock()

    def install(self) -> None:
        eventbridge._put_events = self.put_events

    def put_events(self, data: dict[str, Any], allow_aws_source: bool = False) -> Any:
        """PutEvents with the faults of each entry applied."""
        if not allow_aws_source:
            return self._put(data, allow_aws_source=allow_aws_source)
        kept: list[Mapping[str, Any]] = []
        for entry in data.get("Entries", []):
            kept += self._apply(entry)
        return self._put({**data, "Entries": kept}, allow_aws_source=True)

    def _apply(self, entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The entries to publish now in place of `entry`."""
        detail_type = str(entry.get("DetailType", ""))
        detail = json.loads(entry.get("Detail") or "{}")
        status = str(detail.get("SecondaryStatus") or detail.get("status") or detail.get("build-status") or "")
        fault = self._engine.event_fault(detail_type, status, json.dumps(detail))
        what = fault.what if fault else ""
        if fault and what == "delayed":
            self._context.spawn(self._later, entry, fault.seconds, name="delayed-event")
        with self._lock:
            held = [e for e in self._held if e.get("DetailType") == detail_type]
            self._held = [e for e in self._held if e not in held]
            if what == "swapped":
                self._held.append(entry)
        now = {"lost": [], "delayed": [], "swapped": [], "doubled": [entry, entry]}.get(what, [entry])
        return [*now, *held]

    def _later(self, entry: Mapping[str, Any], seconds: float) -> None:
        clock = self._context.clock
        clock.wait_until(clock.monotonic() + seconds, threading.Event())
        self._put({"Entries": [entry]}, allow_aws_source=True)
