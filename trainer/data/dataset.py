"""A prepared dataset folder, opened for reading: tokens of one split as if they were one long array.

Works on SageMaker's File channels (a local download, memory-mapped) and on FastFile channels (a read-only FUSE mount
that streams from S3, with plain positioned reads): every read is one contiguous range of one sequence. Under a memory
map a failing mount would kill the process without a word; a positioned read raises an OSError.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blackwell.findings import Finding, FindingsError
from trainer.data.manifest import DATASET_MANIFEST, DatasetManifest, read_manifest

_HASH_CHUNK = 8 << 20


class _Column:
    """Files of one fixed-size element type, joined end to end."""

    def __init__(self, paths: list[Path], counts: list[int], dtype: np.dtype[Any], mapped: bool) -> None:
        self._dtype = dtype
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._single = len(paths) == 1
        self._maps: list[NDArray[Any]] = []
        self._windows: NDArray[Any] = np.empty((0, 0), dtype)
        self._files: list[int] = []
        try:
            if not mapped:
                raise OSError("positioned reads were asked for")
            # np.memmap keeps per-slice bookkeeping; a plain array over the same map is several times faster to cut.
            self._maps = [np.asarray(np.memmap(path, dtype=self._dtype, mode="r")) for path in paths]
        except OSError:
            self._maps = []
            self._files = [os.open(path, os.O_RDONLY) for path in paths]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Elements start .. stop-1, fewer at the end; a view where the range lies in one mapped file."""
        if self._single and self._maps:
            return self._maps[0][start:stop]
        stop = min(stop, int(self._starts[-1]))
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        while start < stop:
            base, end = int(self._starts[first]), int(self._starts[first + 1])
            pieces.append(self._piece(first, start - base, min(stop, end) - base))
            start, first = min(stop, end), first + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def gather(self, starts: NDArray[np.int64], width: int) -> NDArray[Any]:
        """[len(starts), width]: the elements from each start on. No range may reach beyond the end."""
        if self._single and self._maps:  # one call for all rows: twice as fast as one for each
            if self._windows.shape[1] != width:
                file = self._maps[0]
                step = file.strides[0]
                self._windows = np.lib.stride_tricks.as_strided(file, (len(file) - width + 1, width), (step, step))
            return np.asarray(self._windows[starts])
        rows = np.empty((len(starts), width), dtype=self._dtype)
        for row, start in enumerate(starts.tolist()):
            rows[row] = self.read(start, start + width)
        return rows

    def _piece(self, index: int, start: int, stop: int) -> NDArray[Any]:
        if self._maps:
            return self._maps[index][start:stop]
        size = self._dtype.itemsize
        wanted, parts, at = (stop - start) * size, [], start * size
        while wanted:
            part = os.pread(self._files[index], wanted, at)
            if not part:
                raise OSError(f"dataset file {index} ended at byte {at}, {wanted} bytes early")
            parts.append(part)
            at, wanted = at + len(part), wanted - len(part)
        return np.frombuffer(b"".join(parts), dtype=self._dtype)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files, self._maps, self._windows = [], [], np.empty((0, 0), self._dtype)


