"""What exists in an account: named things by kind, so that "nothing is left" is a comparison and not a claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from blackwell.telemetry import TRAINING_LOG_GROUP

Inventory = dict[str, set[str]]
ClientFactory = Callable[[str], Any]


def take(client: ClientFactory) -> Inventory:
    """Lists every kind of thing that the stack or one of its runs can create."""
    return {kind: set(lister(client)) for kind, lister in _LISTERS.items()}


def left_over(before: Inventory, after: Inventory) -> list[str]:
    """What is in `after` and was not in `before`, as `kind: name`, sorted.

    The training log group belongs to the account, not to the stack: it may stay, but none of our streams or filters
    in it, which are kinds of their own here.
    """
    found = [f"{kind}: {name}" for kind, names in after.items() for name in names - before.get(kind, set())]
    return sorted(item for item in found if item != f"log group: {TRAINING_LOG_GROUP}")


def _pages(client: Any, operation: str, key: str, **arguments: Any) -> Iterable[Any]:
    if client.can_paginate(operation):
        for page in client.get_paginator(operation).paginate(**arguments):
            yield from page.get(key, [])
    else:
        yield from getattr(client, operation)(**arguments).get(key, [])


def _simple(
    service: str, operation: str, key: str, field: str | None, **arguments: Any
) -> Callable[[ClientFactory], Iterable[str]]:
    def lister(client: ClientFactory) -> Iterable[str]:
        for item in _pages(client(service), operation, key, **arguments):
            yield item if field is None else item[field]

    return lister


def _streams(client: ClientFactory) -> Iterable[str]:
    logs = client("logs")
    try:
        for stream in _pages(logs, "describe_log_streams", "logStreams", logGroupName=TRAINING_LOG_GROUP):
            yield stream["logStreamName"]
    except logs.exceptions.ResourceNotFoundException:
        return


def _role_policies(client: ClientFactory) -> Iterable[str]:
    iam = client("iam")
    for role in _pages(iam, "list_roles", "Roles"):
        for policy in _pages(iam, "list_role_policies", "PolicyNames", RoleName=role["RoleName"]):
            yield f"{role['RoleName']}/{policy}"


def _rules(client: ClientFactory) -> Iterable[str]:
    yield from (rule["Name"] for rule in _pages(client("events"), "list_rules", "Rules"))


def _keys(client: ClientFactory) -> Iterable[str]:
    """Keys that can be used. A deleted key is unusable and free at once, but listed until its waiting time is over."""
    kms = client("kms")
    for key in _pages(kms, "list_keys", "Keys"):
        if kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] != "PendingDeletion":
            yield key["KeyId"]


def _executions(client: ClientFactory) -> Iterable[str]:
    sfn = client("stepfunctions")
    for machine in _pages(sfn, "list_state_machines", "stateMachines"):
        for execution in _pages(
            sfn, "list_executions", "executions", stateMachineArn=machine["stateMachineArn"], statusFilter="RUNNING"
        ):
            yield execution["executionArn"]


_LISTERS: dict[str, Callable[[ClientFactory], Iterable[str]]] = {
    "CloudFormation stack": _simple(
        "cloudformation",
        "list_stacks",
        "StackSummaries",
        "StackName",
        StackStatusFilter=[
            "CREATE_COMPLETE",
            "UPDATE_COMPLETE",
            "DELETE_FAILED",
            "ROLLBACK_COMPLETE",
            "ROLLBACK_FAILED",
        ],
    ),
    "role": _simple("iam", "list_roles", "Roles", "RoleName"),
    "role policy": _role_policies,
    "bucket": _simple("s3", "list_buckets", "Buckets", "Name"),
    "repository": _simple("ecr", "describe_repositories", "repositories", "repositoryName"),
    "log group": _simple("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "log stream of a job": _streams,
    "metric filter": _simple("logs", "describe_metric_filters", "metricFilters", "filterName"),
    "rule": _rules,
    "function": _simple("lambda", "list_functions", "Functions", "FunctionName"),
    "table": _simple("dynamodb", "list_tables", "TableNames", None),
    "state machine": _simple("stepfunctions", "list_state_machines", "stateMachines", "name"),
    "running execution": _executions,
    "build project": _simple("codebuild", "list_projects", "projects", None),
    "topic": _simple("sns", "list_topics", "Topics", "TopicArn"),
    "alarm": _simple("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "dashboard": _simple("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "training job": _simple("sagemaker", "list_training_jobs", "TrainingJobSummaries", "TrainingJobName"),
    "key": _keys,
}
