"""How an attempt ended, and what is done about it: one table, used by the launcher in place and by the workflow.

`Verdict` names the end of an attempt. `EXIT_CODES` and `FailureRecord` carry it out of the container,
`classify_job` reads it from what SageMaker says, `RULES` says what may be done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FAILURE_RECORD_MAX = 1_024  # FailureReason shows at most this many characters of /opt/ml/output/failure


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
    WAIT_AND_RETRY = "wait_and_retry"
    SKIP_DATA = "skip_data"


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
    Verdict.REJECTED: Rule("the job spec was refused before anything was created", (), "Mend the findings."),
}


class FailureRecord(BaseModel):
    """What the launcher writes to /opt/ml/output/failure: JSON of at most 1,024 characters."""

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
