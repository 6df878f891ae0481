"""Launch: creates the attempt's training job, once, however often it is called.

The job's name is made of run and attempt, so a repeated call meets its own job; the run's tag proves that it is ours.
Errors are typed: the state machine retries Throttled and NotReadyYet, and hands the others to Assess.
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError
from pydantic import BaseModel

from blackwell.attempt import plan_attempt
from blackwell.findings import FindingsError, errors
from blackwell.remedy import utc_now
from blackwell.request import check_request, training_job_request
from blackwell.runs import AttemptItem, RunStatus
from blackwell.spec import CapacityEntry, CapacityKind
from blackwell.verdict import Verdict, launch_error_name
from lambdas.common import documents, jobs
from lambdas.common.aws import client, error_code, error_message
from lambdas.common.environment import environment
from lambdas.common.errors import LAUNCH, LaunchRefused, PlanUnavailable, RunEnded
from lambdas.common.launch_context import launch_context
from lambdas.common.log import about, logger
from lambdas.common.store import RunStore
from lambdas.common.training_plans import PLAN_STATUSES, describe_plan

log = logger("launch")


class LaunchEvent(BaseModel):
    run: str
    attempt: int


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = LaunchEvent.model_validate(event)
    about(log, request.run, request.attempt)
    store = RunStore()
    item = store.attempt(request.run, request.attempt)
    image = _living_image(store, request.run)
    try:
        spec = plan_attempt(documents.read_spec(request.run), item.capacity_index, _overrides(item)).resolved
    except FindingsError as refused:
        raise LaunchRefused(str(refused)) from None
    _keep_limits(spec.capacity[0])
    context_ = launch_context(item, spec, image, plan_continues=_plan_continues(spec.capacity[0]))
    body = training_job_request(spec, context_)
    wrong = errors(check_request(body))
    if wrong:
        raise LaunchRefused("; ".join(f.line() for f in wrong))
    arn = _create(body, request)
    store.launched(request.run, request.attempt, job_arn=arn, started_at=utc_now().isoformat(), request=_summary(body))
    log.info("job created", extra={"job_name": item.job_name})
    _stop_if_orphaned(store, request, item.job_name)
    return {"job_name": item.job_name}


def _overrides(item: AttemptItem) -> dict[str, Any]:
    """Without a network only SageMaker's own sync reaches S3."""
    return item.overrides | ({"checkpoint.transport": "sagemaker_sync"} if environment().network_isolation else {})


def _living_image(store: RunStore, run: str) -> str:
    """The run's image; raises RunEnded where the run was stopped meanwhile."""
    record = store.run(run)
    if record is None or record.status is not RunStatus.RUNNING:
        raise RunEnded(f"run {run} is {record.status if record else 'gone'}")
    if record.image is None:
        raise LaunchRefused(f"run {run} has no image yet")
    return record.image


def _keep_limits(entry: CapacityEntry) -> None:
    """IAM bounds the instance type but has no condition key for their number: the settings are kept here."""
    stack = environment()
    if entry.instance_type not in stack.instance_types:
        raise LaunchRefused(f"{entry.instance_type} is not allowed here; legal: {', '.join(stack.instance_types)}")
    if entry.instance_count > stack.max_instances:
        raise LaunchRefused(f"{entry.instance_count} instances are more than the {stack.max_instances} allowed here")


def _plan_continues(entry: CapacityEntry) -> bool:
    """True where the training plan has a reservation after the current one: the job is then interrupted, not ended.

    Raises:
        PlanUnavailable: the plan takes no jobs now.
    """
    if entry.kind is not CapacityKind.TRAINING_PLAN or entry.training_plan_arn is None:
        return False
    plan = describe_plan(entry.training_plan_arn)
    if plan is None or plan.get("Status") not in PLAN_STATUSES:
        raise PlanUnavailable(f"training plan is {plan.get('Status') if plan else 'gone'}")
    now = utc_now()
    return sum(1 for r in plan.get("ReservedCapacitySummaries", []) if r.get("EndTime") and r["EndTime"] > now) > 1


def _create(body: dict[str, Any], request: LaunchEvent) -> str:
    """ARN of the job, created now or by an earlier call."""
    try:
        return client("sagemaker").create_training_job(**body)["TrainingJobArn"]
    except ClientError as error:
        code, message = error_code(error), error_message(error)
        if code == "ResourceInUse":
            return _own_job(body["TrainingJobName"], request)
        raise LAUNCH[launch_error_name(code, message)](f"{code}: {message}") from None


def _own_job(name: str, request: LaunchEvent) -> str:
    job = jobs.describe(name)
    if job is None:
        raise LaunchRefused(f"the name {name} is in use, but no such job can be read")
    arn = str(job["TrainingJobArn"])
    if jobs.owner(jobs.tags(arn)) != (request.run, request.attempt):
        raise LaunchRefused(f"a job of the name {name} exists already and does not belong to this run")
    return arn


def _summary(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "instance_type": body["ResourceConfig"]["InstanceType"],
        "instance_count": body["ResourceConfig"]["InstanceCount"],
        "spot": body["EnableManagedSpotTraining"],
        "max_runtime_seconds": body["StoppingCondition"]["MaxRuntimeInSeconds"],
        "micro_batch_size": body["HyperParameters"].get("micro_batch_size", ""),
        "activation_checkpointing": body["HyperParameters"].get("activation_checkpointing", ""),
    }


def _stop_if_orphaned(store: RunStore, request: LaunchEvent, job_name: str) -> None:
    """Whoever ended the run first looked for a job, then for us: one of the two sees the other."""
    record = store.run(request.run)
    if record is None or record.status is not RunStatus.RUNNING:
        store.update_attempt(request.run, request.attempt, stopped_for=Verdict.STOPPED.value)
        jobs.stop(job_name)
        raise RunEnded(f"run {request.run} was stopped while its job was created; the job is stopped too")
