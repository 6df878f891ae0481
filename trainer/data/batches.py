"""Batches from a token dataset. The whole state of the data is one integer: sequences consumed by all ranks.

Sample j of an epoch predicts tokens j*L+1 .. (j+1)*L from the tokens before them (L = seq_length), so every token of
the split but its first is a label exactly once per epoch; the last sample is padded, its padding has no label. The
global batch at a position is the same set of samples for any number of ranks, micro batch size and accumulation.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blackwell.findings import Finding, FindingsError
from trainer.data.dataset import TokenDataset
from trainer.data.order import Indices, SampleOrder

IGNORED = -100
"""Label without loss; torch.nn.functional.cross_entropy's ignore_index."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro batch of one rank. M = micro batch size, L = sequence length.

    Inputs and labels may be overlapping views of the same memory: read them, do not write to them.
    """

    inputs: torch.Tensor
    """int64 [M, L] token ids."""
    labels: torch.Tensor
    """int64 [M, L]: the next token, IGNORED where there is no loss."""
    positions: torch.Tensor | None = None
    """int64 [M, L]: position within the document. Only with document_mask."""
    doc_ids: torch.Tensor | None = None
    """int64 [M, L]: number of the document within the row, from 0. Only with document_mask."""
    cu_seqlens: torch.Tensor | None = None
    """int32 [documents + 1]: document borders in the flattened M*L tokens. Only with document_mask."""
    max_seqlen: int | None = None
    """Longest document piece, in tokens. Only with document_mask."""

    @property
    def num_labels(self) -> int:
        """Labels that have a loss."""
        return int((self.labels != IGNORED).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; copies from pinned memory do not block."""

        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        inputs, labels = self.inputs.to(device, non_blocking=True), self.labels.to(device, non_blocking=True)
        return Batch(inputs, labels, move(self.positions), move(self.doc_ids), move(self.cu_seqlens), self.max_seqlen)

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory."""

        def pin(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.pin_memory()

        inputs, labels = self.inputs.pin_memory(), self.labels.pin_memory()
        return Batch(inputs, labels, pin(self.positions), pin(self.doc_ids), pin(self.cu_seqlens), self.max_seqlen)


class BatchSource:
    """Cuts batches out of a dataset.

    Args:
        dataset: the split to read.
        seq_length: tokens per sequence.
        global_batch_size: sequences per optimizer step over all ranks.
        seed: chooses the order.
        document_mask: also give document borders, and no loss on the first token after a border.

    Raises:
        FindingsError: BTS-404 when the split is shorter than one sequence.
    """

    def __init__(
        self, dataset: TokenDataset, seq_length: int, global_batch_size: int, seed: int, document_mask: bool = False
    ) -> None:
        dataset.check(vocab_size=dataset.vocab_size, seq_length=seq_length)
        self.dataset = dataset
        self.seq_length = seq_length
        self.global_batch_size = global_batch_size
        self.document_mask = document_mask
        self.sequences = dataset.sequences(seq_length)
        """Sequences per epoch."""
        self._order = SampleOrder(seed, self.sequences)

    def indices(self, position: int, count: int) -> Indices:
        """Sample numbers (0 .. sequences-1) of `count` consecutive positions."""
        return self._order.indices(position, count)

    def order_hash(self, position: int) -> str:
        """16 hex digits over the sample numbers of the global batch at `position`; a function of (seed, position)."""
        indices = self._order.indices(position, self.global_batch_size)
        return hashlib.blake2b(indices.astype("<i8").tobytes(), digest_size=8).hexdigest()

    def fingerprint(self) -> dict[str, Any]:
        """What a position means: keep it in the checkpoint and give it to `check_fingerprint` on resume."""
        return {
            "content": self.dataset.fingerprint,
            "sequences": self.sequences,
            "seq_length": self.seq_length,
            "seed": self._order.seed,
        }

    def check_fingerprint(self, saved: dict[str, Any]) -> None:
        """Whether a saved position still means the same data.

        Raises:
            FindingsError: BTS-407, one finding for each thing that differs.
        """
        paths = {"content": "data", "seq_length": "training.seq_length", "seed": "training.seed", "sequences": "data"}
        findings = [
            Finding(id="BTS-407", path=paths[key], message=f"{key} differs from the checkpoint's", given=value,
                    legal=f"{saved.get(key)!r}, as in the checkpoint")
            for key, value in self.fingerprint().items() if saved.get(key) != value
        ]  # fmt: skip
        if findings:
            raise FindingsError(findings)

    def micro_batches(self, world_size: int, micro_batch_size: int) -> int:
        """Micro batches per rank and step (gradient accumulation).

        Raises:
            FindingsError: BTS-111 when the global batch cannot be divided evenly.
        """
        per_round = world_size * micro_batch_size
        if self.global_batch_size % per_round:
            nearest = max(1, round(self.global_batch_size / per_round)) * per_round
            raise FindingsError([Finding(
                id="BTS-111", path="training.global_batch_size",
                message=f"{world_size} ranks x micro_batch_size {micro_batch_size} must divide it",
                given=self.global_batch_size, legal=f"a multiple of {per_round}", nearest=nearest,
            )])  # fmt: skip
        return self.global_batch_size // per_round

    def batch(self, position: int, rank: int, world_size: int, micro_batch_size: int, micro_index: int) -> Batch:
        """Micro batch `micro_index` (from 0) of the global batch that starts at `position`, this rank's part.

        Args:
            position: sequences consumed before this global batch, over all ranks.
        """
        count = self.micro_batches(world_size, micro_batch_size)
        if not 0 <= micro_index < count or not 0 <= rank < world_size:
            raise IndexError(f"micro batch {micro_index} of {count}, rank {rank} of {world_size}")
        first = position + (micro_index * world_size + rank) * micro_batch_size
        return self._rows(self._order.indices(first, micro_batch_size))

    def _rows(self, samples: Indices) -> Batch:
        length, dataset = self.seq_length, self.dataset
        rows, short = dataset.rows(samples, length)
        # Converted all at once, for inputs and labels together: nothing else here costs as much.
        tokens = rows.astype(np.int64)
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        if not (short or dataset.has_loss_mask or self.document_mask):
            return Batch(torch.from_numpy(inputs), torch.from_numpy(labels))
        labels = labels.copy()
        for row, known in short:
            labels[row, known:] = IGNORED
        if dataset.has_loss_mask:
            for row, sample in enumerate(samples.tolist()):
                mask = dataset.loss_mask(sample * length + 1, (sample + 1) * length + 1)
                labels[row, : len(mask)][mask == 0] = IGNORED
        if not self.document_mask:
            return Batch(torch.from_numpy(inputs), torch.from_numpy(labels))
        return _with_documents(inputs, labels, dataset.eos_id)

    def prefetch(
        self, position: int, rank: int, world_size: int, micro_batch_size: int, *, depth: int = 4, pin: bool = False
    ) -> Prefetcher:
        """Micro batches of this rank from `position` on, without end, made by a thread ahead of their use."""
        count = self.micro_batches(world_size, micro_batch_size)

        def produce() -> Iterator[Batch]:
            at = position
            while True:
                for micro in range(count):
                    batch = self.batch(at, rank, world_size, micro_batch_size, micro)
                    yield batch.pin_memory() if pin else batch
                at += self.global_batch_size

        return Prefetcher(produce(), depth)


def _with_documents(inputs: NDArray[np.int64], labels: NDArray[np.int64], eos_id: int) -> Batch:
    """Adds document borders. A document ends with its EOS; after it nothing of the next one can be predicted."""
    rows, length = inputs.shape
    ends = inputs == eos_id
    labels[ends] = IGNORED
    starts = np.zeros_like(ends)
    starts[:, 0] = True
    starts[:, 1:] = ends[:, :-1]
    column = np.broadcast_to(np.arange(length), (rows, length))
    positions = column - np.maximum.accumulate(np.where(starts, column, 0), axis=1)
    borders = np.concatenate([np.flatnonzero(starts), [rows * length]]).astype(np.int32)
    return Batch(
        torch.from_numpy(inputs),
        torch.from_numpy(labels),
        torch.from_numpy(positions),
        torch.from_numpy(np.cumsum(starts, axis=1) - 1),
        torch.from_numpy(borders),
        int(np.diff(borders).max()),
    )


class Prefetcher:
    """A thread that keeps `depth` batches ready, and a count of the seconds that the trainer waited for them."""

    def __init__(self, batches: Iterator[Batch], depth: int) -> None:
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=depth)
        self._closed = threading.Event()
        self._waited = 0.0
        self._thread = threading.Thread(target=self._work, args=(batches,), name="data-prefetch", daemon=True)
        self._thread.start()

    def _work(self, batches: Iterator[Batch]) -> None:
        try:
            for batch in batches:
                if not self._put(batch):
                    return
        except BaseException as error:  # the trainer's thread raises it; nothing may die here unseen
            self._put(error)

    def _put(self, item: Batch | BaseException) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def get(self, should_stop: Callable[[], bool] | None = None) -> Batch | None:
        """The next micro batch; None when `should_stop` (asked several times a second) became true while waiting.

        Raises:
            Exception: whatever reading the data raised.
        """
        started = time.perf_counter()
        try:
            while True:
                try:
                    item = self._ready.get(timeout=0.2)
                except queue.Empty:
                    if should_stop is not None and should_stop():
                        return None
                    continue
                if isinstance(item, BaseException):
                    raise item
                return item
        finally:
            self._waited += time.perf_counter() - started

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> Batch:
        batch = self.get()
        assert batch is not None  # only should_stop makes it None
        return batch

    def take_wait_seconds(self) -> float:
        """Seconds that `get` took since this was asked last."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join(timeout=5)
