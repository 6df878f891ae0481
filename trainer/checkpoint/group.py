"""Agreement between ranks: something is done by all, or fails for all with the same words."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint.failure import Cause, RankFailureError, local_cause
from trainer.hosts import ENV_HOST

T = TypeVar("T")

_TIMEOUT = timedelta(hours=2)
"""Longer than the slowest save: a rank may wait for another that is still uploading."""


class Group:
    """The ranks of one checkpoint store, on their own gloo group: never in the way of the training's collectives.

    Every method with a collective must be called by all ranks, and never by two threads of a rank at once.
    """

    def __init__(self, rank: int, world_size: int, process_group: dist.ProcessGroup | None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.distributed = dist.is_available() and dist.is_initialized()
        if self.distributed and process_group is None:
            process_group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self.process_group = process_group
        hosts = self.gather(os.environ.get(ENV_HOST) or socket.gethostname())
        self.hosts = len(set(hosts))
        self.ranks_of_host = frozenset(r for r, host in enumerate(hosts) if host == hosts[rank])
        self.host_leader = int(os.environ.get("LOCAL_RANK", hosts[:rank].count(hosts[rank]))) == 0
        """True for one rank of every host."""

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank, by rank."""
        if not self.distributed:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.process_group)
        return values

    def agree(self, action: Callable[[], T]) -> list[T]:
        """Runs `action` on every rank; every rank's result, on every rank.

        Raises:
            RankFailureError: on all ranks, when the action failed on any.
        """
        result: T | None = None
        failure: tuple[str, Cause] | None = None
        try:
            result = action()
        except (Exception, CheckpointException) as error:
            failure = describe(error), local_cause(error)
        gathered = self.gather((result, failure))
        failures = {rank: failed for rank, (_, failed) in enumerate(gathered) if failed is not None}
        if failures:
            texts = {rank: text for rank, (text, _) in failures.items()}
            raise RankFailureError(by_rank(texts), min(cause for _, cause in failures.values()))
        return [value for value, _ in gathered]  # type: ignore[misc]

    def from_first(self, action: Callable[[], T]) -> T:
        """Runs `action` on rank 0; its result, on every rank. Raises as `agree`."""
        return self.agree(lambda: action() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        self.gather(None)


def by_rank(failures: dict[int, str]) -> str:
    """One line for the failures of several ranks; equal ones are said once."""
    texts = list(dict.fromkeys(failures.values()))
    if not (dist.is_available() and dist.is_initialized()):
        return texts[0]
    said = [f"rank {next(r for r, t in failures.items() if t == text)}: {text}" for text in texts[:3]]
    return "; ".join(said) + (f" (and {len(texts) - 3} more)" if len(texts) > 3 else "")


def describe(error: BaseException) -> str:
    """The cause of a failure in one line, out of PyTorch's wrappers and chains of exceptions."""
    if isinstance(error, CheckpointException):
        return by_rank({rank: describe(inner) for rank, (inner, _) in error.failures.items()})
    inner: BaseException = error
    while not isinstance(inner, OSError) and (inner.__cause__ or inner.__context__):
        inner = inner.__cause__ or inner.__context__  # type: ignore[assignment]
    chosen = inner if isinstance(inner, OSError) else error
    text = (str(chosen).strip() or repr(chosen)).splitlines()[0]
    return text if isinstance(chosen, (OSError, RankFailureError)) else f"{type(chosen).__name__}: {text}"
