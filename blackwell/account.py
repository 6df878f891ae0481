"""What an account has: quotas, offerings of training plans, and what is left of a stack. Questions only, no changes.

Every function takes a function that makes clients (`session.client`), so that the same code asks AWS and the embedded
one. All calls are read-only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from blackwell.names import STAGE_TAG
from blackwell.telemetry import TRAINING_LOG_GROUP

ClientFactory = Callable[[str], Any]


# --- quotas ---------------------------------------------------------------------------------------------------------

QUOTA_USES: tuple[str, ...] = ("training job usage", "spot training job usage", "training warm pool usage")
"""How Service Quotas names what a training job takes: `ml.p6-b200.48xlarge for spot training job usage`.

Quotas are looked up by name: the codes of the Blackwell types are not published."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota of SageMaker, in instances."""

    name: str
    code: str
    value: float
    adjustable: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def quota_name(instance_type: str, use: str) -> str:
    """The name under which Service Quotas lists an instance type's use."""
    return f"{instance_type} for {use}"


def quotas(client: ClientFactory, instance_types: Iterable[str]) -> tuple[list[Quota], list[str]]:
    """(quotas of these instance types, names that Service Quotas does not list in this region)."""
    wanted = [quota_name(kind, use) for kind in instance_types for use in QUOTA_USES]
    service = client("service-quotas")
    found: dict[str, Quota] = {}
    for operation in ("list_aws_default_service_quotas", "list_service_quotas"):  # applied values override defaults
        for item in pages(service, operation, "Quotas", ServiceCode="sagemaker"):
            if item["QuotaName"] in wanted:
                found[item["QuotaName"]] = Quota(
                    item["QuotaName"], item["QuotaCode"], float(item["Value"]), bool(item.get("Adjustable"))
                )
    return [found[name] for name in wanted if name in found], [name for name in wanted if name not in found]


# --- offerings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offering:
    """One training plan that could be bought."""

    offering_id: str
    instance_type: str
    instance_count: int
    hours: float
    starts: datetime | None
    ends: datetime | None
    zones: tuple[str, ...]
    upfront: float | None
    currency: str

    @property
    def per_instance_hour(self) -> float | None:
        """The upfront fee over all instance hours."""
        hours = self.hours * self.instance_count
        return self.upfront / hours if self.upfront is not None and hours else None

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self) | {"per_instance_hour": self.per_instance_hour}
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in values.items()}


def offerings(
    client: ClientFactory, instance_type: str, instance_count: int, hours: int, *, after: datetime | None = None
) -> list[Offering]:
    """Training plans for training jobs that hold `instance_count` instances for at least `hours`, cheapest first."""
    request: dict[str, Any] = {
        "InstanceType": instance_type,
        "InstanceCount": instance_count,
        "DurationHours": hours,
        "TargetResources": ["training-job"],
    }
    if after is not None:
        request["StartTimeAfter"] = after
    answer = client("sagemaker").search_training_plan_offerings(**request)
    found = [_offering(item) for item in answer.get("TrainingPlanOfferings", [])]
    return sorted(
        found, key=lambda o: (o.upfront is None, o.upfront or 0.0, o.starts or datetime.max.replace(tzinfo=UTC))
    )


def _offering(item: Mapping[str, Any]) -> Offering:
    parts = item.get("ReservedCapacityOfferings", [])
    hours = float(item.get("DurationHours") or 0) + float(item.get("DurationMinutes") or 0) / 60
    return Offering(
        offering_id=item["TrainingPlanOfferingId"],
        instance_type=parts[0]["InstanceType"] if parts else "",
        instance_count=int(parts[0]["InstanceCount"]) if parts else 0,
        hours=hours,
        starts=min((p["StartTime"] for p in parts if "StartTime" in p), default=item.get("RequestedStartTimeAfter")),
        ends=max((p["EndTime"] for p in parts if "EndTime" in p), default=None),
        zones=tuple(sorted({p["AvailabilityZone"] for p in parts if "AvailabilityZone" in p})),
        upfront=_fee(item.get("UpfrontFee")),
        currency=str(item.get("CurrencyCode") or "USD"),
    )


def _fee(text: Any) -> float | None:
    """The API gives the fee as text."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


# --- leftovers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something of the stack that still exists."""

    kind: str
    name: str
    bills: bool
    """It costs money while it exists, or holds data that does."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found, and which kinds could not be listed: an empty list with unread kinds proves nothing."""

    found: list[Leftover]
    unread: dict[str, str]
    """Kind -> why it could not be listed."""

    @property
    def clean(self) -> bool:
        return not self.found and not self.unread


