"""The teardown resource: what goes, in which order, what stays, and that CloudFormation always gets its answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from teardown_fakes import Clock, FakeBuilds, FakeLogs, FakeNetwork, FakeS3, FakeSageMaker, FakeStates, refused

from blackwell.names import STAGE_TAG
from blackwell.trainer_config import ENV_CONTROL_URI
from lambdas.teardown import cfn, handler, steps
from lambdas.teardown.steps import STEPS, Teardown
from lambdas.teardown.targets import Targets

PROPERTIES = {
    "ServiceToken": "arn:function",
    "Partition": "aws",
    "Stage": "dev",
    "JobPrefix": "blackwell-dev",
    "StateMachines": ["arn:machine"],
    "BuildProject": "build",
    "ArtifactsBucket": "artifacts",
    "CheckpointBucket": "checkpoints",
    "RetainData": "false",
    "TrainingLogGroup": "/aws/sagemaker/TrainingJobs",
    "LogGroups": ["/aws/lambda/stack-plan", "/aws/codebuild/build"],
    "ServiceTimeoutSeconds": "3600",
}
OURS = {STAGE_TAG: "dev"}


def job(status: str = "InProgress", **more: Any) -> dict[str, Any]:
    return {"status": status, "tags": OURS, **more}


@dataclass
class World:
    """Everything a teardown meets; jobs that were told to stop end at the next look, after `stopping_seconds`."""

    sagemaker: FakeSageMaker = field(default_factory=lambda: FakeSageMaker({}))
    s3: FakeS3 = field(default_factory=lambda: FakeS3({"artifacts": [], "checkpoints": []}))
    stepfunctions: FakeStates = field(default_factory=lambda: FakeStates({"arn:machine": []}))
    ec2: FakeNetwork = field(default_factory=FakeNetwork)
    codebuild: FakeBuilds = field(default_factory=lambda: FakeBuilds({}))
    logs: FakeLogs = field(default_factory=lambda: FakeLogs({"/aws/sagemaker/TrainingJobs": []}))
    clock: Clock = field(default_factory=Clock)

    def teardown(self, **properties: Any) -> Teardown:
        targets = Targets.model_validate({**PROPERTIES, **properties})
        return Teardown(
            targets=targets, client=lambda name: getattr(self, name), begun=self.clock.now,
            clock=self.clock, sleep=self.clock.sleep,
        )  # fmt: skip

    def end_jobs_after(self, seconds: float) -> None:
        """Jobs end `seconds` after they were told to stop."""
        since: dict[str, float] = {}

        def look(now: float) -> None:
            for name, described in self.sagemaker.jobs.items():
                if described["status"] == "Stopping" and now - since.setdefault(name, now) >= seconds:
                    described["status"] = "Stopped"

        self.clock.after_sleep.append(look)

    def run(self, teardown: Teardown, limit: float = 3600) -> None:
        end = self.clock.now + limit
        for step in STEPS:
            while step(teardown, end):
                assert self.clock.now < end, f"{step.__name__} never ended"
                teardown.sleep(teardown.poll_seconds)


@pytest.fixture
def world() -> World:
    return World()


def test_stops_waits_deletes_in_this_order(world: World) -> None:
    world.sagemaker.jobs = {"blackwell-dev-a-a1": job(), "blackwell-dev-b-a1": job("Completed")}
    world.stepfunctions.running["arn:machine"] = ["arn:execution:a"]
    world.codebuild.builds = {"build:1": "IN_PROGRESS", "build:2": "SUCCEEDED"}
    world.s3.versions["checkpoints"] = [("runs/a/checkpoints/step-00000001/x", "v1")]
    world.end_jobs_after(90)
    denied_while: list[str] = []
    deny = world.s3.put_bucket_policy

    def watch(**arguments: Any) -> None:
        denied_while.extend(j["status"] for j in world.sagemaker.jobs.values())
        deny(**arguments)

    world.s3.put_bucket_policy = watch  # type: ignore[method-assign]
    world.run(world.teardown())
    assert world.stepfunctions.stopped == ["arn:execution:a"]
    assert world.codebuild.builds == {"build:1": "STOPPED", "build:2": "SUCCEEDED"}
    assert world.sagemaker.jobs == {}
    first_delete = next(i for i, call in enumerate(world.sagemaker.calls) if call.startswith("delete"))
    assert all(call.startswith("stop") for call in world.sagemaker.calls[:first_delete])
    assert denied_while == [], "writes are denied only after every job has ended and written its checkpoint"
    assert world.s3.versions == {"artifacts": [], "checkpoints": []}


def test_foreign_jobs_stay(world: World) -> None:
    foreign = {
        "blackwell-dev2-a-a1": {"status": "InProgress", "tags": {STAGE_TAG: "dev2"}},
        "blackwell-dev-hand-made": {"status": "InProgress", "tags": {}},
        "other-blackwell-dev-x": {"status": "InProgress", "tags": OURS},
    }
    world.sagemaker.jobs = {**foreign, "blackwell-dev-a-a1": job("Failed")}
    world.logs.groups["/aws/sagemaker/TrainingJobs"] = [
        "blackwell-dev-a-a1/algo-1-1", "blackwell-dev2-a-a1/algo-1-1", "other/algo-1-1",
    ]  # fmt: skip
    world.logs.groups |= {"/aws/lambda/stack-plan": [], "/aws/lambda/stack-prod-plan": [], "/aws/codebuild/other": []}
    world.run(world.teardown())
    assert world.sagemaker.jobs == foreign
    assert world.sagemaker.calls == ["delete blackwell-dev-a-a1"]
    assert world.logs.groups == {
        "/aws/sagemaker/TrainingJobs": ["blackwell-dev2-a-a1/algo-1-1", "other/algo-1-1"],
        "/aws/lambda/stack-prod-plan": [],
        "/aws/codebuild/other": [],
    }


@pytest.mark.parametrize("objects", [6_000, pytest.param(120_000, marks=pytest.mark.slow)])
def test_empties_versions_markers_and_uploads_of_many_objects(world: World, objects: int) -> None:
    keys = [f"runs/r/{i:06d}" for i in range(objects // 3)]
    world.s3.versions["checkpoints"] = [(key, version) for key in keys for version in ("v0", "v1")]
    world.s3.markers["checkpoints"] = [(key, "zz") for key in keys]
    world.s3.uploads["checkpoints"] = [("runs/r/big", "u1"), ("runs/r/big", "u2")]
    world.run(world.teardown())
    assert world.s3.versions["checkpoints"] == world.s3.markers["checkpoints"] == []
    assert world.s3.uploads["checkpoints"] == []
    # one list and one delete for each thousand, and a last look at each bucket
    assert world.s3.calls <= 2 * objects // 1_000 + 4


def test_late_writes_of_what_was_stopped_are_taken_away_too(world: World) -> None:
    """The run's report is written after its execution was stopped, when the buckets were empty already."""
    world.stepfunctions.running["arn:machine"] = ["arn:execution:a"]
    begun = world.clock.now
    late = [12.0, 31.0]

    def write(now: float) -> None:
        while late and now - begun >= late[0]:
            world.s3.versions["artifacts"].append((f"runs/a/report-{late.pop(0)}.json", "v1"))

    world.clock.after_sleep.append(write)
    world.run(world.teardown())
    assert late == []
    assert world.s3.versions["artifacts"] == []
    assert world.clock.now - begun >= 31 + steps.QUIET_SECONDS


