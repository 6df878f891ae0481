"""The Python API against a small stack of the same outputs on the embedded AWS."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from blackwell.client import Client, RunNotFound, RunState, StackNotFound, new_run_name
from blackwell.findings import FindingsError
from blackwell.live import Watcher
from blackwell.names import RUN_ID
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.spec import JobSpec, load_job_spec
from blackwell.telemetry import TRAINING_LOG_GROUP, StepRecord, format_event, format_step
from blackwell.verdict import Verdict
from local.server import LocalAws

STACK = "ClientStack"
MACHINE = {
    "QueryLanguage": "JSONata",
    "StartAt": "Plan",
    "States": {
        "Plan": {"Type": "Choice", "Choices": [{"Condition": "{% $exists($states.input.goal) %}", "Next": "Rejected"}],
                 "Default": "AwaitJob"},
        "AwaitJob": {"Type": "Wait", "Seconds": 120, "End": True},
        "Rejected": {
            "Type": "Fail",
            "Error": "Rejected",
            "Cause": json.dumps({"run": "r", "findings": [{"id": "BTS-205", "message": "nothing is there"}]}),
        },
    },
}  # fmt: skip


def template() -> dict[str, Any]:
    key = [("run", "HASH", "S"), ("attempt", "RANGE", "N")]
    table = {
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind, _ in key],
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": type_} for name, _, type_ in key],
    }
    role = "arn:aws:iam::000000000000:role/states"
    machine = {"DefinitionString": json.dumps(MACHINE), "RoleArn": role}
    outputs = {
        "StateMachineArn": {"Ref": "Machine"},
        "ArtifactsBucket": {"Ref": "Bucket"},
        "CheckpointBucket": {"Ref": "Bucket"},
        "RunTable": {"Ref": "Table"},
        "JobPrefix": "blackwell-dev",
    }
    return {
        "Resources": {
            "Table": {"Type": "AWS::DynamoDB::Table", "Properties": table},
            "Bucket": {"Type": "AWS::S3::Bucket"},
            "Machine": {"Type": "AWS::StepFunctions::StateMachine", "Properties": machine},
        },
        "Outputs": {name: {"Value": value} for name, value in outputs.items()},
    }


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    with LocalAws(tmp_path_factory.mktemp("aws")) as server:
        cloudformation = server.client("cloudformation")
        cloudformation.create_stack(StackName=STACK, TemplateBody=json.dumps(template()))
        cloudformation.get_waiter("stack_create_complete").wait(StackName=STACK, WaiterConfig={"Delay": 1})
        server.client("logs").create_log_group(logGroupName=TRAINING_LOG_GROUP)
        yield server


@pytest.fixture(scope="module")
def client(aws: LocalAws) -> Client:
    return Client.from_stack(STACK, session=aws.session())


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def spec() -> JobSpec:
    return load_job_spec(Path(__file__).parents[2] / "examples" / "jobs" / "tiny-cpu.json")


class Table:
    """Writes what the workflow would write."""

    def __init__(self, aws: LocalAws, client: Client, run: str) -> None:
        self._aws, self._client, self.run = aws, client, run
        self.job = f"blackwell-dev-{run}-a1"

    def put(self, item: RunItem | AttemptItem) -> None:
        self._aws.client("dynamodb").put_item(TableName=self._client.outputs.run_table, Item=dict(item.to_attributes()))

    def record(self, status: RunStatus = RunStatus.RUNNING, **more: Any) -> None:
        arn = self._client.execution_arn(self.run)
        started = datetime.now(UTC).isoformat()
        self.put(RunItem(run=self.run, status=status, execution_arn=arn, started_at=started, **more))

    def attempt(self) -> None:
        self.put(AttemptItem(run=self.run, attempt=1, status=AttemptStatus.LAUNCHED, job_name=self.job, job_arn="arn"))

    def log(self, *lines: str) -> None:
        logs, stream = self._aws.client("logs"), f"{self.job}/algo-1-1"
        known = logs.describe_log_streams(logGroupName=TRAINING_LOG_GROUP, logStreamNamePrefix=stream)["logStreams"]
        if not known:
            logs.create_log_stream(logGroupName=TRAINING_LOG_GROUP, logStreamName=stream)
        now = int(datetime.now(UTC).timestamp() * 1000)
        events = [{"timestamp": now, "message": line} for line in lines]
        logs.put_log_events(logGroupName=TRAINING_LOG_GROUP, logStreamName=stream, logEvents=events)


@pytest.fixture
def table(aws: LocalAws, client: Client, run: str) -> Table:
    return Table(aws, client, run)


def step(number: int, run: str) -> str:
    record = StepRecord(step=number, time=0.0, loss=1.5, learning_rate=1e-3, tokens_per_second=1000.0)
    return format_step(record, run)


def begun(client: Client, run: str) -> None:
    """Waits until the execution, which starts in a thread of the server's, is in its first state."""
    deadline = time.monotonic() + 10
    while client.status(run).stage is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stack_that_is_not_there(aws: LocalAws) -> None:
    with pytest.raises(StackNotFound, match="cdk deploy Missing"):
        Client.from_stack("Missing", session=aws.session())


def test_submit_sends_the_spec_as_it_was_written(aws: LocalAws, client: Client, run: str, spec: JobSpec) -> None:
    handle = client.submit(spec, run=run)
    sent = aws.client("stepfunctions").describe_execution(executionArn=handle.execution_arn)["input"]
    example = Path(__file__).parents[2] / "examples" / "jobs" / "tiny-cpu.json"
    assert json.loads(sent) == json.loads(example.read_text())
    assert client.submit(spec, run=run) == handle
    client.stop(run)
    with pytest.raises(FindingsError) as taken:
        client.submit(spec, run=run)
    assert [finding.id for finding in taken.value.findings] == ["BTS-210"]


