"""What each worker tells the launcher: one small JSON file per rank, written before anything is torn down.

torchrun's exit code does not tell a saved stop from a failure; these files do.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from blackwell.verdict import Verdict

ENV_STATUS_DIR = "BLACKWELL_STATUS_DIR"
"""Folder of the status files, made by the launcher."""
STOP_FILE = "stop"
"""Exists in that folder once the launcher was told to stop; for workers that had no process id yet."""


class RankStatus(BaseModel):
    """State of one rank."""

    model_config = ConfigDict(extra="ignore")

    rank: int
    pid: int
    step: int | None = None
    verdict: Verdict | None = None
    """None while it runs."""
    cause: str = ""
    secondary: bool = False
    """The rank failed only because another one did: a collective broke under it."""
    detail: dict[str, Any] = Field(default_factory=dict)
    time: float = 0.0


class StatusFile:
    """One rank's file; writing replaces it as a whole, so that a reader never sees half of it."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._path = folder / f"rank-{rank}.json" if folder else None
        self._state = RankStatus(rank=rank, pid=os.getpid())
        self.phase = "start"
        """What the rank is doing, for the record of a failure."""
        self.at_step: int | None = None
        """The step that it is in."""

    @property
    def state(self) -> RankStatus:
        return self._state

    def write(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update={**changes, "time": time.time()})
        if self._path is None:
            return
        partial = self._path.with_suffix(".partial")
        with contextlib.suppress(OSError):  # the folder is the launcher's; without it nobody reads
            partial.write_text(self._state.model_dump_json())
            partial.replace(self._path)


def read_statuses(folder: Path) -> list[RankStatus]:
    """All ranks' states, by rank."""
    found = []
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError, json.JSONDecodeError):
            found.append(RankStatus.model_validate_json(path.read_text()))
    return sorted(found, key=lambda status: status.rank)


def status_folder() -> Path | None:
    """The launcher's folder; None where the worker was started without a launcher."""
    value = os.environ.get(ENV_STATUS_DIR)
    return Path(value) if value else None
