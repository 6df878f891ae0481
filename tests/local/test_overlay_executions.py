"""Executions: start rules, timeouts, stop, status events; each on the overlay and on stock ministack."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from overlay_helpers import (
    both,
    describe,
    ended,
    eventually,
    function,
    history,
    machine,
    queue_for_events,
    run,
    start,
    unique,
)

from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("overlay")
WAIT = {"Wait": {"Type": "Wait", "Seconds": 600, "End": True}}
STATES_RULE = {"source": ["aws.states"], "detail-type": ["Step Functions Execution Status Change"]}


def _error(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


def _again(aws: LocalAws) -> tuple[str, str, Any]:
    """Start a name twice with one input, then with another; stop it."""
    client, arn, name = aws.client("stepfunctions"), machine(aws, WAIT), unique("run")
    first = client.start_execution(stateMachineArn=arn, name=name, input='{"a": 1}')
    try:
        second = client.start_execution(stateMachineArn=arn, name=name, input='{"a": 1}')["executionArn"]
    except ClientError as error:
        second = error.response["Error"]["Code"]
    other = _error(client.start_execution, stateMachineArn=arn, name=name, input='{"a": 2}')
    client.stop_execution(executionArn=first["executionArn"])
    assert _error(client.start_execution, stateMachineArn=arn, name=name, input='{"a": 1}') == "ExecutionAlreadyExists"
    return first["executionArn"], second, other


def test_same_name_and_input_while_it_runs_is_the_same_execution(aws: LocalAws, stock: LocalAws) -> None:
    first, second, other = _again(aws)
    assert second == first
    assert other == "ExecutionAlreadyExists"
    assert _again(stock)[1] == "ExecutionAlreadyExists"


@pytest.mark.parametrize("text", ['{"loss": NaN}', '{"a": Infinity}', "not json", "", "{'a': 1}"])
def test_input_that_is_no_json_is_refused(aws: LocalAws, stock: LocalAws, text: str) -> None:
    arn = machine(aws, WAIT)
    assert (
        _error(aws.client("stepfunctions").start_execution, stateMachineArn=arn, input=text) == "InvalidExecutionInput"
    )
    assert not aws.client("stepfunctions").list_executions(stateMachineArn=arn)["executions"]
    taken = {"Pass": {"Type": "Pass", "End": True}}
    stock.client("stepfunctions").start_execution(stateMachineArn=machine(stock, taken), input=text)


@pytest.mark.parametrize("name", ["a b", "a/b", "a:b", "x" * 80 + "<", "a\tb"])
def test_names_that_aws_refuses(aws: LocalAws, stock: LocalAws, name: str) -> None:
    arn = machine(aws, WAIT)
    assert _error(aws.client("stepfunctions").start_execution, stateMachineArn=arn, name=name) == "InvalidName"
    taken = machine(stock, {"Pass": {"Type": "Pass", "End": True}})
    stock.client("stepfunctions").start_execution(stateMachineArn=taken, name=name)


def test_machine_timeout_ends_the_execution(aws: LocalAws, stock: LocalAws) -> None:
    states = {"Wait": {"Type": "Wait", "Seconds": 2, "End": True}}
    read = queue_for_events(aws, STATES_RULE)
    described, unmended = both(aws, stock, lambda server: run(server, states, TimeoutSeconds=1))
    assert (described["status"], unmended["status"]) == ("TIMED_OUT", "SUCCEEDED")
    assert "output" not in described
    statuses = eventually(
        lambda: (
            [
                event["detail"]["status"]
                for event in read()
                if event["detail"]["executionArn"] == described["executionArn"]
            ]
            if len(read()) > 1
            else None
        )
    )
    assert statuses == ["RUNNING", "TIMED_OUT"]
    assert history(aws, described["executionArn"])[-1] == "ExecutionTimedOut"


def test_six_hours_pass_when_the_clock_is_moved(aws: LocalAws) -> None:
    arn = machine(aws, {"Wait": {"Type": "Wait", "Seconds": 6 * 3600, "End": True}})
    execution = start(aws, arn)
    eventually(lambda: "WaitStateEntered" in history(aws, execution))
    began = time.monotonic()
    aws.advance_clock(6 * 3600)
    assert ended(aws, execution)["status"] == "SUCCEEDED"
    assert time.monotonic() - began < 60


def test_status_event_of_every_end(aws: LocalAws) -> None:
    read = queue_for_events(aws, STATES_RULE)
    good = run(aws, {"Pass": {"Type": "Pass", "Output": {"x": 1}, "End": True}})
    bad = run(aws, {"Fail": {"Type": "Fail", "Error": "Rejected", "Cause": "why"}})
    stopped = start(aws, machine(aws, WAIT))
    aws.client("stepfunctions").stop_execution(executionArn=stopped, error="User", cause="asked")
    wanted = {good["executionArn"], bad["executionArn"], stopped}

    def seen() -> dict[tuple[str, str], dict[str, Any]] | None:
        found = {
            (event["detail"]["executionArn"], event["detail"]["status"]): event["detail"]
            for event in read()
            if event["detail"]["executionArn"] in wanted
        }
        return found if len(found) == 6 else None

    events = eventually(seen)
    assert json.loads(events[good["executionArn"], "SUCCEEDED"]["output"]) == {"x": 1}
    assert events[bad["executionArn"], "FAILED"]["error"] == "Rejected"
    assert events[bad["executionArn"], "FAILED"]["output"] is None
    assert (stopped, "ABORTED") in events
    assert describe(aws, stopped)["error"] == "User"


def test_failed_execution_has_no_output(aws: LocalAws, stock: LocalAws) -> None:
    states = {"Fail": {"Type": "Fail", "Error": "Rejected", "Cause": "why"}}
    described = run(aws, states)
    assert (described["status"], described["error"], described["cause"]) == ("FAILED", "Rejected", "why")
    assert "output" not in described
    assert "output" in run(stock, states)


def test_executions_are_counted(aws: LocalAws, stock: LocalAws) -> None:
    def failures(server: LocalAws) -> int:
        described = run(server, {"Fail": {"Type": "Fail", "Error": "Rejected"}})
        dimension = {"Name": "StateMachineArn", "Value": described["stateMachineArn"]}
        metrics = server.client("cloudwatch").list_metrics(Namespace="AWS/States", Dimensions=[dimension])["Metrics"]
        return [metric["MetricName"] for metric in metrics].count("ExecutionsFailed")

    assert both(aws, stock, failures) == (1, 0)


def _stopped_while_it_waits(aws: LocalAws) -> tuple[str, str]:
    """Stop an execution whose branch waits before it would call a function; (execution, function)."""
    name = function(aws, "def handler(event, context):\n    return 1\n")
    resource, arguments = "arn:aws:states:::lambda:invoke", {"FunctionName": name}
    call = {"Type": "Task", "Resource": resource, "Arguments": arguments, "End": True}
    branch = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 1, "Next": "Call"}, "Call": call}}
    execution = start(aws, machine(aws, {"Both": {"Type": "Parallel", "Branches": [branch], "End": True}}))
    eventually(lambda: "ParallelStateEntered" in history(aws, execution))
    aws.client("stepfunctions").stop_execution(executionArn=execution)
    return execution, name


def _called(aws: LocalAws, name: str) -> bool:
    return bool(aws.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{name}")["logGroups"])


def test_nothing_runs_after_a_stop(aws: LocalAws, stock: LocalAws) -> None:
    (execution, name), (stock_execution, stock_name) = both(aws, stock, _stopped_while_it_waits)
    eventually(lambda: _called(stock, stock_name))
    eventually(lambda: history(stock, stock_execution)[-1] != "ExecutionAborted")
    assert not _called(aws, name)
    assert history(aws, execution)[-1] == "ExecutionAborted"


def _nested(aws: LocalAws, child_states: dict[str, Any]) -> tuple[str, str]:
    """(parent execution, child machine) of a nested .sync:2 execution."""
    child = machine(aws, child_states)
    task = {
        "Type": "Task",
        "Resource": "arn:aws:states:::states:startExecution.sync:2",
        "Arguments": {"StateMachineArn": child, "Input": {"n": 1}},
        "Output": "{% $states.result.Output %}",
        "End": True,
    }
    return start(aws, machine(aws, {"Child": task})), child


def _children(aws: LocalAws, child: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = aws.client("stepfunctions").list_executions(stateMachineArn=child)["executions"]
    return found


def test_stop_of_the_parent_stops_the_nested_execution(aws: LocalAws, stock: LocalAws) -> None:
    for server, status in ((aws, "ABORTED"), (stock, "RUNNING")):
        parent, child = _nested(server, WAIT)
        eventually(lambda server=server, child=child: _children(server, child))
        server.client("stepfunctions").stop_execution(executionArn=parent)
        time.sleep(0.2)
        assert _children(server, child)[0]["status"] == status


def test_failing_nested_execution_is_a_failed_task(aws: LocalAws, stock: LocalAws) -> None:
    states = {"Fail": {"Type": "Fail", "Error": "OutOfMemory", "Cause": "why"}}
    parent, _ = _nested(aws, states)
    described = ended(aws, parent)
    assert described["error"] == "States.TaskFailed"
    assert json.loads(described["cause"])["Error"] == "OutOfMemory"
    assert ended(stock, _nested(stock, states)[0])["error"] == "OutOfMemory"


def test_nested_execution_gives_its_output(aws: LocalAws) -> None:
    parent, child = _nested(aws, {"Pass": {"Type": "Pass", "Output": {"got": "{% $states.input.n %}"}, "End": True}})
    assert json.loads(ended(aws, parent)["output"]) == {"got": 1}
    assert _children(aws, child)[0]["status"] == "SUCCEEDED"
