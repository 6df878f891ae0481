"""Writing one checkpoint: PyTorch's DCP writer, with a SHA-256 of every file taken while it is written."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemBase, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer import s3
from trainer.checkpoint.failure import WriteError, local_cause
from trainer.checkpoint.group import describe
from trainer.checkpoint.manifest import FileEntry

_CHUNK_BYTES = 8 << 20
"""Bytes hashed at once. Large, because every piece costs two turns of the interpreter lock."""
RANK_FILE = re.compile(r"^__(\d+)_")
"""A data file, by its name; the group is the rank that wrote it."""
_S3_PART_BYTES = 32 << 20
"""S3 takes 10,000 parts an object: 320 GB a rank."""


class Hasher(Protocol):
    """Takes the SHA-256 of what is written to one stream."""

    def took(self, data: memoryview) -> None:
        """`data` was handed to the raw stream."""

    def end(self) -> None:
        """Nothing more will come."""

    def digest(self) -> str:
        """Waits for the digest of everything, in hexadecimal digits. Call `end` before."""

    def abandon(self) -> None:
        """No digest is wanted any more."""


class InlineHasher:
    """Hashes in the writing thread: for streams that cannot be read back."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def took(self, data: memoryview) -> None:
        self._digest.update(data)

    def end(self) -> None:
        pass

    def digest(self) -> str:
        return self._digest.hexdigest()

    def abandon(self) -> None:
        pass


class FollowingHasher:
    """Reads a file behind its writer, out of the page cache, on a thread of its own.

    Hashing so overlaps with writing and with waiting for the disk, and the writing thread does nothing for it.
    """

    def __init__(self, raw: Any, path: Path) -> None:
        self._raw, self._path = raw, path
        self._digest = hashlib.sha256()
        self._taken = 0
        self._available: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._announced = 0
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._follow, name="checkpoint-hash", daemon=True)
        self._thread.start()

    def took(self, data: memoryview) -> None:
        self._taken += data.nbytes
        if self._taken - self._announced >= _CHUNK_BYTES:
            self._announce()

    def _announce(self) -> None:
        self._raw.flush()
        self._announced = self._taken
        self._available.put(self._taken)

    def end(self) -> None:
        self._announce()
        self._available.put(None)

    def digest(self) -> str:
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._digest.hexdigest()

    def abandon(self) -> None:
        self._available.put(None)
        self._thread.join()

    def _follow(self) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        hashed = 0
        try:
            with self._path.open("rb", buffering=0) as file:
                while (end := self._available.get()) is not None:
                    while hashed < end:
                        count = file.readinto(buffer[: min(_CHUNK_BYTES, end - hashed)])
                        if not count:
                            raise OSError(f"{self._path} was cut to {hashed} bytes while it was written")
                        self._digest.update(buffer[:count])
                        hashed += count
        except OSError as error:
            self._failure = error


class HashingStream(io.RawIOBase):
    """A write-only stream over a raw one that counts bytes and shows them to a hasher."""

    def __init__(self, raw: Any, hasher: Hasher) -> None:
        self._raw, self._hasher = raw, hasher
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        rest = view
        while rest:
            written = self._raw.write(rest)
            rest = rest[rest.nbytes if written is None else written :]
        self._position += view.nbytes
        self._hasher.took(view)
        return view.nbytes

    def tell(self) -> int:
        return self._position


class HashingFileSystem(FileSystemBase):
    """DCP's view of a local disk or of S3; knows the entry of every file written through it."""

    def __init__(self, inner: FileSystemBase, *, fsync: bool) -> None:
        self._inner, self._fsync = inner, fsync
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with self._inner.create_stream(path, mode) as raw:
            hasher: Hasher = FollowingHasher(raw, Path(path)) if self._fsync else InlineHasher()
            stream = HashingStream(raw, hasher)
            try:
                yield stream
                hasher.end()
                if self._fsync:
                    os.fsync(raw.fileno())
                digest = hasher.digest()
            finally:
                hasher.abandon()
        self.entries[Path(path).name] = FileEntry(bytes=stream.tell(), sha256=digest)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._inner.rename(path, new_path)
        self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str | os.PathLike[str]:
        return self._inner.concat_path(path, suffix)

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        return self._inner.init_path(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        self._inner.mkdir(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._inner.exists(path)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._inner.rm_file(path)


@dataclasses.dataclass
class FilePrefix:
    """How a rank's files begin; DCP adds a number and `.distcp`."""

    prefix: str


class CheckpointWriter(FileSystemWriter):
    """Writes one rank's part of a checkpoint to a local folder or straight to S3.

    File names hold a mark that is new for every save: when a step is saved a second time (a run that went back), no
    file of the first save can be taken for one of the second, neither by its name nor by its size.
    """

    def __init__(self, place: Path | str) -> None:
        """`place` is a local folder, or the S3 URI of one."""
        local = isinstance(place, Path)
        super().__init__(place, sync_files=False)  # HashingFileSystem syncs, and only what can be synced
        self.hashing = HashingFileSystem(FileSystem() if local else _s3_file_system(), fsync=local)
        self.fs = self.hashing  # type: ignore[assignment]
        self.path = self.hashing.init_path(place)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        mark = os.urandom(4).hex()
        return [
            dataclasses.replace(plan, storage_data=FilePrefix(f"__{rank}_{mark}_")) for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:  # PyTorch's serializer hides the disk's error behind its own
            raise WriteError(describe(error), local_cause(error)) from error

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _s3_file_system() -> FileSystemBase:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3FileSystem

    config = S3ClientConfig(part_size=_S3_PART_BYTES, force_path_style=s3.custom_endpoint())
    return S3FileSystem(s3.region(), s3client_config=config)
