"""Small training states for checkpoint tests, and the places where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import CheckpointStore

Events = list[dict[str, Any]]


def make_state(step: int) -> dict[str, Any]:
    """A state whose every value depends on the step."""
    generator = torch.Generator().manual_seed(step)
    weights = {name: torch.randn(64, 48, generator=generator) for name in ("a", "b")}
    return {
        "model": weights,
        "optim": {
            "state": {name: {"exp_avg": w * 2, "step": torch.tensor(float(step))} for name, w in weights.items()}
        },
        "train": {"step": step, "note": f"step {step}"},
        "rng/0": {"torch": torch.arange(4) + step},
    }


def blank_state() -> dict[str, Any]:
    """What a new process has before it loads."""
    return make_state(-1 & 0xFFFF)


def flat(state: dict[str, Any]) -> dict[str, Any]:
    """Path -> value, tensors as lists, for comparison."""
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}/{key}", inner)
        else:
            found[prefix] = value.tolist() if isinstance(value, torch.Tensor) else value

    walk("", state)
    return found


def same(state: dict[str, Any], step: int) -> bool:
    """Whether this is, bit for bit, the state of the step."""
    return flat(state) == flat(make_state(step))


class Clock:
    """Unix time that a test moves; sleeping moves it, too."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def open_store(root: Path, events: Events | None = None, **options: Any) -> CheckpointStore:
    """A store of one rank; what it says goes into `events`."""

    def emit(event: str, **fields: Any) -> None:
        if events is not None:
            events.append({"event": event} | fields)

    return CheckpointStore(root, run="test", emit=emit, **{"asynchronous": False} | options)


def save_steps(store: CheckpointStore, *steps: int) -> None:
    """Saves the states of these steps, waits for them, and lets the store look after them once each time."""
    for step in steps:
        store.save(step, make_state(step), {"tokens": step * 100, "position": step * 4})
        store.flush_durable(0.0)


def data_file(folder: Path) -> Path:
    """The file with the tensors of rank 0."""
    return next(folder.glob("__0_*.distcp"))


def flip_bit(path: Path) -> None:
    """One bit in the middle: DCP itself would load this without a word."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


Damage = Callable[[Path], None]
DAMAGES: dict[str, Damage] = {
    "bit flip": lambda folder: flip_bit(data_file(folder)),
    "bit flip in the index": lambda folder: flip_bit(folder / ".metadata"),
    "truncated": lambda folder: truncate(data_file(folder)),
    "empty file": lambda folder: empty(data_file(folder)),
    "file missing": lambda folder: data_file(folder).unlink(),
    "index missing": lambda folder: (folder / ".metadata").unlink(),
    "manifest damaged": lambda folder: truncate(folder / "MANIFEST.json"),
    "manifest of another step": lambda folder: (folder / "MANIFEST.json").write_bytes(
        (folder / "MANIFEST.json").read_bytes().replace(b'"step":', b'"step":9')
    ),
    "half written: no manifest": lambda folder: (folder / "MANIFEST.json").unlink(),
    "half written: empty manifest": lambda folder: empty(folder / "MANIFEST.json"),
    "half written: one file": lambda folder: [p.unlink() for p in folder.iterdir() if p != data_file(folder)] and None,
}
HALF_WRITTEN = {name for name in DAMAGES if name.startswith("half written")}
