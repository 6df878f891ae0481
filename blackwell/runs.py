"""The run table: what it remembers about a run and its attempts, and how that is written down in DynamoDB.

One table, key {run, attempt}. Attempt 0 is the run itself, attempts from 1 are training jobs (made or tried). A third
kind of item, the build lock, makes executions that need the same image share one build; its `run` is no legal run id.
Pure: the functions here turn models into attribute values and back, whoever calls DynamoDB does the calling.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from blackwell.names import RUN_ITEM_ATTEMPT, TABLE_ATTEMPT_KEY, TABLE_RUN_KEY
from blackwell.verdict import Verdict

Attributes = dict[str, dict[str, Any]]
"""DynamoDB's wire form: {name: {type: value}}."""


class RunStatus(StrEnum):
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    REJECTED = "REJECTED"

    @classmethod
    def of(cls, verdict: Verdict) -> RunStatus:
        """The end that a verdict means for the run."""
        return _ENDS.get(verdict, cls.FAILED)


_ENDS = {
    Verdict.COMPLETED: RunStatus.COMPLETED,
    Verdict.STOPPED: RunStatus.STOPPED,
    Verdict.REJECTED: RunStatus.REJECTED,
}


class AttemptStatus(StrEnum):
    PLANNED = "PLANNED"
    """Decided on; no job yet."""
    LAUNCHED = "LAUNCHED"
    """Its training job exists."""
    ENDED = "ENDED"
    """It has a verdict."""


class _Item(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    run: str

    def to_attributes(self) -> Attributes:
        """Wire form, without the fields that are None."""
        return encode(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        return cls.model_validate(decode(attributes))


class RunItem(_Item):
    """The run itself. Times are ISO 8601 in UTC; the whole spec and plan are documents in S3."""

    attempt: int = RUN_ITEM_ATTEMPT
    status: RunStatus
    verdict: Verdict | None = None
    cause: str | None = None
    execution_arn: str
    started_at: str
    """Start time of the execution, as Step Functions has it: with the name it identifies the run."""
    ended_at: str | None = None
    image: str | None = None
    """repository@digest that all of its jobs use."""
    plan: dict[str, Any] = Field(default_factory=dict)
    """The plan's summary: memory, throughput, cost."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """What a list of runs shows of the spec: model, precision, steps, instances."""
    report_uri: str | None = None
    counted: bool = False
    """Its end stands in the metrics, and what it measured is kept."""
    notified: bool = False
    """Its end was published, or the state machine is about to publish it."""


class AttemptItem(_Item):
    """One training job, or the try to make one."""

    attempt: int
    status: AttemptStatus
    job_name: str
    job_arn: str | None = None
    capacity_index: int = 0
    """Entry of the spec's capacity list."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Changes to the spec's `training`, by dotted path, that remedies made."""
    why: str | None = None
    """Why this attempt was made, in words."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Summary of the CreateTrainingJob request."""
    planned_at: str | None = None
    not_before: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    task_token: str | None = None
    token_at: str | None = None
    """When the state that waits with `task_token` was entered: a later one replaces it, an earlier one never."""
    stopped_for: Verdict | None = None
    """Why we stopped the job, set before StopTrainingJob is called."""
    stop_asked_at: str | None = None
    """When the control file asked the trainer for a checkpoint and a stop."""
    verdict: Verdict | None = None
    cause: str | None = None
    remedy: dict[str, Any] | None = None
    """What was decided afterwards: blackwell.remedy.Decision."""
    failure: dict[str, Any] | None = None
    """The container's own record of its failure (verdict.FailureRecord): step, rank, details."""
    skip_data: dict[str, int] | None = None
    """Data to leave out after a divergence: trainer_config.ENV_SKIP_DATA."""
    last_step: int | None = None
    durable_step: int | None = None
    durable_steps: list[int] = Field(default_factory=list)
    """Steps of all checkpoints that were whole in S3 when the attempt was assessed."""


BUILD_LOCK_PREFIX = "image#"  # `#` is in no run id


class BuildLock(_Item):
    """Who builds an image tag: the build that everybody waits for."""

    attempt: int = RUN_ITEM_ATTEMPT
    generation: int = 1
    """Counts the builds of this tag; part of StartBuild's idempotency token."""
    build_id: str | None = None
    lease_until: str
    """Until then the holder may be between the lock and StartBuild."""


def key(run: str, attempt: int) -> Attributes:
    """Primary key in wire form."""
    return encode({TABLE_RUN_KEY: run, TABLE_ATTEMPT_KEY: attempt})


def encode(values: Mapping[str, Any]) -> Attributes:
    """Plain values (str, bool, int, float, None, list, dict) to DynamoDB's wire form."""
    return {name: _encode(value) for name, value in values.items()}


def _encode(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": repr(value)}
        case str():
            return {"S": str(value)}
        case list() | tuple():
            return {"L": [_encode(v) for v in value]}
        case dict():
            return {"M": encode(value)}
        case _:
            raise TypeError(f"cannot be stored: {type(value).__name__}")


def decode(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """DynamoDB's wire form to plain values; numbers become int where they are whole."""
    return {name: _decode(value) for name, value in attributes.items()}


def _decode(attribute: Mapping[str, Any]) -> Any:
    (kind, value), *_ = attribute.items()
    match kind:
        case "NULL":
            return None
        case "N":
            number = float(value)
            return int(value) if value.lstrip("-").isdigit() else number
        case "L":
            return [_decode(v) for v in value]
        case "M":
            return decode(value)
        case _:
            return value
