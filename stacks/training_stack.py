"""BlackwellTrainingStack: one JSON job spec in, one finished and explained training run out."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from blackwell.names import STAGE_TAG
from stacks.alarms import Alarms
from stacks.base_image_check import BaseImageCheck
from stacks.dashboard import Dashboard
from stacks.encryption import Encryption
from stacks.functions import Functions
from stacks.image import Image
from stacks.network import Network
from stacks.observability import Observability
from stacks.roles import Roles
from stacks.settings import Settings
from stacks.storage import Storage
from stacks.sweep import Sweep
from stacks.teardown import Teardown
from stacks.workflow import Workflow


class BlackwellTrainingStack(cdk.Stack):
    """The whole product; each line is one capability."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings) -> None:
        super().__init__(
            scope,
            construct_id,
            stack_name=settings.stack_name,
            description="Training on SageMaker AI with NVIDIA Blackwell GPUs, from one JSON job spec",
            analytics_reporting=False,
        )
        cdk.Tags.of(self).add(STAGE_TAG, settings.stage)
        self.encryption = Encryption(self, "Encryption", settings=settings)
        self.network = Network(self, "Network", settings=settings, encryption=self.encryption)
        self.storage = Storage(self, "Storage", settings=settings, encryption=self.encryption)
        self.image = Image(
            self, "Image", settings=settings, encryption=self.encryption, artifacts=self.storage.artifacts
        )
        self.roles = Roles(
            self, "Roles", settings=settings, encryption=self.encryption, storage=self.storage, image=self.image
        )
        self.observability = Observability(self, "Observability", settings=settings, encryption=self.encryption)
        self.functions = Functions(
            self,
            "Functions",
            settings=settings,
            encryption=self.encryption,
            storage=self.storage,
            image=self.image,
            roles=self.roles,
            topic=self.observability.topic,
            network=self.network.environment,
        )
        self.workflow = Workflow(
            self,
            "Workflow",
            settings=settings,
            encryption=self.encryption,
            storage=self.storage,
            functions=self.functions,
            topic=self.observability.topic,
        )
        self.sweep = Sweep(
            self,
            "Sweep",
            settings=settings,
            encryption=self.encryption,
            storage=self.storage,
            functions=self.functions,
            training=self.workflow.state_machine,
            topic=self.observability.topic,
        )
        self.base_image_check = BaseImageCheck(
            self,
            "BaseImageCheck",
            settings=settings,
            encryption=self.encryption,
            topic=self.observability.topic,
        )
        watched = [function for function in self.node.find_all() if isinstance(function, lambda_.Function)]
        self.alarms = Alarms(
            self,
            "Alarms",
            settings=settings,
            topic=self.observability.topic,
            image=self.image,
            state_machine=self.workflow.state_machine,
            functions=watched,
        )
        self.dashboard = Dashboard(
            self,
            "Dashboard",
            settings=settings,
            state_machine=self.workflow.state_machine,
            functions=watched,
        )
        self.teardown = Teardown(
            self,
            "Teardown",
            settings=settings,
            encryption=self.encryption,
            storage=self.storage,
            image=self.image,
            roles=self.roles,
            network=self.network,
            # sweeps first: they start the others
            state_machines=[self.sweep.state_machine, self.workflow.state_machine],
        )
        self._outputs(settings)

    def _outputs(self, settings: Settings) -> None:
        """What clients look up; the logical ids are names that other things rely on."""
        outputs = {
            "StateMachineArn": self.workflow.state_machine.state_machine_arn,
            "SweepStateMachineArn": self.sweep.state_machine.state_machine_arn,
            "ArtifactsBucket": self.storage.artifacts.bucket_name,
            "CheckpointBucket": self.storage.checkpoints.bucket_name,
            "RunTable": self.storage.run_table.table_name,
            "RepositoryUri": self.image.repository.repository_uri,
            "BuildProject": self.image.project.project_name,
            "ExecutionRoleArn": self.roles.execution_role.role_arn,
            "TopicArn": self.observability.topic.topic_arn,
            "DashboardName": self.dashboard.dashboard.dashboard_name,
            "JobPrefix": settings.job_prefix,
        }
        if settings.retain_data:
            outputs["RetainedData"] = (
                f"{outputs['CheckpointBucket']} and {outputs['ArtifactsBucket']} stay after cdk destroy"
            )
        for name, value in outputs.items():
            cdk.CfnOutput(self, f"Output{name}", value=value).override_logical_id(name)
