"""What the rest reports to: the topic, and metric filters on the training jobs' logs."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from blackwell.telemetry import METRIC_FILTER_PATTERN, METRIC_FILTERS, METRIC_NAMESPACE, TRAINING_LOG_GROUP
from stacks.encryption import Encryption
from stacks.permission import Permission
from stacks.python_function import PythonFunction
from stacks.roles import training_log_group_arn
from stacks.settings import Settings


class Observability(Construct):
    """`topic` gets everything a person should know."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, encryption: Encryption) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self.topic = self._topic(encryption)
        self._metric_filters(encryption)

    def _topic(self, encryption: Encryption) -> sns.Topic:
        topic = sns.Topic(
            self,
            "Topic",
            display_name=f"Training runs ({self._settings.stage})",
            master_key=encryption.topic_key,
            enforce_ssl=True,
        )
        for service in ("cloudwatch", "events"):  # a topic policy of our own replaces the default that lets them in
            topic.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=f"Publish{service.capitalize()}",
                    principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
                    actions=["sns:Publish"],
                    resources=[topic.topic_arn],
                    conditions={"StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account}},
                )
            )
        if self._settings.alarm_email:
            topic.add_subscription(subscriptions.EmailSubscription(self._settings.alarm_email))
        return topic

    def _metric_filters(self, encryption: Encryption) -> None:
        """Filters on the log group that all training jobs of the account share: adopted, never owned.

        A small resource creates the group where no job has run yet; nothing of ours ever deletes it.
        """
        group_arn = training_log_group_arn(cdk.Stack.of(self))
        adopter = PythonFunction(
            self,
            "LogGroupAdopter",
            name="training_log_group",
            settings=self._settings,
            encryption=encryption,
            permissions=[
                Permission(
                    "CreateIfMissing",
                    ("logs:CreateLogGroup",),
                    (group_arn, f"{group_arn}:*"),
                    why="IAM takes the ARN of a log group with and without :*; it is one group.",
                )
            ],
        )
        adopted = cdk.CustomResource(
            self,
            "TrainingLogGroup",
            service_token=adopter.function.function_arn,
            resource_type="Custom::TrainingLogGroup",
            service_timeout=cdk.Duration.minutes(5),
            properties={"LogGroupName": TRAINING_LOG_GROUP},
        )
        group = logs.LogGroup.from_log_group_name(self, "TrainingLogs", TRAINING_LOG_GROUP)
        for metric, field in METRIC_FILTERS.items():
            metric_filter = logs.MetricFilter(
                self,
                metric,
                log_group=group,
                filter_pattern=logs.FilterPattern.literal(METRIC_FILTER_PATTERN),
                metric_namespace=METRIC_NAMESPACE,
                metric_name=metric,
                metric_value=field,
                dimensions={"Run": "$run"},
            )
            metric_filter.node.add_dependency(adopted)
