"""How an attempt ended, and what is done about it: one table, used by the launcher in place and by the workflow.

`Verdict` names the end of an attempt. `EXIT_CODES` and `FailureRecord` carry it out of the container,
`classify_job` reads it from what SageMaker says, `classify_launch_error` from why CreateTrainingJob refused, `RULES`
says what may be done (`blackwell.remedy` does it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FAILURE_REASON_MAX = 1_024  # DescribeTrainingJob.FailureReason, in characters
FAILURE_RECORD_MAX = FAILURE_REASON_MAX - len("AlgorithmError: , exit code: -2147483648")
"""What SageMaker's own words around /opt/ml/output/failure leave for the record, in characters."""


class Verdict(StrEnum):
    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"
    INTERRUPTED = "interrupted"
    WAIT_EXCEEDED = "wait_exceeded"
    RUNTIME_EXCEEDED = "runtime_exceeded"
    CAPACITY = "capacity"
    QUOTA = "quota"
    THROTTLED = "throttled"
    PLAN_UNAVAILABLE = "plan_unavailable"
    PLAN_ENDED = "plan_ended"
    DIVERGED = "diverged"
    HUNG = "hung"
    HARDWARE = "hardware"
    USER_ERROR = "user_error"
    STOPPED = "stopped"
    BUDGET_REACHED = "budget_reached"
    IMAGE_FAILED = "image_failed"
    WORKFLOW_FAILED = "workflow_failed"
    REJECTED = "rejected"


EXIT_CODES: dict[Verdict, int] = {
    Verdict.COMPLETED: 0,
    Verdict.USER_ERROR: 64,
    Verdict.DIVERGED: 65,
    Verdict.HUNG: 66,
    Verdict.HARDWARE: 67,
    Verdict.OUT_OF_MEMORY: 68,
    Verdict.PLAN_ENDED: 69,
    Verdict.STOPPED: 75,
}
"""Exit code of the launcher (PID 1); any other non-zero code is a user error."""


class Remedy(StrEnum):
    """What the workflow does after an attempt; the launcher uses the first two in place."""

    NONE = "none"
    LESS_MEMORY = "less_memory"
    """Activation checkpointing on, then micro batch down with accumulation up: same tokens per step."""
    RETRY_SAME = "retry_same"
    """The same request again, from the newest checkpoint, on new instances."""
    NEXT_CAPACITY = "next_capacity"
    """The next entry of the capacity list, from the newest checkpoint."""
    WAIT_AND_RETRY = "wait_and_retry"
    """The same request again after a while that grows, up to a deadline."""
    SKIP_DATA = "skip_data"
    """Once, where the spec allows it: from an older checkpoint, past the data that was read when it happened."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a verdict means: what happened, the remedies in their order, and what a person can do."""

    meaning: str
    remedies: tuple[Remedy, ...]
    advice: str

    @property
    def terminal(self) -> bool:
        return not self.remedies


