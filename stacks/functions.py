"""The workflow's Lambda functions: one asset, and for each its own role with exactly what its handler calls."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_sns as sns
from constructs import Construct

from blackwell.names import (
    CONTROL_FILE,
    JOBS_PREFIX,
    MANIFEST,
    RUNS_PREFIX,
)
from stacks.encryption import Encryption
from stacks.image import Image
from stacks.permission import Permission, key_use
from stacks.python_function import PythonFunction
from stacks.roles import Roles, training_log_group_arn
from stacks.settings import Settings
from stacks.storage import Storage

_RUN_NAMES = "Run names are chosen by users; only this kind of document, in the stack's own bucket."


class Functions(Construct):
    """One attribute per function, named as its folder under lambdas/."""

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
        topic: sns.ITopic,
        network: dict[str, str] | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings, self._encryption = settings, encryption
        self._storage, self._image, self._roles = storage, image, roles
        self._environment = {
            "STAGE": settings.stage,
            "RUN_TABLE": storage.run_table.table_name,
            "ARTIFACTS_BUCKET": storage.artifacts.bucket_name,
            "CHECKPOINT_BUCKET": storage.checkpoints.bucket_name,
            "REPOSITORY_URI": image.repository.repository_uri,
            "REPOSITORY_NAME": image.repository.repository_name,
            "BUILD_PROJECT": image.project.project_name,
            "EXECUTION_ROLE_ARN": roles.execution_role.role_arn,
            "JOB_PREFIX": settings.job_prefix,
            "IMAGE_TAG": image.tag,
            "ALLOWED_INSTANCE_TYPES": ",".join(settings.instance_types),
            "MAX_INSTANCES": str(settings.max_instances),
            "MAX_BUDGET_USD": str(settings.max_budget_usd),
            "MAX_RUNTIME_HOURS": str(settings.max_runtime_hours),
            "NETWORK_ISOLATION": str(settings.network_isolation).lower(),
            "DATA_BUCKETS": ",".join(settings.data_buckets),
            "GUARD_MINUTES": str(settings.guard_minutes),
            "SILENCE_MINUTES": str(settings.silence_minutes),
            "DURABLE_LAG_MINUTES": str(settings.durable_lag_minutes),
            **({"KMS_KEY_ARN": encryption.key.key_arn} if encryption.key else {}),
            **(network or {}),
        }
        jobs, stop = roles.read_jobs_permission(), roles.stop_jobs_permission()
        self.report = self.add(
            "report",
            [
                self.table("GetItem", "Query", "UpdateItem"),
                self._documents("s3:GetObject", "s3:PutObject"),
                *self._read_checkpoints(),
                *self.read_job_logs(),
                jobs,
                stop,
                Permission("Tell", ("sns:Publish",), (topic.topic_arn,)),
                key_use(encryption.topic_key.key_arn),
            ],
            environment={"TOPIC_ARN": topic.topic_arn},
            timeout=cdk.Duration.minutes(10),
            memory_size=2048,  # builds the page from up to a million log lines
        )
        ask_for_report = Permission("AskForReport", ("lambda:InvokeFunction",), (self.report.function.function_arn,))
        report_name = {"REPORT_FUNCTION": self.report.function.function_name}
        self.plan = self.add(
            "plan",
            [
                self.table("PutItem", "Query"),
                self._documents("s3:PutObject"),
                self._list_data(),
                self._read_training_plans(),
                Permission(
                    "ReadQuotas",
                    ("servicequotas:ListServiceQuotas",),
                    ("*",),
                    why="The action has no resource; quotas are found by name because their codes are not published.",
                ),
                Permission(
                    "ReadPrices", ("pricing:GetProducts",), ("*",), why="The public price list; it has no resource."
                ),
            ],
        )
        self.ensure_image = self.add(
            "ensure_image",
            [
                self.table("GetItem", "PutItem", "UpdateItem"),
                Permission("FindImage", ("ecr:DescribeImages",), (image.repository.repository_arn,)),
                Permission(
                    "ReadBuildLog",
                    ("logs:GetLogEvents",),
                    (image.log_group.log_group_arn,),
                    why="The ARN of a log group ends in :*, its streams.",
                ),
                Permission("Build", ("codebuild:StartBuild", "codebuild:BatchGetBuilds"), (image.project.project_arn,)),
            ],
        )
        self.launch = self.add(
            "launch",
            [
                self.table("GetItem", "UpdateItem"),
                self._documents("s3:GetObject"),
                self._read_training_plans(),
                *roles.launch_permissions(),
                jobs,
                stop,
            ],
        )
        self.await_job = self.add(
            "await_job", [self.table("GetItem", "UpdateItem"), roles.read_jobs_permission(tags=False)]
        )
        self.assess = self.add(
            "assess",
            [
                self.table("GetItem", "PutItem", "Query", "UpdateItem"),
                self._documents("s3:GetObject"),
                *self._read_checkpoints(),
                *self.read_job_logs(),
                jobs,
                stop,
            ],
        )
        self.job_event = self.add(
            "job_event", [self.table("GetItem", "UpdateItem"), jobs, ask_for_report], environment=report_name
        )
        self.execution_ended = self.add(
            "execution_ended",
            [self.table("GetItem", "Query", "UpdateItem"), jobs, stop, ask_for_report],
            environment=report_name,
        )
        self.guard = self.add(
            "guard",
            [
                self.table("GetItem", "Query", "Scan", "UpdateItem"),
                self._documents("s3:GetObject"),
                Permission(
                    "Control",
                    ("s3:PutObject",),
                    (storage.artifacts.arn_for_objects(f"{RUNS_PREFIX}*/{CONTROL_FILE}"),),
                    why=_RUN_NAMES,
                ),
                *self._read_checkpoints(),
                *self.read_job_logs(),
                jobs,
                stop,
                ask_for_report,
            ],
            environment=report_name,
            timeout=cdk.Duration.minutes(4),
        )
        self.spec_drop = self.add(
            "spec_drop",
            [
                Permission(
                    "ReadDroppedSpecs",
                    ("s3:GetObject", "s3:GetObjectVersion"),
                    (storage.artifacts.arn_for_objects(f"{JOBS_PREFIX}*"),),
                    why="Whatever a user puts under this prefix; read only.",
                )
            ],
        )

    def add(
        self,
        name: str,
        permissions: list[Permission],
        *,
        environment: dict[str, str] | None = None,
        timeout: cdk.Duration | None = None,
        memory_size: int = 512,
        reserved_concurrent_executions: int | None = None,
    ) -> PythonFunction:
        """A function of the workflow: the folder under lambdas/, and everything it may do besides logging."""
        key = [key_use(self._encryption.key.key_arn)] if self._encryption.key else []
        return PythonFunction(
            self,
            "".join(part.capitalize() for part in name.split("_")),
            name=name,
            settings=self._settings,
            encryption=self._encryption,
            permissions=[*permissions, *key],
            environment=self._environment | (environment or {}),
            timeout=timeout,
            memory_size=memory_size,
            reserved_concurrent_executions=reserved_concurrent_executions,
        )

    def table(self, *actions: str) -> Permission:
        """DynamoDB actions on the run table."""
        return Permission(
            "RunTable", tuple(f"dynamodb:{action}" for action in actions), (self._storage.run_table.table_arn,)
        )

    def _documents(self, *actions: str) -> Permission:
        artifacts = self._storage.artifacts
        return Permission("Documents", actions, (artifacts.arn_for_objects(f"{RUNS_PREFIX}*"),), why=_RUN_NAMES)

    def _list_data(self) -> Permission:
        stack, storage = cdk.Stack.of(self), self._storage
        others = [f"arn:{stack.partition}:s3:::{bucket}" for bucket in self._settings.data_buckets]
        return Permission(
            "ListData", ("s3:ListBucket",), (storage.artifacts.bucket_arn, storage.checkpoints.bucket_arn, *others)
        )

    def _read_checkpoints(self) -> list[Permission]:
        checkpoints = self._storage.checkpoints
        manifests = checkpoints.arn_for_objects(f"{RUNS_PREFIX}*/{MANIFEST}")
        return [
            Permission("ListCheckpoints", ("s3:ListBucket",), (checkpoints.bucket_arn,)),
            Permission("ReadManifests", ("s3:GetObject",), (manifests,), why=_RUN_NAMES),
        ]

    def read_job_logs(self) -> list[Permission]:
        """To read the log streams of the stage's jobs."""
        group = training_log_group_arn(cdk.Stack.of(self))
        return [
            Permission(
                "FindJobLogs",
                ("logs:DescribeLogStreams",),
                (f"{group}:*",),
                why="IAM names a log group with :* at its end; the action lists stream names of this one group.",
            ),
            Permission(
                "ReadJobLogs",
                ("logs:GetLogEvents",),
                (f"{group}:log-stream:{self._settings.job_prefix}-*",),
                why="The streams of this stage's jobs, whose names begin with the job's name; read only.",
            ),
        ]

    def _read_training_plans(self) -> Permission:
        plans = cdk.Stack.of(self).format_arn(service="sagemaker", resource="training-plan", resource_name="*")
        return Permission(
            "ReadTrainingPlans",
            ("sagemaker:DescribeTrainingPlan",),
            (plans,),
            why="Training plans are bought outside the stack and named by job specs; read only.",
        )
