"""Between S3 and a job's disk: channels in, checkpoints both ways, model out.

The checkpoint folder is synced as SageMaker does it: all of it down once at the start, afterwards file by file up,
in no promised order (here: a random one), and a file deleted on the disk is deleted in S3. Objects that come to S3
from elsewhere are not copied down.
"""

from __future__ import annotations

import logging
import os
import random
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blackwell.names import split_s3_uri
from local.faults.engine import FaultEngine

log = logging.getLogger("local.sagemaker")

SYNC_SECONDS = 0.4
"""Pause between two looks at the folder."""


def keys_under(s3: Any, uri: str) -> Iterator[tuple[str, str]]:
    """(key, path below the prefix) of every object under an S3 URI. A key equal to the prefix gives its own name."""
    bucket, prefix = split_s3_uri(uri)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            key = item["Key"]
            rest = key[len(prefix) :]
            if not (prefix.endswith("/") or rest.startswith("/") or not prefix):
                rest = key[prefix.rfind("/") + 1 :]
            relative = rest.lstrip("/")
            if relative and not relative.endswith("/"):
                yield key, relative


def download(s3: Any, uri: str, folder: Path, *, share: int = 0, shares: int = 1) -> list[str]:
    """Copy everything under `uri` into `folder`; with `shares`, every nth object only. Returns the paths written."""
    bucket, _ = split_s3_uri(uri)
    written = []
    for index, (key, relative) in enumerate(keys_under(s3, uri)):
        if index % shares == share:
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, key, str(target))
            written.append(relative)
    return written


def upload_tree(s3: Any, folder: Path, uri: str) -> int:
    """Copy every file below `folder` to the prefix `uri`; returns how many."""
    bucket, prefix = split_s3_uri(uri)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in files:
        s3.upload_file(str(path), bucket, f"{prefix.rstrip('/')}/{path.relative_to(folder).as_posix()}")
    return len(files)


def upload_archive(s3: Any, folder: Path, uri: str) -> None:
    """Pack `folder` into a gzipped tar at `uri`."""
    bucket, key = split_s3_uri(uri)
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, arcname=path.name)
        file.seek(0)
        s3.upload_fileobj(file, bucket, key)


class HostDiedError(Exception):
    """The host is gone in the middle of an upload."""


class Signature(NamedTuple):
    """Tells one version of a file from another."""

    inode: int
    size: int
    modified_ns: int


class CheckpointSync:
    """One host's checkpoint folder and its S3 prefix."""

    def __init__(self, s3: Any, uri: str, folder: Path, *, faults: FaultEngine, job: str, host: int) -> None:
        self._s3, self._folder, self._faults, self._job, self._host = s3, folder, faults, job, host
        self._bucket, prefix = split_s3_uri(uri)
        self._prefix = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
        self._uri = f"s3://{self._bucket}/{self._prefix}"
        self._seen: dict[str, Signature] = {}
        self._held: dict[str, tuple[Signature, float]] = {}
        self._order = random.Random()  # noqa: S311
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.died = threading.Event()
        """Set when a fault took the host during an upload."""

    def start(self, spawn: Any) -> None:
        """Download what is there, then sync in a thread started with `spawn`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for relative in download(self._s3, self._uri, self._folder):
            self._seen[relative] = _signature(self._folder / relative) or Signature(0, 0, 0)
        self._thread = spawn(self._run, name="checkpoint-sync")

    def stop(self, *, final: bool, seconds: float | None = None) -> bool:
        """End the thread; with `final` upload what is left first, for at most `seconds`. Tells whether all is in S3."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if not final or self.died.is_set():
            return False
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            return self._pass(deadline, last=True)
        except HostDiedError:
            self.died.set()
        except Exception:
            log.exception("last checkpoint sync of %s", self._job)
        return False

    def _run(self) -> None:
        while not self._stop.wait(SYNC_SECONDS):
            try:
                self._pass(None)
            except HostDiedError:
                self.died.set()
                return
            except Exception:  # the bucket may be gone: a real sync retries as well
                log.exception("checkpoint sync of %s", self._job)

    def _pass(self, deadline: float | None, *, last: bool = False) -> bool:
        """Bring S3 to the folder's state once; False when `deadline` came first."""
        present = {p.relative_to(self._folder).as_posix(): p for p in _files(self._folder)}
        for gone in sorted(self._seen.keys() - present.keys()):
            self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + gone)
            del self._seen[gone]
            self._held.pop(gone, None)
        changed = [(r, s) for r, p in present.items() if (s := _signature(p)) and self._seen.get(r) != s]
        self._order.shuffle(changed)
        for relative, signature in self._first_things_last(changed):
            if deadline is not None and time.monotonic() > deadline:
                return False
            if self._stop.is_set() and not last:
                return False
            self._upload(relative, signature, last=last)
        return True

    def _first_things_last(self, changed: list[tuple[str, Signature]]) -> list[tuple[str, Signature]]:
        """Faults `out_of_order` put their files in front of everything else of this pass."""
        early = [r for r, s in changed if r not in self._held and self._hold(r, s) == "out_of_order"]
        return sorted(changed, key=lambda item: item[0] not in early)

    def _hold(self, relative: str, signature: Signature) -> str | None:
        """Ask once for each version of a file what fault it has; `late`, `missing` and `damaged` are remembered."""
        fault = self._faults.checkpoint_fault(self._job, relative)
        if fault is None:
            return None
        if fault.what == "late":
            self._held[relative] = (signature, time.monotonic() + fault.seconds)
        elif fault.what == "missing":
            self._held[relative] = (signature, float("inf"))
        elif fault.what == "damaged":
            self._held[relative] = (signature, -1.0)
        return fault.what

    def _upload(self, relative: str, signature: Signature, *, last: bool) -> None:
        held, until = self._held.get(relative, (None, 0.0))
        if held is not None and until > time.monotonic() and (until == float("inf") or not last):
            return
        if self._faults.dies_uploading(self._job, relative, self._host):
            raise HostDiedError(relative)
        path = self._folder / relative
        key = self._prefix + relative
        try:
            content = path.read_bytes()  # one moment of a file that may still be growing
            if held is not None and until < 0:
                content = _damaged(content)
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=content)
        except OSError:
            return  # deleted or replaced meanwhile: the next pass sees it
        self._seen[relative] = signature


def _damaged(data: bytes) -> bytes:
    """The same length with one bit turned in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else b"\0"


def _files(folder: Path) -> Iterable[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root) / name


def _signature(path: Path) -> Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return Signature(status.st_ino, status.st_size, status.st_mtime_ns)