def test_nothing_was_running_nothing_is_waited_for(world: World) -> None:
    world.s3.versions["artifacts"] = [("runs/a/report.json", "v1")]
    begun = world.clock.now
    world.run(world.teardown())
    assert world.clock.now == begun


def test_object_that_cannot_be_deleted_is_named(world: World) -> None:
    world.s3.versions["checkpoints"] = [("locked", "v1"), ("free", "v1")]
    world.s3.locked = {"locked"}
    assert steps.empty_buckets(world.teardown(), world.clock.now + 60) == ["s3://checkpoints/locked (AccessDenied)"]
    assert world.s3.versions["checkpoints"] == [("locked", "v1")]


def test_writes_are_denied_beside_the_policy_that_was_there(world: World) -> None:
    tls = {"Sid": "tls", "Effect": "Deny"}
    world.s3.policies["artifacts"] = {"Version": "2012-10-17", "Statement": [tls]}
    for _ in range(2):  # repeated, as after a half-failed destroy
        steps.deny_writes(world.teardown(), 0)
    statements = world.s3.policies["artifacts"]["Statement"]
    assert [s["Sid"] for s in statements] == ["tls", steps.DENY_SID]
    assert world.s3.policies["checkpoints"]["Statement"][0]["Resource"] == "arn:aws:s3:::checkpoints/*"


