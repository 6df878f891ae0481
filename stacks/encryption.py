"""Encryption keys: one of the stack's own for all data where settings ask for it, and in any case one for the topic.

The topic cannot use SNS's own key: its policy lets neither alarms nor rules publish.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.settings import Settings

PUBLISHERS = ("cloudwatch", "events")
"""Services that publish to the encrypted topic by themselves: alarms and rules."""


class Encryption(Construct):
    """`key` encrypts everything, None without `kms`; `topic_key` encrypts the topic."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self.key: kms.Key | None = None
        if settings.kms:
            # a key that kept data still needs must outlive the stack
            keep = cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY
            self.key = self._make("Key", f"Data of {settings.stack_name}", keep)
            self._let_logs_use(self.key)
        self.topic_key = self.key or self._make(
            "TopicKey", f"Messages of {settings.stack_name}", cdk.RemovalPolicy.DESTROY
        )
        self._let_publishers_use(self.topic_key)

    def _make(self, name: str, description: str, removal_policy: cdk.RemovalPolicy) -> kms.Key:
        return kms.Key(
            self,
            name,
            description=description,
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(7),
            removal_policy=removal_policy,
        )

    def _let_publishers_use(self, key: kms.Key) -> None:
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsAndRulesOfThisAccount",
                principals=[iam.ServicePrincipal(f"{service}.amazonaws.com") for service in PUBLISHERS],
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],
                conditions={"StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account}},
            )
        )

    def _let_logs_use(self, key: kms.Key) -> None:
        stack = cdk.Stack.of(self)
        key.add_to_resource_policy(
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
