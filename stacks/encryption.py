"""The stack's own KMS key, where settings ask for one; otherwise the services' own keys are used."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.settings import Settings

SERVICE_USERS = ("events", "cloudwatch", "sns", "states")
"""Services that publish to the encrypted topic or write on the stack's behalf."""


class Encryption(Construct):
    """`key` is None without `kms`."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        self.key: kms.Key | None = None
        if not settings.kms:
            return
        stack = cdk.Stack.of(self)
        self.key = kms.Key(
            self,
            "Key",
            description=f"Data of {settings.stack_name}",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(7),
            # a key that data still needs must outlive the stack
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY,
        )
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="ServicesOfThisAccount",
                principals=[iam.ServicePrincipal(f"{service}.amazonaws.com") for service in SERVICE_USERS],
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],
                conditions={"StringEquals": {"aws:SourceAccount": stack.account}},
            )
        )
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="LogGroupsOfThisAccount",
                principals=[iam.ServicePrincipal(f"logs.{stack.region}.{stack.url_suffix}")],
                actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"],
                resources=["*"],
                conditions={
                    "ArnLike": {
                        "kms:EncryptionContext:aws:logs:arn": f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:*"
                    }
                },
            )
        )
