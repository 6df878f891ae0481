"""CreateTrainingJob and its like, refused as AWS refuses them.

The walker checks what botocore lets through: lengths, patterns, counts and enums of the service model. `exclusions`
are the rules between fields that the model does not carry; each names what SageMaker says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
import regex  # type: ignore[import-untyped]
from botocore.model import ListShape, MapShape, Shape, StringShape, StructureShape

from blackwell.hardware import INSTANCES

Request = Mapping[str, Any]


class ApiError(Exception):
    """An answer that is an error: AWS's code and message."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def invalid(message: str) -> ApiError:
    return ApiError("ValidationException", message)


@cache
def input_shape(operation: str) -> StructureShape:
    """Shape of an operation's request in the service model of the pinned botocore."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    shape = model.operation_model(operation).input_shape
    assert isinstance(shape, StructureShape)
    return shape


@cache
def operations() -> frozenset[str]:
    return frozenset(botocore.session.get_session().get_service_model("sagemaker").operation_names)


@cache
def _pattern(text: str) -> regex.Pattern[str]:
    return regex.compile(text)


def check_model(operation: str, request: Request) -> None:
    """Raises ApiError naming every constraint of the service model that `request` breaks."""
    problems = list(_walk(input_shape(operation), request, ""))
    if problems:
        noun = "error" if len(problems) == 1 else "errors"
        raise invalid(f"{len(problems)} validation {noun} detected: " + "; ".join(problems))


def _bad(value: Any, path: str, constraint: str) -> str:
    return f"Value '{value}' at '{path}' failed to satisfy constraint: {constraint}"


def _bounds(shape: Shape, value: Any, size: int | float, path: str, noun: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if low is not None and size < low:
        yield _bad(value, path, f"Member must have {noun} greater than or equal to {low}")
    if high is not None and size > high:
        yield _bad(value, path, f"Member must have {noun} less than or equal to {high}")


def _walk(shape: Shape, value: Any, path: str) -> Iterator[str]:
    expected = _PYTHON_TYPES.get(shape.type_name)
    if expected and (not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)):
        yield _bad(value, path, f"Member must be of type {shape.type_name}")
        return
    if isinstance(shape, StructureShape):
        for name in shape.required_members:
            if value.get(name) is None:
                yield _bad("null", _join(path, name), "Member must not be null")
        for name, member in value.items():
            if name not in shape.members:
                yield f"Unknown member '{_join(path, name)}'"
            elif member is not None:
                yield from _walk(shape.members[name], member, _join(path, name))
    elif isinstance(shape, ListShape):
        yield from _bounds(shape, value, len(value), path, "length")
        for index, member in enumerate(value, 1):
            yield from _walk(shape.member, member, f"{path}.{index}.member")
    elif isinstance(shape, MapShape):
        yield from _bounds(shape, value, len(value), path, "length")
        for key, member in value.items():
            yield from _walk(shape.key, key, f"{path}.key")
            yield from _walk(shape.value, member, f"{path}.{key}.value")
    elif isinstance(shape, StringShape):
        yield from _bounds(shape, value, len(value), path, "length")
        pattern = shape.metadata.get("pattern")
        if pattern and not _pattern(pattern).fullmatch(value):
            yield _bad(value, path, f"Member must satisfy regular expression pattern: {pattern}")
        if shape.enum and value not in shape.enum:
            yield _bad(value, path, f"Member must satisfy enum value set: [{', '.join(shape.enum)}]")
    elif shape.type_name in ("integer", "long", "float", "double"):
        yield from _bounds(shape, value, value, path, "value")


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "list": (list,),
    "map": (dict,),
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
}


def _join(path: str, name: str) -> str:
    first = name[:1].lower() + name[1:]
    return f"{path}.{first}" if path else first


def _resource(request: Request) -> Request:
    return request.get("ResourceConfig") or {}


def _wait_without_spot(request: Request) -> bool:
    stopping = request.get("StoppingCondition") or {}
    return "MaxWaitTimeInSeconds" in stopping and not request.get("EnableManagedSpotTraining")


def _spot_without_wait(request: Request) -> bool:
    stopping = request.get("StoppingCondition") or {}
    return bool(request.get("EnableManagedSpotTraining")) and "MaxWaitTimeInSeconds" not in stopping


def _wait_below_runtime(request: Request) -> bool:
    stopping = request.get("StoppingCondition") or {}
    runtime = stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
    return bool(stopping.get("MaxWaitTimeInSeconds", runtime) < runtime)


DEFAULT_MAX_RUNTIME = 86_400
MAX_RUNTIME = 28 * 86_400
_STOPPING_TEXT = "Invalid MaxWaitTimeInSeconds. "

EXCLUSIONS: tuple[tuple[Callable[[Request], bool], str], ...] = (
    (_wait_without_spot, _STOPPING_TEXT + "It is only supported when EnableManagedSpotTraining is set to true"),
    (_spot_without_wait, "MaxWaitTimeInSeconds must be present when EnableManagedSpotTraining is set to true"),
    (_wait_below_runtime, _STOPPING_TEXT + "It must be equal to or greater than MaxRuntimeInSeconds"),
    (
        lambda r: (r.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds", 1) > MAX_RUNTIME,
        f"MaxRuntimeInSeconds must not exceed {MAX_RUNTIME} seconds (28 days)",
    ),
    (
        lambda r: bool(_resource(r).get("TrainingPlanArn") and r.get("EnableManagedSpotTraining")),
        "TrainingPlanArn and EnableManagedSpotTraining cannot be used together",
    ),
    (
        lambda r: bool(_resource(r).get("TrainingPlanArn") and _resource(r).get("KeepAlivePeriodInSeconds")),
        "TrainingPlanArn and KeepAlivePeriodInSeconds cannot be used together",
    ),
    (
        lambda r: bool(_resource(r).get("KeepAlivePeriodInSeconds") and r.get("EnableManagedSpotTraining")),
        "Warm pools are not supported with managed spot training",
    ),
    (
        lambda r: bool(_resource(r).get("KeepAlivePeriodInSeconds") and _resource(r).get("InstanceGroups")),
        "Warm pools are not supported with heterogeneous clusters",
    ),
    (
        lambda r: bool(
            _resource(r).get("InstancePreferences")
            and (
                any(_resource(r).get(k) for k in ("InstanceType", "InstanceGroups", "InstancePlacementConfig"))
                or r.get("EnableManagedSpotTraining")
            )
        ),
        "InstancePreferences cannot be used with InstanceType, InstanceGroups, InstancePlacementConfig or "
        "EnableManagedSpotTraining",
    ),
    (
        lambda r: bool(
            _resource(r).get("TrainingPlanArn")
            and any(p.get("TrainingPlanArns") for p in _resource(r).get("InstancePreferences") or [])
        ),
        "TrainingPlanArn cannot be used when an instance preference names a training plan",
    ),
    (
        lambda r: not any(_resource(r).get(k) for k in ("InstanceType", "InstanceGroups", "InstancePreferences")),
        "ResourceConfig must name an InstanceType, InstanceGroups or InstancePreferences",
    ),
    (
        lambda r: bool(_resource(r).get("InstanceType")) and int(_resource(r).get("InstanceCount") or 0) < 1,
        "InstanceCount must be at least 1",
    ),
    (
        lambda r: bool(_resource(r).get("VolumeKmsKeyId")) and _local_storage(str(_resource(r).get("InstanceType"))),
        "VolumeKmsKeyId cannot be requested for instance types with local storage",
    ),
    (
        lambda r: ("TrainingImage" in _algorithm(r)) == ("AlgorithmName" in _algorithm(r)),
        "Exactly one of TrainingImage and AlgorithmName must be given in AlgorithmSpecification",
    ),
    (
        lambda r: not str((r.get("CheckpointConfig") or {}).get("LocalPath", "/opt/ml/")).startswith("/opt/ml/"),
        "CheckpointConfig.LocalPath must be below /opt/ml/",
    ),
    (
        lambda r: len({c["ChannelName"] for c in r.get("InputDataConfig") or []}) < len(r.get("InputDataConfig") or []),
        "Channel names must be unique",
    ),
    (
        lambda r: any(k.lower().startswith("aws:") for k in (t["Key"] for t in r.get("Tags") or [])),
        "Tag keys starting with 'aws:' are reserved for system use",
    ),
)
"""(what breaks the rule, what SageMaker says). The two rules on TrainingPlanArn are assumed: no public text states them."""


def _algorithm(request: Request) -> Request:
    return request.get("AlgorithmSpecification") or {}


def _local_storage(instance_type: str) -> bool:
    known = INSTANCES.get(instance_type)
    return known is not None and known.local_storage


def check_exclusions(request: Request) -> None:
    """Raises ApiError for the first rule between fields that `request` breaks."""
    for broken, message in EXCLUSIONS:
        if broken(request):
            raise invalid(message)