@pytest.mark.parametrize("name", ["a b", "-x", "ü", "x" * 81])
def test_illegal_names_are_refused_here(client: Client, spec: JobSpec, name: str) -> None:
    with pytest.raises(FindingsError) as refused:
        client.submit(spec, run=name)
    assert [finding.id for finding in refused.value.findings] == ["BTS-209"]


def test_new_names_are_legal_and_new() -> None:
    names = {new_run_name() for _ in range(50)}
    assert all(RUN_ID.match(name) for name in names)
    assert len(names) > 40


def test_status_before_and_after(client: Client, table: Table, run: str, spec: JobSpec) -> None:
    with pytest.raises(RunNotFound):
        client.status(run)
    client.submit(spec, run=run)
    state = client.status(run)
    assert (state.execution_status, state.status, state.ended) == ("RUNNING", None, False)
    table.record()
    assert client.status(run).status is RunStatus.RUNNING
    client.stop(run, cause="enough")
    table.record(RunStatus.STOPPED, verdict=Verdict.STOPPED, cause="enough")
    state = client.status(run)
    assert (state.execution_status, state.verdict, state.ended) == ("ABORTED", "stopped", True)


def test_a_rejected_run_says_why(client: Client, run: str, spec: JobSpec) -> None:
    client.submit(spec.model_copy(update={"goal": spec.goal}), run=run)  # a set `goal` is what the machine refuses
    last = list(client.follow(run, sleep=lambda seconds: None))[-1]
    assert last.kind == "end"
    assert "nothing is there" in last.line()
    assert client.status(run).findings[0]["id"] == "BTS-205"


def test_follow_tells_everything_once_and_in_order(client: Client, table: Table, run: str, spec: JobSpec) -> None:
    client.submit(spec, run=run)
    table.record()
    table.attempt()
    begun(client, run)
    beats = iter(range(100))

    def sleep(_: float) -> None:
        beat = next(beats)
        if beat == 1:
            table.log("noise", step(1, run), step(2, run))
        if beat == 2:
            table.log(format_event("checkpoint", run, step=2, phase="complete"), step(3, run))
        if beat == 3:
            table.log(step(4, run))
            client.stop(run)
            table.record(RunStatus.STOPPED, verdict=Verdict.STOPPED, cause="by hand")

    seen = list(client.follow(run, sleep=sleep))
    assert [p.step.step for p in seen if p.step] == [1, 2, 3, 4]
    assert [p.kind for p in seen] == ["stage", "step", "step", "event", "step", "step", "end"]
    assert seen[-1].line() == "stopped: by hand"
    assert seen[1].line() == "step 1 loss 1.5000 1000 tokens/s"
    assert len(list(client.log_lines(run))) == 6


def test_documents(client: Client, aws: LocalAws, run: str, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        client.report(run)
    file = tmp_path / "x"
    file.write_text('{"verdict": "completed"}')
    client.upload(file, f"runs/{run}/report.json")
    assert client.report(run) == {"verdict": "completed"}


def test_runs_are_listed_newest_first(client: Client, table: Table, aws: LocalAws, run: str) -> None:
    table.record()
    table.attempt()
    other = Table(aws, client, f"{run}-2")
    other.record()
    listed = [item.run for item in client.runs()]
    assert listed.index(other.run) < listed.index(run)
    assert listed.count(run) == 1


def test_dashboard_reads_the_same_stack(client: Client, table: Table, run: str, spec: JobSpec) -> None:
    client.submit(spec, run=run)
    table.record()
    table.attempt()
    table.log(format_event("start", run, world_size=1), step(1, run), step(2, run))
    begun(client, run)
    watcher = Watcher(client, STACK)
    (found,) = [live for live in watcher.look().runs if live.run == run]
    assert (found.status, found.stage, found.step) == (RunStatus.RUNNING, "AwaitJob", 2)
    assert (found.loss, found.tokens_per_second, found.attempts, found.restarts) == (1.5, 1000.0, 1, 0)
    table.log(step(3, run))
    (found,) = [live for live in watcher.look().runs if live.run == run]
    assert found.step == 3
    assert found.curve.step == [1, 2, 3]
    client.stop(run)


@pytest.mark.parametrize(
    ("status", "execution", "findings", "final"),
    [
        (None, "FAILED", (), RunStatus.FAILED),
        (None, "FAILED", ({"id": "BTS-001"},), RunStatus.REJECTED),
        (RunStatus.RUNNING, "ABORTED", (), RunStatus.STOPPED),
        (RunStatus.RUNNING, "TIMED_OUT", (), RunStatus.FAILED),
        (RunStatus.RUNNING, "SUCCEEDED", (), RunStatus.COMPLETED),
        (RunStatus.STOPPED, "ABORTED", (), RunStatus.STOPPED),
        (RunStatus.COMPLETED, "RUNNING", (), None),
        (None, "RUNNING", (), None),
    ],
)
def test_how_a_run_ended_is_known_before_its_item_says_so(
    status: RunStatus | None, execution: str, findings: tuple[dict[str, Any], ...], final: RunStatus | None
) -> None:
    state = RunState("r", status, execution, stage=None, item=None, attempts=(), findings=findings)
    assert state.final_status is final
