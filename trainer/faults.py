"""Faults that tests and local scenarios ask for through the environment. Does nothing without the variable.

BLACKWELL_TEST_FAULTS is a JSON list of objects:

    kind   nan | out_of_memory | hang | kill | stop | error | slow_step | slow_data | slow_save | slow_validation | loss |
           failed_save
    step   optimizer step at which it happens (slow_*: every step from this one on)
    rank   rank it happens to; default 0
    once   true (default): never again in this run, also not after a restart (a marker under checkpoints/.faults/)
    marker path of that marker, where it must outlive a lost disk
    seconds            for slow_*, and the delay of a kill
    phase              for kill: step (default) | save (while a save is going on)
    after              for kill in a step: a file under checkpoints/ that must be there first
    bytes              for out_of_memory: what the failed allocation asked for
    until_micro_batch  for out_of_memory: happens, again and again, while micro_batch_size is above this
    value              for loss: what is added to the loss
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ENV_FAULTS = "BLACKWELL_TEST_FAULTS"


class Faults:
    """The faults of one rank."""

    def __init__(self, faults: list[dict[str, Any]], rank: int, markers: Path) -> None:
        self._faults = [(i, f) for i, f in enumerate(faults) if f.get("rank", 0) == rank]
        self._markers = markers

    @classmethod
    def from_environment(cls, rank: int, checkpoints: Path) -> Faults:
        text = os.environ.get(ENV_FAULTS)
        return cls(json.loads(text) if text else [], rank, checkpoints / ".faults")

    def __bool__(self) -> bool:
        return bool(self._faults)

    def _due(self, step: int, *kinds: str) -> list[dict[str, Any]]:
        due = []
        for index, fault in self._faults:
            kind = "kill_in_save" if fault["kind"] == "kill" and fault.get("phase") == "save" else fault["kind"]
            repeats = kind.startswith("slow_") or "until_micro_batch" in fault
            if kind not in kinds or step < fault.get("step", 0):
                continue
            if not repeats:
                marker = Path(fault.get("marker") or self._markers / f"{index}")
                if step != fault.get("step", 0) or (fault.get("once", True) and marker.exists()):
                    continue
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()
            due.append(fault)
        return due

    def before_step(self, step: int, micro_batch_size: int) -> None:
        """Faults of the forward pass."""
        for fault in self._due(step, "out_of_memory", "hang", "error", "kill", "stop", "slow_step"):
            match fault["kind"]:
                case "out_of_memory" if micro_batch_size > fault.get("until_micro_batch", 0):
                    size = fault.get("bytes", 2 << 30) / 2**30
                    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size:.2f} GiB. (test fault)")
                case "hang":
                    time.sleep(1e6)
                case "error":
                    raise RuntimeError(str(fault.get("message", "test fault")))
                case "stop":
                    os.kill(os.getpid(), signal.SIGTERM)
                case "kill":
                    while "after" in fault and not (self._markers.parent / fault["after"]).is_file():
                        time.sleep(0.005)
                    os.kill(os.getpid(), signal.SIGKILL)
                case "slow_step":
                    time.sleep(fault["seconds"])

    def loss(self, step: int, total: torch.Tensor) -> torch.Tensor:
        """The summed loss of the step, made wrong where asked for."""
        for fault in self._due(step, "nan", "loss"):
            total = total + (float("nan") if fault["kind"] == "nan" else fault["value"])
        return total

    def pause(self, kind: str, step: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """`slow_data` and `slow_validation`: waits as a slow source would, polling like the real wait does."""
        for fault in self._due(step, kind):
            end = time.monotonic() + fault["seconds"]
            while time.monotonic() < end and not should_stop():
                time.sleep(0.02)

    def before_save(self, step: int) -> None:
        """`slow_save`, a disk that fails, and a kill while the save goes on."""
        for _ in self._due(step, "failed_save"):
            _fail_next_file()
        for fault in self._due(step, "slow_save"):
            time.sleep(fault["seconds"])
        for fault in self._due(step, "kill_in_save"):
            timer = threading.Timer(fault.get("seconds", 0), os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()


def _fail_next_file() -> None:
    """The next file of a checkpoint that this process syncs to disk fails with EIO."""
    real = os.fsync

    def fsync(descriptor: Any) -> None:
        os.fsync = real
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.fsync = fsync  # type: ignore[assignment]
