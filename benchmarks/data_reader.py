"""Reading batches: tokens per second against torchdata's StatefulDataLoader and torch's DataLoader.

`python -m benchmarks.data_reader`. Every contender reads the same memory-mapped tokens in a shuffled order and gives
int64 inputs and labels of the same shape. The peers run with 0 and with 2 workers; the faster of them counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.rounds import Stopwatch, interleave, ratio, record
from trainer.data import BatchSource, open_dataset
from trainer.data.manifest import DATASET_MANIFEST, DatasetManifest, Shard, SideFile, Split

TOKENS = 32_000_000
LENGTH = 1_024
MICRO_BATCH = 8
BATCHES = 500
GOAL = 5.0
ROUNDS = 15


class MappedTokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What one writes for the peers: a map-style dataset over the same file."""

    def __init__(self, path: Path) -> None:
        self._tokens = np.memmap(path, dtype="<u2", mode="r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.from_numpy(self._tokens[index * LENGTH : (index + 1) * LENGTH + 1].astype(np.int64))
        return row[:-1], row[1:]


def write_tokens(root: Path) -> Path:
    """A dataset folder of random tokens."""
    tokens = np.random.default_rng(1).integers(0, 32_000, TOKENS, dtype=np.uint16)
    tokens.tofile(root / "train-00000.bin")
    np.zeros(1, dtype="<u8").tofile(root / "train-00000.documents.bin")
    side = SideFile(file="train-00000.documents.bin", count=1, sha256="0" * 64)
    shard = Shard(file="train-00000.bin", tokens=TOKENS, sha256="0" * 64, documents=side)
    split = Split(tokens=TOKENS, documents=1, shards=[shard])
    manifest = DatasetManifest(vocab_size=32_000, dtype="uint16", eos_id=0, splits={"train": split})
    (root / DATASET_MANIFEST).write_text(manifest.model_dump_json())
    return root / "train-00000.bin"


def rate(batches: Iterator[Any], cpu: list[float] | None, count: int = BATCHES) -> float:
    """Tokens per second over `count` batches, the first left out; per processor second into `cpu`."""
    next(batches)
    with Stopwatch() as watch:
        for _ in range(count):
            inputs, labels = next(batches)
            assert inputs.shape == labels.shape == (MICRO_BATCH, LENGTH)
    tokens = count * MICRO_BATCH * LENGTH
    if cpu is not None:
        cpu.append(tokens / watch.cpu)
    return tokens / watch.wall


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tokens(Path(folder))
        dataset = open_dataset(Path(folder), "train")
        assert dataset is not None
        source = BatchSource(dataset, LENGTH, MICRO_BATCH, seed=1)
        peers = MappedTokens(path)
        steps = iter(range(0, 1 << 40, BATCHES + 1))

        cpu: dict[str, list[float]] = {name: [] for name in ("trainer.data", "StatefulDataLoader", "DataLoader")}

        def ours() -> float:
            first = next(steps)
            made = (source.batch((first + n) * MICRO_BATCH, 0, 1, MICRO_BATCH, 0) for n in range(BATCHES + 1))
            return rate(((b.inputs, b.labels) for b in made), cpu["trainer.data"])

        def loader(kind: Any, workers: int) -> Callable[[], float]:
            def measure() -> float:
                batches = iter(kind(peers, batch_size=MICRO_BATCH, shuffle=True, num_workers=workers))
                return rate(batches, None, BATCHES // 10) if workers else rate(batches, cpu[kind.__name__])

            return measure

        contenders = {
            "trainer.data": ours,
            "StatefulDataLoader, 0 workers": loader(StatefulDataLoader, 0),
            "StatefulDataLoader, 2 workers": loader(StatefulDataLoader, 2),
            "DataLoader, 0 workers": loader(DataLoader, 0),
            "DataLoader, 2 workers": loader(DataLoader, 2),
        }
        measured = interleave(contenders, rounds=ROUNDS)
    for kind in ("StatefulDataLoader", "DataLoader"):
        both = zip(measured[f"{kind}, 0 workers"], measured[f"{kind}, 2 workers"], strict=True)
        measured[f"{kind}, best"] = [max(pair) for pair in both]
    measured |= {f"{name}, per processor second": values[-ROUNDS:] for name, values in cpu.items()}
    ratios = [
        ratio(measured, f"trainer.data{suffix}", f"{kind}{other}", ">=", GOAL)
        for kind in ("StatefulDataLoader", "DataLoader")
        for suffix, other in (("", ", best"), (", per processor second", ", per processor second"))
    ]
    notes = f"micro batch {MICRO_BATCH} x {LENGTH} tokens, {BATCHES} batches a round, uint16 tokens in the page cache"
    holds = record(
        "data_reader", measured, ratios, unit="tokens/s", packages=("torch", "torchdata", "numpy"), notes=notes
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
