"""A resolved job spec -> the exact CreateTrainingJob request, checked before it is sent.

The check reads SageMaker's own API model (botocore's copy): lengths, patterns, counts, enums, unknown and missing
members; botocore itself validates only types and required members. What the model cannot say (fields that exclude
each other) stands in `_exclusions`, with the sources in docs/decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from blackwell.findings import Finding
from blackwell.hardware import INSTANCES
from blackwell.names import (
    ATTEMPT_TAG,
    RUN_TAG,
    STAGE_TAG,
    RunPlaces,
    job_name,
    s3_uri,
)
from blackwell.spec import MAX_RUNTIME_SECONDS, CapacityEntry, CapacityKind, JobSpec
from blackwell.telemetry import METRIC_DEFINITIONS
from blackwell.trainer_config import (
    ENV_ATTEMPT,
    ENV_CHECKPOINT_URI,
    ENV_CONTROL_URI,
    ENV_PLAN_CONTINUES,
    ENV_RESUME_URI,
    ENV_RUN,
    ENV_SKIP_DATA,
    to_hyperparameters,
)

LAUNCHER = ("python", "-m", "trainer.launch")
"""The container's PID 1. ContainerEntrypoint is exec'ed, so SIGTERM reaches it (SageMaker's own script swallows it)."""
CHECKPOINT_PATH = "/opt/ml/checkpoints"
INTERNAL_ERROR_RETRIES = 2
"""RetryStrategy: SageMaker itself repeats a job after InternalServerError, inside the same runtime limit."""
VOLUME_GIB = 200
"""EBS volume where the instance has no storage of its own."""
TRAIN_CHANNEL, VALIDATION_CHANNEL = "train", "validation"


class LaunchContext(BaseModel):
    """What a request needs besides the spec: whose run it is, and where the stack keeps things."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    attempt: int
    stage: str
    job_prefix: str
    image: str
    role_arn: str
    artifacts_bucket: str
    checkpoint_bucket: str
    capacity_index: int = 0
    resume_uri: str | None = None
    plan_continues: bool = False
    skip_data: dict[str, int] | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    kms_key_arn: str | None = None
    network_isolation: bool = False


def data_uri(location: str, artifacts_bucket: str) -> str:
    """S3 URI of a data location: itself, or a prefix inside the stack's artifacts bucket; always a folder."""
    uri = location if location.startswith("s3://") else s3_uri(artifacts_bucket, location)
    return uri if uri.endswith("/") else f"{uri}/"


def training_job_request(spec: JobSpec, context: LaunchContext) -> dict[str, Any]:
    """The request for one attempt. `spec` is resolved: the planner has decided every `auto`."""
    places = RunPlaces(context.run)
    entry = spec.capacity[context.capacity_index]
    known = INSTANCES.get(entry.instance_type)
    request: dict[str, Any] = {
        "TrainingJobName": job_name(context.job_prefix, context.run, context.attempt),
        "RoleArn": context.role_arn,
        "AlgorithmSpecification": {
            "TrainingImage": context.image,
            "TrainingInputMode": spec.data.input_mode if spec.data else "File",
            "ContainerEntrypoint": list(LAUNCHER),
            "MetricDefinitions": [dict(definition) for definition in METRIC_DEFINITIONS],
            "EnableSageMakerMetricsTimeSeries": True,
        },
        "HyperParameters": to_hyperparameters(spec),
        "OutputDataConfig": {
            "S3OutputPath": s3_uri(context.checkpoint_bucket, places.model_output),
            "CompressionType": "NONE",
        },
        "CheckpointConfig": {
            "S3Uri": s3_uri(context.checkpoint_bucket, places.checkpoints),
            "LocalPath": CHECKPOINT_PATH,
        },
        "ResourceConfig": _resources(entry, local_storage=known is not None and known.local_storage),
        "StoppingCondition": _stopping(entry),
        "EnableManagedSpotTraining": entry.kind is CapacityKind.SPOT,
        "ProfilerConfig": {"DisableProfiler": True},
        "RetryStrategy": {"MaximumRetryAttempts": INTERNAL_ERROR_RETRIES},
        "Environment": _environment(context, places),
        "Tags": [
            {"Key": RUN_TAG, "Value": context.run},
            {"Key": ATTEMPT_TAG, "Value": str(context.attempt)},
            {"Key": STAGE_TAG, "Value": context.stage},
        ],
    }
    if spec.data is not None:
        request["InputDataConfig"] = _channels(spec, context.artifacts_bucket)
    if known is not None and known.gpus:
        request["InfraCheckConfig"] = {"EnableInfraCheck": spec.infra_check}
    if context.subnets:
        request["VpcConfig"] = {
            "Subnets": list(context.subnets),
            "SecurityGroupIds": list(context.security_groups),
        }
    if context.kms_key_arn:
        request["OutputDataConfig"]["KmsKeyId"] = context.kms_key_arn
        if known is None or not known.local_storage:
            request["ResourceConfig"]["VolumeKmsKeyId"] = context.kms_key_arn
    if context.network_isolation:
        request["EnableNetworkIsolation"] = True
    return request


def _resources(entry: CapacityEntry, *, local_storage: bool) -> dict[str, Any]:
    resources: dict[str, Any] = {"InstanceType": entry.instance_type, "InstanceCount": entry.instance_count}
    if not local_storage:  # with NVMe SageMaker provisions no volume and uses the instance's own disks
        resources["VolumeSizeInGB"] = VOLUME_GIB
    if entry.training_plan_arn:
        resources["TrainingPlanArn"] = entry.training_plan_arn
    return resources


def _stopping(entry: CapacityEntry) -> dict[str, int]:
    condition = {"MaxRuntimeInSeconds": entry.max_runtime_seconds}
    if entry.kind is CapacityKind.SPOT and entry.max_wait_seconds is not None:
        condition["MaxWaitTimeInSeconds"] = entry.max_wait_seconds
    if entry.max_pending_seconds is not None:
        condition["MaxPendingTimeInSeconds"] = entry.max_pending_seconds
    return condition


def _channels(spec: JobSpec, artifacts_bucket: str) -> list[dict[str, Any]]:
    if spec.data is None:
        return []
    sources = {TRAIN_CHANNEL: spec.data.train, VALIDATION_CHANNEL: spec.data.validation}
    return [
        {
            "ChannelName": name,
            "InputMode": spec.data.input_mode,
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": data_uri(location, artifacts_bucket),
                    "S3DataDistributionType": "FullyReplicated",
                }
            },
        }
        for name, location in sources.items()
        if location
    ]


