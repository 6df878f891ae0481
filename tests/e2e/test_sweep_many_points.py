"""The largest sweep there is, through the deployed state machine and its functions; only the runs are played.

Each point's nested execution is one of a small machine that writes the run's end into the run table, or fails.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from typing import Any

import pytest

from blackwell.runs import RunStatus
from blackwell.sweep.client import SweepClient, SweepHandle
from blackwell.sweep.spec import MAX_POINTS, parse_sweep_spec
from docs.generators.history import sweep_events
from local.deployment import DATASET, Deployment
from local.overlay.executions import PAYLOAD_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.xdist_group("e2e"), pytest.mark.timeout(600)]

PATIENCE_SECONDS = 400.0
CONCURRENCY = 20
FAILING = ("fp32-mb1-none-16", "bf16-mb2-none-160")


def sweep_document(name: str) -> dict[str, Any]:
    """Exactly as many points as a sweep may have, all of which fit."""
    return {
        "name": name,
        "base": {
            "model": {
                "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
                "vocab_size": 512,
            },
            "data": {"train": DATASET},
            "training": {
                "precision": "fp32", "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 16, "steps": 20,
                "activation_checkpointing": "none", "processes_per_instance": 1, "checkpoint": {"interval_steps": 10},
            },
            "capacity": [
                {
                    "kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "max_runtime_seconds": 3600,
                    "hourly_price": 0.4,
                }
            ],
        },
        "grid": {
            "precision": ["fp32", "bf16"],
            "micro_batch_size": [1, 2, 4, 8],
            "seq_length": [16 * n for n in range(1, 26)],
        },
        "baseline_repeats": 0,
        "max_concurrency": CONCURRENCY,
    }  # fmt: skip


class PlayedRuns:
    """The deployed sweep machine's own definition, with another machine in the place of the training workflow."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.states = deployment.aws.client("stepfunctions")
        self.made: list[str] = []
        self.outputs = deployment.client.outputs
        deployed = self.states.describe_state_machine(stateMachineArn=self.outputs.all["SweepStateMachineArn"])
        self._definition, self._role = deployed["definition"], deployed["roleArn"]
        assert self.outputs.state_machine_arn in self._definition

    def machine(self, failing: str) -> str:
        """The sweep machine whose runs complete, but for those that match the JSONata expression `failing`."""
        played = self._create(_played_run(self.outputs.run_table, failing))
        return self._create(self._definition.replace(self.outputs.state_machine_arn, played))

    def _create(self, definition: str) -> str:
        answer = self.states.create_state_machine(
            name=f"played-{secrets.token_hex(4)}", definition=definition, roleArn=self._role
        )
        self.made.append(answer["stateMachineArn"])
        return str(answer["stateMachineArn"])

    def sweep(self, machine: str, document: dict[str, Any]) -> str:
        """Starts the sweep, waits for its end; the execution's ARN."""
        arn = self.states.start_execution(
            stateMachineArn=machine, name=f"many-{secrets.token_hex(4)}", input=json.dumps(document)
        )["executionArn"]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.states.describe_execution(executionArn=arn)["status"] == "RUNNING":
            assert time.monotonic() < deadline
            time.sleep(0.5)
        return str(arn)

    def history(self, execution: str) -> list[dict[str, Any]]:
        pages = self.states.get_paginator("get_execution_history").paginate(executionArn=execution)
        return [event for page in pages for event in page["events"]]


def _played_run(table: str, failing: str) -> str:
    name = "$states.context.Execution.Name"
    text = {"status": "COMPLETED", "verdict": "completed", "started_at": "2026-12-01T00:00:00Z"}
    item: dict[str, Any] = {field: {"S": value} for field, value in text.items()}
    item |= {"run": {"S": f"{{% {name} %}}"}, "attempt": {"N": "0"}, "execution_arn": {"S": f"{{% {name} %}}"}}
    return json.dumps(
        {
            "QueryLanguage": "JSONata",
            "StartAt": "Which",
            "States": {
                "Which": {
                    "Type": "Choice",
                    "Choices": [{"Condition": f"{{% {failing} %}}", "Next": "Broken"}],
                    "Default": "Write",
                },
                "Write": {
                    "Type": "Task",
                    "Resource": "arn:aws:states:::dynamodb:putItem",
                    "Arguments": {"TableName": table, "Item": item},
                    "End": True,
                },
                "Broken": {"Type": "Fail", "Error": "out_of_memory", "Cause": "x" * 30_000},
            },
        }
    )


@pytest.fixture
def played(deployment: Deployment) -> Any:
    runs = PlayedRuns(deployment)
    yield runs
    for arn in runs.made:
        runs.states.delete_state_machine(stateMachineArn=arn)


def largest_payload(events: list[dict[str, Any]]) -> int:
    """Bytes of the largest input, output, argument or result in the history."""
    details = [value for event in events for key, value in event.items() if key.endswith("EventDetails")]
    return max(
        len(str(detail[field]).encode())
        for detail in details
        for field in ("input", "output", "parameters")
        if field in detail
    )


def test_two_hundred_points_within_every_limit_and_resumed(played: PlayedRuns, deployment: Deployment) -> None:
    name = f"many-{secrets.token_hex(3)}"
    document = sweep_document(name)
    assert parse_sweep_spec(document).size == MAX_POINTS
    client = SweepClient(played.outputs, deployment.aws.session())

    # two points fail, the baseline and one in the middle
    named = [f"$contains($states.context.Execution.Name, '{point}-')" for point in FAILING]
    first = played.sweep(played.machine(" or ".join(named)), document)
    described = played.states.describe_execution(executionArn=first)
    assert described["status"] == "SUCCEEDED", described
    assert client.failure(SweepHandle(name, first)) is None
    report = client.report(name)
    assert (len(report.points), report.completed) == (MAX_POINTS, MAX_POINTS - len(FAILING))
    failed = {point.id for point in report.points if point.status is not RunStatus.COMPLETED}
    assert {identity.rpartition("-")[0] for identity in failed} == set(FAILING)

    events = played.history(first)
    kinds = Counter(event["type"] for event in events)
    assert kinds["MapIterationSucceeded"] == MAX_POINTS
    assert kinds["MapIterationFailed"] == 0
    assert len(events) == sweep_events(MAX_POINTS, every_retry=False)
    assert sweep_events(MAX_POINTS, every_retry=True) < 25_000
    assert largest_payload(events) < PAYLOAD_BYTES // 4

    # again: only what did not complete
    second = played.sweep(played.machine("false"), document)
    started = [e for e in played.history(second) if e["type"] == "TaskSubmitted"]
    assert len(started) == len(FAILING)
    again = client.report(name)
    assert again.completed == MAX_POINTS
    before = {point.id: point.run for point in report.points}
    assert {point.id for point in again.points if point.run != before[point.id]} == failed
