"""What the demo writes to build/demo/report.json, also when a stage fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class DemoResult:
    verdict: str | None = None
    """The run's verdict; null when the demo did not get that far."""
    status: str = "running"
    """`ok`, or `failed in <stage>`."""
    run: str | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    steps: int | None = None
    first_loss: float | None = None
    """Nats per token, first logged step."""
    final_loss: float | None = None
    """Nats per token, mean of the last 10 steps."""
    tokens_per_second: float | None = None
    restarts: list[dict[str, Any]] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds by stage, in the order they ran."""
    checked: dict[str, int] = field(default_factory=dict)
    """Kinds of things looked for after destroy, and how many were there before the stack."""
    leftovers: list[str] = field(default_factory=list)
    error: str | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage; the time is kept when it fails, and the failure names the stage."""
        start = time.monotonic()
        try:
            yield
        except BaseException as error:
            if not isinstance(error, StageError):
                raise StageError(name, error) from error
            raise
        finally:
            self.stages[name] = round(self.stages.get(name, 0.0) + time.monotonic() - start, 2)

    def take_run_report(self, report: dict[str, Any]) -> None:
        """Copies the run's figures from its report."""
        for name in (
            "verdict",
            "attempts",
            "checkpoints",
            "steps",
            "first_loss",
            "final_loss",
            "tokens_per_second",
            "restarts",
        ):
            if name in report:
                setattr(self, name, report[name])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2, default=str) + "\n", encoding="utf-8")


class StageError(Exception):
    """A stage of the demo failed; `cause` is the error that ended it."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        super().__init__(f"{stage}: {type(cause).__name__}: {cause}")
        self.stage = stage
        self.cause = cause
