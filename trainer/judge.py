"""How a start of the workers ended, out of their status files: one verdict for the launcher, by fixed rules."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from blackwell.findings import FindingsError
from blackwell.verdict import FailureRecord, Verdict
from trainer.status import RankStatus

AGREED = (Verdict.COMPLETED, Verdict.STOPPED, Verdict.PLAN_ENDED)
"""Ends that all ranks decide together; their workers exit with 0."""

_BROKEN_LINK = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "nccl",
    "gloo",
    "tcpstore",
    "rendezvous",
    "timed out waiting",
)
_BROKEN_DISK = (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV)
_BROKEN_DEVICE = (
    "uncorrectable ecc",
    "hardware stack error",
    "unspecified launch failure",
    "nvlink",
    "device unavailable",
    "devices are busy",
    "driver shutting down",
    "fallen off the bus",
)


def classify(error: BaseException) -> tuple[Verdict, bool]:
    """(verdict, secondary) of an exception that ended a worker.

    `secondary` means that the rank failed because another one did: a collective broke under it.
    """
    from trainer.checkpoint.failure import RankLostError, StorageError
    from trainer.watch.memory import is_out_of_memory
    from trainer.watch.selfcheck import HardwareError

    if is_out_of_memory(error):
        return Verdict.OUT_OF_MEMORY, False
    if isinstance(error, FindingsError):
        return Verdict.USER_ERROR, False
    if isinstance(error, HardwareError | StorageError):
        return Verdict.HARDWARE, False
    if isinstance(error, OSError) and error.errno in _BROKEN_DISK:
        return Verdict.HARDWARE, False
    if isinstance(error, RankLostError) or is_broken_link(error):
        return Verdict.HARDWARE, True
    text = f"{type(error).__name__} {error}".lower()
    if any(sign in text for sign in _BROKEN_DEVICE):
        return Verdict.HARDWARE, False
    return Verdict.USER_ERROR, False


def is_broken_link(error: BaseException) -> bool:
    """Whether a collective failed because another rank, or the way to it, is gone."""
    text = str(error).lower()
    return type(error).__name__.startswith("Dist") or (
        isinstance(error, RuntimeError | OSError) and any(sign in text for sign in _BROKEN_LINK)
    )


def first_line(error: BaseException) -> str:
    """Type and first line of an error; findings speak for themselves."""
    text = (str(error).strip() or repr(error)).splitlines()[0]
    return text if isinstance(error, FindingsError) else f"{type(error).__name__}: {text}"


def judge(statuses: Iterable[RankStatus], ranks: Iterable[int], exit_codes: dict[int, int | None]) -> FailureRecord:
    """The record of one start.

    Args:
        statuses: what the ranks of this host said.
        ranks: the ranks that this host started.
        exit_codes: of their processes; None or a missing rank for one that had to be killed by the launcher.

    Returns:
        verdict COMPLETED, STOPPED or PLAN_ENDED where all ranks agreed on it, else the first failure that was not
        the consequence of another: a rank's own failure, then a rank that vanished without a word, then a broken link.
    """
    known = {status.rank: status for status in statuses}
    failed = [s for s in known.values() if s.verdict is not None and s.verdict not in AGREED]
    own = sorted((s for s in failed if not s.secondary), key=lambda s: s.time)
    if own:
        return _record(own[0])
    lost = [rank for rank in ranks if (s := known.get(rank)) is None or s.verdict is None]
    killed = [rank for rank in lost if (exit_codes.get(rank) or 0) < 0]
    if killed or (lost and not failed):
        rank = (killed or lost)[0]
        code = exit_codes.get(rank)
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        step = known[rank].step if rank in known else None
        unsaid = killed or rank in known
        verdict = Verdict.HARDWARE if unsaid else Verdict.USER_ERROR  # never started: a setting, not a lost GPU
        return FailureRecord(
            verdict=verdict, cause=f"rank {rank} {how} without an error of its own", step=step, rank=rank
        )
    if failed:
        return _record(min(failed, key=lambda s: s.time))
    ends = {s.verdict for s in known.values()}
    verdict = next(v for v in (Verdict.STOPPED, Verdict.PLAN_ENDED, Verdict.COMPLETED) if v in ends)
    return _record(next(s for s in known.values() if s.verdict is verdict))


def _record(status: RankStatus) -> FailureRecord:
    assert status.verdict is not None
    return FailureRecord(
        verdict=status.verdict, cause=status.cause, step=status.step, rank=status.rank, detail=status.detail
    )
