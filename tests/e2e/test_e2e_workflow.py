"""The deployed workflow on the embedded AWS: rejected, shared, repeated and stopped runs, side by side."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blackwell.runs import AttemptStatus, RunStatus
from blackwell.verdict import Verdict
from local.deployment import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e"), pytest.mark.timeout(600)]

JOB = Path(__file__).parents[2] / "examples" / "jobs" / "tiny-scenario.json"
PATIENCE_SECONDS = 240.0


def spec(**training: Any) -> dict[str, Any]:
    document = json.loads(JOB.read_text())
    quick = {"steps": 6, "checkpoint": {"interval_steps": 2}, "processes_per_instance": 1, "warmup_steps": 1}
    document["training"] |= quick | training
    return document


def until(question: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        answer = question()
        if answer:
            return answer
        time.sleep(0.5)
    raise AssertionError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")


class Runs:
    """Starts executions and waits for them."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.client = deployment, deployment.client
        self.aws = deployment.aws
        self.states = self.aws.client("stepfunctions")

    def start(self, name: str, document: Any) -> str:
        machine = self.client.outputs.state_machine_arn
        return str(
            self.states.start_execution(stateMachineArn=machine, name=name, input=json.dumps(document))["executionArn"]
        )

    def end(self, name: str) -> Any:
        return until(lambda: (state := self.client.status(name)).ended and state, f"the end of {name}")

    def jobs(self) -> set[str]:
        pages = self.aws.client("sagemaker").get_paginator("list_training_jobs").paginate()
        return {job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]}

    def builds(self) -> set[str]:
        return set(self.aws.client("codebuild").list_builds()["ids"])


@pytest.fixture(scope="module")
def runs(deployment: Deployment) -> Runs:
    found = Runs(deployment)
    # two at once that need the same image, which is missing unless scenarios came first
    found.start("first", spec())
    found.start("second", spec(seed=7))
    return found


def test_two_at_once_share_one_build_and_both_finish(runs: Runs) -> None:
    ends = [runs.end(name) for name in ("first", "second")]
    assert [end.execution_status for end in ends] == ["SUCCEEDED"] * 2
    assert len(runs.builds()) == 1
    reports = [runs.client.report(name) for name in ("first", "second")]
    assert [report["verdict"] for report in reports] == ["completed"] * 2
    assert reports[0]["image"] == reports[1]["image"]
    assert reports[0]["first_loss"] != reports[1]["first_loss"]
    for name, end in zip(("first", "second"), ends, strict=True):
        assert [(a.attempt, a.status, a.verdict) for a in end.attempts] == [(1, AttemptStatus.ENDED, Verdict.COMPLETED)]
        assert b"<svg" in runs.client.document(name, "report.html")
        output = json.loads(runs.states.describe_execution(executionArn=runs.client.execution_arn(name))["output"])
        assert output["verdict"] == "completed"
        assert output["report"].endswith(f"runs/{name}/report.html")


def test_a_run_started_twice_is_one_run_and_stopping_it_stops_its_job(runs: Runs) -> None:
    name, document = "stopped", spec(steps=5_000)
    first = runs.start(name, document)
    assert runs.start(name, document) == first
    with pytest.raises(runs.states.exceptions.ExecutionAlreadyExists):
        runs.start(name, spec(steps=6))

    def saved() -> bool:
        return any("event checkpoint" in line for line in runs.client.log_lines(name))

    until(saved, "a checkpoint")
    assert len([job for job in runs.jobs() if f"-{name}-a" in job]) == 1
    runs.client.stop(name, cause="enough")
    item = until(
        lambda: (i := runs.client.item(name)) is not None and i.report_uri is not None and i,
        "the report of a stopped run",
    )
    assert (item.status, item.verdict) == (RunStatus.STOPPED, Verdict.STOPPED)
    attempt = runs.client.attempts(name)[0]
    assert attempt.verdict is Verdict.STOPPED
    job = runs.client.job(attempt)
    assert job is not None
    assert job["TrainingJobStatus"] == "Stopped"
    report = runs.client.report(name)
    assert report["verdict"] == "stopped"
    assert any(checkpoint["durable"] for checkpoint in report["checkpoints"])


BAD: dict[str, Any] = {
    "BTS-003": spec(stepz=1),
    "BTS-004": {},
    "BTS-005": spec(dropout="much"),
    "BTS-006": spec(micro_batch_size=-1),
    "BTS-007": spec(precision="fp7"),
    "BTS-008": spec(steps=None),
    "BTS-205": spec() | {"data": {"train": "datasets/nowhere/"}},
    "BTS-001": [1, 2],
    "BTS-002": "text",
}
"""Finding -> execution input that it refuses."""


def test_bad_specs_are_rejected_and_nothing_is_created(runs: Runs) -> None:
    for identity, document in BAD.items():
        runs.start(f"bad-{identity}", document)
    for identity in BAD:
        name = f"bad-{identity}"
        end = runs.end(name)
        execution = runs.states.describe_execution(executionArn=runs.client.execution_arn(name))
        assert (end.execution_status, execution["error"]) == ("FAILED", "Rejected")
        cause = json.loads(execution["cause"])
        assert cause["run"] == name
        assert identity in {finding["id"] for finding in cause["findings"]}
        assert identity in {finding.id for finding in runs.client.findings(name)}
        assert end.attempts == ()
    assert not [job for job in runs.jobs() if any(f"-bad-{identity}-" in job for identity in BAD)]
    assert len(runs.builds()) <= 1


def test_text_that_is_no_json_is_refused_or_rejected(runs: Runs) -> None:
    machine = runs.client.outputs.state_machine_arn
    for text in ("{", '{"a": NaN}'):
        with pytest.raises(runs.states.exceptions.InvalidExecutionInput):
            runs.states.start_execution(stateMachineArn=machine, name=f"x-{uuid.uuid4().hex[:6]}", input=text)
    path = runs.deployment.folder / "dropped.json"
    path.write_text('{"model": NaN')
    runs.client.drop(path)
    item = until(lambda: next((i for i in runs.client.runs() if i.run.startswith("dropped-")), None), "the dropped run")
    assert item.status is RunStatus.REJECTED
    assert {finding.id for finding in runs.client.findings(item.run)} <= {"BTS-002", "BTS-009"}
