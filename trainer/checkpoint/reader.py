"""Reading one checkpoint: nothing is read that was not verified, nothing is fetched that is not needed."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan

from trainer.checkpoint.manifest import Manifest, ManifestError, verify_file
from trainer.s3 import S3Folder

_WORKERS = 4


class CheckpointFiles:
    """The files of one checkpoint: a local folder first, then S3 (downloaded to a scratch folder of this host)."""

    def __init__(self, manifest: Manifest, local: Path | None, remote: S3Folder | None, scratch: Path) -> None:
        self.manifest = manifest
        self._local, self._remote, self._scratch = local, remote, scratch
        self._verified: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """A local path with verified content.

        Raises:
            ManifestError: no copy of the file is whole; says what is wrong with each.
        """
        if name in self._verified:
            return self._verified[name]
        entry = self.manifest.files.get(name)
        if entry is None:
            raise ManifestError(f"{name} is not in the manifest")
        reasons = []
        if self._local is not None:
            try:
                verify_file(self._local / name, name, entry)
                return self._verified.setdefault(name, self._local / name)
            except ManifestError as error:
                reasons.append(str(error))
        if self._remote is not None:
            try:
                return self._verified.setdefault(name, self._fetch(name))
            except ManifestError as error:
                reasons.append(f"in S3: {error}")
            except Exception as error:  # botocore's errors have no common base
                reasons.append(f"in S3: {name} cannot be read: {error}")
        raise ManifestError("; ".join(reasons))

    def paths(self, names: set[str]) -> None:
        """Verifies, and fetches where needed, several files at once. Raises as `path`."""
        with ThreadPoolExecutor(_WORKERS, "checkpoint-read") as pool:
            list(pool.map(self.path, sorted(names)))

    def _fetch(self, name: str) -> Path:
        assert self._remote is not None
        self._scratch.mkdir(parents=True, exist_ok=True)
        target = self._scratch / name
        with (self._scratch / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # ranks of one host share what is downloaded
            if not target.exists():
                partial = self._scratch / f"{name}.part"
                try:
                    self._remote.download(name, partial)
                    verify_file(partial, name, self.manifest.files[name])
                    partial.replace(target)
                finally:
                    partial.unlink(missing_ok=True)
        return target


class _VerifiedFileSystem(FileSystem):
    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> Any:
        return self._files.path(suffix)


class VerifyingReader(FileSystemReader):
    """DCP's reader over `CheckpointFiles`. Every file that a rank needs is verified before any tensor is touched."""

    def __init__(self, files: CheckpointFiles) -> None:
        super().__init__(files.manifest.folder)
        self._files = files
        self.fs = _VerifiedFileSystem(files)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        self._files.paths({self.storage_data[item.storage_index].relative_path for item in plan.items})
        return plan

    @property
    def checkpoint_id(self) -> str:
        return self._files.manifest.folder