def test_retained_data_stays_and_jobs_are_asked_for_a_checkpoint_first(world: World) -> None:
    uri = "s3://artifacts/runs/a/control.json"
    world.sagemaker.jobs = {
        "blackwell-dev-a-a1": job(environment={ENV_CONTROL_URI: uri}),
        "blackwell-dev-isolated-a1": job(),
    }
    kept = [("runs/a/report.json", "v1")]
    world.s3.versions["artifacts"] = list(kept)
    world.end_jobs_after(30)
    asked_until = world.clock.now + steps.GRACE_SECONDS
    world.run(world.teardown(RetainData="true"))
    assert world.s3.puts[0][:2] == ("artifacts", "runs/a/control.json")
    assert world.s3.puts[0][2]["action"] == "stop_after_step"
    assert len({put[2]["id"] for put in world.s3.puts}) == 1, "one command, however often it is written"
    # without a network it reads no control file: stopped at once. The other never answered: stopped after the grace.
    assert world.sagemaker.calls[0] == "stop blackwell-dev-isolated-a1"
    assert "stop blackwell-dev-a-a1" in world.sagemaker.calls
    assert world.clock.now >= asked_until
    assert world.s3.versions["artifacts"] == kept
    assert world.s3.policies == {}


def test_with_retained_data_a_large_checkpoint_has_its_time_before_anything_is_stopped(world: World) -> None:
    """The end of an execution stops its job within 120 s: so no execution is stopped while a job still saves."""
    world.sagemaker.jobs = {
        "blackwell-dev-a-a1": job(environment={ENV_CONTROL_URI: "s3://artifacts/runs/a/control.json"})
    }
    world.stepfunctions.running["arn:machine"] = ["arn:execution:a"]
    saved_at, stopped_at = world.clock.now + 200, []
    stop = world.stepfunctions.stop_execution

    def save(now: float) -> None:
        if world.s3.puts and now >= saved_at:
            world.sagemaker.jobs.get("blackwell-dev-a-a1", {})["status"] = "Stopped"

    def watch(**arguments: Any) -> None:
        stopped_at.append(world.clock.now)
        stop(**arguments)

    world.clock.after_sleep.append(save)
    world.stepfunctions.stop_execution = watch  # type: ignore[method-assign]
    world.run(world.teardown(RetainData="true"))
    assert stopped_at
    assert min(stopped_at) >= saved_at
    assert world.sagemaker.calls == ["delete blackwell-dev-a-a1"], "never stopped: it ended as it was asked to"


def test_past_jobs_are_not_asked_about_while_running_ones_are_awaited(world: World) -> None:
    world.sagemaker.jobs = {f"blackwell-dev-past-a{n}": job("Completed") for n in range(300)}
    world.sagemaker.jobs["blackwell-dev-a-a1"] = job()
    world.end_jobs_after(60)
    world.run(world.teardown())
    assert world.sagemaker.jobs == {}
    assert world.sagemaker.tags_read < 301 + 2 * 60 / 5 + 5, "each record once, when it is deleted, and the live job's"


def test_deleting_many_records_pauses_in_time(world: World) -> None:
    world.sagemaker.jobs = {f"blackwell-dev-past-a{n}": job("Completed") for n in range(10)}
    assert steps.delete_jobs(world.teardown(), until=world.clock.now) == ["records of past jobs"]
    assert steps.delete_jobs(world.teardown(), until=world.clock.now + 1) == []
    assert world.sagemaker.jobs == {}


def test_waits_for_the_interfaces_of_jobs_in_the_stacks_own_network(world: World) -> None:
    """SageMaker takes them away some minutes after a job; a subnet that still has one cannot be deleted."""
    world.ec2.interfaces = {"sg-jobs": ["eni-1", "eni-2"], "sg-other": ["eni-3"]}
    teardown = world.teardown(SecurityGroup="sg-jobs")
    assert steps.wait_for_interfaces(teardown, 0) == ["network interface eni-1", "network interface eni-2"]
    gone_at = world.clock.now + 240

    def take_away(now: float) -> None:
        if now >= gone_at:
            world.ec2.interfaces["sg-jobs"] = []

    world.clock.after_sleep.append(take_away)
    world.run(teardown)
    assert world.clock.now >= gone_at
    assert world.ec2.interfaces["sg-other"] == ["eni-3"]


def test_everything_gone_already_is_done(world: World) -> None:
    world.s3.versions = {}
    world.stepfunctions.running = {}
    world.logs.groups = {}
    world.run(world.teardown())


