"""Faults on real jobs of the SageMaker host: each does what its line in the language says."""

from __future__ import annotations

import io
import json
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from sagemaker_helpers import StubJobs

from local.faults.engine import FaultEngine
from local.sagemaker.sync import CheckpointSync
from local.server import ACCOUNT, LocalAws

pytestmark = [pytest.mark.xdist_group("local-aws"), pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def jobs(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> StubJobs:
    return StubJobs(aws, tmp_path_factory.mktemp("stub"))


@pytest.fixture(autouse=True)
def _nothing_left(aws: LocalAws, jobs: StubJobs) -> Iterator[None]:
    yield
    aws.set_faults([])
    jobs.stop_all()


def _resumed(jobs: StubJobs, name: str) -> list[int]:
    return [int(line.split("resumed from ")[1].split()[0]) for line in jobs.lines(name) if "resumed from" in line]


def test_bad_faults_are_refused(aws: LocalAws) -> None:
    with pytest.raises(ValueError, match="no_such_kind"):
        aws.set_faults([{"kind": "no_such_kind"}])


def test_api_errors_before_and_after_the_effect(aws: LocalAws, jobs: StubJobs) -> None:
    fault = {
        "kind": "api_error",
        "operation": "CreateTrainingJob",
        "code": "ThrottlingException",
        "message": "slow down",
    }
    aws.set_faults([fault, {**fault, "nth": 1, "code": "InternalFailure", "status": 500, "after_effect": True}])
    request = jobs.request(steps=1)
    with pytest.raises(ClientError, match="slow down") as caught:
        jobs.create(request)
    assert caught.value.response["Error"]["Code"] == "ThrottlingException"
    with pytest.raises(ClientError, match="not found"):
        jobs.describe(request["TrainingJobName"])
    with pytest.raises(ClientError) as caught:
        jobs.create(request)
    assert caught.value.response["Error"]["Code"] == "InternalFailure"
    assert jobs.wait(request["TrainingJobName"])["TrainingJobStatus"] == "Completed"  # the answer was lost, not the job


def test_no_capacity(aws: LocalAws, jobs: StubJobs) -> None:
    aws.set_faults(
        [{"kind": "no_capacity", "tries": 1, "spot": False}, {"kind": "no_capacity", "tries": 2, "spot": True}]
    )
    on_demand = jobs.wait(jobs.create(jobs.request(spot=False, steps=1)))
    assert on_demand["FailureReason"].startswith("CapacityError: Unable to provision requested ML compute capacity")
    assert "TrainingTimeInSeconds" not in on_demand
    spot = jobs.wait(jobs.create(jobs.request(steps=1)))
    assert spot["TrainingJobStatus"] == "Completed"
    assert "Insufficient capacity" in spot["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert jobs.wait(jobs.create(jobs.request(spot=False, steps=1)))["TrainingJobStatus"] == "Completed"


def test_capacity_that_never_comes_back(aws: LocalAws, jobs: StubJobs) -> None:
    aws.set_faults([{"kind": "interruption", "step": 3, "back_after_seconds": None}])
    name = jobs.create(jobs.request(steps=1000))
    jobs.until(name, lambda job: job["SecondaryStatus"] == "Interrupted")
    aws.advance_clock(7201)
    job = jobs.wait(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


@pytest.mark.parametrize("target", ["launcher", "worker"])
def test_kill(aws: LocalAws, jobs: StubJobs, target: str) -> None:
    aws.set_faults([{"kind": "kill", "target": target, "rank": 0, "step": 3}])
    name = jobs.create(jobs.request(steps=40, child=600))
    if target == "worker":  # the stub does not miss its child
        assert jobs.wait(name)["TrainingJobStatus"] == "Completed"
        assert aws.control("faults", method="GET")["faults"][0]["happened"] == 1
    else:
        assert jobs.wait(name)["FailureReason"] == "AlgorithmError: , exit code: 137"


def test_host_lost(aws: LocalAws, jobs: StubJobs) -> None:
    """Spot: the same job starts again. Else InternalServerError, which RetryStrategy repeats inside the job."""
    lost = {"kind": "host_lost", "step": 3}
    aws.set_faults([lost])
    assert "Interrupted" in jobs.secondary(jobs.wait(jobs.create(jobs.request(steps=6))))
    aws.set_faults([lost])
    job = jobs.wait(jobs.create(jobs.request(steps=6, spot=False)))
    assert (job["TrainingJobStatus"], job["FailureReason"][:19]) == ("Failed", "InternalServerError")
    request = jobs.request(steps=6, spot=False)
    aws.set_faults([lost])
    request["RetryStrategy"] = {"MaximumRetryAttempts": 1}
    job = jobs.wait(jobs.create(request))
    assert job["TrainingJobStatus"] == "Completed"
    assert "Restarting" in jobs.secondary(job)


def test_host_lost_while_it_uploads(aws: LocalAws, jobs: StubJobs) -> None:
    aws.set_faults([{"kind": "host_lost", "during_upload": "step-00000020/MANIFEST.json"}])
    name = jobs.create(jobs.request(steps=100, save_every=10, step_seconds=0.05))
    jobs.until(name, lambda job: "Interrupted" in jobs.secondary(job))
    assert "step-00000020/MANIFEST.json" not in jobs.keys(f"ck/{name}/")
    jobs.wait_for_line(name, "resumed from 10")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name)


@pytest.mark.parametrize("what", ["damaged", "missing", "late"])
def test_checkpoint_files(aws: LocalAws, jobs: StubJobs, what: str) -> None:
    file = "step-00000005/weights.bin"
    aws.set_faults([{"kind": "checkpoint_file", "what": what, "file": file, "seconds": 1.5}])
    name = jobs.create(jobs.request(steps=1000, save_every=5, step_seconds=0.15, keep=100))
    jobs.until(name, lambda job: "step-00000005/MANIFEST.json" in jobs.keys(f"ck/{name}/"))
    key = f"ck/{name}/step-00000005/weights.bin"
    if what == "damaged":
        jobs.until(name, lambda job: "step-00000005/weights.bin" in jobs.keys(f"ck/{name}/"))
        stored = jobs.s3.get_object(Bucket=jobs.bucket, Key=key)["Body"].read()
        assert len(stored) == 1000
        assert stored != bytes([5]) * 1000
    else:
        assert "step-00000005/weights.bin" not in jobs.keys(f"ck/{name}/")
    if what == "late":
        jobs.until(name, lambda job: "step-00000005/weights.bin" in jobs.keys(f"ck/{name}/"))
    if what == "missing":
        jobs.wait_for_line(name, "step 12 run")
        assert "step-00000005/weights.bin" not in jobs.keys(f"ck/{name}/")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.wait(name)


def test_a_checkpoint_file_out_of_order_goes_up_before_the_others_of_its_pass(aws: LocalAws, tmp_path: Path) -> None:
    bucket = f"order-{uuid.uuid4().hex[:8]}"
    aws.client("s3").create_bucket(Bucket=bucket)
    folder, order = tmp_path / "checkpoints", []
    names = [
        f"step-{step:08d}/{name}" for step in range(8) for name in ("weights.bin", "optimizer.bin", "MANIFEST.json")
    ]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    engine = FaultEngine(tmp_path / "faults")
    engine.arm([{"kind": "checkpoint_file", "what": "out_of_order", "file": "step-*/MANIFEST.json", "times": 8}])

    class Recorded:
        def put_object(self, **request: Any) -> None:
            order.append(request["Key"])
            aws.client("s3").put_object(**request)

    sync = CheckpointSync(Recorded(), f"s3://{bucket}/ck/", folder, faults=engine, job="job", host=1)
    assert sync.stop(final=True)
    assert sorted(order) == sorted(f"ck/{name}" for name in names)
    assert all(key.endswith("MANIFEST.json") for key in order[:8])


def test_stop(aws: LocalAws, jobs: StubJobs) -> None:
    aws.set_faults([{"kind": "stop", "step": 2}])
    assert jobs.wait(jobs.create(jobs.request(steps=1000)))["SecondaryStatus"] == "Stopped"


def test_moved_clock(aws: LocalAws, jobs: StubJobs) -> None:
    aws.set_faults([{"kind": "move_clock", "step": 2, "by_seconds": 3700}])
    job = jobs.wait(jobs.create(jobs.request(steps=1000)))  # the limit is an hour
    assert job["SecondaryStatus"] == "MaxRuntimeExceeded"
    assert job["TrainingTimeInSeconds"] >= 3700


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"what": "lost"}, ["Downloading", "Uploading", "Completed"]),
        ({"what": "doubled"}, ["Downloading", "Training", "Training", "Uploading", "Completed"]),
        ({"what": "swapped"}, ["Downloading", "Uploading", "Training", "Completed"]),
        ({"what": "delayed", "seconds": 2}, ["Downloading", "Uploading", "Completed", "Training"]),
    ],
)
def test_events(aws: LocalAws, jobs: StubJobs, fault: dict[str, Any], expected: list[str]) -> None:
    name = f"stub-{uuid.uuid4().hex[:8]}"
    sqs, events = aws.client("sqs"), aws.client("events")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    pattern = {"source": ["aws.sagemaker"], "detail": {"TrainingJobName": [name]}}
    events.put_rule(Name=name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])
    aws.set_faults([{"kind": "event", "status": "Training", **fault}])
    jobs.wait(jobs.create(jobs.request(name=name, steps=2)))
    seen: list[str] = []
    deadline = time.monotonic() + (4 if fault["what"] == "delayed" else 1.5)
    while time.monotonic() < deadline and len(seen) < len(expected) + 1:
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", []):
            seen.append(json.loads(message["Body"])["detail"]["SecondaryStatus"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert [status for status in seen if status != "Starting"] == expected


@pytest.mark.parametrize(("when", "exists"), [("before", False), ("after", True)])
def test_function_killed_at_a_named_call(aws: LocalAws, jobs: StubJobs, when: str, exists: bool) -> None:
    source = (
        "import boto3\n"
        "def handler(event, context):\n"
        "    return boto3.client('sagemaker').create_training_job(**event)['TrainingJobArn']\n"
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("index.py", source)
    functions = aws.client("lambda")
    name = f"Launcher-{uuid.uuid4().hex[:6]}"
    functions.create_function(
        FunctionName=name,
        Runtime="python3.13",
        Handler="index.handler",
        Role=f"arn:aws:iam::{ACCOUNT}:role/any",
        Code={"ZipFile": data.getvalue()},
        Timeout=30,
    )
    aws.set_faults([{"kind": "lambda_killed", "function": "launcher", "operation": "CreateTrainingJob", "when": when}])
    request = jobs.request(steps=1)
    dead = functions.invoke(FunctionName=name, Payload=json.dumps(request))
    assert dead.get("FunctionError") == "Unhandled"
    found = jobs.sagemaker.list_training_jobs(NameContains=request["TrainingJobName"])["TrainingJobSummaries"]
    assert bool(found) is exists
    again = functions.invoke(FunctionName=name, Payload=json.dumps({**request, "TrainingJobName": f"{name}-b"}))
    assert again.get("FunctionError") is None
    functions.delete_function(FunctionName=name)
