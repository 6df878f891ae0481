"""Real text that every machine has: the sources of the Python standard library, as token shards."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

VOCAB_SIZE = 4_096
MAX_BYTES = 3_000_000
"""Several times what the demo's run reads; a BPE of this size is trained and applied in seconds."""


def source_files(limit_bytes: int = MAX_BYTES) -> Iterator[Path]:
    """Files of the standard library in a fixed order, without tests, up to `limit_bytes` in all."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
    total = 0
    for path in sorted(root.rglob("*.py")):
        if skipped & set(path.relative_to(root).parts):
            continue
        total += path.stat().st_size
        if total > limit_bytes:
            return
        yield path


def prepare(out: Path, log: Path) -> None:
    """Trains a BPE tokenizer and writes shards and manifest to `out`, with the product's own commands.

    Raises:
        subprocess.CalledProcessError: a command failed; its output is in `log`.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in source_files()]
    tokenizer = out / "tokenizer.json"
    commands = (
        ["train-tokenizer", "--vocab-size", str(VOCAB_SIZE), "--out", str(tokenizer), *files],
        ["prepare", "--out", str(out), "--tokenizer", str(tokenizer), *files],
    )
    with log.open("ab") as sink:
        for arguments in commands:
            subprocess.run([sys.executable, "-m", "trainer.data", *arguments], check=True, stdout=sink, stderr=sink)
