"""cdk-nag: turned on for every synthesis, and the one way to acknowledge a finding, with its reason."""

from __future__ import annotations

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks
from constructs import Construct


def turn_on(app: cdk.App) -> None:
    """Findings that nobody acknowledged make the synthesis fail."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))


def acknowledge(construct: Construct, rule: str, reason: str) -> None:
    """Accepts `rule` (such as `AwsSolutions-S1`, or `AwsSolutions-IAM5[Resource::*]`) for this construct.

    `reason` must say why the finding is no risk here, true for exactly this resource.
    """
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))
