"""Tokenizes a corpus into a dataset folder, in memory that does not grow with the corpus.

Documents are encoded in batches by the `tokenizers` library on all cores while the batch before is written and the
batch after is read. The text of a document can never produce a special token: its end token stands only at its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from blackwell.findings import Finding, FindingsError
from trainer.data.dataset import sha256_file
from trainer.data.documents import Piece, Problems
from trainer.data.manifest import DATASET_MANIFEST, DatasetManifest, Shard, SideFile, Split, TokenType, token_type

END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>", "<|eot_id|>")
"""Names under which a tokenizer's end-of-document token is looked for, in this order."""
SHARD_TOKENS = 1 << 28
TOKENIZER_FILE = "tokenizer.json"
SPLITS = ("train", "validation")

_BATCH_CHARACTERS = 4 << 20
_BATCH_DOCUMENTS = 4096


@dataclass(slots=True)
class Summary:
    """What `prepare` wrote."""

    manifest: DatasetManifest
    characters: int = 0
    problems: Problems = field(default_factory=Problems)


def load_tokenizer(path: Path) -> Any:
    """A Hugging Face tokenizer.json, set to encode text as text only.

    Raises:
        FindingsError: BTS-405 for a missing or unusable file.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        message = f"{path}: {error}"
        legal = "a Hugging Face tokenizer.json, or one from `python -m trainer.data train-tokenizer`"
        raise FindingsError([Finding(id="BTS-405", path="tokenizer", message=message, legal=legal)]) from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def end_token_id(tokenizer: Any, name: str | None = None) -> int:
    """Id of the token that ends a document.

    Raises:
        FindingsError: BTS-405 when there is none of that name, or none of the usual names.
    """
    for candidate in (name,) if name else END_TOKENS:
        found = tokenizer.token_to_id(candidate)
        if found is not None:
            return int(found)
    special = sorted(t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special)
    message = f"the tokenizer has no token {name!r}" if name else "no end-of-document token found, name it with --eos"
    legal = ", ".join(special[:20]) or "a tokenizer with a special token"
    raise FindingsError([Finding(id="BTS-405", path="eos", message=message, given=name, legal=f"one of: {legal}")])


def prepare(
    documents: Iterable[Piece],
    out: Path,
    tokenizer_file: Path,
    problems: Problems,
    *,
    eos: str | None = None,
    validation_fraction: float = 0.0,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    on_tokens: Callable[[int, int], None] = lambda tokens, documents: None,
) -> Summary:
    """Writes a dataset folder; its manifest last, so that a folder with a manifest is whole.

    Args:
        validation_fraction: share of the documents, chosen by a hash of their text, that goes to the validation split.
        shard_tokens: a shard is closed after the document that reaches this many tokens.
        on_tokens: told the tokens and documents written since the last call.

    Raises:
        FindingsError: BTS-405 for the tokenizer, BTS-406 for documents that cannot be read, BTS-404 when nothing is
            left to train on, BTS-008 for a folder that already holds a dataset, or that another process writes to.
        OSError: the folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _alone_in(out):
        return _prepare(
            documents, out, tokenizer_file, problems, eos, validation_fraction, shard_tokens, overwrite, on_tokens
        )


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Holds the folder against other processes; a killed one holds nothing. A refused one leaves no empty folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another process is writing a dataset into {folder}"
            raise FindingsError([Finding(id="BTS-008", path="out", message=message, legal="another folder")]) from None
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
    finally:
        os.close(descriptor)


