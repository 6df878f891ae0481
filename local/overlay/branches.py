"""States inside Map and Parallel states as AWS runs them: in the history, counted, and bound by the same limits.

Stock ministack (1.5.33) runs them without a trace: no state and no iteration of an inline Map is in the history, and
the results of all iterations together may be of any size.
"""

from __future__ import annotations

import contextvars
import copy
import json
import threading
from dataclasses import dataclass, field
from typing import Any

from ministack.core.responses import now_iso
from ministack.services import stepfunctions as sfn

from local.overlay.executions import Execution, limit_payload

HANDLERS = {
    "Pass": "_execute_pass",
    "Task": "_execute_task",
    "Choice": "_execute_choice",
    "Wait": "_execute_wait",
    "Parallel": "_execute_parallel",
    "Map": "_execute_map",
}
_TAKE_THE_EXECUTION = ("Task", "Parallel", "Map")


@dataclass(slots=True)
class MapRun:
    """One inline Map state while its items run."""

    name: str
    results: int = 2
    """Bytes of the array of all results so far."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, result: Any) -> None:
        """Count an iteration's result. Raises States.DataLimitExceeded where all together are too large."""
        with self.lock:
            self.results += len(json.dumps(result, default=str).encode()) + 1
            limit_payload(self.results, "result")


running: contextvars.ContextVar[MapRun | None] = contextvars.ContextVar("map", default=None)
"""The inline Map whose item the thread is about to run."""


def run_items(run: Any, state: dict[str, Any], raw_input: Any, execution: Execution, ctx: dict[str, Any]) -> Any:
    """An inline Map state: `run` is ministack's own function, which runs each item in a thread."""
    name = ctx["State"]["Name"]
    sfn._add_event(execution, "MapStateStarted", {"mapStateStartedEventDetails": {}})
    token = running.set(MapRun(name))
    try:
        answer = run(state, raw_input, execution, ctx)
    except sfn._ExecutionError:
        sfn._add_event(execution, "MapStateFailed")
        raise
    finally:
        running.reset(token)
    sfn._add_event(execution, "MapStateSucceeded")
    return answer


def run_item(
    states: dict[str, Any], start_at: str, data: Any, execution: Execution, ctx: dict[str, Any], map_run: MapRun
) -> Any:
    """One iteration of an inline Map, in its own thread."""
    running.set(None)  # a Map or Parallel state within this one is another
    iteration = {"name": map_run.name, "index": ctx["Map"]["Item"]["Index"]}

    def add(what: str) -> None:
        sfn._add_event(execution, f"MapIteration{what}", {f"mapIteration{what}EventDetails": iteration})

    add("Started")
    try:
        result = walk(states, start_at, data, execution, ctx)
        map_run.ended(result)
    except sfn._ExecutionError:
        add("Failed")
        raise
    add("Succeeded")
    return result


def walk(states: dict[str, Any], start_at: str, data: Any, execution: Execution, ctx: dict[str, Any]) -> Any:
    """Run a branch or an item from its first state to its last; returns the last one's output."""
    name: str | None = start_at
    current = copy.deepcopy(data)
    while name:
        if execution["status"] != "RUNNING":
            raise sfn._ExecutionError("States.Aborted", "the execution has ended")
        state = states.get(name)
        if state is None:
            raise sfn._ExecutionError("States.Runtime", f"State '{name}' not found")
        kind = state["Type"]
        ctx["State"] = {"Name": name, "EnteredTime": now_iso(), "RetryCount": 0}
        _state_event(execution, kind, "Entered", name, "input", current)
        if kind == "Fail":
            raise sfn._ExecutionError(*sfn._fail_state_error(state, current, ctx))
        if kind == "Succeed":
            following = None
            current = sfn._apply_output_path(state, sfn._apply_input_path(state, current, ctx), ctx)
        elif kind not in HANDLERS:
            raise sfn._ExecutionError("States.Runtime", f"Unknown state type: {kind}")
        else:
            handler = getattr(sfn, HANDLERS[kind])
            given = (execution, ctx) if kind in _TAKE_THE_EXECUTION else (ctx,)
            current, following = handler(state, current, *given)
        _state_event(execution, kind, "Exited", name, "output", current)
        name = following
    return current


def _state_event(execution: Execution, kind: str, what: str, name: str, field: str, value: Any) -> None:
    details = {"name": name, field: json.dumps(value)}
    sfn._add_event(execution, f"{kind}State{what}", {f"state{what}EventDetails": details})
