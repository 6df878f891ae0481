"""Tokenizing: `trainer.data prepare` from files to shards, against the tokenizers library's own encode_batch.

`python -m benchmarks.tokenize`. The library gets the documents as a list in memory, all at once, and only encodes;
preparation also reads, splits, packs, hashes and writes. The corpus is Python's standard library.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from benchmarks.rounds import interleave, ratio, record
from trainer.data.documents import Problems, read_documents
from trainer.data.prepare import load_tokenizer, prepare, train_tokenizer

VOCABULARY = 8_192
CORPUS_BYTES = 4_000_000
GOAL = 0.8


def corpus() -> list[Path]:
    """Sources of the standard library, CORPUS_BYTES of them, that are UTF-8."""
    files: list[Path] = []
    total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py")):
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

        def ours() -> float:
            nonlocal tokens
            started = time.perf_counter()
            problems = Problems()
            made = prepare(
                read_documents(files, problems), root / "out", tokenizer_file, problems,
                validation_fraction=0.01, overwrite=True,
            )  # fmt: skip
            tokens = sum(split.tokens for split in made.manifest.splits.values())
            return tokens / (time.perf_counter() - started)

        def library(method: str) -> float:
            tokenizer = load_tokenizer(tokenizer_file)
            started = time.perf_counter()
            encoded = getattr(tokenizer, method)(texts, add_special_tokens=False)
            seconds = time.perf_counter() - started
            return (sum(len(e) for e in encoded) + len(texts)) / seconds

        measured = interleave(
            {
                "trainer.data prepare": ours,
                "tokenizers encode_batch": lambda: library("encode_batch"),
                "tokenizers encode_batch_fast": lambda: library("encode_batch_fast"),
            }
        )
    ratios = [ratio(measured, "trainer.data prepare", "tokenizers encode_batch", ">=", GOAL)]
    facts = {"documents": len(files), "characters": sum(map(len, texts)), "tokens": tokens}
    notes = f"byte-level BPE with {VOCABULARY} tokens trained on the corpus; encode_batch_fast is shown for comparison"
    holds = record(
        "tokenize", measured, ratios, unit="tokens/s", packages=("tokenizers", "numpy"), notes=notes, facts=facts
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
