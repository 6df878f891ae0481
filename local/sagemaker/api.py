"""SageMaker's API for training: JSON 1.1 requests in, records out, each refused as AWS refuses it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError
from ministack.core.responses import json_response
from ministack.services import iam

from blackwell.names import split_s3_uri
from local.faults import hooks
from local.faults.engine import FaultEngine
from local.overlay.context import OverlayContext, Response
from local.sagemaker.host import Host, request_stop
from local.sagemaker.images import find_image
from local.sagemaker.jobs import Job, JobStore, Status
from local.sagemaker.plans import PlanStore
from local.sagemaker.sync import keys_under
from local.sagemaker.validation import ApiError, check_exclusions, check_model, invalid, operations

log = logging.getLogger("local.sagemaker")

TRAINER_PRINCIPAL = "sagemaker.amazonaws.com"
DEFAULT_INSTANCE_LIMIT = 20
SUPPORTED_DATA = "S3Prefix"
_PAGE = 100

Answer = Mapping[str, Any]


class SageMakerApi:
    """The operations; `handle` is the service handler that ministack routes to."""

    def __init__(self, context: OverlayContext, faults: FaultEngine) -> None:
        self._context, self._faults = context, faults
        self.plans = PlanStore(context.clock)
        self.jobs = JobStore()
        self.host = Host(context, faults, self.plans)
        self.limits = context.limits  # also what Service Quotas answers
        self._operations: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "CreateTrainingJob": self.create,
            "DescribeTrainingJob": lambda r: self._job(r["TrainingJobName"]).describe(),
            "StopTrainingJob": self.stop,
            "UpdateTrainingJob": self.update,
            "DeleteTrainingJob": self.delete,
            "ListTrainingJobs": self.list,
            "AddTags": self.add_tags,
            "ListTags": self.list_tags,
            "DeleteTags": self.delete_tags,
            "DescribeTrainingPlan": self.plans.describe,
            "ListTrainingPlans": self.plans.list,
            "SearchTrainingPlanOfferings": self.plans.search,
        }

    async def handle(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Response:
        """Answer one request; the work is done in a thread, it may call this server itself."""
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        return await asyncio.to_thread(self._answer, operation, body)

    def _answer(self, operation: str, body: bytes) -> Response:
        act = self._operations.get(operation)
        if act is None:
            known = operation in operations()
            return hooks.error_response(
                "ValidationException" if known else "UnknownOperationException",
                f"{operation} is not part of this server's SageMaker" if known else f"Unknown operation {operation}",
                400,
            )
        try:
            request = json.loads(body or b"{}")
            check_model(operation, request)
            answer = act(request)
        except ApiError as error:
            return hooks.error_response(error.code, error.message, error.status)
        except json.JSONDecodeError:
            return hooks.error_response("SerializationException", "the request is not JSON", 400)
        failure = hooks.after_call(self._faults, "sagemaker", operation, body.decode("utf-8", "replace"))
        if failure is not None:
            return failure
        response: Response = json_response(answer)
        return response

    def _job(self, name: str) -> Job:
        job = self.jobs.get(name)
        if job is None:
            raise invalid("Requested resource not found.")
        return job

    # ---- jobs

    def create(self, request: Mapping[str, Any]) -> Answer:
        """CreateTrainingJob."""
        check_exclusions(request)
        self._check_role(request["RoleArn"])
        image = find_image(request["AlgorithmSpecification"]["TrainingImage"], self._context.work_dir)
        self._check_data(request)
        resources = request["ResourceConfig"]
        if arn := resources.get("TrainingPlanArn"):
            self.plans.check(arn, resources["InstanceType"], resources["InstanceCount"])
        job = Job(self._context, request)
        if self.jobs.get(job.name) is not None:
            raise self._in_use(job)
        self._check_quota(job)
        if not self.jobs.add(job):
            raise self._in_use(job)
        job.transition(Status.IN_PROGRESS, "Starting")
        self.host.start(job, image)
        return {"TrainingJobArn": job.arn}

    @staticmethod
    def _in_use(job: Job) -> ApiError:
        return ApiError(
            "ResourceInUse",
            "Training job names must be unique within an AWS account and region, "
            f"and a training job with this name already exists ({job.arn})",
        )

    def _check_role(self, arn: str) -> None:
        role = iam._roles.get(arn.rpartition("/")[2])
        trust = role and role.get("AssumeRolePolicyDocument")
        if not role or role.get("Arn") != arn or TRAINER_PRINCIPAL not in json.dumps(trust):
            raise invalid(
                f"Could not assume role {arn}. Please ensure that the role exists and allows principal "
                f"'{TRAINER_PRINCIPAL}' to assume the role."
            )

    def _check_data(self, request: Mapping[str, Any]) -> None:
        s3 = self.host.s3
        for channel in request.get("InputDataConfig", []):
            source = channel["DataSource"].get("S3DataSource")
            if source is None or source["S3DataType"] != SUPPORTED_DATA:
                raise invalid(f"this server reads channels of S3DataType {SUPPORTED_DATA} only")
            try:
                found = any(True for _ in keys_under(s3, source["S3Uri"]))
            except (ClientError, ValueError):
                found = False
            if not found:
                raise invalid(
                    f'No S3 objects found under S3 URL "{source["S3Uri"]}" given in input data source. Please ensure '
                    "that the bucket exists in the selected region, that objects exist under that S3 prefix, and "
                    f'that the role "{request["RoleArn"]}" has "s3:ListBucket" permissions on bucket '
                    f'"{split_s3_uri(source["S3Uri"])[0]}".'
                )
        places = [("OutputDataConfig", request["OutputDataConfig"]["S3OutputPath"])]
        if "CheckpointConfig" in request:
            places.append(("CheckpointConfig", request["CheckpointConfig"]["S3Uri"]))
        for name, uri in places:
            try:
                s3.head_bucket(Bucket=split_s3_uri(uri)[0])
            except (ClientError, ValueError):
                raise invalid(f"Access denied to {name} S3 bucket: {uri}") from None

    def _check_quota(self, job: Job) -> None:
        if "TrainingPlanArn" in job.record["ResourceConfig"]:
            return
        use = "spot training job usage" if job.spot else "training job usage"
        quota = f"{job.instance_type} for {use}"
        limit = self.limits.get(quota, DEFAULT_INSTANCE_LIMIT)
        same = [
            j.instance_count
            for j in self.jobs.all()
            if not j.terminal and (j.instance_type, j.spot) == (job.instance_type, job.spot)
        ]
        if sum(same) + job.instance_count > limit:
            raise ApiError(
                "ResourceLimitExceeded",
                f"The account-level service limit '{quota}' is {limit} Instances, with current utilization of "
                f"{sum(same)} Instances and a request delta of {job.instance_count} Instances. Please use AWS "
                "Service Quotas to request an increase for this quota. If AWS Service Quotas is not available, "
                "contact AWS support to request an increase for this quota.",
            )

    def stop(self, request: Mapping[str, Any]) -> Answer:
        """StopTrainingJob."""
        job = self._job(request["TrainingJobName"])
        if job.terminal:
            raise invalid(
                "The request was rejected because the training job is in status " + job.record["TrainingJobStatus"]
            )
        request_stop(job)
        return {}

    def update(self, request: Mapping[str, Any]) -> Answer:
        """UpdateTrainingJob: profiler, keep-alive and remote debug settings are recorded."""
        job = self._job(request["TrainingJobName"])
        with job.lock:
            for key in ("ProfilerConfig", "RemoteDebugConfig", "ResourceConfig"):
                job.record.setdefault(key, {}).update(request.get(key, {}))
        return {"TrainingJobArn": job.arn}

    def delete(self, request: Mapping[str, Any]) -> Answer:
        """DeleteTrainingJob: only a job at its end; its name is free afterwards."""
        job = self.jobs.get(request["TrainingJobName"])
        if job is None:
            raise ApiError("ResourceNotFound", "Requested resource not found.")
        if not job.terminal:
            raise ApiError("ResourceInUse", f"Training job {job.name} is in status {job.record['TrainingJobStatus']}")
        self.jobs.remove(job.name)
        return {}

    def list(self, request: Mapping[str, Any]) -> Answer:
        """ListTrainingJobs."""
        rows = [job.record for job in self.jobs.all()]
        rows = [row for row in rows if _listed(row, request)]
        field = {"Name": "TrainingJobName", "Status": "TrainingJobStatus"}.get(
            request.get("SortBy", "CreationTime"), "CreationTime"
        )
        rows.sort(key=lambda row: row[field], reverse=request.get("SortOrder") == "Descending")
        page, token = _page(rows, request)
        summaries = [{k: row[k] for k in _SUMMARY if k in row} for row in page]
        return {"TrainingJobSummaries": summaries, **token}

    # ---- tags

    def _tagged(self, arn: str) -> Job:
        job = self.jobs.by_arn(arn)
        if job is None:
            raise invalid("Requested resource not found.")
        return job

    def add_tags(self, request: Mapping[str, Any]) -> Answer:
        tags = self._tagged(request["ResourceArn"]).tags
        tags.update({t["Key"]: t["Value"] for t in request["Tags"]})
        return {"Tags": _tag_list(tags)}

    def list_tags(self, request: Mapping[str, Any]) -> Answer:
        page, token = _page(_tag_list(self._tagged(request["ResourceArn"]).tags), request)
        return {"Tags": page, **token}

    def delete_tags(self, request: Mapping[str, Any]) -> Answer:
        tags = self._tagged(request["ResourceArn"]).tags
        for key in request["TagKeys"]:
            tags.pop(key, None)
        return {}

    def reset(self) -> None:
        """Forget every job and plan, ending what runs."""
        self.host.kill_everything()
        self.jobs.clear()
        self.plans.clear()


_SUMMARY = (
    "TrainingJobName",
    "TrainingJobArn",
    "CreationTime",
    "TrainingEndTime",
    "LastModifiedTime",
    "TrainingJobStatus",
    "SecondaryStatus",
)


def _listed(row: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    plan = request.get("TrainingPlanArnEquals")
    return (
        request.get("NameContains", "") in row["TrainingJobName"]
        and request.get("StatusEquals", row["TrainingJobStatus"]) == row["TrainingJobStatus"]
        and row["CreationTime"] >= request.get("CreationTimeAfter", 0)
        and row["CreationTime"] <= request.get("CreationTimeBefore", float("inf"))
        and row["LastModifiedTime"] >= request.get("LastModifiedTimeAfter", 0)
        and row["LastModifiedTime"] <= request.get("LastModifiedTimeBefore", float("inf"))
        and (plan is None or row["ResourceConfig"].get("TrainingPlanArn") == plan)
    )


def _page(rows: list[Any], request: Mapping[str, Any]) -> tuple[list[Any], dict[str, str]]:
    """One page and what leads to the next. Raises ApiError for a token that is none of ours."""
    try:
        first = int(base64.b64decode(request["NextToken"])) if "NextToken" in request else 0
    except ValueError:
        raise invalid("Invalid pagination token") from None
    size = int(request.get("MaxResults", _PAGE))
    token = base64.b64encode(str(first + size).encode()).decode()
    return rows[first : first + size], ({"NextToken": token} if first + size < len(rows) else {})


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
