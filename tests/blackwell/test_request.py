"""The CreateTrainingJob request: what stands in it, and that everything SageMaker would refuse is found before."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from blackwell.planning import plan_job
from blackwell.request import LAUNCHER, LaunchContext, check_request, data_uri, training_job_request
from blackwell.spec import JobSpec, parse_job_spec
from blackwell.trainer_config import from_hyperparameters

PLAN_ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/my-plan-with-a-name"
ENTRIES: dict[str, dict[str, Any]] = {
    "spot": {"kind": "spot", "max_runtime_seconds": 3600, "max_wait_seconds": 7200},
    "plan": {"kind": "training-plan", "training_plan_arn": PLAN_ARN, "instance_type": "ml.p6-b300.48xlarge"},
    "on-demand": {"kind": "on-demand", "instance_count": 4, "max_pending_seconds": 7200},
    "cpu": {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge"},
}
CONTEXT = LaunchContext(
    run="my_run.1",
    attempt=2,
    stage="dev",
    job_prefix="blackwell-dev",
    image="123456789012.dkr.ecr.us-east-1.amazonaws.com/repo@sha256:" + "0" * 64,
    role_arn="arn:aws:iam::123456789012:role/execution",
    artifacts_bucket="artifacts",
    checkpoint_bucket="checkpoints",
)


def spec(entry: str = "spot", **training: Any) -> JobSpec:
    known = {"precision": "bf16", "micro_batch_size": 2, "global_batch_size": 16, "steps": 10} | training
    document = {"model": "1b", "data": {"train": "datasets/x"}, "training": known, "capacity": [ENTRIES[entry]]}
    return parse_job_spec(document)


@pytest.mark.parametrize("entry", ENTRIES)
def test_requests_are_what_the_api_takes(entry: str) -> None:
    request = training_job_request(spec(entry), CONTEXT)
    assert check_request(request) == []
    kind = ENTRIES[entry]["kind"]
    assert request["EnableManagedSpotTraining"] is (kind == "spot")
    assert ("MaxWaitTimeInSeconds" in request["StoppingCondition"]) is (kind == "spot")
    assert ("TrainingPlanArn" in request["ResourceConfig"]) is (kind == "training-plan")
    gpus = entry != "cpu"
    assert ("InfraCheckConfig" in request) is gpus
    assert ("VolumeSizeInGB" in request["ResourceConfig"]) is not gpus


def test_what_every_request_says() -> None:
    request = training_job_request(spec(), CONTEXT)
    assert request["AlgorithmSpecification"]["ContainerEntrypoint"] == list(LAUNCHER)
    assert request["OutputDataConfig"]["CompressionType"] == "NONE"
    assert request["ProfilerConfig"] == {"DisableProfiler": True}
    assert request["CheckpointConfig"]["S3Uri"] == "s3://checkpoints/runs/my_run.1/checkpoints/"
    assert {tag["Key"]: tag["Value"] for tag in request["Tags"]} == {
        "blackwell:run": "my_run.1",
        "blackwell:attempt": "2",
        "blackwell:stage": "dev",
    }
    source = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    assert source["S3Uri"] == "s3://artifacts/datasets/x/"


def test_the_container_reads_what_the_spec_said() -> None:
    job = spec(learning_rate=1e-7, checkpoint={"interval_steps": 3}, loss_spike=None)
    request = training_job_request(job, CONTEXT)
    read = from_hyperparameters(request["HyperParameters"], request["Environment"])
    assert read.run == "my_run.1"
    assert read.training.learning_rate == 1e-7
    assert read.training.checkpoint == job.training.checkpoint
    assert read.model == job.model


def test_network_isolation_leaves_nothing_to_reach() -> None:
    isolated = CONTEXT.model_copy(update={"network_isolation": True, "resume_uri": "s3://b/c/"})
    request = training_job_request(spec(), isolated)
    assert request["EnableNetworkIsolation"] is True
    assert not [name for name in request["Environment"] if name.endswith("_S3_URI")]


def test_keys_are_not_put_on_local_storage() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/0"
    with_key = CONTEXT.model_copy(update={"kms_key_arn": key})
    assert "VolumeKmsKeyId" not in training_job_request(spec("spot"), with_key)["ResourceConfig"]
    assert training_job_request(spec("cpu"), with_key)["ResourceConfig"]["VolumeKmsKeyId"] == key
    assert check_request(training_job_request(spec("cpu"), with_key)) == []


def test_data_is_always_a_folder() -> None:
    assert data_uri("datasets/x", "a") == "s3://a/datasets/x/"
    assert data_uri("s3://other/y/", "a") == "s3://other/y/"


BROKEN: list[tuple[str, Any, str]] = [
    ("TrainingJobName", "under_score", "BTS-301"),
    ("TrainingJobName", "x" * 64, "BTS-301"),
    ("RoleArn", "role", "BTS-301"),
    ("Unknown", 1, "BTS-301"),
    ("HyperParameters.a", "line\nbreak", "BTS-301"),
    ("HyperParameters.a", "x" * 2_501, "BTS-301"),
    ("HyperParameters.a", 3, "BTS-301"),
    ("Environment.with-hyphen", "x", "BTS-301"),
    ("Environment.LONG", "x" * 513, "BTS-301"),
    ("ResourceConfig.InstanceType", "ml.p7.48xlarge", "BTS-301"),
    ("ResourceConfig.InstanceCount", 0, "BTS-302"),
    ("ResourceConfig.InstanceCount", True, "BTS-301"),
    ("ResourceConfig.KeepAlivePeriodInSeconds", 60, "BTS-302"),
    ("ResourceConfig.TrainingPlanArn", PLAN_ARN, "BTS-302"),
    ("ResourceConfig.TrainingPlanArn", "arn:aws:sagemaker:x", "BTS-301"),
    ("ResourceConfig.VolumeKmsKeyId", "key", "BTS-302"),
    ("ResourceConfig.InstancePreferences", [{"InstanceType": "ml.p6-b200.48xlarge", "InstanceCount": 1}], "BTS-302"),
    ("StoppingCondition.MaxRuntimeInSeconds", 0, "BTS-301"),
    ("StoppingCondition.MaxRuntimeInSeconds", 29 * 86_400, "BTS-302"),
    ("StoppingCondition.MaxWaitTimeInSeconds", 10, "BTS-302"),
    ("StoppingCondition.MaxPendingTimeInSeconds", 60, "BTS-301"),
    ("RetryStrategy.MaximumRetryAttempts", 31, "BTS-301"),
    ("AlgorithmSpecification.TrainingInputMode", "Slow", "BTS-301"),
    ("AlgorithmSpecification.TrainingImage", "repo:latest", "BTS-302"),
    ("AlgorithmSpecification.AlgorithmName", "xgboost", "BTS-302"),
    ("AlgorithmSpecification.ContainerEntrypoint", [], "BTS-301"),
    ("AlgorithmSpecification.MetricDefinitions", [{"Name": "x", "Regex": "y"}] * 41, "BTS-301"),
    ("OutputDataConfig.CompressionType", "ZIP", "BTS-301"),
    ("OutputDataConfig.S3OutputPath", "/local", "BTS-301"),
    ("ServerlessJobConfig", {"BaseModelArn": "x", "JobType": "y"}, "BTS-302"),
    ("Tags", [{"Key": "k", "Value": "bad|value"}], "BTS-301"),
    ("EnableManagedSpotTraining", False, "BTS-302"),
    ("EnableManagedSpotTraining", "yes", "BTS-301"),
]


@pytest.mark.parametrize(("path", "value", "identity"), BROKEN, ids=lambda value: str(value)[:40])
def test_what_sagemaker_refuses_is_found(path: str, value: Any, identity: str) -> None:
    request = copy.deepcopy(training_job_request(spec("spot"), CONTEXT))
    place: Any = request
    *parents, last = path.split(".")
    for name in parents:
        place = place[name]
    place[last] = value
    assert identity in {finding.id for finding in check_request(request)}


@pytest.mark.parametrize("missing", ["TrainingJobName", "RoleArn", "OutputDataConfig", "ResourceConfig"])
def test_missing_parts_are_found(missing: str) -> None:
    request = training_job_request(spec(), CONTEXT)
    request.pop(missing)
    assert check_request(request)


def test_all_findings_come_at_once() -> None:
    request = training_job_request(spec(), CONTEXT)
    request |= {"TrainingJobName": "_", "Unknown": 1, "RoleArn": "x"}
    assert len(check_request(request)) >= 3


def test_switching_something_off_reaches_the_container() -> None:
    """`null` is a value: without it the default would come back."""
    for job in (spec(), spec(loss_spike=None)):
        request = training_job_request(plan_job(job).resolved, CONTEXT)
        read = from_hyperparameters(request["HyperParameters"], request["Environment"])
        assert read.training.loss_spike == job.training.loss_spike
