"""The SageMaker host: jobs really run, and end as SageMaker says they end."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest
from sagemaker_helpers import StubJobs

from local.server import LocalAws

pytestmark = [pytest.mark.xdist_group("local-aws"), pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def jobs(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> StubJobs:
    return StubJobs(aws, tmp_path_factory.mktemp("stub"))


@pytest.fixture(autouse=True)
def _nothing_left(aws: LocalAws, jobs: StubJobs) -> Iterator[None]:
    yield
    aws.set_faults([])
    jobs.stop_all()


def _events(aws: LocalAws) -> tuple[str, str]:
    """A queue that gets every job state change."""
    name = f"events-{uuid.uuid4().hex[:8]}"
    sqs, events = aws.client("sqs"), aws.client("events")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    pattern = {"source": ["aws.sagemaker"], "detail-type": ["SageMaker Training Job State Change"]}
    events.put_rule(Name=name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])
    return url, name


def _received(aws: LocalAws, url: str, job: str) -> list[dict]:
    sqs = aws.client("sqs")
    found = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
        found += [json.loads(message["Body"]) for message in messages]
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return [event for event in found if event["detail"]["TrainingJobName"] == job]


def test_completed_job(aws: LocalAws, jobs: StubJobs) -> None:
    """Data in, log, metrics, checkpoints, model out, statuses, events: one job shows them all."""
    queue, _ = _events(aws)
    request = jobs.request(steps=12, save_every=5)
    name = jobs.create(request)
    job = jobs.wait(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Completed", "Completed")
    assert jobs.secondary(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert all("EndTime" in transition for transition in job["SecondaryStatusTransitions"])
    for key in ("AlgorithmSpecification", "HyperParameters", "Environment", "ResourceConfig", "CheckpointConfig"):
        assert request[key].items() <= job[key].items()
    lines = jobs.lines(name)
    assert any("data ['a.txt', 'b.txt']" in line for line in lines)
    assert [stream.rsplit("-", 1)[0] for stream in jobs.streams(name)] == [f"{name}/algo-1"]
    environment = set(json.loads(next(line for line in lines if "stub: environment" in line).split("environment ")[1]))
    assert {"TRAINING_JOB_NAME", "BLACKWELL_RUN", "AWS_ENDPOINT_URL"} <= environment
    assert not {"LOCAL_AWS_FAULTS", "PYTHONPATH", "SM_HPS", "GATEWAY_PORT"} & environment
    assert job["FinalMetricDataList"][0]["MetricName"] == "loss"
    assert job["FinalMetricDataList"][0]["Value"] == pytest.approx(4 / 12, abs=1e-5)
    assert jobs.keys(f"out/{name}/output/") == {"model/weights.txt"}
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{jobs.bucket}/out/{name}/output/model/"
    assert jobs.keys(f"ck/{name}/") == {f"step-{n:08d}/{f}" for n in (5, 10) for f in ("weights.bin", "MANIFEST.json")}
    assert 1 <= job["BillableTimeInSeconds"] <= job["TrainingTimeInSeconds"]
    events = _received(aws, queue, name)
    assert [event["detail"]["SecondaryStatus"] for event in events] == jobs.secondary(job)
    detail = events[-1]["detail"]
    assert detail["Tags"] == {"blackwell:run": "stub"}
    assert detail["SecondaryStatusTransitions"][0]["StartTime"] > 1e12
    metrics = aws.client("cloudwatch").list_metrics(Namespace="/aws/sagemaker/TrainingJobs")["Metrics"]
    assert {"Name": "TrainingJobName", "Value": name} in [d for m in metrics for d in m["Dimensions"]]


def test_failure_reason_is_the_failure_file(jobs: StubJobs) -> None:
    record = json.dumps({"verdict": "diverged", "cause": "loss is nan", "step": 3})
    name = jobs.create(jobs.request(steps=1, failure=record, exit_code=65))
    job = jobs.wait(name)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"] == f"AlgorithmError: {record}, exit code: 65"
    long = jobs.wait(jobs.create(jobs.request(steps=1, failure="x" * 2000)))
    assert len(long["FailureReason"]) == 1024


def test_interruption_restarts_the_same_job_on_an_empty_disk(aws: LocalAws, jobs: StubJobs) -> None:
    aws.control("faults", {"faults": [{"kind": "interruption", "step": 7}]})
    name = jobs.create(jobs.request(steps=12, save_every=5))
    job = jobs.wait(name)
    assert job["TrainingJobStatus"] == "Completed"
    assert jobs.secondary(job) == [
        *("Starting", "Downloading", "Training", "Interrupted"),
        *("Starting", "Downloading", "Training", "Uploading", "Completed"),
    ]
    resumed = [line.split("resumed from ")[1].split()[0] for line in jobs.lines(name) if "resumed from" in line]
    assert resumed[0] == "0"
    assert int(resumed[1]) >= 7  # the notice was long enough to save and to upload
    assert len(jobs.streams(name)) == 2
    happened = aws.control("faults", method="GET")["happened"]
    interrupted = [fault["job"] for fault in happened if fault["kind"] == "interruption"]  # the journal is the server's
    assert interrupted[-1] == name


def test_interruption_without_notice_loses_what_was_not_in_s3(aws: LocalAws, jobs: StubJobs) -> None:
    aws.control("faults", {"faults": [{"kind": "interruption", "step": 28, "notice_seconds": 0}]})
    name = jobs.create(jobs.request(steps=30, save_every=10, step_seconds=0.06))
    assert jobs.wait(name)["TrainingJobStatus"] == "Completed"
    resumed = [line.split("resumed from ")[1].split()[0] for line in jobs.lines(name) if "resumed from" in line]
    assert resumed == ["0", "20"]
    assert not any("SIGTERM" in line for line in jobs.lines(name))


def test_stop(jobs: StubJobs) -> None:
    """SIGTERM reaches PID 1; processes in other sessions end with the container."""
    name = jobs.create(jobs.request(steps=1000, child=600))
    child = int(jobs.wait_for_line(name, "stub: child").rsplit(" ", 1)[1])
    jobs.wait_for_line(name, "step 3 run")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    assert jobs.describe(name)["TrainingJobStatus"] in ("Stopping", "Stopped")
    job = jobs.wait(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert jobs.secondary(job)[-2:] == ["Stopping", "Stopped"]
    assert any("stub: SIGTERM" in line for line in jobs.lines(name))
    assert _process(child) is None
    with pytest.raises(jobs.sagemaker.exceptions.ClientError, match="Stopped"):
        jobs.sagemaker.stop_training_job(TrainingJobName=name)


def test_pid_1_without_a_handler_is_killed_after_120_seconds(aws: LocalAws, jobs: StubJobs) -> None:
    """The kernel gives PID 1 no signal that it has no handler for; the clock is moved instead of waiting."""
    name = jobs.create(jobs.request(steps=10_000, handles_sigterm=0))
    jobs.wait_for_line(name, "step 2 run")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    time.sleep(0.5)
    assert jobs.describe(name)["TrainingJobStatus"] == "Stopping"
    aws.advance_clock(121)
    assert jobs.wait(name)["TrainingJobStatus"] == "Stopped"


@pytest.mark.parametrize(
    ("limits", "secondary"),
    [
        ({"MaxRuntimeInSeconds": 1800, "MaxWaitTimeInSeconds": 7200}, "MaxRuntimeExceeded"),
        ({"MaxRuntimeInSeconds": 1800, "MaxWaitTimeInSeconds": 1800}, "MaxWaitTimeExceeded"),
    ],
)
def test_limits_stop_the_job(aws: LocalAws, jobs: StubJobs, limits: dict, secondary: str) -> None:
    request = jobs.request(steps=10_000)
    request["StoppingCondition"] = limits
    if secondary == "MaxWaitTimeExceeded":  # the wait counts from the creation, running or not
        aws.control("faults", {"faults": [{"kind": "no_capacity"}]})
    name = jobs.create(request)
    if secondary == "MaxRuntimeExceeded":
        jobs.wait_for_line(name, "step 2 run")
    else:
        jobs.until(name, lambda job: "Insufficient" in job["SecondaryStatusTransitions"][-1]["StatusMessage"])
    aws.advance_clock(1801)
    job = jobs.wait(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", secondary)


def test_two_hosts(jobs: StubJobs) -> None:
    request = jobs.request(steps=3, spot=False)
    request["ResourceConfig"]["InstanceCount"] = 2
    name = jobs.create(request)
    assert jobs.wait(name)["TrainingJobStatus"] == "Completed"
    assert {stream.split("/")[1].rsplit("-", 1)[0] for stream in jobs.streams(name)} == {"algo-1", "algo-2"}
    hosts = {line.rsplit("host ", 1)[1] for line in jobs.lines(name) if "resumed from" in line}
    assert hosts == {"algo-1", "algo-2"}


def test_a_job_dies_with_its_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also when the server is killed and can do nothing any more."""
    with LocalAws(tmp_path_factory.mktemp("dying")) as server:
        jobs = StubJobs(server, tmp_path_factory.mktemp("stub"))
        name = jobs.create(jobs.request(steps=10_000, child=600, handles_sigterm=0))
        child = int(jobs.wait_for_line(name, "stub: child").rsplit(" ", 1)[1])
        stub = int(jobs.wait_for_line(name, "stub: pid").split()[2])
        psutil.Process(server.pid).kill()
        psutil.wait_procs([p for pid in (child, stub) if (p := _process(pid))], timeout=5)
        assert _process(child) is None
        assert _process(stub) is None


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None