RULES: dict[Verdict, Rule] = {
    Verdict.COMPLETED: Rule("the job finished all steps", (), "Read the report."),
    Verdict.OUT_OF_MEMORY: Rule(
        "a GPU ran out of memory",
        (Remedy.LESS_MEMORY,),
        "Turn activation checkpointing on, lower micro_batch_size or seq_length.",
    ),
    Verdict.INTERRUPTED: Rule(
        "spot capacity was taken and never came back",
        (Remedy.NEXT_CAPACITY,),
        "List an on-demand or training-plan entry after the spot entry.",
    ),
    Verdict.WAIT_EXCEEDED: Rule(
        "the job waited longer than max_wait_seconds",
        (Remedy.NEXT_CAPACITY,),
        "Raise max_wait_seconds or list another capacity entry.",
    ),
    Verdict.RUNTIME_EXCEEDED: Rule(
        "the job ran longer than max_runtime_seconds",
        (Remedy.NEXT_CAPACITY,),
        "Raise max_runtime_seconds; the run goes on from its checkpoint with resume_from.",
    ),
    Verdict.CAPACITY: Rule(
        "AWS had no such instances",
        (Remedy.WAIT_AND_RETRY, Remedy.NEXT_CAPACITY),
        "List another capacity entry or buy a training plan.",
    ),
    Verdict.QUOTA: Rule(
        "the account's quota is too small", (Remedy.NEXT_CAPACITY,), "Ask Service Quotas for more of the named quota."
    ),
    Verdict.THROTTLED: Rule("AWS throttled the request", (Remedy.WAIT_AND_RETRY,), "Start fewer runs at once."),
    Verdict.PLAN_UNAVAILABLE: Rule(
        "the training plan takes no jobs now",
        (Remedy.WAIT_AND_RETRY, Remedy.NEXT_CAPACITY),
        "Look at the plan's status and its free instances.",
    ),
    Verdict.PLAN_ENDED: Rule(
        "the training plan's last reservation ended", (Remedy.NEXT_CAPACITY,), "Go on with resume_from on another plan."
    ),
    Verdict.DIVERGED: Rule(
        "loss or gradients became non-finite, or the loss ran away",
        (Remedy.SKIP_DATA,),
        "Lower the learning rate, or use a wider precision, and resume from the last good checkpoint.",
    ),
    Verdict.HUNG: Rule("the ranks stopped making progress", (Remedy.RETRY_SAME,), "Look at the stacks in the log."),
    Verdict.HARDWARE: Rule("a GPU, link or host failed", (Remedy.RETRY_SAME,), "Nothing, unless it comes again."),
    Verdict.USER_ERROR: Rule(
        "the job's own code, data or settings failed", (), "Read the first line of the cause; the log has the rest."
    ),
    Verdict.STOPPED: Rule("somebody stopped the job or the execution", (), "Go on with resume_from."),
    Verdict.BUDGET_REACHED: Rule("the budget is used up", (), "Raise budget.max_cost_usd and go on with resume_from."),
    Verdict.IMAGE_FAILED: Rule(
        "the training image could not be built or failed its self-test",
        (),
        "Read the build's log; nothing was pushed and no job was started.",
    ),
    Verdict.WORKFLOW_FAILED: Rule(
        "a step of the workflow itself failed",
        (),
        "Read the execution's history; a running job was stopped, its checkpoints are kept: go on with resume_from.",
    ),
    Verdict.REJECTED: Rule("the job spec was refused before anything was created", (), "Mend the findings."),
}