def _prepare(
    documents: Iterable[Piece],
    out: Path,
    tokenizer_file: Path,
    problems: Problems,
    eos: str | None,
    validation_fraction: float,
    shard_tokens: int,
    overwrite: bool,
    on_tokens: Callable[[int, int], None],
) -> Summary:
    tokenizer = load_tokenizer(tokenizer_file)
    eos_id = end_token_id(tokenizer, eos)
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    if (out / DATASET_MANIFEST).exists():
        if not overwrite:
            raise FindingsError([Finding(
                id="BTS-008", path="out", message=f"{out} already holds a dataset", legal="another folder, or --overwrite"
            )])  # fmt: skip
        (out / DATASET_MANIFEST).unlink()
    for split in SPLITS:
        for stale in out.glob(f"{split}-*.bin"):
            stale.unlink()

    dtype = token_type(vocab_size)
    writers = {split: _SplitWriter(out, split, dtype, shard_tokens) for split in SPLITS}
    chooser = _SplitChooser(validation_fraction)
    characters = 0
    for pieces, encoded in _encode_ahead(tokenizer, documents):
        tokens = 0
        for piece, ids in zip(pieces, encoded, strict=True):
            writer = writers[chooser(piece)]
            tokens += writer.add(piece, ids, eos_id)
            characters += len(piece.text) + len(piece.prompt or "")
        on_tokens(tokens, sum(piece.last for piece in pieces))
    splits = {name: done for name, writer in writers.items() if (done := writer.close())}
    problems.raise_if_any()
    if "train" not in splits:
        message = "no training tokens: the inputs hold no text"
        raise FindingsError([Finding(id="BTS-404", path="inputs", message=message)])
    if tokenizer_file.resolve() != (out / TOKENIZER_FILE).resolve():
        shutil.copyfile(tokenizer_file, out / TOKENIZER_FILE)
    manifest = DatasetManifest(
        vocab_size=vocab_size, dtype=dtype, eos_id=eos_id, tokenizer=TOKENIZER_FILE,
        tokenizer_sha256=sha256_file(out / TOKENIZER_FILE), splits=splits,
    )  # fmt: skip
    unfinished = out / f"{DATASET_MANIFEST}.tmp"
    unfinished.write_text(manifest.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")
    unfinished.replace(out / DATASET_MANIFEST)
    return Summary(manifest, characters, problems)


def _batches(documents: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in documents:
        batch.append(piece)
        size += len(piece.text) + len(piece.prompt or "")
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


Ids = tuple[list[int], list[int]]
"""Token ids of a piece's prompt (empty without one) and of its text."""


def _encode_ahead(tokenizer: Any, documents: Iterable[Piece]) -> Iterator[tuple[list[Piece], list[Ids]]]:
    """Encodes one batch in a thread (the library lets the interpreter go meanwhile) while the caller has another."""

    def encode(pieces: list[Piece]) -> list[Ids]:
        texts: list[str] = []
        for piece in pieces:
            texts += [piece.text] if piece.prompt is None else [piece.prompt, piece.text]
        encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return [([] if piece.prompt is None else next(encodings).ids, next(encodings).ids) for piece in pieces]

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize") as pool:
        running: tuple[list[Piece], Future[list[Ids]]] | None = None
        for pieces in _batches(documents):
            following = (pieces, pool.submit(encode, pieces))
            if running is not None:
                yield running[0], running[1].result()
            running = following
        if running is not None:
            yield running[0], running[1].result()


class _SplitChooser:
    """The split of a document by a hash of its text: the same for every order of the inputs, equal texts together."""

    def __init__(self, validation_fraction: float) -> None:
        self._limit = int(validation_fraction * 2**64)
        self._split = SPLITS[0]

    def __call__(self, piece: Piece) -> str:
        if piece.first:
            text = piece.text if piece.prompt is None else f"{piece.prompt}\0{piece.text}"
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            self._split = SPLITS[int.from_bytes(digest, "big") < self._limit]
        return self._split


class _HashedFile:
    """A file whose SHA-256 is known when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("wb")
        self._digest = hashlib.sha256()

    def write(self, values: np.ndarray[Any, Any]) -> None:
        data = values.tobytes()
        self._file.write(data)
        self._digest.update(data)

    def close(self) -> str:
        self._file.close()
        return self._digest.hexdigest()


class _ShardWriter:
    def __init__(self, out: Path, name: str, dtype: TokenType, masked: bool) -> None:
        self._out, self.name = out, name
        self._dtype = np.dtype("<u2" if dtype == "uint16" else "<u4")
        self._file = _HashedFile(out / f"{name}.bin")
        self._index = _HashedFile(out / f"{name}.documents.bin")
        self._mask = _HashedFile(out / f"{name}.mask.bin") if masked else None
        self.tokens = 0
        self.documents = 0

    def write(self, prompt: list[int], ids: list[int], first: bool) -> None:
        if first:
            self._index.write(np.array([self.tokens], dtype="<u8"))
            self.documents += 1
        values = np.array(prompt + ids if prompt else ids, dtype=self._dtype)
        self._file.write(values)
        if self._mask is not None:
            mask = np.ones(len(values), dtype=np.uint8)
            mask[: len(prompt)] = 0
            self._mask.write(mask)
        self.tokens += len(values)

    def start_mask(self) -> None:
        """From now on some tokens are not to be predicted; all before were."""
        if self._mask is None:
            self._mask = _HashedFile(self._out / f"{self.name}.mask.bin")
            for start in range(0, self.tokens, 1 << 20):
                self._mask.write(np.ones(min(1 << 20, self.tokens - start), dtype=np.uint8))

    def close(self) -> Shard:
        mask = self._mask
        return Shard(
            file=self._file.path.name, tokens=self.tokens, sha256=self._file.close(),
            documents=SideFile(file=self._index.path.name, count=self.documents, sha256=self._index.close()),
            loss_mask=SideFile(file=mask.path.name, count=self.tokens, sha256=mask.close()) if mask else None,
        )  # fmt: skip


class _SplitWriter:
    def __init__(self, out: Path, split: str, dtype: TokenType, shard_tokens: int) -> None:
        self._out, self._split, self._dtype, self._limit = out, split, dtype, shard_tokens
        self._shards: list[Shard] = []
        self._current: _ShardWriter | None = None
        self._masked = False

    def add(self, piece: Piece, ids: Ids, eos_id: int) -> int:
        """Writes a piece, with the end token after a document's last one; tokens written."""
        if piece.prompt is not None and not self._masked:
            self._start_mask()
        if self._current is None:
            name = f"{self._split}-{len(self._shards):05d}"
            self._current = _ShardWriter(self._out, name, self._dtype, self._masked)
        prompt, text = ids
        if piece.last:
            text = [*text, eos_id]
        self._current.write(prompt, text, piece.first)
        if piece.last and self._current.tokens >= self._limit:
            self._shards.append(self._current.close())
            self._current = None
        return len(prompt) + len(text)

    def _start_mask(self) -> None:
        self._masked = True
        if self._current is not None:
            self._current.start_mask()
        for number, shard in enumerate(self._shards):
            mask = _HashedFile(self._out / f"{Path(shard.file).stem}.mask.bin")
            for start in range(0, shard.tokens, 1 << 20):
                mask.write(np.ones(min(1 << 20, shard.tokens - start), dtype=np.uint8))
            entry = SideFile(file=mask.path.name, count=shard.tokens, sha256=mask.close())
            self._shards[number] = shard.model_copy(update={"loss_mask": entry})

    def close(self) -> Split | None:
        """The finished split; None when it has no document."""
        if self._current is not None:
            self._shards.append(self._current.close())
            self._current = None
        if not self._shards:
            return None
        tokens = sum(shard.tokens for shard in self._shards)
        return Split(tokens=tokens, documents=sum(s.documents.count for s in self._shards), shards=self._shards)


def train_tokenizer(documents: Iterable[Piece], vocab_size: int, out: Path, problems: Problems) -> int:
    """Trains a byte-level BPE tokenizer with END_TOKENS[0] as its only special token; its real vocabulary size.

    Raises:
        FindingsError: BTS-405 for a vocabulary below the 256 bytes and the end token, BTS-406 as `prepare`.
    """
    smallest = 256 + 1
    if vocab_size < smallest:
        raise FindingsError([Finding(
            id="BTS-405", path="vocab_size", message="a byte-level vocabulary holds all bytes and the end token",
            given=vocab_size, legal=f">= {smallest}", nearest=smallest,
        )])  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_TOKENS[0]], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    texts = (text for piece in documents for text in (piece.prompt, piece.text) if text)
    tokenizer.train_from_iterator(texts, trainer)
    problems.raise_if_any()
    out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out))
    return int(tokenizer.get_vocab_size(with_added_tokens=True))
