"""Writing one checkpoint: PyTorch's DCP writer, with a SHA-256 of every file taken while it is written."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemBase, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer import s3
from trainer.checkpoint.group import describe
from trainer.checkpoint.manifest import FileEntry

_PARALLEL_BYTES = 256 << 10
"""Writes of this size and above are hashed on a second thread while they are written."""
_S3_PART_BYTES = 32 << 20
"""S3 takes 10,000 parts an object: 320 GB a rank."""


class HashingStream(io.RawIOBase):
    """A write-only stream that hashes what passes. The hash of a large write overlaps with the write itself."""

    def __init__(self, raw: Any, helper: ThreadPoolExecutor) -> None:
        self._raw, self._helper = raw, helper
        self._digest = hashlib.sha256()
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if view.nbytes >= _PARALLEL_BYTES:
            # The memory is the caller's again after we return, so wait for both.
            hashing = self._helper.submit(self._digest.update, view)
            try:
                self._write_all(view)
            finally:
                hashing.result()
        else:
            self._digest.update(view)
            self._write_all(view)
        self._position += view.nbytes
        return view.nbytes

    def _write_all(self, view: memoryview) -> None:
        while view:
            written = self._raw.write(view)
            view = view[view.nbytes if written is None else written :]

    def tell(self) -> int:
        return self._position

    @property
    def entry(self) -> FileEntry:
        return FileEntry(bytes=self._position, sha256=self._digest.hexdigest())


class HashingFileSystem(FileSystemBase):
    """DCP's view of a local disk or of S3; knows the entry of every file written through it."""

    def __init__(self, inner: FileSystemBase, *, fsync: bool) -> None:
        self._inner, self._fsync = inner, fsync
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with ThreadPoolExecutor(1, "checkpoint-hash") as helper, self._inner.create_stream(path, mode) as raw:
            stream = HashingStream(raw, helper)
            yield stream
            if self._fsync:
                raw.flush()
                os.fsync(raw.fileno())
        self.entries[Path(path).name] = stream.entry

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
        except OSError:
            raise
        except Exception as error:  # PyTorch's serializer hides the disk's error behind its own
            raise OSError(describe(error)) from error

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _s3_file_system() -> FileSystemBase:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3FileSystem

    config = S3ClientConfig(part_size=_S3_PART_BYTES, force_path_style=s3.custom_endpoint())
    return S3FileSystem(s3.region(), s3client_config=config)
