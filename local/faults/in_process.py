"""Faults inside the trainer: how the host tells it what to do to itself.

The container gets the environment variable BLACKWELL_TEST_FAULTS, a JSON list of objects:

    kind                    nan | out_of_memory | hang | slow_save
    step                    optimizer step at which it happens
    rank                    the rank that it happens to (not for slow_save)
    times                   how often in all; null: every time
    markers                 folder with one file for each time it happened; the trainer creates `<n>` (n from 1, exclusive
                            create) before it does the thing, and does nothing once `times` files are there
    size_bytes              out_of_memory: size of the allocation in the message
    until_micro_batch_size  out_of_memory: only while the micro batch is larger than this
    seconds                 slow_save: how long the save is held up

The folder lies outside the job's disk, so a restart on an empty disk does not repeat a fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from local.faults.model import IN_TRAINER, Fault, OutOfMemory

ENV_TEST_FAULTS = "BLACKWELL_TEST_FAULTS"


def encode(faults: Iterable[tuple[int, Fault]], markers: Path) -> str | None:
    """Value of ENV_TEST_FAULTS for the numbered faults of one job; None where none is for the trainer."""
    told: list[dict[str, Any]] = []
    for number, fault in faults:
        if not isinstance(fault, IN_TRAINER):
            continue
        folder = markers / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        fields = fault.model_dump(mode="json", exclude={"job", "attempt"}, exclude_none=True)
        always = isinstance(fault, OutOfMemory) and fault.until_micro_batch_size is not None
        told.append({**fields, "times": None if always else fault.times, "markers": str(folder)})
    return json.dumps(told, separators=(",", ":")) if told else None


def happened(number: int, markers: Path) -> int:
    """How often the trainer did fault `number`."""
    folder = markers / str(number)
    return len(list(folder.iterdir())) if folder.is_dir() else 0
