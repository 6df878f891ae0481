"""Where a rank's micro batches come from: token data, or random input for workload `layers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trainer.data import Batch, BatchSource, Prefetcher
from trainer.rng import generator
from trainer.settings import Job


class StepData(NamedTuple):
    """One step's input of one rank."""

    batches: Sequence[Batch | Tensor]
    """Micro batches on the device."""
    labels: int
    """Tokens that have a loss."""


class Feed(Protocol):
    """Gives the micro batches of one step after another."""

    def next(self, should_stop: Callable[[], bool]) -> StepData | None:
        """All micro batches of the next step for this rank; None when told to stop while waiting."""
        ...

    def take_wait_seconds(self) -> float: ...

    def order_hash(self, position: int) -> str | None: ...

    def close(self) -> None: ...


class TokenFeed:
    """Reads a BatchSource ahead on a thread."""

    def __init__(self, source: BatchSource, job: Job, rank: int, position: int, device: torch.device) -> None:
        self._source, self._count, self._device = source, job.accumulation, device
        on_gpu = device.type == "cuda"
        self._batches: Prefetcher = source.prefetch(
            position, rank, job.world_size, job.micro_batch_size, depth=2 * job.accumulation, pin=on_gpu
        )

    def next(self, should_stop: Callable[[], bool]) -> StepData | None:
        step: list[Batch] = []
        labels = 0
        while len(step) < self._count:
            batch = self._batches.get(should_stop)
            if batch is None:
                return None
            labels += batch.num_labels  # before the copy to the device, which must not be waited for
            step.append(batch.to(self._device))
        return StepData(step, labels)

    def take_wait_seconds(self) -> float:
        return self._batches.take_wait_seconds()

    def order_hash(self, position: int) -> str | None:
        return self._source.order_hash(position)

    def close(self) -> None:
        self._batches.close()


class RandomFeed:
    """Workload `layers`: one random input [micro batch, seq, hidden] per rank, used again and again.

    Transformer Engine's example draws a new one each step inside the time it measures; the timing here is the layers'.
    """

    def __init__(self, job: Job, rank: int, device: torch.device, dtype: torch.dtype) -> None:
        size = (job.micro_batch_size, job.seq_length, job.shape.hidden_size)
        values = torch.rand(size, generator=generator(job.training.seed, "input", rank))
        tokens = job.micro_batch_size * job.seq_length * job.accumulation
        self._step = StepData([values.to(device, dtype)] * job.accumulation, tokens)

    def next(self, should_stop: Callable[[], bool]) -> StepData | None:
        return None if should_stop() else self._step

    def take_wait_seconds(self) -> float:
        return 0.0

    def order_hash(self, position: int) -> str | None:
        return None

    def close(self) -> None:
        return
