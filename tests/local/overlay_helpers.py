"""What the overlay's tests share: unique names, small machines and functions, waiting for a condition."""

from __future__ import annotations

import io
import itertools
import json
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from local.server import LocalAws

T = TypeVar("T")
ROLE = "arn:aws:iam::000000000000:role/test"
_numbers = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other test of this worker uses."""
    return f"{prefix}-{next(_numbers)}"


def eventually(look: Callable[[], T | None], seconds: float = 15.0) -> T:
    """The first true value that `look` gives; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"nothing within {seconds} s, last seen {value!r}"
        time.sleep(0.03)


def both(aws: LocalAws, stock: LocalAws, work: Callable[[LocalAws], T]) -> tuple[T, T]:
    """(what `work` gives on the overlay, what it gives on stock ministack), done at the same time."""
    with ThreadPoolExecutor(2) as pool:
        mended, unmended = pool.map(work, (aws, stock))
    return mended, unmended


def function(aws: LocalAws, source: str, *, files: dict[str, str] | None = None, **options: Any) -> str:
    """Create a Python function with `source` as index.py; returns its name."""
    name = unique("function")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        for path, text in {"index.py": source, **(files or {})}.items():
            bundle.writestr(path, text)
    aws.client("lambda").create_function(
        FunctionName=name,
        Runtime="python3.13",
        Role=ROLE,
        Handler="index.handler",
        Code={"ZipFile": archive.getvalue()},
        **{"Timeout": 20, **options},
    )
    return name


def invoke(aws: LocalAws, name: str, payload: Any = None) -> dict[str, Any]:
    """Invoke a function and wait; returns {"error": FunctionError or None, "payload": ...}."""
    answer = aws.client("lambda").invoke(FunctionName=name, Payload=json.dumps(payload or {}))
    return {"error": answer.get("FunctionError"), "payload": json.loads(answer["Payload"].read() or b"null")}


def machine(aws: LocalAws, states: dict[str, Any], **top: Any) -> str:
    """Create a JSONata state machine that starts at the first of `states`; returns its ARN."""
    definition = {"QueryLanguage": "JSONata", "StartAt": next(iter(states)), "States": states, **top}
    answer = aws.client("stepfunctions").create_state_machine(
        name=unique("machine"), definition=json.dumps(definition), roleArn=ROLE
    )
    return str(answer["stateMachineArn"])


def start(aws: LocalAws, machine_arn: str, data: Any = None, name: str | None = None) -> str:
    """Start an execution; returns its ARN."""
    named = {"name": name} if name else {}
    answer = aws.client("stepfunctions").start_execution(
        stateMachineArn=machine_arn, input=json.dumps(data or {}), **named
    )
    return str(answer["executionArn"])


def describe(aws: LocalAws, execution: str) -> dict[str, Any]:
    """DescribeExecution."""
    answer: dict[str, Any] = aws.client("stepfunctions").describe_execution(executionArn=execution)
    return answer


def ended(aws: LocalAws, execution: str, seconds: float = 15.0) -> dict[str, Any]:
    """Wait for the execution's end and describe it."""

    def look() -> dict[str, Any] | None:
        described = describe(aws, execution)
        return described if described["status"] != "RUNNING" else None

    return eventually(look, seconds)


def run(aws: LocalAws, states: dict[str, Any], data: Any = None, **top: Any) -> dict[str, Any]:
    """Create a machine, run it once to its end, describe that."""
    return ended(aws, start(aws, machine(aws, states, **top), data))


def history(aws: LocalAws, execution: str) -> list[str]:
    """Types of the execution's history events, in order."""
    pages = aws.client("stepfunctions").get_paginator("get_execution_history").paginate(executionArn=execution)
    return [event["type"] for page in pages for event in page["events"]]


def queue_for_events(aws: LocalAws, pattern: dict[str, Any]) -> Callable[[], list[dict[str, Any]]]:
    """A rule that copies matching events into a queue; the result reads all events seen so far."""
    name = unique("events")
    sqs, events = aws.client("sqs"), aws.client("events")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name=name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])
    seen: list[dict[str, Any]] = []

    def read() -> list[dict[str, Any]]:
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                seen.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return seen

    return read
