"""Settings of a deployment: typed, validated, read from CDK context (cdk.json, or `-c key=value`).

A value comes, in this order, from `<key>` in the context (`-c key=value`), from `stages.<stage>.<key>` in cdk.json,
and from the default here. Anything unknown or illegal is refused with every fault named at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from blackwell.findings import Finding, FindingsError, from_validation_error
from blackwell.names import DEFAULT_STAGE, job_prefix, stack_name
from blackwell.names import STACK_NAME as STACK_NAME

BLACKWELL_INSTANCES = ("ml.p6-b200.48xlarge", "ml.p6-b300.48xlarge")
REHEARSAL_INSTANCE = "ml.c7i.2xlarge"
"""Allowed in stage `dev` besides the Blackwell types: a rehearsal without GPUs."""

LogRetention = Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365]
"""Days that CloudWatch Logs accepts, up to a year."""

_FOREIGN_CONTEXT = ("@", "aws:", "aws-cdk:", "availability-zones:", "cli-", "vpc-provider:", "ami:", "ssm:")
"""Context keys with these beginnings are the CDK's own."""
_CDK_KEYS = {"stages", "tree", "nagPacks"}


Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d[a-z]$")]
_ZONES_UNNAMED = 2
"""A template that fits any region can only speak of its first two zones."""


class VpcSettings(BaseModel):
    """A network of the stack's own: private subnets without a way out, VPC endpoints, EFA-ready security group."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cidr: Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$")] = "10.90.0.0/16"
    availability_zones: Annotated[int, Field(ge=1, le=6)] | tuple[Zone, ...] = 2
    """Names of zones, or how many: 1 or 2. An instance or a training plan is in one zone: name that one."""

    @field_validator("availability_zones")
    @classmethod
    def _two_unless_named(cls, value: int | tuple[str, ...]) -> int | tuple[str, ...]:
        if value == () or (isinstance(value, int) and value > _ZONES_UNNAMED):
            raise ValueError('at most 2 unless they are named, for example ["us-east-1b", "us-east-1d"]')
        return value


class BaseImage(BaseModel):
    """The AWS Deep Learning Container under our image; the defaults are the newest one that ships Transformer Engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: str = "pytorch"
    tag: str = "2.13-cu133-amzn2023-sagemaker"
    transformer_engine: Annotated[str, Field(pattern=r"^(base|\d+\.\d+\.\d+)$")] = "base"
    """`base` keeps the base image's Transformer Engine; a version replaces it by that one."""
    registry: str | None = None
    """Registry host; by default AWS's own for the region and partition (stacks/registries.py)."""


PUBLISHED_PAIR = BaseImage(
    repository="pytorch-training", tag="2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker", transformer_engine="2.11.0"
)
"""The published pair (PyTorch 2.9.0, Transformer Engine 2.11.0): `-c base_image=published`."""


