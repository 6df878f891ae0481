"""Step Functions task states as AWS runs them: tokens, timeouts, heartbeats, retries, nested executions, history.

Stock ministack (1.5.33): a function that fails under waitForTaskToken is swallowed and its task hangs; HeartbeatSeconds
is ignored; TimeoutSeconds as a JSONata expression fails; a retry gets the token of the attempt before; every token
error is TaskDoesNotExist; a nested execution's own error comes through instead of States.TaskFailed; tasks run after
an abort; JSONata Parallel states ignore Arguments, Output and Assign; States.ALL catches what AWS lets no one catch.
"""

from __future__ import annotations

import contextvars
import json
import random
import threading
from collections.abc import Callable
from typing import Any

from ministack.core.responses import get_region, new_uuid
from ministack.services import stepfunctions as sfn

from local.overlay import branches
from local.overlay.context import OverlayContext, Response, refuse, reply
from local.overlay.executions import Execution, current, limit_payload, strict_json
from local.overlay.seams import Seams

TASK_SECONDS = 99_999_999
"""A task without TimeoutSeconds."""

UNCATCHABLE = frozenset({"States.Runtime", "States.DataLimitExceeded"})
"""Errors that States.ALL does not match."""

JSONATA_MILLISECONDS = 20_000
"""AWS allows an expression one second on its own machines; a laptop that trains a model beside us is slower."""


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the task seams; `executions` was installed before."""
    for name in REPLACED:
        seams.take(sfn, name)
    invoke = seams.take(sfn, "_invoke_resource")
    call_lambda = seams.take(sfn, "_call_lambda")
    seams.take(sfn, "_run_sub_machine")
    sends = {name: seams.take(sfn, name) for name in SENDS}
    runner = TaskRunner(context, invoke)

    def run_sub_machine(states: Any, start_at: Any, data: Any, execution: Execution, ctx: dict[str, Any]) -> Any:
        # Branches and items have their own state name, task token and variables; the outer ones they only read.
        own = {**ctx, "variables": dict(ctx.get("variables", {}))}
        item_of = branches.running.get()
        if item_of is not None:
            return branches.run_item(states, start_at, data, execution, own, item_of)
        return branches.walk(states, start_at, data, execution, own)

    def call(function: str, event: Any) -> Any:
        try:
            return call_lambda(function, event)
        except sfn._ExecutionError as error:
            raise _lambda_error(error) from None

    sfn._execute_task = runner.execute
    sfn._invoke_with_callback = runner.not_called
    sfn._invoke_resource_with_timeout = runner.not_called
    sfn._invoke_nested_start_execution_sync = runner.nested
    sfn._run_parallel_branches = run_parallel
    sfn._run_sub_machine = run_sub_machine
    sfn._call_lambda = call
    sfn._scaled_sleep = runner.sleep
    sfn._error_matches = error_matches
    for name, send in sends.items():
        setattr(sfn, name, runner.answering(send))
    evaluate = seams.take(sfn.jsonata.Jsonata, "jsonata")
    sfn.jsonata.Jsonata.jsonata = staticmethod(
        lambda text, timeout=0, **rest: evaluate(text, timeout=JSONATA_MILLISECONDS)
    )


REPLACED = (
    "_execute_task",
    "_invoke_with_callback",
    "_invoke_resource_with_timeout",
    "_invoke_nested_start_execution_sync",
    "_run_parallel_branches",
    "_scaled_sleep",
    "_error_matches",
)
SENDS = ("_send_task_success", "_send_task_failure", "_send_task_heartbeat")


class TaskRunner:
    """Runs task states; knows every open and every closed task token of this server."""

    def __init__(self, context: OverlayContext, invoke: Callable[[str, Any], Any]) -> None:
        self._context = context
        self._clock = context.clock
        self._invoke = invoke
        self._closed: set[str] = set()

    def not_called(self, *_: object) -> None:
        """Seams that `execute` replaced as a whole."""
        raise AssertionError("the overlay runs tasks itself")

    def execute(
        self, state: dict[str, Any], raw_input: Any, execution: Execution, ctx: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """Run a Task state with its Retry and Catch; returns (output, next state)."""
        task = {**ctx, "State": dict(ctx["State"])}
        retries: dict[int, int] = {}
        while True:
            task["State"]["RetryCount"] = sum(retries.values())
            try:
                result = self._attempt(state, raw_input, execution, task)
                return self._output(state, raw_input, task, result)
            except sfn._ExecutionError as error:
                if execution["status"] != "RUNNING":
                    raise
                retrier, index = sfn._find_matching_retrier(state.get("Retry", []), error.error, retries)
                if retrier is not None:
                    self.sleep(_retry_seconds(retrier, retries.get(index, 0)))
                    retries[index] = retries.get(index, 0) + 1
                    continue
                catcher = sfn._find_matching_catcher(state.get("Catch", []), error.error)
                if catcher is None:
                    raise
                shown = {"Error": error.error, "Cause": error.cause}
                return sfn._apply_catcher(
                    catcher, raw_input, task, sfn._state_query_language(state, task), shown
                ), catcher["Next"]

    def _attempt(self, state: dict[str, Any], raw_input: Any, execution: Execution, task: dict[str, Any]) -> Any:
        """One attempt of the task; raises the task's error."""
        if execution["status"] != "RUNNING":
            raise sfn._ExecutionError("States.Aborted", "the execution has ended")
        resource: str = state["Resource"]
        callback = resource.endswith(".waitForTaskToken")
        if callback:
            task["Task"] = {"Token": new_uuid()}
        arguments = _arguments(state, raw_input, task)
        timeout, heartbeat = (
            _seconds(state, field, raw_input, task) for field in ("TimeoutSeconds", "HeartbeatSeconds")
        )
        history = History(execution, resource)
        history.scheduled(arguments, timeout, heartbeat)
        limit_payload(_size(arguments), "arguments")
        history.started()
        open_task.set(history)
        try:
            if callback:
                result = self._call_back(
                    execution, history, resource, arguments, task["Task"]["Token"], timeout, heartbeat
                )
            elif timeout is not None and ":activity:" not in resource:
                result = self._call_timed(execution, resource, arguments, timeout)
            else:
                result = self._invoke(resource, arguments)
            limit_payload(_size(result), "result")
        except sfn._ExecutionError as error:
            history.failed(error)
            raise
        history.succeeded(result)
        return result

    def _output(
        self, state: dict[str, Any], raw_input: Any, task: dict[str, Any], result: Any
    ) -> tuple[Any, str | None]:
        if sfn._state_query_language(state, task) == "JSONata":
            output = sfn._apply_jsonata_output(state, raw_input, task, result=result, default=result)
            sfn._apply_state_assign(state, raw_input, task, result=result)
        else:
            output = sfn._apply_result_path(state, raw_input, sfn._apply_result_selector(state, result))
            output = sfn._apply_output_path(state, output, task)
        return output, sfn._next_or_end(state)

    def _start_call(self, resource: str, arguments: Any, outcome: Outcome) -> None:
        """Call the service in a thread; `outcome` gets the result or the error."""

        def call() -> None:
            try:
                outcome.called(self._invoke(resource, arguments))
            except sfn._ExecutionError as error:
                outcome.fail(error)
            except Exception as error:
                outcome.fail(sfn._ExecutionError("States.Runtime", str(error)))
            self._clock.notify()

        self._context.spawn(call, name="task")

    def _call_timed(self, execution: Execution, resource: str, arguments: Any, timeout: float) -> Any:
        outcome = Outcome(done_when_called=True)
        deadline = self._clock.monotonic() + timeout
        self._start_call(resource, arguments, outcome)
        self._await(execution, outcome, deadline)
        return outcome.take()

    def _call_back(
        self,
        execution: Execution,
        history: History,
        resource: str,
        arguments: Any,
        token: str,
        timeout: float | None,
        heartbeat: float | None,
    ) -> Any:
        """Call the service with the token and wait for the answer; a failing call fails the task."""
        outcome = Outcome(done_when_called=False, on_called=history.submitted)
        sfn._task_tokens[token] = {"event": outcome.done, "outcome": outcome, "beat": self._clock.monotonic()}
        deadline = self._clock.monotonic() + (TASK_SECONDS if timeout is None else timeout)
        try:
            self._start_call(resource.removesuffix(".waitForTaskToken"), arguments, outcome)
            self._await(execution, outcome, deadline, token, heartbeat)
            return outcome.take()
        finally:
            sfn._task_tokens.pop(token, None)
            self._closed.add(token)

    def _await(
        self, execution: Execution, outcome: Outcome, deadline: float, token: str = "", heartbeat: float | None = None
    ) -> None:
        """Until the outcome is there; raises States.Timeout, States.HeartbeatTimeout or, after a stop, States.Aborted."""
        while True:
            beat_by = sfn._task_tokens[token]["beat"] + heartbeat if heartbeat is not None else deadline
            if self._context.waiting.wait(execution, outcome.done, min(deadline, beat_by)):
                break
            if beat_by >= deadline:
                raise sfn._ExecutionError("States.Timeout", None)
            if sfn._task_tokens[token]["beat"] + (heartbeat or 0) <= beat_by:  # no heartbeat came meanwhile
                raise sfn._ExecutionError("States.HeartbeatTimeout", None)
        if execution["status"] != "RUNNING":
            raise sfn._ExecutionError("States.Aborted", "the execution has ended")

    def answering(self, send: Callable[[dict[str, Any]], Response]) -> Callable[[dict[str, Any]], Response]:
        """SendTaskSuccess, -Failure and -Heartbeat with AWS's token errors."""

        def answer(data: dict[str, Any]) -> Response:
            token = data.get("taskToken", "")
            info = sfn._task_tokens.get(token)
            if info is None and token not in self._closed:
                return refuse("InvalidToken", "Invalid Token: 'Invalid token'")
            if info is None or info["event"].is_set():
                message = "Task Timed Out: 'Provided task does not exist anymore'"
                return refuse("TaskTimedOut", message)
            outcome = info.get("outcome")
            if outcome is None:  # an activity's task
                return send(data)
            if send.__name__ == "_send_task_heartbeat":
                info["beat"] = self._clock.monotonic()
            elif send.__name__ == "_send_task_failure":
                outcome.fail(sfn._ExecutionError(data.get("error"), data.get("cause")))
            else:
                try:
                    outcome.succeed(strict_json(data.get("output", "")))
                except ValueError as error:
                    return refuse("InvalidOutput", f"Invalid Output: '{error}'")
            self._clock.notify()
            return reply({})

        return answer

    def nested(self, resource: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """`states:startExecution.sync` and `.sync:2`: a child execution of its own that ends with its parent."""
        parent = current.get()
        status, _, body = sfn._start_execution(sfn._nested_start_execution_request(arguments))
        started = json.loads(body)
        if status >= 400:
            name = str(started.get("__type", "")).rpartition("#")[2]
            raise sfn._ExecutionError(f"StepFunctions.{name}Exception", started.get("message", ""))
        child = sfn._executions[started["executionArn"]]
        history = open_task.get()
        if history is not None:
            history.submitted({key[0].upper() + key[1:]: value for key, value in started.items()})
        if parent is not None:
            self._context.waiting.add_child(parent["executionArn"], child["executionArn"])
        while child["status"] == "RUNNING":
            # A child ends in another thread of ours, which wakes no one: looking again is enough here.
            threading.Event().wait(0.05)
            if parent is not None and parent["status"] != "RUNNING":
                raise sfn._ExecutionError("States.Aborted", "the execution has ended")
        shown = {key[0].upper() + key[1:]: child.get(key) for key in CHILD_FIELDS if child.get(key) is not None}
        if child["status"] != "SUCCEEDED":
            raise sfn._ExecutionError("States.TaskFailed", json.dumps(shown))
        if resource.endswith(".sync:2"):
            shown["Output"] = json.loads(child["output"])
        return shown

    def sleep(self, seconds: float) -> None:
        """Wait states and retry intervals, by the clock and ministack's SFN_WAIT_SCALE."""
        execution = current.get() or {"executionArn": "", "status": "RUNNING"}
        deadline = self._clock.monotonic() + seconds * sfn._SFN_WAIT_SCALE
        self._context.waiting.wait(execution, threading.Event(), deadline)


CHILD_FIELDS = (
    "executionArn",
    "stateMachineArn",
    "name",
    "status",
    "startDate",
    "stopDate",
    "input",
    "inputDetails",
    "output",
    "outputDetails",
    "error",
    "cause",
)


class Outcome:
    """What became of one task attempt: the first answer counts."""

    def __init__(self, *, done_when_called: bool, on_called: Callable[[Any], None] = lambda result: None) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._done_when_called = done_when_called
        self._on_called = on_called
        self._result: Any = None
        self._error: sfn._ExecutionError | None = None

    def called(self, result: Any) -> None:
        """The service call returned."""
        if self._done_when_called:
            self.succeed(result)
        elif not self.done.is_set():
            self._on_called(result)

    def succeed(self, result: Any) -> None:
        """The task's result; ignored after another answer."""
        with self._lock:
            if not self.done.is_set():
                self._result = result
                self.done.set()

    def fail(self, error: sfn._ExecutionError) -> None:
        """The task's error; ignored after another answer."""
        with self._lock:
            if not self.done.is_set():
                self._error = error
                self.done.set()

    def take(self) -> Any:
        """The result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result


open_task: contextvars.ContextVar[History | None] = contextvars.ContextVar("task", default=None)
"""The history of the task attempt that the thread runs."""


class History:
    """A task attempt's events in the execution history, in AWS's order and number."""

    def __init__(self, execution: Execution, resource: str) -> None:
        self._execution = execution
        self._labels = _labels(resource)

    def _add(self, kind: str, **details: Any) -> None:
        given = {key: value for key, value in details.items() if value is not None}
        sfn._add_event(self._execution, f"Task{kind}", {f"task{kind}EventDetails": {**self._labels, **given}})

    def scheduled(self, arguments: Any, timeout: float | None, heartbeat: float | None) -> None:
        """TaskScheduled."""
        self._add(
            "Scheduled",
            region=get_region(),
            parameters=json.dumps(arguments),
            timeoutInSeconds=timeout,
            heartbeatInSeconds=heartbeat,
        )

    def started(self) -> None:
        """TaskStarted."""
        self._add("Started")

    def submitted(self, result: Any) -> None:
        """TaskSubmitted: the call with the token returned, or the nested execution began."""
        self._add("Submitted", output=json.dumps(result, default=str))

    def succeeded(self, result: Any) -> None:
        """TaskSucceeded."""
        self._add("Succeeded", output=json.dumps(result))

    def failed(self, error: sfn._ExecutionError) -> None:
        """TaskFailed or TaskTimedOut."""
        timed_out = error.error in ("States.Timeout", "States.HeartbeatTimeout")
        self._add("TimedOut" if timed_out else "Failed", error=error.error, cause=error.cause)


def run_parallel(
    state: dict[str, Any], raw_input: Any, execution: Execution, ctx: dict[str, Any]
) -> tuple[Any, str | None]:
    """A Parallel state: every branch in its own thread, all of them waited for."""
    data = _arguments(state, raw_input, ctx)
    branches = state.get("Branches", [])
    results: list[Any] = [None] * len(branches)
    errors: list[Exception | None] = [None] * len(branches)

    def run(index: int, branch: dict[str, Any]) -> None:
        try:
            results[index] = sfn._run_sub_machine(branch.get("States", {}), branch.get("StartAt"), data, execution, ctx)
        except Exception as error:
            errors[index] = error

    threads = []
    for index, branch in enumerate(branches):
        copied = contextvars.copy_context()
        threads.append(threading.Thread(target=copied.run, args=(run, index, branch), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            known = isinstance(error, sfn._ExecutionError)
            raise error if known else sfn._ExecutionError("States.BranchFailed", str(error))
    if sfn._state_query_language(state, ctx) == "JSONata":
        output = sfn._apply_jsonata_output(state, raw_input, ctx, result=results, default=results)
        sfn._apply_state_assign(state, raw_input, ctx, result=results)
    else:
        output = sfn._apply_result_path(state, raw_input, sfn._apply_result_selector(state, results))
        output = sfn._apply_output_path(state, output, ctx)
    return output, sfn._next_or_end(state)


def error_matches(names: list[str], error: str) -> bool:
    """Whether a retrier's or catcher's ErrorEquals takes the error (Amazon States Language, "Errors")."""
    if error in names or (error == "States.HeartbeatTimeout" and "States.Timeout" in names):
        return True
    if error in UNCATCHABLE or error == "States.Aborted":
        return False
    return "States.ALL" in names or ("States.TaskFailed" in names and error != "States.Timeout")


def _arguments(state: dict[str, Any], raw_input: Any, ctx: dict[str, Any]) -> Any:
    if sfn._state_query_language(state, ctx) == "JSONata":
        return sfn._apply_jsonata_arguments(state, raw_input, ctx)
    return sfn._apply_parameters(state, sfn._apply_input_path(state, raw_input, ctx), ctx)


def _seconds(state: dict[str, Any], field: str, raw_input: Any, ctx: dict[str, Any]) -> float | None:
    """TimeoutSeconds or HeartbeatSeconds: a number, a JSONata expression, or `...Path`."""
    if f"{field}Path" in state:
        return float(sfn._resolve_path_or_ctx(state[f"{field}Path"], raw_input, ctx))
    if field not in state:
        return None
    if isinstance(state[field], str):
        return float(sfn._jsonata_state_field(state, field, "number", raw_input, ctx))
    return float(state[field])


def _size(value: Any) -> int:
    return len(json.dumps(value, default=str).encode())


def _retry_seconds(retrier: dict[str, Any], count: int) -> float:
    seconds = retrier.get("IntervalSeconds", 1) * retrier.get("BackoffRate", 2.0) ** count
    seconds = min(seconds, retrier.get("MaxDelaySeconds", seconds))
    return random.uniform(0, seconds) if retrier.get("JitterStrategy") == "FULL" else float(seconds)  # noqa: S311


def _labels(resource: str) -> dict[str, str]:
    """`resourceType` and `resource` of a task's history events: `lambda` and `invoke.waitForTaskToken`."""
    parts = resource.split(":")
    if resource.startswith("arn:aws:states:::aws-sdk:"):
        return {"resourceType": f"aws-sdk:{parts[6]}", "resource": ":".join(parts[7:])}
    if resource.startswith("arn:aws:states:::"):
        return {"resourceType": parts[5], "resource": ":".join(parts[6:])}
    return {"resourceType": parts[2] if len(parts) > 2 else "states", "resource": resource}


def _lambda_error(error: sfn._ExecutionError) -> sfn._ExecutionError:
    """A throttled invocation has a name of its own; ministack knows only `Lambda.Unknown` for it."""
    try:
        body = json.loads(error.cause)
    except (TypeError, ValueError):
        return error
    if isinstance(body, dict) and body.get("__type") == "TooManyRequestsException":
        return sfn._ExecutionError("Lambda.TooManyRequestsException", body.get("message", ""))
    return error
