"""BlackwellTrainingStack: one JSON job spec in, one finished and explained training run out."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from blackwell.names import STAGE_TAG
from stacks.encryption import Encryption
from stacks.image import Image
from stacks.observability import Observability
from stacks.roles import Roles
from stacks.settings import Settings
from stacks.storage import Storage


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
        self.storage = Storage(self, "Storage", settings=settings, encryption=self.encryption)
        self.image = Image(self, "Image", settings=settings, encryption=self.encryption)
        self.roles = Roles(
            self, "Roles", settings=settings, encryption=self.encryption, storage=self.storage, image=self.image
        )
        self.observability = Observability(self, "Observability", settings=settings, encryption=self.encryption)