def test_other_errors_are_not_swallowed(world: World) -> None:
    def denied(**_: Any) -> None:
        raise refused("AccessDenied")

    world.s3.get_bucket_policy = denied  # type: ignore[method-assign]
    with pytest.raises(Exception, match="AccessDenied"):
        steps.deny_writes(world.teardown(), 0)


# --- the answer to CloudFormation


@pytest.fixture
def cloudformation() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(ResponseURL, answers that came)."""
    answers: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            assert self.headers["content-type"] == "", "the URL is signed with an empty content type"
            answers.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/answer", answers
    server.shutdown()
    server.server_close()


class Context:
    """Lambda's context with a given time left."""

    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:teardown"
    function_name = "teardown"

    def __init__(self, seconds: float = 900) -> None:
        self._seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self._seconds * 1000)


def event(url: str, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "RequestType": kind, "ResponseURL": url, "StackId": "stack", "RequestId": "request", "LogicalResourceId": "Teardown",
        "ResourceProperties": PROPERTIES, **more,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_nothing_is_done_but_on_delete(cloudformation: tuple[str, list[dict[str, Any]]], kind: str) -> None:
    url, answers = cloudformation
    handler.handler(event(url, kind), Context())
    assert [(a["Status"], a["PhysicalResourceId"]) for a in answers] == [("SUCCESS", "teardown-dev")]


def _with_steps(monkeypatch: pytest.MonkeyPatch, *made: Any) -> list[dict[str, Any]]:
    """The handler with these steps; returns the payloads with which it invokes itself."""
    invoked: list[dict[str, Any]] = []

    class Lambda:
        def invoke(self, FunctionName: str, InvocationType: str, Payload: bytes) -> None:
            assert (FunctionName, InvocationType) == (Context.invoked_function_arn, "Event")
            invoked.append(json.loads(Payload))

    monkeypatch.setattr("boto3.client", lambda service, **_: Lambda())
    monkeypatch.setattr(steps, "STEPS", made)
    return invoked


def test_goes_on_in_another_invocation_with_a_cursor(
    cloudformation: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = cloudformation
    seen: list[str] = []

    def quick(t: Teardown, until: float) -> list[str]:
        seen.append("quick")
        return []

    def slow(t: Teardown, until: float) -> list[str]:
        seen.append("slow")
        return ["much"] if len(seen) < 4 else []

    invoked = _with_steps(monkeypatch, quick, slow)
    handler.handler(event(url, "Delete"), Context(seconds=1))
    assert answers == []
    assert invoked[0][handler.CURSOR]["step"] == 1
    handler.handler(invoked[0], Context(seconds=1))
    assert invoked[1][handler.CURSOR]["begun"] == invoked[0][handler.CURSOR]["begun"]
    handler.handler(invoked[1], Context(seconds=1))
    assert seen == ["quick", "slow", "slow", "slow"], "a step that is done is not done again"
    assert [a["Status"] for a in answers] == ["SUCCESS"]


def test_answers_failed_with_what_is_left_before_cloudformation_gives_up(
    cloudformation: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = cloudformation

    def stop_jobs(t: Teardown, until: float) -> list[str]:
        return ["blackwell-dev-stuck-a1"]

    invoked = _with_steps(monkeypatch, stop_jobs)
    began_long_ago = {"step": 0, "begun": 0}
    handler.handler(event(url, "Delete", **{handler.CURSOR: began_long_ago}), Context())
    assert invoked == []
    (answer,) = answers
    assert answer["Status"] == "FAILED"
    assert "blackwell-dev-stuck-a1" in answer["Reason"]


def test_an_error_is_answered_too(
    cloudformation: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = cloudformation

    def broken(t: Teardown, until: float) -> list[str]:
        raise refused("AccessDenied", "ListExecutions")

    _with_steps(monkeypatch, broken)
    with pytest.raises(Exception, match="AccessDenied"):
        handler.handler(event(url, "Delete"), Context())
    assert [a["Status"] for a in answers] == ["FAILED"]
    assert "AccessDenied" in answers[0]["Reason"]


def test_long_reasons_stay_within_cloudformation_s_limit(cloudformation: tuple[str, list[dict[str, Any]]]) -> None:
    url, answers = cloudformation
    cfn.answer(event(url, "Delete"), ok=False, physical_id="x", reason="y" * 10_000)
    assert len(answers[0]["Reason"]) == cfn.REASON_MAX
