"""Faults inside the trainer: translated into what `trainer/faults.py` reads from its environment.

The marker that keeps a fault from happening twice lies outside the job's disk: a restart on an empty disk, or another
attempt, does not repeat it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from local.faults.model import IN_TRAINER, Fault

ENV_TEST_FAULTS = "BLACKWELL_TEST_FAULTS"
_NAMES = {"size_bytes": "bytes", "until_micro_batch_size": "until_micro_batch"}
_KINDS = {"loss_spike": "loss"}


def encode(faults: Iterable[tuple[int, Fault]], markers: Path) -> str | None:
    """Value of ENV_TEST_FAULTS for the numbered faults of one job; None where none is for the trainer."""
    told: list[dict[str, Any]] = []
    for number, fault in faults:
        if isinstance(fault, IN_TRAINER):
            fields = fault.model_dump(mode="json", exclude={"job", "attempt"}, exclude_none=True)
            told.append({_NAMES.get(name, name): value for name, value in fields.items()})
            told[-1]["kind"] = _KINDS.get(fault.kind, fault.kind)
            told[-1]["marker"] = str(marker(number, markers))
    return json.dumps(told, separators=(",", ":")) if told else None


def marker(number: int, markers: Path) -> Path:
    """File that the trainer makes when it did fault `number`."""
    return markers / f"done-{number}"