class Settings(BaseModel):
    """Everything a deployment can choose. docs/operations.md lists the same fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,39}$")] = DEFAULT_STAGE
    """Lower-case letters and digits: without hyphens no stage's prefix can be the beginning of another's."""
    retain_data: bool = False
    """True keeps the two buckets with checkpoints and reports when the stack is destroyed."""
    allowed_instance_types: tuple[str, ...] = ()
    """Empty: the Blackwell types, in stage `dev` also the rehearsal type."""
    max_instances: Annotated[int, Field(ge=1, le=64)] = 4
    """Per job. IAM has no condition key for it, so the launcher checks it."""
    max_runtime_hours: Annotated[int, Field(ge=1, le=672)] = 672
    """Per job; enforced by an IAM condition too. 672 h = 28 days is SageMaker's own limit."""
    max_budget_usd: Annotated[float, Field(gt=0)] = 10_000.0
    """The most that a run's budget may be, and the budget of a run that names none."""
    data_buckets: tuple[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")], ...] = ()
    """Other buckets that jobs may read training data from."""
    log_retention_days: LogRetention = 30
    """Of the functions', builds' and workflow's logs; the jobs' log group belongs to the account."""
    old_checkpoint_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Checkpoint versions that were replaced or pruned are deleted after this many days."""
    kms: bool = False
    """A key of our own with rotation for buckets, table, topic and logs, instead of the services' keys."""
    vpc: VpcSettings | None = None
    """`true`, or {cidr, availability_zones}: jobs run in private subnets of a network of the stack's own. Zones are a
    count of 1 or 2, or names: p6 capacity and a training plan are in one zone."""
    network_isolation: bool = False
    """Jobs without any network: checkpoints by SageMaker's sync only, no control file."""
    alarm_email: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")] | None = None
    """Gets every alarm and every run's end, once it has confirmed the subscription."""
    guard_minutes: Annotated[int, Field(ge=1, le=60)] = 5
    """How often the guard looks after running jobs."""
    base_image: BaseImage = BaseImage()
    """`newest`, `published` (PyTorch 2.9.0 with Transformer Engine 2.11.0), or {repository, tag, transformer_engine, registry}."""
    base_image_check_days: Annotated[int, Field(ge=0, le=31)] = 7
    """How often to look for a newer base image; 0 never."""
    silence_minutes: Annotated[int, Field(ge=5, le=720)] = 30
    """Alarm: no step line for this long while a job trains."""
    durable_lag_minutes: Annotated[int, Field(ge=5, le=1440)] = 120
    """Alarm: the newest checkpoint that is safe in S3 is older than this."""

    @field_validator("allowed_instance_types", "data_buckets", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """`-c allowed_instance_types=a,b` arrives as one text."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("base_image", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return (
            {"published": PUBLISHED_PAIR, "newest": BaseImage()}.get(value, value) if isinstance(value, str) else value
        )

    @field_validator("vpc", mode="before")
    @classmethod
    def _vpc_flag(cls, value: Any) -> Any:
        """`-c vpc=true` takes the defaults; `-c vpc='{...}'` is JSON."""
        if isinstance(value, str) and value.startswith("{"):
            with contextlib.suppress(ValueError):
                return json.loads(value)
        if value in (True, "true", "True"):
            return VpcSettings()
        return None if value in (False, "false", "False", "") else value

    @model_validator(mode="after")
    def _legal_types(self) -> Self:
        bad = [t for t in self.allowed_instance_types if not t.startswith("ml.")]
        if bad:
            raise FindingsError(
                [
                    Finding(
                        id="BTS-007",
                        path=f"allowed_instance_types.{t}",
                        message="not a SageMaker instance type",
                        given=t,
                        legal="names that begin with ml.",
                        nearest=f"ml.{t}",
                    )
                    for t in bad
                ]
            )
        return self

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The instance types that jobs may use."""
        if self.allowed_instance_types:
            return self.allowed_instance_types
        return (*BLACKWELL_INSTANCES, REHEARSAL_INSTANCE) if self.stage == DEFAULT_STAGE else BLACKWELL_INSTANCES

    @property
    def job_prefix(self) -> str:
        """First part of every training job's name; IAM policies, events and teardown select by `<job_prefix>-`."""
        return job_prefix(self.stage)

    @property
    def stack_name(self) -> str:
        """CloudFormation's name of the stack: two stages live in one account and region."""
        return stack_name(self.stage)


def load_settings(context: Mapping[str, Any]) -> Settings:
    """Settings from CDK context.

    Raises:
        FindingsError: for unknown keys and illegal values, all at once.
    """
    own = {k: v for k, v in context.items() if k not in _CDK_KEYS and not k.startswith(_FOREIGN_CONTEXT)}
    stages = context.get("stages") or {}
    stage = own.get("stage", DEFAULT_STAGE)
    per_stage = stages.get(stage, {}) if isinstance(stages, Mapping) else {}
    try:
        return Settings.model_validate({**per_stage, **own})
    except ValidationError as error:
        raise FindingsError(from_validation_error(error)) from None
