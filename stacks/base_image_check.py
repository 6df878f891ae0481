"""Every week: is there a newer base image for the training image? Tells the topic, changes nothing."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.encryption import Encryption
from stacks.permission import Permission, key_use
from stacks.python_function import PythonFunction
from stacks.registries import registry_account
from stacks.settings import Settings


class BaseImageCheck(Construct):
    """Nothing where `base_image_check_days` is 0 or the base image comes from a registry of the user's own."""

    def __init__(
        self, scope: Construct, construct_id: str, *, settings: Settings, encryption: Encryption, topic: sns.ITopic
    ) -> None:
        super().__init__(scope, construct_id)
        base = settings.base_image
        if settings.base_image_check_days == 0 or base.registry is not None:
            return
        account = registry_account(self)
        repository = cdk.Stack.of(self).format_arn(
            service="ecr", account=account, resource="repository", resource_name=base.repository
        )
        check = PythonFunction(
            self,
            "Check",
            name="base_image",
            settings=settings,
            encryption=encryption,
            environment={
                "BASE_REGISTRY_ACCOUNT": account,
                "BASE_REPOSITORY": base.repository,
                "BASE_TAG": base.tag,
                "TOPIC_ARN": topic.topic_arn,
            },
            permissions=[
                Permission("ListBaseImages", ("ecr:ListImages",), (repository,)),
                Permission("Tell", ("sns:Publish",), (topic.topic_arn,)),
                key_use(encryption.topic_key.key_arn),
            ],
        )
        rule = events.Rule(
            self,
            "Rule",
            description="Look for a newer base image",
            schedule=events.Schedule.rate(cdk.Duration.days(settings.base_image_check_days)),
        )
        rule.add_target(targets.LambdaFunction(check.function))