def _environment(context: LaunchContext, places: RunPlaces) -> dict[str, str]:
    environment = {ENV_RUN: context.run, ENV_ATTEMPT: str(context.attempt)}
    if not context.network_isolation:
        environment[ENV_CONTROL_URI] = s3_uri(context.artifacts_bucket, places.control)
        environment[ENV_CHECKPOINT_URI] = s3_uri(context.checkpoint_bucket, places.checkpoints)
        if context.resume_uri:
            environment[ENV_RESUME_URI] = context.resume_uri
    if context.plan_continues:
        environment[ENV_PLAN_CONTINUES] = "1"
    if context.skip_data:
        environment[ENV_SKIP_DATA] = json.dumps(context.skip_data)
    return environment


@cache
def _request_shape() -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
    return model.operation_model("CreateTrainingJob").input_shape


def check_request(request: Mapping[str, Any], shape: Any = None) -> list[Finding]:
    """Everything that SageMaker would refuse about the request, without calling it.

    `shape` is CreateTrainingJob's input shape where a client is at hand (`client.meta.service_model`).
    """
    model = shape if shape is not None else _request_shape()
    return [*_check_shape(request, model, ""), *_exclusions(request)]


def _check_shape(value: Any, shape: Any, path: str) -> Iterator[Finding]:
    kind = shape.type_name
    if kind == "structure":
        if not isinstance(value, Mapping):
            yield _mismatch(path, "is no structure", value)
            return
        for name in shape.required_members:
            if value.get(name) is None:
                yield _mismatch(_join(path, name), "is required", None)
        for name, inner in value.items():
            if name not in shape.members:
                yield _mismatch(_join(path, name), "is unknown to the API", inner, ", ".join(shape.members))
            else:
                yield from _check_shape(inner, shape.members[name], _join(path, name))
    elif kind == "list":
        if not isinstance(value, list | tuple):
            yield _mismatch(path, "is no list", value)
            return
        yield from _check_bounds(len(value), shape, path, "entries")
        for index, inner in enumerate(value):
            yield from _check_shape(inner, shape.member, _join(path, str(index)))
    elif kind == "map":
        if not isinstance(value, Mapping):
            yield _mismatch(path, "is no map", value)
            return
        yield from _check_bounds(len(value), shape, path, "entries")
        for name, inner in value.items():
            yield from _check_shape(name, shape.key, _join(path, name))
            yield from _check_shape(inner, shape.value, _join(path, name))
    else:
        yield from _check_scalar(value, shape, path)


_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "long": int,
    "boolean": bool,
    "float": (int, float),
    "double": (int, float),
}


def _check_scalar(value: Any, shape: Any, path: str) -> Iterator[Finding]:
    kind = shape.type_name
    expected = _PYTHON_TYPES.get(kind)
    if expected and (not isinstance(value, expected) or (kind != "boolean" and isinstance(value, bool))):
        yield _mismatch(path, f"is no {kind}", value)
        return
    metadata = shape.metadata
    if kind == "string":
        yield from _check_bounds(len(value), shape, path, "characters")
        # botocore keeps enums apart from the metadata on newer shapes
        choices = metadata.get("enum") or getattr(shape, "enum", None)
        if choices and value not in choices:
            yield _mismatch(path, "is not in the API's list", value, f"one of {len(choices)} values")
        pattern = metadata.get("pattern")
        if pattern and _java_pattern(pattern).fullmatch(value) is None:
            yield _mismatch(path, "does not match the API's pattern", value, pattern)
    elif kind in ("integer", "long", "float", "double"):
        yield from _check_bounds(value, shape, path, "")


_UNICODE_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\w", r"\p{Z}": r"\s"}


