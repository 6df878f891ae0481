"""Checkpoints: what an asynchronous save costs the training loop, and what hashing adds to a save.

`python -m benchmarks.checkpoint_stall`. The yardstick is PyTorch's own synchronous `dcp.save` with its files synced to
disk. Each rank of a training instance has several cores, so one process on this machine's cores stands for one rank.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.rounds import interleave, ratio, record
from trainer.checkpoint import CheckpointStore, writer

TENSORS = 24
ELEMENTS = 1_000_000
STALL_GOAL = 0.25
HASHING_GOAL = 1.10


class NoDigest:
    """Stands for SHA-256 and does nothing: what is left is the save without its hashing."""

    def update(self, _: object) -> None:
        pass

    def hexdigest(self) -> str:
        return "0" * 64


def make_state() -> dict[str, Any]:
    """Parameters and two moments each, float32."""
    names = [f"layer.{n}.weight" for n in range(TENSORS)]
    return {
        "model": {name: torch.randn(ELEMENTS) for name in names},
        "optim": {"state": {name: {k: torch.randn(ELEMENTS) for k in ("exp_avg", "exp_avg_sq")} for name in names}},
        "train": {"step": 0},
    }


def main() -> int:
    torch.manual_seed(1)
    torch.set_num_threads(1)  # copies wait for the slowest of their threads, which says more about the neighbours
    state = make_state()
    size = TENSORS * ELEMENTS * 4 * 3
    # Beside the results, not in a temporary folder that may be in memory: a save has to reach a disk.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".checkpoint-stall-") as folder:
        root = Path(folder)
        quiet = {"run": "benchmark", "keep": 2, "emit": lambda *_, **__: None}
        ours_sync = CheckpointStore(root / "sync", asynchronous=False, **quiet)
        ours_async = CheckpointStore(root / "async", asynchronous=True, **quiet)
        steps = iter(range(1, 1_000_000))

        def plain() -> float:
            target = root / "plain"
            started = time.perf_counter()
            dcp.save(state, storage_writer=dcp.FileSystemWriter(target, sync_files=True), no_dist=True)
            seconds = time.perf_counter() - started
            shutil.rmtree(target)
            return seconds

        def save() -> float:
            started = time.perf_counter()
            ours_sync.save(next(steps), state)
            seconds = time.perf_counter() - started
            ours_sync.flush_durable(0.0)  # the pruning must not fall into the next measurement
            return seconds

        def save_without_hashing() -> float:
            with mock.patch.object(writer.hashlib, "sha256", NoDigest):
                return save()

        def stall() -> float:
            seconds = ours_async.save(next(steps), state).stall_seconds
            ours_async.flush_durable(0.0)
            return seconds

        measured = interleave(
            {
                "dcp.save": plain,
                "save": save,
                "save without hashing": save_without_hashing,
                "stall of an asynchronous save": stall,
            },
            rounds=61,
            warm_up=2,
        )
        ours_sync.close()
        ours_async.close()
    ratios = [
        ratio(measured, "stall of an asynchronous save", "dcp.save", "<=", STALL_GOAL),
        ratio(measured, "save", "save without hashing", "<=", HASHING_GOAL),
    ]
    notes = "one process; stall after the first save, whose snapshot memory is made anew; manifest and syncs included"
    holds = record(
        "checkpoint_stall", measured, ratios, unit="s", packages=("torch",), notes=notes, facts={"bytes": size}
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
