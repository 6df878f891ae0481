"""CreateTrainingJob refuses what AWS refuses; botocore's own checks are switched off to get the request there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from sagemaker_helpers import StubJobs

from local.sagemaker.validation import EXCLUSIONS, ApiError, check_exclusions, check_model
from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("local-aws")

VALID: dict[str, Any] = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::000000000000:role/execution",
    "AlgorithmSpecification": {
        "TrainingImage": "000000000000.dkr.ecr.us-east-1.amazonaws.com/image:tag",
        "TrainingInputMode": "File",
    },
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
    "ResourceConfig": {"InstanceType": "ml.p6-b200.48xlarge", "InstanceCount": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    "HyperParameters": {"precision": "mxfp8"},
    "Environment": {"A": "b"},
    "InputDataConfig": [
        {
            "ChannelName": "train",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}},
        }
    ],
}
PLAN = "arn:aws:sagemaker:us-east-1:000000000000:training-plan/reserved"


def _change(**changes: Any) -> dict[str, Any]:
    """The valid request with values put at paths such as `ResourceConfig__InstanceCount`; None removes."""
    request = copy.deepcopy(VALID)
    for path, value in changes.items():
        *folders, last = path.split("__")
        place: Any = request
        for name in folders:
            place = place.setdefault(name, {}) if isinstance(place, dict) else place[int(name)]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return request


def test_valid_request_passes() -> None:
    check_model("CreateTrainingJob", VALID)
    check_exclusions(VALID)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TrainingJobName": "a_b"}, "'trainingJobName' failed to satisfy constraint: .* regular expression"),
        ({"TrainingJobName": "a" * 64}, "length less than or equal to 63"),
        ({"RoleArn": None}, "Value 'null' at 'roleArn'"),
        ({"HyperParameters": {str(n): "" for n in range(101)}}, "length less than or equal to 100"),
        ({"HyperParameters__precision": "x" * 2501}, "length less than or equal to 2500"),
        ({"HyperParameters__precision": "a\nb"}, "regular expression pattern"),
        ({"HyperParameters__precision": 8}, "must be of type string"),
        ({"Environment": {"with-hyphen": "x"}}, "regular expression pattern"),
        ({"ResourceConfig__InstanceType": "ml.p7.huge"}, "enum value set"),
        ({"ResourceConfig__InstanceCount": True}, "must be of type integer"),
        ({"ResourceConfig__KeepAlivePeriodInSeconds": 21_601}, "value less than or equal to 21600"),
        ({"ResourceConfig__TrainingPlanArn": "reserved"}, "greater than or equal to 50"),
        ({"StoppingCondition__MaxPendingTimeInSeconds": 60}, "value greater than or equal to 1800"),
        ({"StoppingCondition__MaxWait": 60}, "Unknown member 'stoppingCondition.maxWait'"),
        ({"AlgorithmSpecification__ContainerEntrypoint": []}, "length greater than or equal to 1"),
        ({"AlgorithmSpecification__MetricDefinitions": [{"Name": "a", "Regex": "b" * 501}]}, "equal to 500"),
        ({"InputDataConfig__0__ChannelName": "with space"}, "regular expression pattern"),
        ({"Tags": [{"Key": "k", "Value": "emoji \U0001f600"}]}, "regular expression pattern"),
        ({"OutputDataConfig__S3OutputPath": "bucket/out"}, "regular expression pattern"),
    ],
)
def test_service_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        check_model("CreateTrainingJob", _change(**changes))
    assert caught.value.code == "ValidationException"


def test_every_broken_constraint_is_named_at_once() -> None:
    with pytest.raises(ApiError, match="2 validation errors detected"):
        check_model("CreateTrainingJob", _change(TrainingJobName="a_b", ResourceConfig__InstanceType="ml.no"))


BROKEN_RULES = [
    {"StoppingCondition__MaxWaitTimeInSeconds": 7200},
    {"EnableManagedSpotTraining": True},
    {"EnableManagedSpotTraining": True, "StoppingCondition__MaxWaitTimeInSeconds": 60},
    {"StoppingCondition__MaxRuntimeInSeconds": 29 * 86_400},
    {
        "EnableManagedSpotTraining": True,
        "StoppingCondition__MaxWaitTimeInSeconds": 7200,
        "ResourceConfig__TrainingPlanArn": PLAN,
    },
    {"ResourceConfig__TrainingPlanArn": PLAN, "ResourceConfig__KeepAlivePeriodInSeconds": 60},
    {
        "EnableManagedSpotTraining": True,
        "StoppingCondition__MaxWaitTimeInSeconds": 7200,
        "ResourceConfig__KeepAlivePeriodInSeconds": 60,
    },
    {
        "ResourceConfig__KeepAlivePeriodInSeconds": 60,
        "ResourceConfig__InstanceGroups": [
            {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1, "InstanceGroupName": "g"}
        ],
    },
    {"ResourceConfig__InstancePreferences": [{"InstanceType": "ml.p5.48xlarge"}]},
    {
        "ResourceConfig__InstanceType": None,
        "ResourceConfig__TrainingPlanArn": PLAN,
        "ResourceConfig__InstancePreferences": [{"InstanceType": "ml.p5.48xlarge", "TrainingPlanArns": [PLAN]}],
    },
    {"ResourceConfig__InstanceType": None},
    {"ResourceConfig__InstanceCount": 0},
    {"ResourceConfig__VolumeKmsKeyId": "key"},
    {"AlgorithmSpecification__AlgorithmName": "xgboost"},
    {"CheckpointConfig": {"S3Uri": "s3://b/c/", "LocalPath": "/tmp/checkpoints"}},
    {"InputDataConfig": VALID["InputDataConfig"] * 2},
    {"Tags": [{"Key": "aws:reserved", "Value": "x"}]},
]


@pytest.mark.parametrize("number", range(len(BROKEN_RULES)))
def test_rules_between_fields(number: int) -> None:
    """One request for each rule, in the order of the rules: a rule without a request here fails the last test."""
    request = _change(**BROKEN_RULES[number])
    check_model("CreateTrainingJob", request)
    broken = [index for index, (rule, _) in enumerate(EXCLUSIONS) if rule(request)]
    assert number in broken
    with pytest.raises(ApiError) as caught:
        check_exclusions(request)
    assert caught.value.message in {EXCLUSIONS[index][1] for index in broken}


def test_every_rule_has_its_request() -> None:
    assert len(BROKEN_RULES) == len(EXCLUSIONS)


# ---- what only the server can know


@pytest.fixture(scope="module")
def jobs(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> StubJobs:
    return StubJobs(aws, tmp_path_factory.mktemp("stub"))


def _image(request: dict[str, Any], image: str) -> None:
    request["AlgorithmSpecification"]["TrainingImage"] = image


def _channel(request: dict[str, Any], uri: str) -> None:
    request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] = uri


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(RoleArn="arn:aws:iam::000000000000:role/nobody-there"), "Could not assume role"),
        (lambda r: _image(r, r["AlgorithmSpecification"]["TrainingImage"][:-64] + "0" * 64), "not found"),
        (lambda r: _image(r, "000000000000.dkr.ecr.us-east-1.amazonaws.com/none:1"), "Cannot find repository"),
        (lambda r: _image(r, "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch:1"), "Access denied for repository"),
        (lambda r: _image(r, "ubuntu"), "Invalid image URI"),
        (lambda r: _channel(r, "s3://no-such-bucket-here/data/"), "No S3 objects found"),
        (lambda r: _channel(r, r["OutputDataConfig"]["S3OutputPath"] + "nothing/"), "No S3 objects found"),
        (lambda r: r["OutputDataConfig"].update(S3OutputPath="s3://no-such-bucket-here/"), "Access denied to Output"),
        (lambda r: r["CheckpointConfig"].update(S3Uri="s3://no-such-bucket-here/"), "Access denied to Checkpoint"),
        (lambda r: r["HyperParameters"].update({"x" * 257: ""}), "length less than or equal to 256"),
        (lambda r: r["ResourceConfig"].update(TrainingPlanArn=PLAN), "cannot be used together|not found"),
    ],
)
def test_create_refuses(jobs: StubJobs, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    request = jobs.request()
    change(request)
    unchecked = jobs.aws.session().client("sagemaker", config=Config(parameter_validation=False))
    with pytest.raises(ClientError, match=message) as caught:
        unchecked.create_training_job(**request)
    assert caught.value.response["Error"]["Code"] == "ValidationException"
    assert not jobs.sagemaker.list_training_jobs(NameContains=request["TrainingJobName"])["TrainingJobSummaries"]


def test_names_quotas_tags_lists_and_deletion(aws: LocalAws, jobs: StubJobs) -> None:
    sagemaker = jobs.sagemaker
    request = jobs.request(steps=1)
    name = jobs.create(request)
    with pytest.raises(sagemaker.exceptions.ResourceInUse, match="must be unique"):
        sagemaker.create_training_job(**request)
    quota = "ml.c7i.2xlarge for spot training job usage"
    aws.control("sagemaker/limit", {"quota": quota, "value": 0})
    with pytest.raises(sagemaker.exceptions.ResourceLimitExceeded, match=f"'{quota}' is 0 Instances"):
        sagemaker.create_training_job(**jobs.request())
    aws.control("sagemaker/limit", {"quota": quota, "value": 20})
    arn = jobs.describe(name)["TrainingJobArn"]
    sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "more", "Value": "x"}])
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["blackwell:run"])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "more", "Value": "x"}]
    jobs.wait(name)
    others = [jobs.create(jobs.request(steps=1)) for _ in range(2)]
    pages = sagemaker.get_paginator("list_training_jobs").paginate(
        NameContains="stub-", PaginationConfig={"PageSize": 2}
    )
    listed = [row["TrainingJobName"] for page in pages for row in page["TrainingJobSummaries"]]
    assert {name, *others} <= set(listed)
    assert len(listed) == len(set(listed))
    for other in others:
        jobs.wait(other)
    sagemaker.delete_training_job(TrainingJobName=name)
    with pytest.raises(ClientError, match="Requested resource not found"):
        jobs.describe(name)


def test_training_plans(aws: LocalAws, jobs: StubJobs) -> None:
    """A job waits for its reservation, is told its end, and goes on in the next one."""
    hour = 3600
    plan = {"name": "reserved", "instance_type": "ml.c7i.2xlarge", "windows": [[hour, 3 * hour], [9 * hour, 20 * hour]]}
    arn = aws.control("sagemaker/plan", plan)["TrainingPlanArn"]
    described = jobs.sagemaker.describe_training_plan(TrainingPlanName="reserved")
    assert (described["Status"], described["AvailableInstanceCount"]) == ("Scheduled", 1)
    request = jobs.request(spot=False, steps=60, step_seconds=0.05)
    request["ResourceConfig"]["TrainingPlanArn"] = arn
    request["StoppingCondition"]["MaxRuntimeInSeconds"] = 20 * hour
    name = jobs.create(request)
    jobs.until(name, lambda job: job["SecondaryStatus"] == "Pending")
    aws.advance_clock(hour + 1)
    jobs.wait_for_line(name, "step 5 run")
    assert any("SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP" in line for line in jobs.lines(name))
    assert jobs.sagemaker.describe_training_plan(TrainingPlanName="reserved")["InUseInstanceCount"] == 1
    aws.advance_clock(1.6 * hour)  # less than 30 minutes are left of the first reservation
    jobs.until(name, lambda job: job["SecondaryStatus"] == "Pending")
    assert "Interrupted" in jobs.secondary(jobs.describe(name))
    aws.advance_clock(7 * hour)
    job = jobs.wait(name)
    assert job["TrainingJobStatus"] == "Completed"
    resumed = [int(line.split("resumed from ")[1].split()[0]) for line in jobs.lines(name) if "resumed from" in line]
    assert resumed[0] == 0
    assert resumed[1] >= 5
    request = jobs.request(spot=False)
    request["ResourceConfig"].update(TrainingPlanArn=arn, InstanceType="ml.p5.48xlarge")
    with pytest.raises(ClientError, match=r"reserves ml\.c7i\.2xlarge"):
        jobs.create(request)
