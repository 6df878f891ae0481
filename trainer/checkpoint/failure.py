"""Why saving or loading failed: something to mend, something that may work next time, or another rank that is gone.

Only the first ends the run. The other two are the machine's, and the job is started again from its newest checkpoint.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from enum import IntEnum

from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint.manifest import ManifestError
from trainer.judge import is_broken_link


class Cause(IntEnum):
    """Of several ranks' causes the lowest explains the others."""

    REFUSED = 0
    """The place takes nothing more, or the state itself cannot be saved or read: trying again would not help."""
    STORAGE = 1
    """Disk or S3 failed this time."""
    LINK = 2
    """A collective broke, because another rank was lost."""


class StorageError(RuntimeError):
    """Disk or S3 failed; the same may work on the next start."""


class RankLostError(RuntimeError):
    """Another rank was lost in a save."""


class WriteError(OSError):
    """A rank's file could not be written. Keeps its cause when it is sent to other ranks, which an errno does not."""

    def __init__(self, text: str, cause: Cause) -> None:
        super().__init__(text)
        self.cause = cause

    def __reduce__(self) -> tuple[type[WriteError], tuple[str, Cause]]:
        return WriteError, (str(self), self.cause)


class RankFailureError(RuntimeError):
    """One or more ranks failed; the text says which, and why."""

    def __init__(self, text: str, cause: Cause) -> None:
        super().__init__(text)
        self.cause = cause


_REFUSED = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
})  # fmt: skip
_S3_REFUSED = re.compile(
    r"access ?denied|forbidden|no ?such ?bucket|invalid ?access ?key|kms\.(disabled|notfound)", re.I
)


def cause_of(error: BaseException) -> Cause:
    """The cause of an exception that ended a save or a load, of whichever rank."""
    if isinstance(error, CheckpointException):
        return min(cause_of(inner) for inner, _ in error.failures.values())
    if isinstance(error, RankFailureError):
        return error.cause
    return Cause.LINK if is_broken_link(error) else local_cause(error)


def local_cause(error: BaseException) -> Cause:
    """The cause of an exception of this rank's own reading or writing; never LINK."""
    storage = False
    for link in _chain(error):
        if isinstance(link, WriteError):
            return link.cause
        if isinstance(link, ManifestError):
            return Cause.REFUSED
        if isinstance(link, OSError) and link.errno is not None:
            return Cause.REFUSED if link.errno in _REFUSED else Cause.STORAGE
        if type(link).__module__.partition(".")[0] in (
            "botocore",
            "boto3",
            "s3torchconnector",
            "s3torchconnectorclient",
        ):
            return Cause.REFUSED if _S3_REFUSED.search(str(link)) else Cause.STORAGE
        storage |= isinstance(link, OSError)
    return Cause.STORAGE if storage else Cause.REFUSED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
