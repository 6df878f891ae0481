"""One Lambda function of ours: the shared asset, a role of its own, a log group of its own.

The role may write to its own log group only and may not create one, so no late log line brings a deleted group back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks import asset
from stacks.encryption import Encryption
from stacks.permission import Permission, allow, own_logs
from stacks.settings import Settings

RUNTIME = lambda_.Runtime(f"python{asset.PYTHON[0]}.{asset.PYTHON[1]}", lambda_.RuntimeFamily.PYTHON)
ARCHITECTURE = {"x86_64": lambda_.Architecture.X86_64, "arm64": lambda_.Architecture.ARM_64}[asset.ARCHITECTURE]


@cache
def _staged() -> asset.Staged:
    return asset.stage()


class PythonFunction(Construct):
    """`function`, `role` and `log_group` of `lambdas/<package>/handler.py`'s `handler`.

    `name` is the folder under lambdas/. `permissions` is everything the function may do besides logging.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        settings: Settings,
        encryption: Encryption,
        permissions: Iterable[Permission] = (),
        environment: Mapping[str, str] | None = None,
        timeout: cdk.Duration | None = None,
        memory_size: int = 256,
        reserved_concurrent_executions: int | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            retention=log_retention(settings),
            encryption_key=encryption.key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        allow(self.role, [own_logs(self.log_group), *permissions])
        self.function = lambda_.Function(
            self,
            "Function",
            runtime=RUNTIME,
            architecture=ARCHITECTURE,
            code=lambda_.Code.from_asset(str(_staged().path), asset_hash=_staged().digest),
            handler=f"lambdas.{name}.handler.handler",
            role=self.role.without_policy_updates(),
            log_group=self.log_group,
            timeout=timeout or cdk.Duration.seconds(60),
            memory_size=memory_size,
            environment=dict(environment or {}),
            environment_encryption=encryption.key,
            reserved_concurrent_executions=reserved_concurrent_executions,
        )
        self.function.node.add_dependency(self.role)  # its policy too: a function must not run before it may


def log_retention(settings: Settings) -> logs.RetentionDays:
    """CDK's name for `log_retention_days`."""
    return _RETENTION[settings.log_retention_days]


_RETENTION = {
    1: logs.RetentionDays.ONE_DAY, 3: logs.RetentionDays.THREE_DAYS, 5: logs.RetentionDays.FIVE_DAYS,
    7: logs.RetentionDays.ONE_WEEK, 14: logs.RetentionDays.TWO_WEEKS, 30: logs.RetentionDays.ONE_MONTH,
    60: logs.RetentionDays.TWO_MONTHS, 90: logs.RetentionDays.THREE_MONTHS, 120: logs.RetentionDays.FOUR_MONTHS,
    150: logs.RetentionDays.FIVE_MONTHS, 180: logs.RetentionDays.SIX_MONTHS, 365: logs.RetentionDays.ONE_YEAR,
}  # fmt: skip