class TokenDataset:
    """One split of a dataset folder.

    Raises:
        FindingsError: BTS-402 when a file is missing or has another size than the manifest says.
    """

    def __init__(self, root: Path, manifest: DatasetManifest, split: str, *, mapped: bool = True) -> None:
        self.root = root
        self.split = split
        self.manifest = manifest
        self.vocab_size = manifest.vocab_size
        self.eos_id = manifest.eos_id
        self.num_tokens = manifest.splits[split].tokens
        self.num_documents = manifest.splits[split].documents
        self.fingerprint = manifest.fingerprint(split)
        """16 hex digits over the content; the same for every copy of the dataset."""
        _check_sizes(root, manifest, split)
        shards = manifest.splits[split].shards
        counts = [shard.tokens for shard in shards]
        self.dtype: np.dtype[Any] = np.dtype("<u2" if manifest.dtype == "uint16" else "<u4")
        """Type of the stored tokens."""
        self._tokens = _Column([root / shard.file for shard in shards], counts, self.dtype, mapped)
        masks = [root / shard.loss_mask.file for shard in shards if shard.loss_mask]
        self._mask = _Column(masks, counts, np.dtype("u1"), mapped) if masks else None

    @property
    def has_loss_mask(self) -> bool:
        """True when only some tokens are to be predicted (prompt and response data)."""
        return self._mask is not None

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens start .. stop-1 of the split, as stored (uint16 or uint32); fewer at its end."""
        return self._tokens.read(start, stop)

    def rows(self, samples: NDArray[np.int64], seq_length: int) -> tuple[NDArray[Any], list[tuple[int, int]]]:
        """The tokens of samples and of their labels, as stored: [len(samples), seq_length + 1].

        Also (row, labels known) of rows that the end of the split cuts short, filled up with end tokens.
        """
        starts = samples * seq_length
        if max(starts.tolist()) + seq_length < self.num_tokens:
            return self._tokens.gather(starts, seq_length + 1), []
        rows = np.full((len(samples), seq_length + 1), self.eos_id, dtype=self.dtype)
        short = []
        for row, start in enumerate(starts.tolist()):
            tokens = self.tokens(start, start + seq_length + 1)
            rows[row, : len(tokens)] = tokens
            if len(tokens) <= seq_length:
                short.append((row, len(tokens) - 1))
        return rows, short

    def loss_mask(self, start: int, stop: int) -> NDArray[Any]:
        """uint8, 1 where the token is to be predicted. Only where `has_loss_mask`."""
        if self._mask is None:
            return np.ones(min(stop, self.num_tokens) - start, dtype=np.uint8)
        return self._mask.read(start, stop)

    def documents(self) -> NDArray[np.int64]:
        """Start of every document, in tokens from the start of the split; reads the whole index."""
        starts, base = [], 0
        for shard in self.manifest.splits[self.split].shards:
            starts.append(np.fromfile(self.root / shard.documents.file, dtype="<u8").astype(np.int64) + base)
            base += shard.tokens
        return np.concatenate(starts)

    def sequences(self, seq_length: int) -> int:
        """Samples per epoch: every token but the first is predicted once, the last sample is padded."""
        return -(-(self.num_tokens - 1) // seq_length)

    def check(self, *, vocab_size: int, seq_length: int) -> None:
        """Whether a model of this vocabulary can train on sequences of this length.

        Raises:
            FindingsError: BTS-403, BTS-404, both at once where both apply.
        """
        findings: list[Finding] = []
        if self.vocab_size > vocab_size:
            findings.append(Finding(
                id="BTS-403", path="model.vocab_size",
                message=f"the dataset's tokenizer has {self.vocab_size} tokens, the model's embedding fewer",
                given=vocab_size, legal=f">= {self.vocab_size}", nearest=self.vocab_size,
            ))  # fmt: skip
        if self.num_tokens < seq_length + 1:
            findings.append(Finding(
                id="BTS-404", path="training.seq_length",
                message=f"split {self.split!r} has {self.num_tokens} tokens, a sequence and its labels need {seq_length + 1}",
                given=seq_length, legal=f"<= {self.num_tokens - 1}", nearest=max(1, self.num_tokens - 1),
            ))  # fmt: skip
        if findings:
            raise FindingsError(findings)

    def verify(self) -> None:
        """Reads every file and compares its SHA-256 with the manifest.

        Raises:
            FindingsError: BTS-402, one finding per damaged file.
        """
        entries = self.manifest.files(self.split)
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            digests = list(pool.map(lambda entry: sha256_file(self.root / entry[0]), entries))
        findings = [
            Finding(id="BTS-402", path="data", message=f"{self.root / name} has other content than {DATASET_MANIFEST} says",
                    given=digest, legal=expected)
            for (name, _, expected), digest in zip(entries, digests, strict=True) if digest != expected
        ]  # fmt: skip
        if findings:
            raise FindingsError(findings)

    def close(self) -> None:
        """Releases the files; the dataset must not be read afterwards."""
        self._tokens.close()
        if self._mask is not None:
            self._mask.close()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_sizes(root: Path, manifest: DatasetManifest, split: str) -> None:
    findings: list[Finding] = []
    for name, size, _ in manifest.files(split):
        try:
            found = (root / name).stat().st_size
        except FileNotFoundError:
            findings.append(Finding(id="BTS-402", path="data", message=f"{root / name} is missing"))
            continue
        if found != size:
            findings.append(Finding(
                id="BTS-402", path="data", message=f"{root / name} is not whole", given=f"{found} bytes", legal=f"{size} bytes",
            ))  # fmt: skip
    if findings:
        raise FindingsError(findings)


def streams(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a path lies on a FUSE mount, as SageMaker's FastFile channels do."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    resolved = path.resolve()
    best, kind = -1, ""
    for fields in (line.split() for line in lines):
        if len(fields) > 2 and resolved.is_relative_to(point := fields[1].replace("\\040", " ")) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind == "fuse" or kind.startswith("fuse.")


def open_dataset(root: Path, split: str, *, mapped: bool | None = None) -> TokenDataset | None:
    """Opens a split of a dataset folder; None when the dataset has no such split.

    Args:
        root: the folder that holds manifest.json, such as /opt/ml/input/data/train.
        split: `train` or `validation`.
        mapped: memory-map the shards, or use positioned reads; None maps all but FUSE mounts.

    Raises:
        FindingsError: BTS-401 for a missing or unreadable manifest, BTS-402 for missing or truncated files, BTS-404
            for a dataset without a training split.
    """
    manifest = read_manifest(root)
    if split not in manifest.splits:
        if split == "train":
            raise FindingsError([Finding(id="BTS-404", path="data", message=f"{root} has no training tokens")])
        return None
    return TokenDataset(root, manifest, split, mapped=not streams(root) if mapped is None else mapped)