def leftovers(client: ClientFactory, stack: str, stage: str, job_prefix: str) -> Leftovers:
    """Everything with the stack's tags or names. Read-only; a kind that may not be listed is reported as unread."""
    found: dict[tuple[str, str], Leftover] = {}
    unread: dict[str, str] = {}
    listers: dict[str, Callable[[], Iterator[Leftover]]] = {
        "tagged resource": lambda: _tagged(client, stage),
        "CloudFormation stack": lambda: _stacks(client, stack),
        "training job": lambda: _jobs(client, job_prefix),
        "log group": lambda: _log_groups(client, stack, job_prefix),
        "log stream of a job": lambda: _streams(client, job_prefix),
        "metric filter": lambda: _filters(client, stack, job_prefix),
        **_lower_case(client, stack, stage),
    } | {
        kind: _named(client, kind, service, operation, key, field, (stack, job_prefix), bills)
        for kind, service, operation, key, field, bills in _NAMED
    }
    for kind, lister in listers.items():
        try:
            for item in lister():
                found.setdefault((item.kind, item.name), item)
        except Exception as error:
            unread[kind] = f"{type(error).__name__}: {error}"
    names = {item.name.split(" ")[0].rsplit(":", 1)[-1] for item in found.values() if not item.kind.endswith(_TAGGED)}
    for key in [k for k, item in found.items() if item.kind.endswith(_TAGGED)]:
        if re.split(r"[:/]", key[1])[-1] in names:
            del found[key]  # a lister of its kind has found it already
    return Leftovers(sorted(found.values(), key=lambda i: (i.kind, i.name)), unread)


_TAGGED = " resource"
"""End of the kind of things that only their tag shows."""
_NAMED: tuple[tuple[str, str, str, str, str | None, bool], ...] = (
    ("role", "iam", "list_roles", "Roles", "RoleName", False),
    ("rule", "events", "list_rules", "Rules", "Name", False),
    ("function", "lambda", "list_functions", "Functions", "FunctionName", False),
    ("table", "dynamodb", "list_tables", "TableNames", None, True),
    ("state machine", "stepfunctions", "list_state_machines", "stateMachines", "name", False),
    ("build project", "codebuild", "list_projects", "projects", None, False),
    ("topic", "sns", "list_topics", "Topics", "TopicArn", False),
    ("alarm", "cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName", True),
    ("dashboard", "cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName", True),
)
"""kind, service, operation, key of the list, key of the name, whether it bills."""


