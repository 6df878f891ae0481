"""Step Functions executions as AWS runs them: start rules, the machine's own timeout, stop, status events.

Stock ministack (1.5.33): any second start with a name is ExecutionAlreadyExists; input that is no JSON is taken as {};
the machine's TimeoutSeconds is ignored; there are no AWS/States metrics; states go on after an abort, a nested
execution survives its parent's stop, and a failed execution carries an output; a history may be of any length, a state's
input and output of any size.
"""

from __future__ import annotations

import contextvars
import json
import re
import threading
from collections import defaultdict
from typing import Any

from ministack.core.responses import now_iso
from ministack.services import cloudwatch
from ministack.services import stepfunctions as sfn

from local.overlay.context import OverlayContext, Response, refuse, reply
from local.overlay.seams import Seams

EXECUTION_NAME = re.compile(r"^[^\s<>{}\[\]?*\"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]{1,80}$")
"""StartExecution's `name`: 1-80 characters without white space, brackets, wildcards and special characters."""

PAYLOAD_BYTES = 262_144
"""Input, output and arguments of states and executions: at most 256 KiB in UTF-8."""

HISTORY_EVENTS = 25_000
"""Events of one execution's history at most; an execution that reaches them fails."""

HISTORY_FULL = f"The execution reached the maximum number of history events ({HISTORY_EVENTS})."

METRICS = {
    "RUNNING": "ExecutionsStarted",
    "SUCCEEDED": "ExecutionsSucceeded",
    "FAILED": "ExecutionsFailed",
    "TIMED_OUT": "ExecutionsTimedOut",
    "ABORTED": "ExecutionsAborted",
}
"""Status -> metric of namespace AWS/States."""

Execution = dict[str, Any]

current: contextvars.ContextVar[Execution | None] = contextvars.ContextVar("execution", default=None)
"""The execution that the running thread belongs to."""


class Waiting:
    """Who waits inside which execution, so that a stop or a timeout wakes them at once."""

    def __init__(self, context: OverlayContext) -> None:
        self._clock = context.clock
        self._lock = threading.Lock()
        self._events: dict[str, set[threading.Event]] = defaultdict(set)
        self._children: dict[str, set[str]] = defaultdict(set)

    def wait(self, execution: Execution, done: threading.Event, deadline: float) -> bool:
        """Wait for `done` (True) or `deadline` on the clock (False); returns early when the execution has ended."""
        arn = execution["executionArn"]
        with self._lock:
            self._events[arn].add(done)
        try:
            return self._clock.wait_until(deadline, done) if execution["status"] == "RUNNING" else True
        finally:
            with self._lock:
                self._events[arn].discard(done)

    def add_child(self, parent: str, child: str) -> None:
        """`child` is stopped when `parent` is."""
        with self._lock:
            self._children[parent].add(child)

    def end(self, arn: str) -> list[str]:
        """Wake everyone who waits in the execution; returns its nested executions."""
        with self._lock:
            events, children = self._events.pop(arn, set()), self._children.pop(arn, set())
        for event in events:
            event.set()
        self._clock.notify()
        return sorted(children)


def limit_payload(size: int, what: str) -> None:
    """Raise States.DataLimitExceeded, which no state can catch, where so many bytes are too many."""
    if size > PAYLOAD_BYTES:
        message = f"The state/task returned a {what} with a size exceeding the maximum number of bytes service limit."
        raise sfn._ExecutionError("States.DataLimitExceeded", message)


