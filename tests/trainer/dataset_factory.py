"""Small datasets for tests, written by the real preparation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trainer.data import TokenDataset, open_dataset
from trainer.data.documents import Piece, Problems
from trainer.data.manifest import DatasetManifest
from trainer.data.prepare import END_TOKENS, prepare


def byte_tokenizer(path: Path, extra_tokens: int = 0) -> Path:
    """A tokenizer whose tokens are the 256 bytes and an end token: ids can be checked by hand."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {f"<unused {n}>": 256 + n for n in range(extra_tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_TOKENS[0]])
    tokenizer.save(str(path))
    return path


def write_dataset(
    root: Path,
    documents: list[str | tuple[str, str]],
    *,
    shard_tokens: int = 1 << 20,
    validation_fraction: float = 0.0,
    extra_tokens: int = 0,
) -> DatasetManifest:
    """Prepares texts and (prompt, response) pairs into `root / "dataset"`."""
    tokenizer = byte_tokenizer(root / "tokenizer.json", extra_tokens)
    pieces = [Piece(d) if isinstance(d, str) else Piece(d[1], prompt=d[0]) for d in documents]
    return prepare(
        pieces,
        root / "dataset",
        tokenizer,
        Problems(),
        shard_tokens=shard_tokens,
        validation_fraction=validation_fraction,
        overwrite=True,
    ).manifest


def numbered_dataset(root: Path, tokens: int, *, shard_tokens: int = 700) -> TokenDataset:
    """A dataset of `tokens` random tokens in documents of uneven length and several shards."""
    random = np.random.default_rng(5)
    lengths: list[int] = []
    while sum(lengths) + len(lengths) < tokens:
        left = tokens - sum(lengths) - len(lengths)
        lengths.append(min(int(random.integers(1, 90)), left - 1) if left > 1 else 0)
    texts = ["".join(chr(c) for c in random.integers(97, 123, size)) for size in lengths]
    write_dataset(root, texts, shard_tokens=shard_tokens)
    dataset = open_dataset(root / "dataset", "train")
    assert dataset is not None
    assert dataset.num_tokens == tokens
    return dataset
