"""Fixtures of the trainer's tests."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dataset_factory import write_dataset
from trainer_harness import TINY, ForkServer, Place


@pytest.fixture(scope="session")
def text_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real text (modules of Python's library) as bytes, with a validation split."""
    library = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse", "ast", "bisect", "calendar", "cmd", "copy", "csv", "dis", "enum", "heapq", "queue", "shlex")
    texts = [(library / f"{name}.py").read_text() for name in names]
    root = tmp_path_factory.mktemp("text")
    write_dataset(root, texts, validation_fraction=0.2)
    return root / "dataset"


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts trainer workers quickly."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def place(tmp_path: Path, text_dataset: Path) -> Callable[..., Place]:
    """Makes /opt/ml folders of tiny jobs; keyword arguments change hyperparameters (dots as double underscores)."""

    def make(name: str = "ml", **changes: Any) -> Place:
        named = {key.replace("__", "."): value for key, value in changes.items()}
        return Place(tmp_path / name, text_dataset, {**TINY, **named})

    return make
