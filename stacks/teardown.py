"""What `cdk destroy` needs besides CloudFormation: one custom resource that depends on everything, so it goes first."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as stepfunctions
from constructs import Construct

from blackwell.names import CONTROL_FILE, RUNS_PREFIX
from blackwell.telemetry import TRAINING_LOG_GROUP
from stacks.encryption import Encryption
from stacks.image import Image
from stacks.network import Network
from stacks.permission import Permission, key_use
from stacks.python_function import PythonFunction
from stacks.roles import Roles, log_group_arn, training_log_group_arn
from stacks.settings import Settings
from stacks.state_machine import executions_arn
from stacks.storage import Storage

SERVICE_TIMEOUT = cdk.Duration.hours(1)
"""CloudFormation waits no longer for a custom resource."""
FUNCTION_TIMEOUT = cdk.Duration.minutes(15)


class Teardown(Construct):
    """Stops and deletes what runs, empties the buckets, removes our log streams. To be created last of all."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        encryption: Encryption,
        storage: Storage,
        image: Image,
        roles: Roles,
        network: Network,
        state_machines: Sequence[stepfunctions.StateMachine],
    ) -> None:
        super().__init__(scope, construct_id)
        stack = cdk.Stack.of(self)
        late_groups = _groups_of_their_own(stack)
        remover = PythonFunction(
            self,
            "Remover",
            name="teardown",
            settings=settings,
            encryption=encryption,
            timeout=FUNCTION_TIMEOUT,
            memory_size=512,
            permissions=[
                *_running_work(roles, image, state_machines, settings),
                *_data(storage, encryption, settings),
                *_logs(stack, settings, late_groups),
                *_interfaces(network),
            ],
        )
        # a policy of its own: it names the function, which needs its other policy to exist
        again = iam.ManagedPolicy(self, "GoOn", roles=[remover.role])
        again.add_statements(
            Permission("GoOn", ("lambda:InvokeFunction",), (remover.function.function_arn,)).statement()
        )
        self.resource = cdk.CustomResource(
            self,
            "Resource",
            resource_type="Custom::Teardown",
            service_token=remover.function.function_arn,
            service_timeout=SERVICE_TIMEOUT,
            properties={
                "Partition": stack.partition,
                "Stage": settings.stage,
                "JobPrefix": settings.job_prefix,
                "StateMachines": [machine.state_machine_arn for machine in state_machines],
                "BuildProject": image.project.project_name,
                "ArtifactsBucket": storage.artifacts.bucket_name,
                "CheckpointBucket": storage.checkpoints.bucket_name,
                "RetainData": settings.retain_data,
                "TrainingLogGroup": TRAINING_LOG_GROUP,
                "LogGroups": late_groups,
                **({"SecurityGroup": network.job_group.security_group_id} if network.job_group else {}),
                "ServiceTimeoutSeconds": SERVICE_TIMEOUT.to_seconds(),
            },
        )
        self._depend_on_everything(stack)

    def _depend_on_everything(self, stack: cdk.Stack) -> None:
        own = self.resource.node.default_child
        assert isinstance(own, cdk.CfnResource)
        for construct in stack.node.find_all():
            if isinstance(construct, cdk.CfnResource) and construct is not own:
                own.add_resource_dependency(construct)


def _groups_of_their_own(stack: cdk.Stack) -> list[str]:
    """Names of the log groups that services make by themselves for what writes to no group of ours.

    Everything here has a group of its own and no right to make another; a service that made one all the same (or an
    account's older setting) must not leave it behind.
    """
    everything = stack.node.find_all()
    functions = [f"/aws/lambda/{made.ref}" for made in everything if isinstance(made, lambda_.CfnFunction)]
    projects = [f"/aws/codebuild/{made.ref}" for made in everything if isinstance(made, codebuild.CfnProject)]
    return [*functions, *projects]


def _running_work(
    roles: Roles, image: Image, state_machines: Sequence[stepfunctions.StateMachine], settings: Settings
) -> list[Permission]:
    return [
        Permission("Executions", ("states:ListExecutions",), tuple(m.state_machine_arn for m in state_machines)),
        Permission(
            "StopExecutions",
            ("states:StopExecution",),
            tuple(executions_arn(machine) for machine in state_machines),
            why="The executions of our own state machines.",
        ),
        Permission(
            "Builds",
            ("codebuild:ListBuildsForProject", "codebuild:BatchGetBuilds", "codebuild:StopBuild"),
            (image.project.project_arn,),
        ),
        Permission(
            "ListJobs",
            ("sagemaker:ListTrainingJobs",),
            ("*",),
            why="The action has no resource; jobs are then chosen by the stage's prefix and tag.",
        ),
        # a job's control file is only looked for where its checkpoints are kept
        roles.read_jobs_permission(describe=settings.retain_data),
        roles.stop_jobs_permission(),
        roles.delete_jobs_permission(),
    ]  # fmt: skip


def _data(storage: Storage, encryption: Encryption, settings: Settings) -> list[Permission]:
    """With kept data only the control files, through which jobs are asked for a last checkpoint."""
    if settings.retain_data:
        permissions = [
            Permission(
                "AskForCheckpoint",
                ("s3:PutObject",),
                (storage.artifacts.arn_for_objects(f"{RUNS_PREFIX}*/{CONTROL_FILE}"),),
                why="Control files of any run that may be running.",
            )
        ]
        return [*permissions, key_use(encryption.key.key_arn)] if encryption.key else permissions
    buckets = (storage.artifacts, storage.checkpoints)
    arns = tuple(bucket.bucket_arn for bucket in buckets)
    return [
        Permission("ListBuckets", ("s3:ListBucketVersions", "s3:ListBucketMultipartUploads"), arns),
        Permission("DenyWrites", ("s3:GetBucketPolicy", "s3:PutBucketPolicy"), arns),
        Permission(
            "EmptyBuckets",
            ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"),
            tuple(bucket.arn_for_objects("*") for bucket in buckets),
            why="Emptying the stack's own two buckets is the purpose.",
        ),
    ]


def _interfaces(network: Network) -> list[Permission]:
    if network.job_group is None:
        return []
    why = "The action has no resource; it reads, and asks for the jobs' own security group only."
    return [Permission("FindInterfaces", ("ec2:DescribeNetworkInterfaces",), ("*",), why=why)]


def _logs(stack: cdk.Stack, settings: Settings, late_groups: Sequence[str]) -> list[Permission]:
    shared = training_log_group_arn(stack)
    return [
        Permission("FindStreams", ("logs:DescribeLogStreams",), (shared, f"{shared}:*"), why=_GROUP_ARN),
        Permission(
            "DeleteStreams",
            ("logs:DeleteLogStream",),
            (f"{shared}:log-stream:{settings.job_prefix}-*",),
            why="Streams begin with the job's name; the stage's prefix bounds them in the shared group.",
        ),
        Permission(
            "DeleteGroups",
            ("logs:DeleteLogGroup",),
            tuple(f"{log_group_arn(stack, name)}:*" for name in late_groups),
            why=_GROUP_ARN,
        ),
    ]


_GROUP_ARN = "IAM takes the ARN of a log group with and without :*; it is one group, named in full."
