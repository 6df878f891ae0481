"""The language of faults: what may go wrong on the embedded AWS, when, and to whom. A file is a JSON list of these.

Where a fault has a moment, `step` is an optimizer step seen in the job's own log (at that step or later) and `second`
counts from the creation of the job; with neither it happens as soon as it can.
"""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

ATTEMPT_SUFFIX = re.compile(r"-a(\d+)$")  # blackwell.names.job_name


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _OnJob(_Fault):
    job: str = Field("*", description="glob on the training job's name")
    attempt: int | None = Field(None, ge=1, description="only this attempt of a run; default: any")

    def concerns(self, job_name: str) -> bool:
        """Whether the fault is meant for this job."""
        suffix = ATTEMPT_SUFFIX.search(job_name)
        wanted = self.attempt is None or (suffix is not None and int(suffix[1]) == self.attempt)
        return wanted and fnmatch.fnmatchcase(job_name, self.job)


class _Counted(_OnJob):
    times: int = Field(1, ge=1, description="how often it happens in all")


class _InTrainer(_OnJob):
    """The trainer does it to itself: `local.faults.in_process` tells it."""

    step: int = Field(1, ge=1, description="optimizer step at which it happens")
    rank: int = Field(0, ge=0)
    once: bool = Field(True, description="false: every time that the run comes to this step")


class _Timed(_Counted):
    step: int | None = Field(None, ge=0)
    second: float | None = Field(None, ge=0)
    status: str | None = Field(None, description="only while the job has this SecondaryStatus")

    @model_validator(mode="after")
    def _one_moment(self) -> _Timed:
        if self.step is not None and self.second is not None:
            raise ValueError("give step or second, not both")
        return self


class Interruption(_Timed):
    """Spot capacity is taken: SIGTERM, `notice_seconds` to go, then the same job starts again on an empty disk."""

    kind: Literal["interruption"]
    notice_seconds: float = Field(120, ge=0, le=120, description="0: no notice, the host is gone at once")
    back_after_seconds: float | None = Field(0, ge=0, description="null: capacity never comes back")


class HostLost(_Timed):
    """A host dies without a word; nothing more of it reaches S3. On spot the job restarts, else InternalServerError."""

    kind: Literal["host_lost"]
    during_upload: str | None = Field(None, description="glob on a checkpoint file: die while it is being uploaded")
    host: int = Field(1, ge=1, description="1 for algo-1")


class Kill(_Timed):
    """SIGKILL to one process of the container."""

    kind: Literal["kill"]
    target: Literal["launcher", "worker"] = "worker"
    rank: int = Field(0, ge=0, description="RANK of the worker")


class Stop(_Timed):
    """Somebody stops the training job, or the Step Functions execution of the same run."""

    kind: Literal["stop"]
    what: Literal["job", "execution"] = "job"


class MoveClock(_Timed):
    """The embedded AWS's clock jumps forward: deadlines, waits and billing see it, processes do not."""

    kind: Literal["move_clock"]
    by_seconds: float = Field(gt=0)


class NoCapacity(_OnJob):
    """There are no such instances: spot jobs wait, others fail with CapacityError."""

    kind: Literal["no_capacity"]
    tries: int | None = Field(None, ge=1, description="how many starts find none; null: all of them")
    instance_type: str = Field("*", description="glob")
    spot: bool | None = Field(None, description="only spot jobs, or only others; default: both")


class OutOfMemory(_InTrainer):
    """CUDA's out-of-memory error."""

    kind: Literal["out_of_memory"]
    size_bytes: int = Field(8 * 2**30, ge=1, description="size of the allocation that fails")
    until_micro_batch_size: int | None = Field(
        None, ge=1, description="from `step` on, again and again, while the micro batch is above this"
    )


class NotANumber(_InTrainer):
    """The loss of one step is not a number."""

    kind: Literal["nan"]


class LossSpike(_InTrainer):
    """The loss of one step is larger by `value`."""

    kind: Literal["loss_spike"]
    value: float = Field(100.0, gt=0)