def less_memory(activation_checkpointing: str, micro_batch_size: int) -> dict[str, Any] | None:
    """The next step of Remedy.LESS_MEMORY as hyperparameters to override; None where there is nothing left to save.

    First activation checkpointing of whole layers, then the micro batch down to its largest proper divisor. The global
    batch stays, so accumulation grows by the same factor and every optimizer step sees the same tokens.
    """
    if activation_checkpointing != "full":
        return {"activation_checkpointing": "full"}
    for divisor in range(micro_batch_size // 2, 0, -1):
        if micro_batch_size % divisor == 0:
            return {"micro_batch_size": divisor}
    return None


class FailureRecord(BaseModel):
    """What the launcher writes to /opt/ml/output/failure: JSON of at most FAILURE_RECORD_MAX characters."""

    model_config = ConfigDict(extra="ignore")

    verdict: Verdict
    cause: str = Field(description="first line of the cause")
    step: int | None = None
    rank: int | None = None
    detail: dict[str, Any] = Field(default_factory=dict)

    def encode(self) -> str:
        """JSON within FAILURE_RECORD_MAX; the cause is shortened first, then the detail left out."""
        for record in (self, self.model_copy(update={"detail": {}})):
            text = json.dumps(record.model_dump(mode="json", exclude_none=True), separators=(",", ":"))
            over = len(text) - FAILURE_RECORD_MAX
            if over <= 0:
                return text
            cut = record.model_copy(
                update={
                    "cause": record.cause.encode("ascii", "replace").decode()[: max(0, len(record.cause) - over - 3)]
                    + "..."
                }
            )
            text = json.dumps(cut.model_dump(mode="json", exclude_none=True), separators=(",", ":"))
            if len(text) <= FAILURE_RECORD_MAX:
                return text
        return json.dumps({"verdict": self.verdict, "cause": ""})

    @classmethod
    def decode(cls, text: str) -> FailureRecord | None:
        """The record inside a FailureReason such as `AlgorithmError: {...}`; None where there is none."""
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < start:
            return None
        try:
            return cls.model_validate_json(text[start : end + 1])
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: the verdict, its cause in one line, and the container's own record where there is one."""

    verdict: Verdict
    cause: str
    record: FailureRecord | None = None


TERMINAL_STATUSES = frozenset({"Completed", "Failed", "Stopped"})
"""TrainingJobStatus values after which nothing more happens."""

_BY_EXIT_CODE = {code: verdict for verdict, code in EXIT_CODES.items() if code}
_EXIT_CODE = re.compile(r"exit ?code:? (-?\d+)", re.IGNORECASE)
_KILLED_EXIT_CODES = (137, -9)  # SIGKILL: the host, not the program, ended it

_FAILURE_REASONS: tuple[tuple[re.Pattern[str], Verdict], ...] = (
    (
        re.compile(
            r"^(CapacityError|InsufficientCapacity)|insufficient capacity|unable to provision requested ml compute",
            re.I,
        ),
        Verdict.CAPACITY,
    ),
    (re.compile(r"^InternalServerError|internal (server )?error|infrastructure|health ?check", re.I), Verdict.HARDWARE),
    (re.compile(r"ResourceLimitExceeded", re.I), Verdict.QUOTA),
    (re.compile(r"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", re.I), Verdict.OUT_OF_MEMORY),
    (
        re.compile(
            r"\bNCCL\b.*(error|timeout|timed out)|\bXid\b|uncorrectable ECC|NVLink error|CUDA error: (unspecified launch failure|an illegal)",
            re.I,
        ),
        Verdict.HARDWARE,
    ),
)
"""FailureReason texts of jobs whose container left no record of its own; the first match counts."""


def classify_job(job: Mapping[str, Any], *, stopped_for: Verdict | None = None) -> Ending:
    """The verdict on a training job that has ended, from DescribeTrainingJob.

    `stopped_for` is why we stopped it ourselves (budget, silence, ...), None when we did not. A job cut short by
    SageMaker is Stopped, not Failed: its secondary status says why.

    Raises:
        ValueError: the job is still running.
    """
    status = job.get("TrainingJobStatus")
    if status not in TERMINAL_STATUSES:
        raise ValueError(f"the job has not ended: {status}")
    if status == "Completed":
        return Ending(Verdict.COMPLETED, "the job finished all steps")
    reason = str(job.get("FailureReason") or "")
    record = FailureRecord.decode(reason)
    ending = _classify_stopped(job, record, stopped_for) if status == "Stopped" else _classify_failed(reason, record)
    if ending.verdict is Verdict.STOPPED and stopped_for is not None:  # the trainer did as the control file asked
        return Ending(stopped_for, RULES[stopped_for].meaning, record)
    return Ending(ending.verdict, ending.cause, record)


def _classify_stopped(job: Mapping[str, Any], record: FailureRecord | None, stopped_for: Verdict | None) -> Ending:
    transitions = job.get("SecondaryStatusTransitions") or []
    passed = [t.get("Status") for t in transitions]
    secondary = job.get("SecondaryStatus")
    if stopped_for is not None:
        return Ending(stopped_for, RULES[stopped_for].meaning)
    if secondary == "MaxRuntimeExceeded":
        return Ending(Verdict.RUNTIME_EXCEEDED, "stopped at max_runtime_seconds")
    if secondary == "MaxWaitTimeExceeded":
        if "Interrupted" in passed:
            return Ending(Verdict.INTERRUPTED, "interrupted, and no spot capacity until max_wait_seconds")
        return Ending(Verdict.WAIT_EXCEEDED, "no spot capacity until max_wait_seconds")
    if "Training" not in passed and _pending_too_long(job):
        return Ending(Verdict.CAPACITY, "no capacity until max_pending_seconds")
    if record is not None and record.verdict is not Verdict.COMPLETED:
        return Ending(record.verdict, record.cause)
    return Ending(Verdict.STOPPED, "stopped by StopTrainingJob")


def _pending_too_long(job: Mapping[str, Any]) -> bool:
    """Not whoever was stopped by a person while it waited: the API's words, or the limit that was really reached."""
    last = (job.get("SecondaryStatusTransitions") or [{}])[-1]
    words = f"{job.get('SecondaryStatus', '')} {last.get('StatusMessage', '')}"
    if re.search(r"pending", words, re.I):
        return True
    limit = (job.get("StoppingCondition") or {}).get("MaxPendingTimeInSeconds")
    created, ended = job.get("CreationTime"), job.get("TrainingEndTime") or job.get("LastModifiedTime")
    return bool(limit and created and ended and (ended - created).total_seconds() >= limit)


def _classify_failed(reason: str, record: FailureRecord | None) -> Ending:
    if record is not None:
        verdict = record.verdict if record.verdict is not Verdict.COMPLETED else Verdict.USER_ERROR
        return Ending(verdict, record.cause)
    first_line = reason.strip().splitlines()[0] if reason.strip() else "the job failed without a reason"
    for pattern, known in _FAILURE_REASONS:
        if pattern.search(reason):
            return Ending(known, first_line)
    code = _EXIT_CODE.search(reason)
    if code is not None:
        number = int(code[1])
        killed = number in _KILLED_EXIT_CODES
        return Ending(Verdict.HARDWARE if killed else _BY_EXIT_CODE.get(number, Verdict.USER_ERROR), first_line)
    return Ending(Verdict.USER_ERROR, first_line)


LAUNCH_ERRORS: dict[str, Verdict] = {
    "Throttled": Verdict.THROTTLED,
    "QuotaExceeded": Verdict.QUOTA,
    "CapacityUnavailable": Verdict.CAPACITY,
    "PlanUnavailable": Verdict.PLAN_UNAVAILABLE,
    "RunEnded": Verdict.STOPPED,
    "LaunchRefused": Verdict.USER_ERROR,
    "NotReadyYet": Verdict.USER_ERROR,
}
"""Typed errors of the Launch step, by name, and what each means when the retries are used up."""

TRANSIENT_VALIDATION = re.compile(
    r"could not assume role|unauthorized to list objects under s3 url|access denied to outputdataconfig s3 bucket"
    r"|no identity-based policy allows the s3:listbucket action|access denied for repository",
    re.I,
)
"""ValidationException texts that only mean that IAM or S3 has not caught up with a deployment yet."""


def launch_error_name(code: str, message: str) -> str:
    """The Launch step's typed error (a key of LAUNCH_ERRORS) for an error of CreateTrainingJob."""
    if code in (
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "TooManyRequestsException",
        "ServiceUnavailable",
        "InternalFailure",
    ):
        return "Throttled"
    if code == "ResourceLimitExceeded":
        return "QuotaExceeded"
    if "capacity" in code.lower() or re.search(r"^CapacityError|insufficient capacity", message, re.I):
        return "CapacityUnavailable"
    if code == "ValidationException" and TRANSIENT_VALIDATION.search(message):
        return "NotReadyYet"
    if re.search(r"training[ -]?plan", message, re.I):
        return "PlanUnavailable"
    return "LaunchRefused"


def classify_launch_error(name: str, message: str) -> Ending:
    """The verdict on an attempt whose job could not be created; `name` is the Launch step's error."""
    lines = message.strip().splitlines()
    return Ending(LAUNCH_ERRORS.get(name, Verdict.WORKFLOW_FAILED), lines[0] if lines else name)
