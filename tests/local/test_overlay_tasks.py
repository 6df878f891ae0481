"""Task states: tokens, timeouts, heartbeats, retries, error names, history; overlay beside stock ministack."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError
from overlay_helpers import both, ended, eventually, function, history, machine, run, start, unique

from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("overlay")

TOKEN = "{% $states.context.Task.Token %}"
CAUGHT = {"Caught": {"Type": "Pass", "Output": "{% $states.input.Error %}", "End": True}}
CATCH_ALL = [{"ErrorEquals": ["States.ALL"], "Next": "Caught"}]


def _token_task(name: str, **fields: Any) -> dict[str, Any]:
    """A lambda:invoke.waitForTaskToken task that gives the token to the function."""
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
        "Arguments": {"FunctionName": name, "Payload": {"token": TOKEN}},
        "End": True,
        **fields,
    }


def _inbox(aws: LocalAws) -> str:
    url: str = aws.client("sqs").create_queue(QueueName=unique("tokens"))["QueueUrl"]
    return url


def _queue_task(url: str, **fields: Any) -> dict[str, Any]:
    """A task that sends its token to a queue, from which the test answers."""
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
        "Arguments": {"QueueUrl": url, "MessageBody": TOKEN},
        "End": True,
        **fields,
    }


def _next_token(aws: LocalAws, url: str) -> str:
    messages = eventually(lambda: aws.client("sqs").receive_message(QueueUrl=url).get("Messages"))
    aws.client("sqs").delete_message(QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
    return str(messages[0]["Body"])


def _send(aws: LocalAws, call: str, token: str, **fields: str) -> str:
    """Answer a token; the error code, or an empty string."""
    try:
        getattr(aws.client("stepfunctions"), call)(taskToken=token, **fields)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def test_failing_function_fails_its_token_task(aws: LocalAws, stock: LocalAws) -> None:
    source = "class NoJob(Exception):\n    pass\n\ndef handler(event, context):\n    raise NoJob('gone')\n"

    def error(server: LocalAws) -> str:
        task = _token_task(function(server, source), TimeoutSeconds=2, Catch=CATCH_ALL)
        return str(json.loads(run(server, {"Wait": task, **CAUGHT})["output"]))

    assert both(aws, stock, error) == ("NoJob", "States.Timeout")


def test_function_may_answer_its_own_token(aws: LocalAws) -> None:
    source = (
        "import boto3\n"
        "def handler(event, context):\n"
        "    boto3.client('stepfunctions').send_task_success(taskToken=event['token'], output='{\"early\": true}')\n"
        "    raise ValueError('too late to matter')\n"
    )
    described = run(aws, {"Wait": _token_task(function(aws, source))})
    assert json.loads(described["output"]) == {"early": True}


def test_heartbeat_that_stays_away(aws: LocalAws, stock: LocalAws) -> None:
    def error(server: LocalAws) -> str:
        task = _queue_task(_inbox(server), HeartbeatSeconds=1, TimeoutSeconds=2, Catch=CATCH_ALL)
        return str(json.loads(run(server, {"Wait": task, **CAUGHT})["output"]))

    assert both(aws, stock, error) == ("States.HeartbeatTimeout", "States.Timeout")


def test_heartbeats_keep_a_task_alive(aws: LocalAws) -> None:
    url = _inbox(aws)
    execution = start(aws, machine(aws, {"Wait": _queue_task(url, HeartbeatSeconds=1000)}))
    token = _next_token(aws, url)
    for _ in range(3):
        aws.advance_clock(700)
        assert _send(aws, "send_task_heartbeat", token) == ""
    _send(aws, "send_task_success", token, output='"done"')
    assert json.loads(ended(aws, execution)["output"]) == "done"


def test_timeout_given_as_an_expression(aws: LocalAws, stock: LocalAws) -> None:
    def end(server: LocalAws) -> dict[str, Any]:
        task = _queue_task(_inbox(server), TimeoutSeconds="{% $states.input.limit %}", Catch=CATCH_ALL)
        return ended(server, start(server, machine(server, {"Wait": task, **CAUGHT}), {"limit": 1}))

    mended, unmended = both(aws, stock, end)
    assert json.loads(mended["output"]) == "States.Timeout"
    assert unmended["status"] == "FAILED"


def test_caught_timeout_can_go_back_to_the_same_state(aws: LocalAws) -> None:
    url = _inbox(aws)
    again = [{"ErrorEquals": ["States.Timeout"], "Output": "{% $states.input %}", "Next": "Await"}]
    execution = start(aws, machine(aws, {"Await": _queue_task(url, TimeoutSeconds=6 * 3600, Catch=again)}))
    first = _next_token(aws, url)
    aws.advance_clock(6 * 3600)
    second = _next_token(aws, url)
    assert second != first
    assert _send(aws, "send_task_success", first, output="1") == "TaskTimedOut"
    assert _send(aws, "send_task_success", second, output="2") == ""
    assert json.loads(ended(aws, execution)["output"]) == 2


def test_token_errors(aws: LocalAws, stock: LocalAws) -> None:
    def answers(server: LocalAws) -> list[str]:
        url = _inbox(server)
        execution = start(server, machine(server, {"Wait": _queue_task(url)}))
        token = _next_token(server, url)
        found = [_send(server, "send_task_success", token, output="not json")] if server is aws else []
        found += [_send(server, "send_task_success", token, output="1") for _ in range(2)]
        ended(server, execution)
        found.append(_send(server, "send_task_failure", token))
        found.append(_send(server, "send_task_success", "garbage", output="1"))
        return found

    mended, unmended = both(aws, stock, answers)
    assert mended == ["InvalidOutput", "", "TaskTimedOut", "TaskTimedOut", "InvalidToken"]
    assert unmended[-2:] == ["TaskDoesNotExist", "TaskDoesNotExist"]


def test_every_attempt_has_its_own_token(aws: LocalAws, stock: LocalAws) -> None:
    def tokens(server: LocalAws) -> int:
        url = _inbox(server)
        retry = [{"ErrorEquals": ["Again"], "IntervalSeconds": 1, "MaxAttempts": 1}]
        execution = start(server, machine(server, {"Wait": _queue_task(url, Retry=retry)}))
        first = _next_token(server, url)
        _send(server, "send_task_failure", first, error="Again")
        second = _next_token(server, url)
        _send(server, "send_task_success", second, output="1")
        assert ended(server, execution)["status"] == "SUCCEEDED"
        return len({first, second})

    assert both(aws, stock, tokens) == (2, 1)


def test_stop_closes_the_token(aws: LocalAws) -> None:
    url = _inbox(aws)
    execution = start(aws, machine(aws, {"Wait": _queue_task(url)}))
    token = _next_token(aws, url)
    aws.client("stepfunctions").stop_execution(executionArn=execution)
    eventually(lambda: _send(aws, "send_task_success", token, output="1") == "TaskTimedOut")
    assert history(aws, execution)[-1] == "ExecutionAborted"


def test_parallel_output_and_variables_of_branches(aws: LocalAws, stock: LocalAws) -> None:
    def branch(value: int) -> dict[str, Any]:
        own = {"Type": "Pass", "Assign": {"own": value}, "Next": "Use"}
        return {"StartAt": "Set", "States": {"Set": own, "Use": {"Type": "Pass", "Output": "{% $own %}", "End": True}}}

    states = {
        "Start": {"Type": "Pass", "Assign": {"own": 0}, "Next": "Both"},
        "Both": {
            "Type": "Parallel",
            "Branches": [branch(1), branch(2)],
            "Output": {"sum": "{% $sum($states.result) %}"},
            "Assign": {"seen": "{% $states.result %}"},
            "Next": "After",
        },
        "After": {"Type": "Pass", "Output": {"in": "{% $states.input %}", "own": "{% $own %}"}, "End": True},
    }
    assert json.loads(run(aws, states)["output"]) == {"in": {"sum": 3}, "own": 0}
    assert json.loads(run(stock, states)["output"])["in"] != {"sum": 3}


def test_what_no_one_catches(aws: LocalAws, stock: LocalAws) -> None:
    def end(server: LocalAws) -> tuple[str, str]:
        call = {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke",
            "Arguments": {"FunctionName": function(server, "def handler(event, context):\n    return 'x' * 300_000\n")},
            "Catch": CATCH_ALL,
            "Next": "Caught",
        }
        described = run(server, {"Call": call, "Caught": {"Type": "Succeed"}})
        return described["status"], described.get("error", "")

    assert both(aws, stock, end) == (("FAILED", "States.DataLimitExceeded"), ("SUCCEEDED", ""))


def test_history_of_a_token_task(aws: LocalAws, stock: LocalAws) -> None:
    def kinds(server: LocalAws) -> list[str]:
        task = _queue_task(_inbox(server), TimeoutSeconds=1)
        return history(server, run(server, {"Wait": task})["executionArn"])

    mended, unmended = both(aws, stock, kinds)
    assert mended == [
        "ExecutionStarted",
        "TaskStateEntered",
        "TaskScheduled",
        "TaskStarted",
        "TaskSubmitted",
        "TaskTimedOut",
        "ExecutionFailed",
    ]
    assert "TaskTimedOut" not in unmended


def test_throttled_function_has_a_name_to_retry(aws: LocalAws, stock: LocalAws) -> None:
    def error(server: LocalAws) -> str:
        name = function(server, "def handler(event, context):\n    return 1\n")
        server.client("lambda").put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        arguments = {"FunctionName": name}
        call = {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "Arguments": arguments, "End": True}
        return str(run(server, {"Call": call})["error"])

    assert both(aws, stock, error) == ("Lambda.TooManyRequestsException", "Lambda.Unknown")


def _distributed_map(**fields: Any) -> dict[str, Any]:
    inner = {"Type": "Pass", "Output": "{% $states.input.value * $states.input.factor %}", "End": True}
    return {
        "Map": {
            "Type": "Map",
            "Items": "{% $states.input.values %}",
            "ItemSelector": {"value": "{% $states.context.Map.Item.Value %}", "factor": "{% $states.input.factor %}"},
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                "StartAt": "Inner",
                "States": {"Inner": inner},
            },
            "Output": {"all": "{% $states.result %}"},
            "End": True,
            **fields,
        }
    }


def test_distributed_map_runs_its_items(aws: LocalAws, stock: LocalAws) -> None:
    data = {"values": [1, 2, 3], "factor": 10}
    mended, unmended = both(
        aws, stock, lambda server: ended(server, start(server, machine(server, _distributed_map()), data))
    )
    assert json.loads(mended["output"]) == {"all": [10, 20, 30]}
    assert unmended.get("output") != mended["output"]


def test_distributed_map_refuses_what_is_not_run_here(aws: LocalAws) -> None:
    states = _distributed_map(ItemBatcher={"MaxItemsPerBatch": 2})
    assert run(aws, states, {"values": [1], "factor": 1})["status"] == "FAILED"


def test_stop_ends_the_children_of_a_distributed_map(aws: LocalAws) -> None:
    url = _inbox(aws)
    states = _distributed_map()
    states["Map"]["ItemProcessor"]["States"] = {"Inner": _queue_task(url)}
    execution = start(aws, machine(aws, states), {"values": [1], "factor": 1})
    token = _next_token(aws, url)
    aws.client("stepfunctions").stop_execution(executionArn=execution)
    eventually(lambda: _send(aws, "send_task_success", token, output="1") == "TaskTimedOut")