class Hang(_InTrainer):
    """One rank stops and never comes back."""

    kind: Literal["hang"]


class Error(_InTrainer):
    """The training code raises an exception, as bad code or bad data does."""

    kind: Literal["error"]
    message: str = "injected error"


class SlowStep(_InTrainer):
    """Every step from this one on takes this much longer."""

    kind: Literal["slow_step"]
    seconds: float = Field(gt=0)


class SlowSave(_InTrainer):
    """Every save from this step on takes this much longer."""

    kind: Literal["slow_save"]
    seconds: float = Field(gt=0)


class CheckpointFile(_Counted):
    """A file on its way to S3 is damaged, never arrives, arrives late, or arrives before those that belong to it."""

    kind: Literal["checkpoint_file"]
    what: Literal["damaged", "missing", "late", "out_of_order"]
    file: str = Field("*", description="glob on the path below the checkpoint folder, e.g. step-*/MANIFEST.json")
    seconds: float = Field(5, gt=0, description="how late")


class _OnCall(_Fault):
    service: str = Field("sagemaker", description="signing name: sagemaker, codebuild, ecr, states, dynamodb, ...")
    operation: str
    text: str = Field("", description="only calls whose body contains this text count, a run's name for instance")
    nth: int = Field(1, ge=1)
    times: int = Field(1, ge=1)


class ApiFailure(_OnCall):
    """The nth call of an operation, and `times - 1` after it, are answered with an error."""

    kind: Literal["api_error"]
    code: str
    message: str = "injected fault"
    status: int = Field(400, ge=400, le=599)
    after_effect: bool = Field(False, description="the call does its work and only its answer is lost (sagemaker only)")


class LambdaKilled(_OnCall):
    """A function's process is killed when it makes its nth call of an operation, before or after the call's effect."""

    kind: Literal["lambda_killed"]
    function: str = Field(description="text that the function's name contains, whatever the case")
    when: Literal["before", "after"] = Field("after", description="after: only for sagemaker and codebuild")


class EventFault(_Fault):
    """An event is lost, comes twice, comes late, or comes after the one that follows it."""

    kind: Literal["event"]
    what: Literal["lost", "doubled", "delayed", "swapped"]
    detail_type: str = Field("SageMaker Training Job State Change", description="glob")
    status: str = Field("*", description="glob on the detail's SecondaryStatus, or status for executions")
    text: str = Field("", description="only events whose detail contains this text, a run's name for instance")
    seconds: float = Field(3, gt=0, description="how late, when delayed")
    times: int = Field(1, ge=1)


Fault = Annotated[
    Interruption
    | HostLost
    | Kill
    | Stop
    | MoveClock
    | NoCapacity
    | OutOfMemory
    | NotANumber
    | LossSpike
    | Hang
    | Error
    | SlowStep
    | SlowSave
    | CheckpointFile
    | ApiFailure
    | LambdaKilled
    | EventFault,
    Field(discriminator="kind"),
]
Faults = TypeAdapter(list[Fault])
IN_TRAINER = (OutOfMemory, NotANumber, LossSpike, Hang, Error, SlowStep, SlowSave)
"""Kinds that the trainer does to itself."""
TIMED = (Interruption, HostLost, Kill, Stop, MoveClock)
WITHOUT_CONTAINER = (Stop, MoveClock)
"""Those of them that can happen while a job waits for instances."""


def load_faults(path: Path) -> list[Fault]:
    """The faults of a file. Raises ValueError naming every mistake, OSError when it cannot be read."""
    return parse_faults(json.loads(path.read_text(encoding="utf-8")))


def parse_faults(data: Any) -> list[Fault]:
    """The faults of a decoded JSON list. Raises pydantic's ValidationError, a ValueError, naming every mistake."""
    return Faults.validate_python(data)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a fault file; `schema.json` beside this module is its committed copy."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Faults", **Faults.json_schema()}
