"""What both state machines are made of: states in Amazon States Language, the machine itself, its role and its logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.encryption import Encryption
from stacks.permission import Permission, allow, key_use
from stacks.python_function import PythonFunction, log_retention
from stacks.settings import Settings

Json = dict[str, Any]

RETRY_SERVICE: Json = {
    "ErrorEquals": [
        "Lambda.ServiceException",
        "Lambda.AWSLambdaException",
        "Lambda.SdkClientException",
        "Lambda.ClientExecutionTimeoutException",
        "Lambda.TooManyRequestsException",
    ],
    "IntervalSeconds": 2,
    "MaxAttempts": 6,
    "BackoffRate": 2.0,
    "MaxDelaySeconds": 60,
    "JitterStrategy": "FULL",
}
"""Lambda itself was not able to run the function."""
RETRY_DIED: Json = {
    "ErrorEquals": [
        "Lambda.Unknown",
        "Runtime.ExitError",
        "Sandbox.Timedout",
        "ClientError",
        "ThrottlingException",
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ConnectionClosedError",
    ],
    "IntervalSeconds": 5,
    "MaxAttempts": 3,
    "BackoffRate": 2.0,
}
"""The function died on the way, or AWS did not answer it; every function may be called twice."""


def query(expression: str) -> str:
    """A JSONata expression as a field's value."""
    return f"{{% {expression} %}}"


def choice(rules: dict[str, str], otherwise: str) -> Json:
    """A choice by JSONata conditions, the first that holds."""
    return {
        "Type": "Choice",
        "Choices": [{"Condition": query(condition), "Next": target} for condition, target in rules.items()],
        "Default": otherwise,
    }


def notify(next_state: str) -> Json:
    """Publishes the input's subject and message to the stack's topic; the input goes on as it is."""
    return {
        "Type": "Task",
        "Resource": "arn:${Partition}:states:::sns:publish",
        "Arguments": {
            "TopicArn": "${Topic}",
            "Subject": query("$states.input.subject"),
            "Message": query("$states.input.message"),
        },
        "Output": query("$states.input"),
        "Retry": [{"ErrorEquals": ["States.TaskFailed"], "IntervalSeconds": 2, "MaxAttempts": 3, "BackoffRate": 2.0}],
        # a message that cannot be sent changes nothing about the run
        "Catch": [{"ErrorEquals": ["States.ALL"], "Output": query("$states.input"), "Next": next_state}],
        "Next": next_state,
    }


@dataclass(frozen=True, slots=True)
class Machine:
    """A state machine, with what was made for it."""

    log_group: logs.LogGroup
    role: iam.Role
    state_machine: sfn.StateMachine


def make_machine(
    scope: Construct,
    *,
    settings: Settings,
    encryption: Encryption,
    name: str,
    definition: Json,
    called: Mapping[str, PythonFunction],
    substitutions: Mapping[str, str],
    topic: sns.ITopic,
    permissions: Sequence[Permission] = (),
    log_data: bool,
) -> Machine:
    """The machine of a construct, as its children `Logs`, `Role` and `StateMachine`.

    Args:
        name: of the log group, after the prefix that all state machines' groups have.
        definition: Amazon States Language; `${...}` are filled in: `Partition`, `Topic`, the names of `called`, and
            `substitutions`.
        called: functions that it may call, by the name that stands for each in the definition.
        permissions: what its role may do besides calling them, writing to the topic, logs and traces.
        log_data: whether inputs and outputs of states are in the log.
    """
    log_group = logs.LogGroup(
        scope,
        "Logs",
        # with this beginning, log delivery does not add every group to the account's small resource policy
        log_group_name=f"/aws/vendedlogs/states/{name}",
        retention=log_retention(settings),
        encryption_key=encryption.key,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    role = iam.Role(scope, "Role", assumed_by=iam.ServicePrincipal("states.amazonaws.com"))
    functions = tuple(function.function.function_arn for function in called.values())
    allow(
        role,
        [
            Permission("CallFunctions", ("lambda:InvokeFunction",), functions),
            *permissions,
            Permission("Notify", ("sns:Publish",), (topic.topic_arn,)),
            *_deliver_logs_and_traces(),
            key_use(encryption.topic_key.key_arn),
        ],
    )
    state_machine = sfn.StateMachine(
        scope,
        "StateMachine",
        # the partition as a token of the CDK's: cfn-lint takes no substitution within a task's Resource
        definition_body=sfn.DefinitionBody.from_string(
            json.dumps(definition, indent=1).replace("${Partition}", cdk.Aws.PARTITION)
        ),
        definition_substitutions={
            "Topic": topic.topic_arn,
            **substitutions,
            **{state: function.function.function_arn for state, function in called.items()},
        },
        role=role.without_policy_updates(),
        logs=sfn.LogOptions(destination=log_group, level=sfn.LogLevel.ALL, include_execution_data=log_data),
        tracing_enabled=True,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    state_machine.node.add_dependency(role)
    return Machine(log_group, role, state_machine)


def executions_arn(machine: sfn.StateMachine) -> str:
    """ARN of all executions of the machine."""
    return cdk.Stack.of(machine).format_arn(
        service="states",
        resource="execution",
        resource_name=f"{machine.state_machine_name}:*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )


def _deliver_logs_and_traces() -> list[Permission]:
    """What a state machine's role needs for its log group and for X-Ray."""
    return [
        Permission(
            "DeliverLogs",
            (
                "logs:CreateLogDelivery",
                "logs:GetLogDelivery",
                "logs:UpdateLogDelivery",
                "logs:DeleteLogDelivery",
                "logs:ListLogDeliveries",
                "logs:PutResourcePolicy",
                "logs:DescribeResourcePolicies",
                "logs:DescribeLogGroups",
            ),
            ("*",),
            why="The log delivery that Step Functions sets up has no resource to name.",
        ),
        Permission(
            "Trace",
            (
                "xray:PutTraceSegments",
                "xray:PutTelemetryRecords",
                "xray:GetSamplingRules",
                "xray:GetSamplingTargets",
            ),
            ("*",),
            why="X-Ray's actions have no resource.",
        ),
    ]
