"""Least privilege, action by action: what each principal must be able to do, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from policies import ACCOUNT, REGION, actions, allowed, arn, role_of, statements
from stack_templates import EVERYTHING, Template, resources

from blackwell.telemetry import TRAINING_LOG_GROUP

pytestmark = pytest.mark.xdist_group("stacks")

JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/"
OURS = f"{JOB}blackwell-dev-my-run-a1"
GROUP = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:"
WITHIN = {"sagemaker__InstanceTypes": ["ml.p6-b200.48xlarge"], "sagemaker__MaxRuntimeInSeconds": "86400"}


def bucket(template: Template, which: str) -> str:
    (name,) = [n for n in resources(template, "AWS::S3::Bucket") if which in n]
    return arn(template, name)


@pytest.fixture
def execution(template: Template) -> str:
    return role_of(template, "RolesExecution")


@pytest.fixture
def launcher(template: Template) -> str:
    return role_of(template, "FunctionsLaunchRole")


class TestExecutionRole:
    """What a training job may do."""

    def test_reads_data_and_control_writes_checkpoints(self, template: Template, execution: str) -> None:
        artifacts, checkpoints = bucket(template, "Artifacts"), bucket(template, "Checkpoints")
        for action, resource in {
            "s3:ListBucket": checkpoints,
            "s3:GetObject": f"{artifacts}/datasets/stdlib/train-00000.bin",
            "s3:PutObject": f"{checkpoints}/runs/my-run/checkpoints/step-00000100/MANIFEST.json",
            "s3:DeleteObject": f"{checkpoints}/runs/my-run/checkpoints/step-00000001/x",
            "s3:AbortMultipartUpload": f"{checkpoints}/runs/my-run/output/x",
        }.items():
            assert allowed(template, execution, action, resource), (action, resource)
        assert allowed(template, execution, "s3:GetObject", f"{artifacts}/runs/my-run/control.json")
        assert allowed(template, execution, "s3:GetObject", f"{checkpoints}/runs/other/checkpoints/step-00000001/x")

    @pytest.mark.parametrize(
        ("action", "key"),
        [("s3:PutObject", "datasets/x"), ("s3:PutObject", "runs/my-run/control.json"), ("s3:PutObject", "jobs/x.json"),
         ("s3:GetObject", "runs/my-run/spec.json"), ("s3:DeleteObject", "datasets/x")],
    )  # fmt: skip
    def test_never_changes_artifacts(self, template: Template, execution: str, action: str, key: str) -> None:
        assert not allowed(template, execution, action, f"{bucket(template, 'Artifacts')}/{key}")

    def test_no_other_bucket(self, template: Template, execution: str) -> None:
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
            assert not allowed(template, execution, action, "arn:aws:s3:::somebody-elses/runs/x")
        assert not allowed(template, execution, "s3:ListBucket", "arn:aws:s3:::somebody-elses")

    def test_data_buckets_of_the_settings_are_read_only(self, template_of: Callable[..., Template]) -> None:
        made = template_of(**EVERYTHING)
        role = role_of(made, "RolesExecution")
        assert allowed(made, role, "s3:GetObject", "arn:aws:s3:::some-data/text/1.bin")
        assert allowed(made, role, "s3:ListBucket", "arn:aws:s3:::some-data")
        assert not allowed(made, role, "s3:PutObject", "arn:aws:s3:::some-data/text/1.bin")

    def test_writes_logs_of_training_jobs_only(self, template: Template, execution: str) -> None:
        ours = f"{GROUP}{TRAINING_LOG_GROUP}"
        assert allowed(template, execution, "logs:CreateLogGroup", f"{ours}:*")
        assert allowed(template, execution, "logs:PutLogEvents", f"{ours}:log-stream:blackwell-dev-x-a1/algo-1-1")
        for other in ("/aws/lambda/x", f"{TRAINING_LOG_GROUP}2"):
            assert not allowed(template, execution, "logs:PutLogEvents", f"{GROUP}{other}:log-stream:x")

    def test_publishes_in_sagemaker_s_namespace_only(self, template: Template, execution: str) -> None:
        def put(**context: str) -> bool:
            return allowed(template, execution, "cloudwatch:PutMetricData", "*", **context)

        assert put(cloudwatch__namespace="/aws/sagemaker/TrainingJobs")
        assert not put(cloudwatch__namespace="AWS/Billing")
        assert not put()

    def test_pulls_our_image_only(self, template: Template, execution: str) -> None:
        (name,) = resources(template, "AWS::ECR::Repository")
        assert allowed(template, execution, "ecr:BatchGetImage", arn(template, name))
        assert not allowed(template, execution, "ecr:PutImage", arn(template, name))
        assert not allowed(template, execution, "ecr:BatchGetImage", f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/other")

    @pytest.mark.parametrize(
        "action", ["iam:PassRole", "sts:AssumeRole", "sagemaker:CreateTrainingJob", "lambda:InvokeFunction",
                   "dynamodb:PutItem", "states:StartExecution", "ec2:CreateNetworkInterface", "secretsmanager:GetSecretValue"],
    )  # fmt: skip
    def test_nothing_else(self, template: Template, execution: str, action: str) -> None:
        assert not any(a.split(":")[0] == action.split(":")[0] for a in actions(template, execution))

    def test_only_sagemaker_of_this_account_may_use_it(self, template: Template, execution: str) -> None:
        (trust,) = template["Resources"][execution]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
        assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}


class TestLaunch:
    """Who creates jobs."""

    def test_may_create_our_jobs_within_the_settings(self, template: Template, launcher: str) -> None:
        assert allowed(template, launcher, "sagemaker:CreateTrainingJob", OURS, **WITHIN)
        assert allowed(template, launcher, "sagemaker:AddTags", OURS)
        for kind in ("training-plan/my-plan", "reserved-capacity/abc"):
            resource = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}"
            assert allowed(template, launcher, "sagemaker:CreateTrainingJob", resource)

    @pytest.mark.parametrize(
        ("name", "context"),
        [
            ("other-team-a1", WITHIN),
            ("blackwell-dev2-my-run-a1", WITHIN),
            ("blackwell-dev-x-a1", {**WITHIN, "sagemaker__InstanceTypes": ["ml.p5.48xlarge"]}),
            ("blackwell-dev-x-a1", {**WITHIN, "sagemaker__InstanceTypes": ["ml.p6-b200.48xlarge", "ml.p5.48xlarge"]}),
            ("blackwell-dev-x-a1", {"sagemaker__MaxRuntimeInSeconds": "86400"}),
            ("blackwell-dev-x-a1", {**WITHIN, "sagemaker__MaxRuntimeInSeconds": str(29 * 86400)}),
        ],
    )
    def test_no_other_job(self, template: Template, launcher: str, name: str, context: dict[str, Any]) -> None:
        assert not allowed(template, launcher, "sagemaker:CreateTrainingJob", JOB + name, **context)

    def test_settings_bound_type_and_time(self, template_of: Callable[..., Template]) -> None:
        made = template_of(**EVERYTHING)
        role = role_of(made, "FunctionsLaunchRole")
        resource = f"{JOB}blackwell-prod-x-a1"
        cpu = {**WITHIN, "sagemaker__InstanceTypes": ["ml.c7i.2xlarge"]}
        assert allowed(made, role, "sagemaker:CreateTrainingJob", resource, **WITHIN)
        assert not allowed(made, role, "sagemaker:CreateTrainingJob", resource, **cpu)

    def test_passes_the_execution_role_to_sagemaker_and_no_other(
        self, template: Template, launcher: str, execution: str
    ) -> None:
        def may_pass(role: str, service: str) -> bool:
            return allowed(template, launcher, "iam:PassRole", arn(template, role), iam__PassedToService=service)

        assert may_pass(execution, "sagemaker.amazonaws.com")
        assert not may_pass(execution, "ec2.amazonaws.com")
        assert not may_pass(launcher, "sagemaker.amazonaws.com")

    def test_nobody_else_creates_jobs_or_passes_roles(self, template: Template, launcher: str) -> None:
        for role in resources(template, "AWS::IAM::Role"):
            if role != launcher:
                assert not {"sagemaker:CreateTrainingJob", "iam:PassRole"} & actions(template, role), role


class TestBuild:
    """What builds the image."""

    def test_pushes_to_our_repository_only(self, template: Template) -> None:
        role = role_of(template, "ImageRole")
        (repository,) = resources(template, "AWS::ECR::Repository")
        assert allowed(template, role, "ecr:PutImage", arn(template, repository))
        aws_own = f"arn:aws:ecr:{REGION}:763104351884:repository/pytorch"
        assert allowed(template, role, "ecr:BatchGetImage", aws_own)
        assert not allowed(template, role, "ecr:PutImage", aws_own)
        assert not allowed(template, role, "ecr:BatchGetImage", f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/other")
        assert not {a.split(":")[0] for a in actions(template, role)} - {"ecr", "s3", "logs"}

    def test_reads_its_own_source_only(self, template: Template) -> None:
        role = role_of(template, "ImageRole")
        readable = [r for s in statements(template, role) if "s3:GetObject" in s["Action"] for r in [s["Resource"]]]
        assert all("*" not in r for r in readable)


class TestTeardown:
    """What takes everything away must not reach beyond the stack."""

    def test_own_things_only(self, template: Template) -> None:
        role = role_of(template, "TeardownRemover")
        assert allowed(template, role, "sagemaker:StopTrainingJob", OURS)
        assert allowed(template, role, "sagemaker:DeleteTrainingJob", OURS)
        assert allowed(template, role, "s3:DeleteObjectVersion", f"{bucket(template, 'Checkpoints')}/runs/x")
        stream = f"{GROUP}{TRAINING_LOG_GROUP}:log-stream:"
        assert allowed(template, role, "logs:DeleteLogStream", f"{stream}blackwell-dev-x-a1/algo-1-1")
        for action, resource in [
            ("sagemaker:StopTrainingJob", f"{JOB}other-a1"),
            ("sagemaker:DeleteTrainingJob", f"{JOB}blackwell-dev2-x-a1"),
            ("s3:DeleteObject", "arn:aws:s3:::somebody-elses/x"),
            ("logs:DeleteLogStream", f"{stream}blackwell-dev2-x-a1/algo-1-1"),
            ("logs:DeleteLogGroup", f"{GROUP}{TRAINING_LOG_GROUP}:*"),
            ("s3:GetObject", f"{bucket(template, 'Artifacts')}/runs/x/spec.json"),
        ]:
            assert not allowed(template, role, action, resource), (action, resource)

    def test_with_retained_data_it_cannot_delete_any(self, template_of: Callable[..., Template]) -> None:
        made = template_of(**EVERYTHING)
        granted = actions(made, role_of(made, "TeardownRemover"))
        assert not {"s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutBucketPolicy"} & granted


def test_no_wildcard_action_anywhere(template: Template) -> None:
    for role in resources(template, "AWS::IAM::Role"):
        assert [a for a in actions(template, role) if "*" in a] == [], role


@pytest.mark.parametrize("resource", ["*"])
def test_wildcard_resource_only_where_the_action_has_none(template: Template, resource: str) -> None:
    """IAM's service reference names no resource type for these actions."""
    without_resource = {
        "ecr:GetAuthorizationToken", "cloudwatch:PutMetricData", "sagemaker:ListTrainingJobs",
        "servicequotas:ListServiceQuotas", "logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery",
        "logs:DeleteLogDelivery", "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies",
        "logs:DescribeLogGroups", "xray:PutTraceSegments", "xray:PutTelemetryRecords", "xray:GetSamplingRules",
        "xray:GetSamplingTargets", "pricing:GetProducts",
    }  # fmt: skip
    for role in resources(template, "AWS::IAM::Role"):
        for statement in statements(template, role):
            if resource in (
                statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            ):
                granted = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                assert set(granted) <= without_resource, (role, statement["Sid"])


def test_every_role_trusts_one_service(template: Template) -> None:
    for name, role in resources(template, "AWS::IAM::Role").items():
        (trust,) = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert set(trust["Principal"]) == {"Service"}, name
