"""Facts that only AWS and the stack's settings know, each answered with a finding.

A fact that cannot be read is a warning, never a pass.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

from botocore.exceptions import BotoCoreError, ClientError

from blackwell.account import QUOTA_USES, quota_name
from blackwell.findings import Finding, Severity
from blackwell.names import DATASETS_PREFIX, MANIFEST, RUN_ID, RUNS_PREFIX, s3_uri, split_s3_uri
from blackwell.planning import Facts, MeasuredRun, PriceFact, TrainingPlanFact
from blackwell.remedy import utc_now
from blackwell.request import data_uri
from blackwell.spec import BudgetSpec, CapacityEntry, CapacityKind, JobSpec
from lambdas.common import measured
from lambdas.common.aws import client, error_code, error_message
from lambdas.common.environment import Environment
from lambdas.common.resume import resume_uri
from lambdas.common.training_plans import PLAN_STATUSES, describe_plan, training_plan_fact
from lambdas.plan.prices import on_demand_price

QUOTA_OF = {CapacityKind.ON_DEMAND: QUOTA_USES[0], CapacityKind.SPOT: QUOTA_USES[1]}
"""Which quota a job of this kind takes from; training plans take from none."""
_MISSING = ("NoSuchBucket", "NoSuchKey", "404", "ResourceNotFound")


def check(spec: JobSpec, stack: Environment) -> list[Finding]:
    """All findings about the stack's limits, data, quotas, plans and the run to go on from."""
    found = [*_limits(spec, stack), *_data(spec, stack), *_resume(spec, stack)]
    for index, entry in enumerate(spec.capacity):
        path = f"capacity.{index}"
        if entry.kind is CapacityKind.TRAINING_PLAN:
            found += _asked(f"{path}.training_plan_arn", partial(_plan, entry, path))
        else:
            found += _asked(path, partial(_quota, entry, path))
    return found


