"""What a run report is made from: documents that AWS already has, gathered by whoever asks for the report.

The workflow's report lambda gathers them from the run table, SageMaker, CloudWatch Logs and S3; tests and the local
host write them by hand. Nothing here calls AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from blackwell.findings import Finding
from blackwell.verdict import Verdict

LogLine = str | tuple[float, str]
"""A log message, alone or with its CloudWatch timestamp in milliseconds since 1970 (UTC)."""


class AttemptInputs(BaseModel):
    """One training job of the run."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    attempt: int = Field(ge=1)
    job: Mapping[str, Any] = Field(default_factory=dict)
    """DescribeTrainingJob's answer; empty where the job was never created."""
    item: Mapping[str, Any] = Field(default_factory=dict)
    """The attempt's item of the run table."""
    lines: SkipValidation[Iterable[LogLine]] = ()
    """Log lines of the job's streams in order of time; read once, so a generator that pages CloudWatch will do."""


class RunReportInputs(BaseModel):
    """Everything that is known about a run when its report is written. Times are aware datetimes."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    run: str
    spec: Mapping[str, Any] = Field(default_factory=dict)
    """The job spec as it was submitted."""
    plan: Mapping[str, Any] | None = None
    """The plan's JSON."""
    attempts: list[AttemptInputs] = Field(default_factory=list)
    checkpoints: list[Mapping[str, Any]] = Field(default_factory=list)
    """Manifests of the checkpoints that are in S3 now; `files` may be left out, then `bytes` is their sum."""
    item: Mapping[str, Any] = Field(default_factory=dict)
    """The run's own item of the run table (attempt 0): status, started_at, ended_at, image, ..."""
    verdict: Verdict | None = None
    """How the run ended; without it the item's, or the newest attempt's verdict."""
    findings: list[Finding] = Field(default_factory=list)
    """Findings that are not in the plan, such as those that refused the spec."""
    now: datetime
