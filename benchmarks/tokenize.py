"""Tokenizing: `trainer.data prepare` from files to shards, against the tokenizers library's own encode_batch.

`python -m benchmarks.tokenize`. The library gets the documents as a list in memory, all at once, and only encodes;
preparation also reads, splits, packs, hashes and writes. The corpus is Python's standard library. Every measurement
has a process of its own: what millions of encodings leave of a heap slows down whoever comes next in it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import sysconfig
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.rounds import Stopwatch, interleave, ratio, record
from trainer.data.documents import Problems, read_documents
from trainer.data.prepare import load_tokenizer, prepare, train_tokenizer

VOCABULARY = 8_192
CORPUS_BYTES = 8_000_000
ROUNDS = 25
GOAL = 0.8

Speed = tuple[float, float]
"""Tokens per second of wall clock, and per processor second."""


def corpus() -> list[Path]:
    """Sources of the standard library, CORPUS_BYTES of them, that are UTF-8."""
    files: list[Path] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py")):
        try:
            total += len(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        files.append(path)
        if total >= CORPUS_BYTES:
            break
    return files


def prepared(files: list[Path], tokenizer_file: Path) -> Speed:
    """Our whole way from files to shards."""
    with tempfile.TemporaryDirectory() as out, Stopwatch() as watch:
        problems = Problems()
        made = prepare(
            read_documents(files, problems), Path(out) / "out", tokenizer_file, problems, validation_fraction=0.01
        )
    tokens = sum(split.tokens for split in made.manifest.splits.values())
    return tokens / watch.wall, tokens / watch.cpu


def encoded(files: list[Path], tokenizer_file: Path, method: str) -> Speed:
    """The library's way from texts in memory to encodings in memory; one token per document for its end."""
    texts = [path.read_text(encoding="utf-8") for path in files]
    tokenizer = load_tokenizer(tokenizer_file)
    with Stopwatch() as watch:
        found = getattr(tokenizer, method)(texts, add_special_tokens=False)
    tokens = sum(len(e) for e in found) + len(texts)
    return tokens / watch.wall, tokens / watch.cpu


def main() -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    files = corpus()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file = Path(folder) / "tokenizer.json"
        train_tokenizer(read_documents(files, Problems()), VOCABULARY, tokenizer_file, Problems())
        contenders = {
            "trainer.data prepare": (prepared, files, tokenizer_file),
            "tokenizers encode_batch": (encoded, files, tokenizer_file, "encode_batch"),
            "tokenizers encode_batch_fast": (encoded, files, tokenizer_file, "encode_batch_fast"),
        }
        per_processor_second: dict[str, list[float]] = {f"{name}, per processor second": [] for name in contenders}
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:

            def measure(name: str) -> float:
                wall, cpu = pool.submit(*contenders[name]).result()
                per_processor_second[f"{name}, per processor second"].append(cpu)
                return wall

            measured = interleave({name: lambda name=name: measure(name) for name in contenders}, ROUNDS, warm_up=0)
    measured |= per_processor_second
    ratios = [
        ratio(measured, f"trainer.data prepare{suffix}", f"tokenizers encode_batch{suffix}", ">=", GOAL)
        for suffix in ("", ", per processor second")
    ]
    facts = {"documents": len(files), "characters": sum(len(path.read_text(encoding="utf-8")) for path in files)}
    notes = f"byte-level BPE with {VOCABULARY} tokens trained on the corpus; encode_batch_fast is shown for comparison"
    holds = record(
        "tokenize", measured, ratios, unit="tokens/s", packages=("tokenizers", "numpy"), notes=notes, facts=facts
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