def _asked(path: str, question: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return question()
    except (ClientError, BotoCoreError) as error:
        message = error_message(error) if isinstance(error, ClientError) else str(error)
        return [
            Finding(
                id="BTS-206", severity=Severity.WARNING, path=path, message=f"could not be checked: {message[:300]}"
            )
        ]


def _limits(spec: JobSpec, stack: Environment) -> Iterator[Finding]:
    for index, entry in enumerate(spec.capacity):
        if entry.instance_type not in stack.instance_types:
            yield Finding(
                id="BTS-201",
                path=f"capacity.{index}.instance_type",
                message=f"stage {stack.stage} does not allow this instance type",
                given=entry.instance_type,
                legal=", ".join(stack.instance_types),
                nearest=stack.instance_types[0] if stack.instance_types else None,
            )
        if entry.instance_count > stack.max_instances:
            yield Finding(
                id="BTS-202",
                path=f"capacity.{index}.instance_count",
                message=f"stage {stack.stage} allows at most {stack.max_instances} per job",
                given=entry.instance_count,
                legal=f"1 to {stack.max_instances}",
                nearest=stack.max_instances,
            )
        if entry.max_runtime_seconds > stack.max_runtime_hours * 3600:
            yield Finding(
                id="BTS-211",
                path=f"capacity.{index}.max_runtime_seconds",
                message=f"stage {stack.stage} allows at most {stack.max_runtime_hours:g} hours per job",
                given=entry.max_runtime_seconds,
                legal=f"up to {stack.max_runtime_hours * 3600:.0f}",
                nearest=int(stack.max_runtime_hours * 3600),
            )
    if spec.budget is not None and spec.budget.max_cost_usd > stack.max_budget_usd:
        yield Finding(
            id="BTS-207",
            path="budget.max_cost_usd",
            message=f"stage {stack.stage} allows at most ${stack.max_budget_usd:.2f} per run",
            given=spec.budget.max_cost_usd,
            legal=f"up to {stack.max_budget_usd}",
            nearest=stack.max_budget_usd,
        )


def within_the_stacks_budget(spec: JobSpec, stack: Environment) -> JobSpec:
    """The spec with the stage's limit as its budget where it has none: the limit holds for every run that costs."""
    if spec.budget is not None or all(entry.kind is CapacityKind.TRAINING_PLAN for entry in spec.capacity):
        return spec
    return spec.model_copy(update={"budget": BudgetSpec(max_cost_usd=stack.max_budget_usd)})


def about_the_stacks_budget(finding: Finding, stack: Environment) -> Finding:
    """A finding about a budget that the spec does not name says whose budget it is."""
    if finding.id not in ("BTS-106", "BTS-107"):
        return finding
    limit = f"stage {stack.stage}'s limit of ${stack.max_budget_usd:,.2f} per run (setting max_budget_usd)"
    return finding.model_copy(update={"message": f"{finding.message}; the spec has no budget, so {limit} counts"})


def _data(spec: JobSpec, stack: Environment) -> Iterator[Finding]:
    if spec.data is None:
        return
    for name in ("train", "validation"):
        location = getattr(spec.data, name)
        if location:
            uri = data_uri(location, stack.artifacts_bucket)
            path = f"data.{name}"
            unreadable = _unreadable(uri, stack)
            if unreadable:
                yield Finding(id="BTS-205", path=path, message=_NO_RIGHT, given=location, legal=unreadable)
            else:
                yield from _asked(path, partial(_channel, uri, path, location))


_NO_RIGHT = "the jobs' role may not read this"


def _unreadable(uri: str, stack: Environment) -> str | None:
    """What would be legal, where the execution role's policy does not cover the place; None where it does."""
    bucket, prefix = split_s3_uri(uri)
    own = {stack.artifacts_bucket: DATASETS_PREFIX, stack.checkpoint_bucket: RUNS_PREFIX}
    if bucket in stack.data_bucket_names or prefix.startswith(own.get(bucket, "\0")):
        return None
    places = [s3_uri(name, folder) for name, folder in own.items()] + [f"s3://{n}/" for n in stack.data_bucket_names]
    return f"below {' or '.join(places)}; other buckets are named in the setting data_buckets"


def _channel(uri: str, path: str, given: str) -> list[Finding]:
    bucket, prefix = split_s3_uri(uri)
    try:
        listing = client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except ClientError as error:
        if error_code(error) in _MISSING:
            return [Finding(id="BTS-205", path=path, message=f"the bucket {bucket} does not exist", given=given)]
        raise
    if listing.get("KeyCount", 0):
        return []
    return [
        Finding(
            id="BTS-205",
            path=path,
            message=f"nothing is there: {uri}",
            given=given,
            legal="a folder of token shards, made by `python -m trainer.data prepare`",
        )
    ]


def _resume(spec: JobSpec, stack: Environment) -> Iterator[Finding]:
    if spec.resume_from is None:
        return
    given = spec.resume_from
    if not given.startswith("s3://") and RUN_ID.match(given) is None:
        yield Finding(id="BTS-208", path="resume_from", message="is neither a run nor an S3 URI", given=given)
        return
    uri = resume_uri(given, stack)
    unreadable = _unreadable(uri, stack)
    if unreadable:
        yield Finding(id="BTS-208", path="resume_from", message=_NO_RIGHT, given=given, legal=unreadable)
    else:
        yield from _asked("resume_from", partial(_checkpoints, uri, given))


def _checkpoints(uri: str, given: str) -> list[Finding]:
    bucket, prefix = split_s3_uri(uri)
    pages = client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    try:
        if any(item["Key"].endswith(f"/{MANIFEST}") for page in pages for item in page.get("Contents", [])):
            return []
    except ClientError as error:
        if error_code(error) not in _MISSING:
            raise
    return [
        Finding(
            id="BTS-208",
            path="resume_from",
            message=f"no complete checkpoint is under {uri}",
            given=given,
            legal="a run of this stack with a checkpoint, or the S3 URI of a checkpoint folder",
        )
    ]


def facts(spec: JobSpec) -> tuple[Facts, list[Finding]]:
    """What the planner can use of it: when training plans end, what instances cost; and what could not be read.

    A training plan that cannot be read has its finding from `check` already.
    """
    plans: dict[str, TrainingPlanFact] = {}
    found: dict[str, PriceFact] = {}
    unread: list[Finding] = []
    for index, entry in enumerate(spec.capacity):
        if entry.training_plan_arn is not None:
            with contextlib.suppress(ClientError, BotoCoreError):
                plans[entry.training_plan_arn] = training_plan_fact(entry.training_plan_arn)
        elif entry.hourly_price is None and entry.instance_type not in found:
            unread += _asked(f"capacity.{index}", partial(_price, entry.instance_type, found))
    runs: list[MeasuredRun] = []
    with contextlib.suppress(ClientError, BotoCoreError):  # a correction only: without it the plan says 0 runs
        runs = measured.recall(entry.instance_type for entry in spec.capacity)
    return Facts(training_plans=plans, prices=found, now=utc_now(), runs=runs), unread


def _price(instance_type: str, into: dict[str, PriceFact]) -> list[Finding]:
    price = on_demand_price(instance_type)
    if price is not None:
        into[instance_type] = price
    return []  # a type without a listed price is the planner's finding


QUOTAS_KNOWN_SECONDS = 60.0
"""A quota that was raised after a refusal is seen by the next try but one."""
_quotas: dict[str, float] = {}
_quotas_at = -math.inf


def _quota(entry: CapacityEntry, path: str) -> list[Finding]:
    global _quotas_at
    name = quota_name(entry.instance_type, QUOTA_OF[entry.kind])
    if time.monotonic() - _quotas_at > QUOTAS_KNOWN_SECONDS:
        pages = (
            client("service-quotas")
            .get_paginator("list_service_quotas")
            .paginate(ServiceCode="sagemaker", PaginationConfig={"PageSize": 100})
        )
        _quotas.update({quota["QuotaName"]: quota["Value"] for page in pages for quota in page["Quotas"]})
        _quotas_at = time.monotonic()
    if name not in _quotas:
        return [
            Finding(id="BTS-206", severity=Severity.WARNING, path=path, message=f"Service Quotas lists no {name!r}")
        ]
    if _quotas[name] >= entry.instance_count:
        return []
    return [
        Finding(
            id="BTS-203",
            path=f"{path}.instance_count",
            message=f"quota {name!r} is {_quotas[name]:g}; raise it in Service Quotas, service SageMaker",
            given=entry.instance_count,
            legal=f"up to {_quotas[name]:g}",
            nearest=int(_quotas[name]) or None,
        )
    ]


def _plan(entry: CapacityEntry, path: str) -> list[Finding]:
    arn = entry.training_plan_arn or ""
    plan = describe_plan(arn)
    if plan is None:
        return [Finding(id="BTS-204", path=f"{path}.training_plan_arn", message="there is no such plan", given=arn)]
    if plan.get("Status") not in (*PLAN_STATUSES, "Pending"):
        return [
            Finding(
                id="BTS-204",
                path=f"{path}.training_plan_arn",
                message=f"the plan is {plan.get('Status')}: {plan.get('StatusMessage', '')}".rstrip(": "),
                given=arn,
                legal="a plan that is Pending, Scheduled or Active",
            )
        ]
    total = plan.get("TotalInstanceCount")
    if isinstance(total, int) and total < entry.instance_count:
        return [
            Finding(
                id="BTS-204",
                path=f"{path}.instance_count",
                message="the plan has fewer instances",
                given=entry.instance_count,
                legal=f"1 to {total}",
                nearest=total,
            )
        ]
    free = plan.get("AvailableInstanceCount")
    if isinstance(free, int) and free < entry.instance_count and plan["Status"] == "Active":
        waits = Finding(
            id="BTS-204",
            severity=Severity.WARNING,
            path=f"{path}.instance_count",
            message="other jobs use the plan now; this one waits for them",
            given=entry.instance_count,
            legal=f"1 to {free} at once",
        )
        return [waits]
    return []
