"""One permission of a role, with the reason for every wildcard beside it.

cdk-nag reports each wildcard of a policy; `allow` acknowledges exactly those of the permission, with its `why`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs

from stacks.nag import acknowledge


@dataclass(frozen=True, slots=True)
class Permission:
    """What a role may do. `why` says why a wildcard is needed and what still bounds it; required where there is one."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def statement(self) -> iam.PolicyStatement:
        """The CDK's form of it."""
        return iam.PolicyStatement(
            sid=self.sid, actions=list(self.actions), resources=list(self.resources), conditions=dict(self.conditions)
        )


def allow(role: iam.Role, permissions: Iterable[Permission]) -> None:
    """Adds the permissions to the role's policy.

    Raises:
        ValueError: for a wildcard without a reason.
    """
    stack = cdk.Stack.of(role)
    for permission in permissions:
        wildcards = [f"Action::{action}" for action in permission.actions if "*" in action]
        wildcards += [
            f"Resource::{flat}" for flat in (_flat(stack.resolve(r)) for r in permission.resources) if "*" in flat
        ]
        if wildcards and not permission.why:
            raise ValueError(
                f"permission {permission.sid} of {role.node.path} has a wildcard without a reason: {wildcards}"
            )
        role.add_to_principal_policy(permission.statement())
        for wildcard in wildcards:
            acknowledge(role, f"AwsSolutions-IAM5[{wildcard}]", permission.why)


def key_use(key_arn: str) -> Permission:
    """To read and write what is encrypted with the stack's own key."""
    return Permission("Key", ("kms:Decrypt", "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext"), (key_arn,))


def own_logs(group: logs.LogGroup) -> Permission:
    """To write to this log group; not to create it, so that no late line brings a deleted group back."""
    return Permission(
        "Logs",
        ("logs:CreateLogStream", "logs:PutLogEvents"),
        (group.log_group_arn,),
        why="The ARN of a log group ends in :*, its streams.",
    )


def _flat(value: Any) -> str:
    """A resolved token as cdk-nag writes it in a finding's id."""
    if isinstance(value, str):
        return value.replace("${", "<").replace("}", ">")
    if "Fn::Join" in value:
        delimiter, items = value["Fn::Join"]
        return str(delimiter).join(_flat(item) for item in items)
    if "Fn::GetAtt" in value:
        resource, attribute = value["Fn::GetAtt"]
        return f"<{resource}.{attribute}>"
    if "Ref" in value:
        return f"<{value['Ref']}>"
    return json.dumps(value, separators=(",", ":"))
