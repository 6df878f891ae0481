"""Tokenizing: `trainer.data prepare` from files to shards, against the tokenizers library's own encode_batch.

`python -m benchmarks.tokenize`. The library gets the documents as a list in memory, all at once, and only encodes;
preparation also reads, splits, packs, hashes and writes. The corpus is Python's standard library.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from benchmarks.rounds import Stopwatch, interleave, ratio, record
from trainer.data.documents import Problems, read_documents
from trainer.data.prepare import load_tokenizer, prepare, train_tokenizer

VOCABULARY = 8_192
CORPUS_BYTES = 8_000_000
ROUNDS = 25
GOAL = 0.8


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


def main() -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    files = corpus()
    texts = [path.read_text(encoding="utf-8") for path in files]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tokenizer_file = root / "tokenizer.json"
        train_tokenizer(read_documents(files, Problems()), VOCABULARY, tokenizer_file, Problems())
        tokens = 0

        cpu: dict[str, list[float]] = {}

        def ours() -> float:
            nonlocal tokens
            with Stopwatch() as watch:
                problems = Problems()
                made = prepare(
                    read_documents(files, problems), root / "out", tokenizer_file, problems,
                    validation_fraction=0.01, overwrite=True,
                )  # fmt: skip
            tokens = sum(split.tokens for split in made.manifest.splits.values())
            cpu.setdefault("trainer.data prepare", []).append(tokens / watch.cpu)
            return tokens / watch.wall

        def library(method: str) -> float:
            tokenizer = load_tokenizer(tokenizer_file)
            with Stopwatch() as watch:
                encoded = getattr(tokenizer, method)(texts, add_special_tokens=False)
            count = sum(len(e) for e in encoded) + len(texts)
            cpu.setdefault(f"tokenizers {method}", []).append(count / watch.cpu)
            return count / watch.wall

        measured = interleave(
            {
                "trainer.data prepare": ours,
                "tokenizers encode_batch": lambda: library("encode_batch"),
                "tokenizers encode_batch_fast": lambda: library("encode_batch_fast"),
            },
            ROUNDS,
        )
    measured |= {f"{name}, per processor second": values[-ROUNDS:] for name, values in cpu.items()}
    ratios = [
        ratio(measured, f"trainer.data prepare{suffix}", f"tokenizers encode_batch{suffix}", ">=", GOAL)
        for suffix in ("", ", per processor second")
    ]
    facts = {"documents": len(files), "characters": sum(map(len, texts)), "tokens": tokens}
    notes = f"byte-level BPE with {VOCABULARY} tokens trained on the corpus; encode_batch_fast is shown for comparison"
    holds = record(
        "tokenize", measured, ratios, unit="tokens/s", packages=("tokenizers", "numpy"), notes=notes, facts=facts
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