def pages(service: Any, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """Items of a list operation, over all its pages."""
    if service.can_paginate(operation):
        for page in service.get_paginator(operation).paginate(**arguments):
            yield from page.get(key, [])
    else:
        yield from getattr(service, operation)(**arguments).get(key, [])


def _named(
    client: ClientFactory,
    kind: str,
    service: str,
    operation: str,
    key: str,
    field: str | None,
    beginnings: tuple[str, str],
    bills: bool,
) -> Callable[[], Iterator[Leftover]]:
    def lister() -> Iterator[Leftover]:
        for item in pages(client(service), operation, key):
            name = item if field is None else item[field]
            if _ours(name.rsplit(":", 1)[-1], beginnings):
                yield Leftover(kind, name, bills)

    return lister


def _ours(name: str, beginnings: tuple[str, str]) -> bool:
    """CloudFormation begins physical names with the stack's name, our own names begin with the stage's job prefix.

    The stack's name is followed by `-` and a logical id, which begins with a capital or digit; another stage's stack
    name goes on in lower case.
    """
    stack, prefix = beginnings
    if name == prefix or name.startswith(f"{prefix}-"):
        return True
    following = name[len(stack) + 1 : len(stack) + 2]
    return name.startswith(f"{stack}-") and (following.isupper() or following.isdigit())


def _lower_case(client: ClientFactory, stack: str, stage: str) -> dict[str, Callable[[], Iterator[Leftover]]]:
    """Buckets and repositories have names in lower case only, so stages cannot be told apart by name: their tag says."""
    beginning = f"{stack.lower()}-"

    def buckets() -> Iterator[Leftover]:
        s3 = client("s3")
        for item in pages(s3, "list_buckets", "Buckets"):
            name = item["Name"]
            read = partial(s3.get_bucket_tagging, Bucket=name)
            if name.startswith(beginning) and stage in _tag(read, "TagSet", stage):
                yield Leftover("bucket", name, bills=True)

    def repositories() -> Iterator[Leftover]:
        ecr = client("ecr")
        for item in pages(ecr, "describe_repositories", "repositories"):
            name = item["repositoryName"]
            read = partial(ecr.list_tags_for_resource, resourceArn=item["repositoryArn"])
            if name.startswith(beginning) and stage in _tag(read, "tags", stage):
                yield Leftover("repository", name, bills=True)

    return {"bucket": buckets, "repository": repositories}


def _tag(read: Callable[[], Mapping[str, Any]], key: str, stage: str) -> set[str]:
    """Values of the stage's tag. A thing without the tag, or whose tags may not be read, counts as ours: better one
    line too many than a bill that nobody expects."""
    from botocore.exceptions import ClientError

    try:
        tags = read()[key]
    except ClientError:
        return {stage}
    return {tag["Value"] for tag in tags if tag["Key"] == STAGE_TAG} or {stage}


def _tagged(client: ClientFactory, stage: str) -> Iterator[Leftover]:
    tagging = client("resourcegroupstaggingapi")
    for item in pages(
        tagging, "get_resources", "ResourceTagMappingList", TagFilters=[{"Key": STAGE_TAG, "Values": [stage]}]
    ):
        arn = item["ResourceARN"]
        service = arn.split(":")[2]
        if service == "sagemaker" and ":training-plan/" in arn:
            continue  # bought by a person, and not to be deleted by anybody
        if service == "kms" and _waits_for_deletion(client, arn):
            continue
        if service == "dynamodb" and _table_is_gone(client, arn):
            continue
        yield Leftover(f"{service}{_TAGGED}", arn, bills=service in ("s3", "ecr", "dynamodb", "kms", "sagemaker"))


def _waits_for_deletion(client: ClientFactory, key: str) -> bool:
    """A deleted key is unusable and costs nothing at once, but stays listed for days."""
    from botocore.exceptions import ClientError

    try:
        return bool(client("kms").describe_key(KeyId=key)["KeyMetadata"]["KeyState"] == "PendingDeletion")
    except ClientError:
        return False  # may not be read: better one line too many


def _table_is_gone(client: ClientFactory, table: str) -> bool:
    """The index of tags forgets a deleted table only after a while."""
    from botocore.exceptions import ClientError

    try:
        client("dynamodb").describe_table(TableName=table)
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "ResourceNotFoundException")
    return False


def _stacks(client: ClientFactory, stack: str) -> Iterator[Leftover]:
    for item in pages(client("cloudformation"), "list_stacks", "StackSummaries"):
        if item["StackName"] == stack and item["StackStatus"] != "DELETE_COMPLETE":
            yield Leftover("CloudFormation stack", f"{stack} ({item['StackStatus']})", bills=False)


def _jobs(client: ClientFactory, prefix: str) -> Iterator[Leftover]:
    for item in pages(client("sagemaker"), "list_training_jobs", "TrainingJobSummaries", NameContains=prefix):
        if item["TrainingJobName"].startswith(f"{prefix}-"):
            status = item["TrainingJobStatus"]
            running = status in ("InProgress", "Stopping")
            yield Leftover("training job", f"{item['TrainingJobName']} ({status})", bills=running)


def _log_groups(client: ClientFactory, stack: str, prefix: str) -> Iterator[Leftover]:
    for item in pages(client("logs"), "describe_log_groups", "logGroups"):
        name = item["logGroupName"]
        if name != TRAINING_LOG_GROUP and any(_ours(part, (stack, prefix)) for part in name.split("/") if part):
            yield Leftover("log group", name, bills=bool(item.get("storedBytes")))


def _streams(client: ClientFactory, prefix: str) -> Iterator[Leftover]:
    logs = client("logs")
    try:
        for item in pages(
            logs,
            "describe_log_streams",
            "logStreams",
            logGroupName=TRAINING_LOG_GROUP,
            logStreamNamePrefix=f"{prefix}-",
        ):
            yield Leftover("log stream of a job", item["logStreamName"], bills=True)
    except logs.exceptions.ResourceNotFoundException:
        return


def _filters(client: ClientFactory, stack: str, prefix: str) -> Iterator[Leftover]:
    logs = client("logs")
    try:
        for item in pages(logs, "describe_metric_filters", "metricFilters", logGroupName=TRAINING_LOG_GROUP):
            if _ours(item["filterName"], (stack, prefix)):
                yield Leftover("metric filter", item["filterName"], bills=False)
    except logs.exceptions.ResourceNotFoundException:
        return