def strict_json(text: str) -> Any:
    """Parse JSON as AWS does: NaN and Infinity are no JSON. Raises `ValueError`."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the execution seams."""
    start = seams.take(sfn, "_start_execution")
    stop = seams.take(sfn, "_stop_execution")
    run = seams.take(sfn, "_run_execution")
    fail = seams.take(sfn, "_fail_execution")
    add_event = seams.take(sfn, "_add_event")
    emit_event = seams.take(sfn, "_emit_execution_status_event")
    seams.take(cloudwatch, "record_metric")
    waiting = Waiting(context)
    context.waiting = waiting
    adding = threading.Lock()

    def start_execution(data: dict[str, Any]) -> Response:
        refusal = _start_refusal(data)
        if refusal is not None:
            return refusal
        existing = _existing(data)
        if existing is not None and existing["status"] == "RUNNING" and existing["input"] == data.get("input", "{}"):
            return reply({"executionArn": existing["executionArn"], "startDate": existing["startDate"]})
        if existing is not None:
            message = f"Execution Already Exists: '{existing['executionArn']}'"
            return refuse("ExecutionAlreadyExists", message)
        response: Response = start(data)
        return response

    def stop_execution(data: dict[str, Any]) -> Response:
        response: Response = stop(data)
        if response[0] == 200:
            end_children(data["executionArn"], data)
        return response

    def emit(execution: Execution) -> None:
        metric = METRICS[execution["status"]]
        cloudwatch.record_metric("AWS/States", metric, 1, "Count", {"StateMachineArn": execution["stateMachineArn"]})
        emit_event(execution)

    def end_children(arn: str, reason: dict[str, Any]) -> None:
        for child in waiting.end(arn):
            stop_execution({**reason, "executionArn": child})

    def run_execution(arn: str) -> None:
        execution = sfn._executions.get(arn)
        machine = sfn._state_machines.get(execution["stateMachineArn"]) if execution else None
        limit = json.loads(machine["definition"]).get("TimeoutSeconds") if machine else None
        current.set(execution)
        finished = threading.Event()
        if limit is not None:
            context.spawn(time_out, execution, float(limit), finished, name="execution-timeout")
        try:
            run(arn)
        finally:
            finished.set()
            context.clock.notify()
            if execution is not None:
                end_children(arn, {})

    def time_out(execution: Execution, limit: float, finished: threading.Event) -> None:
        if context.clock.wait_until(context.clock.monotonic() + limit, finished) or execution["status"] != "RUNNING":
            return
        execution.update(status="TIMED_OUT", stopDate=now_iso(), error="States.Timeout", cause=None)
        add(execution, "ExecutionTimedOut", {"executionTimedOutEventDetails": {"error": "States.Timeout"}})
        emit(execution)
        end_children(execution["executionArn"], {})

    def fail_execution(execution: Execution, error: str, cause: str) -> None:
        if execution["status"] == "RUNNING":
            fail(execution, error, cause)
            execution["output"] = None

    def add(execution: Execution, event_type: str, details: dict[str, Any] | None = None) -> Any:
        with adding:  # branches and items add from threads of their own; the length is the next event's number
            if not event_type.startswith("Execution"):
                if execution["status"] != "RUNNING":
                    return None
                if len(execution["events"]) >= HISTORY_EVENTS - 1:
                    raise sfn._ExecutionError("States.Runtime", HISTORY_FULL)
            event = add_event(execution, event_type, details)
        _limit_state(details or {})
        return event

    sfn._emit_execution_status_event = emit
    sfn._start_execution = start_execution
    sfn._stop_execution = stop_execution
    sfn._run_execution = run_execution
    sfn._fail_execution = fail_execution
    sfn._add_event = add


def _limit_state(details: dict[str, Any]) -> None:
    for kind, field in (("stateEnteredEventDetails", "input"), ("stateExitedEventDetails", "output")):
        limit_payload(len(details.get(kind, {}).get(field, "").encode()), field)


def _start_refusal(data: dict[str, Any]) -> Response | None:
    name, text = data.get("name"), data.get("input", "{}")
    if name is not None and not EXECUTION_NAME.match(name):
        return refuse("InvalidName", f"Invalid Name: '{name}'")
    if len(text.encode()) > PAYLOAD_BYTES:
        message = (
            "1 validation error detected: Value at 'input' failed to satisfy constraint: "
            f"Member must have length less than or equal to {PAYLOAD_BYTES}"
        )
        return refuse("ValidationException", message)
    try:
        strict_json(text)
    except ValueError as error:
        message = f"Invalid State Machine Execution Input: '{error}'"
        return refuse("InvalidExecutionInput", message)
    return None


def _existing(data: dict[str, Any]) -> Execution | None:
    """The execution that already has this machine's and this name's ARN."""
    arn = sfn._resolve_state_machine_arn(data.get("stateMachineArn", "").partition("#")[0])
    if arn is None or "name" not in data:
        return None
    execution: Execution | None = sfn._executions.get(arn.replace(":stateMachine:", ":execution:") + f":{data['name']}")
    return execution
