"""What a training job may do (the execution role), and what whoever starts and stops jobs may do.

Every statement is written by hand: the CDK's own grants for SageMaker lack what checkpoints need and give more than
the rest needs. tests/stacks/test_least_privilege.py checks them action by action.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from blackwell.names import CONTROL_FILE, DATASETS_PREFIX, RUNS_PREFIX
from blackwell.telemetry import TRAINING_LOG_GROUP
from stacks.encryption import Encryption
from stacks.image import Image
from stacks.permission import Permission, allow, key_use
from stacks.settings import Settings
from stacks.storage import Storage

SAGEMAKER_NAMESPACE = "/aws/sagemaker/TrainingJobs"
"""CloudWatch namespace in which SageMaker's agent publishes on behalf of the job."""


class Roles(Construct):
    """`execution_role` of the jobs, and statements for the functions that start, read and stop jobs."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        encryption: Encryption,
        storage: Storage,
        image: Image,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        stack = cdk.Stack.of(self)
        self.execution_role = iam.Role(
            self,
            "Execution",
            description=f"Training jobs of stage {settings.stage}",
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": stack.format_arn(service="sagemaker", resource="*")},
                },
            ),
        )
        allow(self.execution_role, self._execution_permissions(encryption, storage, image))

    def _execution_permissions(self, encryption: Encryption, storage: Storage, image: Image) -> list[Permission]:
        stack, settings = cdk.Stack.of(self), self._settings
        data = [f"arn:{stack.partition}:s3:::{bucket}" for bucket in settings.data_buckets]
        group = training_log_group_arn(stack)
        permissions = [
            Permission(
                "ListBuckets",
                ("s3:ListBucket",),
                (storage.artifacts.bucket_arn, storage.checkpoints.bucket_arn, *data),
            ),
            Permission(
                "ReadDataAndControl",
                ("s3:GetObject",),
                (
                    storage.artifacts.arn_for_objects(f"{DATASETS_PREFIX}*"),
                    storage.artifacts.arn_for_objects(f"{RUNS_PREFIX}*/{CONTROL_FILE}"),
                    *[f"{arn}/*" for arn in data],
                ),
                why="One role serves all runs of the stage: any dataset and any run's control file, read only; of other "
                "buckets only those that the settings name.",
            ),
            Permission(
                "Checkpoints",
                # delete: what the trainer prunes locally, SageMaker's sync deletes in S3
                ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"),
                (storage.checkpoints.arn_for_objects(f"{RUNS_PREFIX}*"),),
                why="Checkpoint names are not known beforehand; the bucket holds nothing but runs' checkpoints and models.",
            ),
            Permission(
                "ImageLogin",
                ("ecr:GetAuthorizationToken",),
                ("*",),
                why="The action has no resource; the token gives only what the role may do besides.",
            ),
            Permission(
                "Image",
                ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"),
                (image.repository.repository_arn,),
            ),
            Permission(
                "Logs",
                ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
                (group, f"{group}:*"),
                why="The streams of the one log group that SageMaker writes all training jobs to.",
            ),
            Permission(
                "Metrics",
                ("cloudwatch:PutMetricData",),
                ("*",),
                conditions={"StringEquals": {"cloudwatch:namespace": SAGEMAKER_NAMESPACE}},
                why="The action has no resource; the condition limits it to SageMaker's own namespace.",
            ),
        ]
        if encryption.key:
            permissions += [key_use(encryption.key.key_arn), *_outputs_and_volumes(encryption.key.key_arn)]
        if settings.vpc is not None:
            permissions.append(
                Permission(
                    "NetworkInterfaces",
                    (
                        "ec2:CreateNetworkInterface",
                        "ec2:CreateNetworkInterfacePermission",
                        "ec2:DeleteNetworkInterface",
                        "ec2:DeleteNetworkInterfacePermission",
                        "ec2:DescribeDhcpOptions",
                        "ec2:DescribeNetworkInterfaces",
                        "ec2:DescribeSecurityGroups",
                        "ec2:DescribeSubnets",
                        "ec2:DescribeVpcs",
                    ),
                    ("*",),
                    why="As SageMaker requires for jobs in a VPC; it makes the interfaces in this role's name, and most of "
                    "these actions have no resource.",
                )
            )
        return permissions

    def _jobs(self) -> str:
        return cdk.Stack.of(self).format_arn(
            service="sagemaker", resource="training-job", resource_name=f"{self._settings.job_prefix}-*"
        )

    def launch_permissions(self) -> list[Permission]:
        """To create jobs: ours by name, the settings' instance types and run time, our execution role only.

        The number of instances has no condition key: the launcher refuses more than `max_instances` itself.
        """
        stack, settings = cdk.Stack.of(self), self._settings
        return [
            Permission(
                "CreateJob",
                ("sagemaker:CreateTrainingJob",),
                (self._jobs(),),
                conditions={
                    "ForAllValues:StringEquals": {"sagemaker:InstanceTypes": list(settings.instance_types)},
                    "Null": {"sagemaker:InstanceTypes": "false"},
                    "NumericLessThanEquals": {"sagemaker:MaxRuntimeInSeconds": str(settings.max_runtime_hours * 3600)},
                },
                why=_JOB_NAMES,
            ),
            Permission(
                # no condition: these resources of the same request carry no condition keys
                "UseReservedCapacity",
                ("sagemaker:CreateTrainingJob",),
                tuple(
                    stack.format_arn(service="sagemaker", resource=kind, resource_name="*")
                    for kind in ("training-plan", "reserved-capacity")
                ),
                why="Training plans are bought outside the stack and named by job specs; the job itself must still pass "
                "statement CreateJob.",
            ),
            Permission("TagJob", ("sagemaker:AddTags",), (self._jobs(),), why=_JOB_NAMES),
            Permission(
                "PassExecutionRole",
                ("iam:PassRole",),
                (self.execution_role.role_arn,),
                conditions={"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
            ),
        ]

    def read_jobs_permission(self, *, describe: bool = True, tags: bool = True) -> Permission:
        """To describe our jobs and to read their tags."""
        actions = {"sagemaker:DescribeTrainingJob": describe, "sagemaker:ListTags": tags}
        return Permission("ReadJobs", tuple(a for a, may in actions.items() if may), (self._jobs(),), why=_JOB_NAMES)

    def stop_jobs_permission(self) -> Permission:
        """To stop our jobs."""
        return Permission("StopJobs", ("sagemaker:StopTrainingJob",), (self._jobs(),), why=_JOB_NAMES)

    def delete_jobs_permission(self) -> Permission:
        """To delete the records of our jobs."""
        return Permission("DeleteJobs", ("sagemaker:DeleteTrainingJob",), (self._jobs(),), why=_JOB_NAMES)


_JOB_NAMES = "Job names are made per run; the stage's prefix bounds them."


def log_group_arn(stack: cdk.Stack, name: str) -> str:
    """ARN, without `:*`, of a log group of this account and region."""
    return stack.format_arn(
        service="logs", resource="log-group", resource_name=name, arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME
    )


def training_log_group_arn(stack: cdk.Stack) -> str:
    """ARN of the log group that all training jobs of the account share."""
    return log_group_arn(stack, TRAINING_LOG_GROUP)


def _outputs_and_volumes(key_arn: str) -> list[Permission]:
    """What SageMaker asks of the execution role for OutputDataConfig.KmsKeyId and, for an instance's volume, EBS."""
    return [
        Permission("KeyOfOutputs", ("kms:Encrypt", "kms:DescribeKey"), (key_arn,)),
        Permission(
            "KeyOfVolumes",
            ("kms:CreateGrant",),
            (key_arn,),
            conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    ]