@cache
def _java_pattern(pattern: str) -> re.Pattern[str]:
    """The API's patterns are Java's; Python lacks Unicode classes, whose nearest are \\w and \\s."""
    for java, python in _UNICODE_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)


def _check_bounds(number: float, shape: Any, path: str, unit: str) -> Iterator[Finding]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and number < low) or (high is not None and number > high):
        legal = f"{low if low is not None else 0} to {high if high is not None else 'any'} {unit}".strip()
        nearest = low if low is not None and number < low else high
        yield Finding(
            id="BTS-301",
            path=path,
            message=f"has {number} {unit}".strip() if unit else "is out of range",
            given=number,
            legal=legal,
            nearest=nearest,
        )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _mismatch(path: str, message: str, given: Any, legal: str | None = None) -> Finding:
    shown = given if isinstance(given, str | int | float | bool) or given is None else type(given).__name__
    return Finding(id="BTS-301", path=path, message=message, given=shown, legal=legal)


_SERVERLESS_EXCLUDES = (
    "AlgorithmSpecification",
    "EnableManagedSpotTraining",
    "Environment",
    "RetryStrategy",
    "CheckpointConfig",
    "DebugHookConfig",
    "ProfilerConfig",
)
_DIGEST_IMAGE = re.compile(r"^[^@]+@sha256:[0-9a-f]{64}$")


def _exclusions(request: Mapping[str, Any]) -> Iterator[Finding]:
    resources = _mapping(request.get("ResourceConfig"))
    stopping = _mapping(request.get("StoppingCondition"))
    algorithm = _mapping(request.get("AlgorithmSpecification"))
    spot = bool(request.get("EnableManagedSpotTraining"))
    preferences = resources.get("InstancePreferences") or []
    known = INSTANCES.get(resources.get("InstanceType", ""))

    def excluded(path: str, message: str, given: Any = None, legal: str | None = None) -> Finding:
        return Finding(id="BTS-302", path=path, message=message, given=given, legal=legal)

    runtime = stopping.get("MaxRuntimeInSeconds")
    wait = stopping.get("MaxWaitTimeInSeconds")
    if wait is not None and not spot:
        yield excluded("StoppingCondition.MaxWaitTimeInSeconds", "is only legal with EnableManagedSpotTraining", wait)
    if spot and (wait is None or (isinstance(runtime, int) and wait < runtime)):
        yield excluded("StoppingCondition.MaxWaitTimeInSeconds", "spot needs at least MaxRuntimeInSeconds", wait)
    if isinstance(runtime, int) and runtime > MAX_RUNTIME_SECONDS:
        yield excluded("StoppingCondition.MaxRuntimeInSeconds", "is more than 28 days", runtime)
    if stopping.get("MaxPendingTimeInSeconds") is not None and known is not None and not known.gpus:
        yield excluded("StoppingCondition.MaxPendingTimeInSeconds", "is only legal on accelerated instances")
    if spot:
        for name in ("TrainingPlanArn", "KeepAlivePeriodInSeconds", "InstancePreferences"):
            if resources.get(name):
                yield excluded(f"ResourceConfig.{name}", "and EnableManagedSpotTraining exclude each other")
    if preferences:
        for name in ("InstanceType", "InstanceGroups", "InstancePlacementConfig"):
            if resources.get(name):
                yield excluded(f"ResourceConfig.{name}", "and InstancePreferences exclude each other")
        if resources.get("TrainingPlanArn") and any(_mapping(p).get("TrainingPlanArns") for p in preferences):
            yield excluded("ResourceConfig.TrainingPlanArn", "and a plan per preference exclude each other")
    elif not {"InstanceType", "InstanceGroups"} & resources.keys() and "ServerlessJobConfig" not in request:
        yield excluded("ResourceConfig.InstanceType", "is needed without InstanceGroups and InstancePreferences")
    if resources.get("InstanceGroups") and resources.get("KeepAlivePeriodInSeconds"):
        yield excluded("ResourceConfig.KeepAlivePeriodInSeconds", "is not legal on heterogeneous clusters")
    if resources.get("InstanceType") and not (resources.get("InstanceCount") or 0) >= 1:
        yield excluded("ResourceConfig.InstanceCount", "must be at least 1", resources.get("InstanceCount"), ">= 1")
    if resources.get("VolumeKmsKeyId") and known is not None and known.local_storage:
        yield excluded("ResourceConfig.VolumeKmsKeyId", "is not legal on instances with local storage")
    if "ServerlessJobConfig" in request:
        for name in _SERVERLESS_EXCLUDES:
            if name in request:
                yield excluded(name, "and ServerlessJobConfig exclude each other")
    elif bool(algorithm.get("TrainingImage")) == bool(algorithm.get("AlgorithmName")):
        yield excluded("AlgorithmSpecification", "needs exactly one of TrainingImage and AlgorithmName")
    image = algorithm.get("TrainingImage")
    if image and not _DIGEST_IMAGE.match(image):
        yield excluded("AlgorithmSpecification.TrainingImage", "jobs are launched by digest", image, "repo@sha256:...")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
