"""What a rank prints: step lines and events in the grammar of blackwell.telemetry, each line in one write."""

from __future__ import annotations

import sys
from typing import Any

from blackwell.telemetry import StepRecord, format_event, format_step


class Log:
    """Prints for one rank; only rank 0 prints steps and, unless told otherwise, events."""

    def __init__(self, run: str, rank: int) -> None:
        self._run, self._rank = run, rank

    def step(self, record: StepRecord) -> None:
        if self._rank == 0:
            self._write(format_step(record, self._run))

    def event(self, name: str, /, *, every_rank: bool = False, **fields: Any) -> None:
        """An event of rank 0, or of whichever rank calls where `every_rank`."""
        if self._rank == 0 or every_rank:
            self._write(format_event(name, self._run, self._rank, **fields))

    def note(self, text: str, *, every_rank: bool = False) -> None:
        """A line for people. No other program reads it."""
        if self._rank == 0 or every_rank:
            self._write(f"[rank {self._rank}] {text}")

    def _write(self, line: str) -> None:
        sys.stdout.write(line.replace("\n", " ") + "\n")
        sys.stdout.flush()
