"""What rank 0 knows of the checkpoints: which are complete, which durable, which may go. Never on the training path."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from blackwell.names import CHECKPOINT_FOLDER, MANIFEST, checkpoint_folder
from trainer.checkpoint.group import Group
from trainer.checkpoint.manifest import (
    HalfWrittenError,
    Manifest,
    ManifestError,
    checkpoint_folders,
    local_sizes,
    read_manifest,
    size_faults,
)
from trainer.checkpoint.pruning import State, prunable
from trainer.checkpoint.writer import RANK_FILE
from trainer.s3 import S3Folder

METADATA = ".metadata"
"""DCP's own index; its name, and often its size, are the same in every save of a step."""

Emit = Callable[..., None]


class Places(Protocol):
    """Where checkpoints are kept, and how one is told to be durable."""

    def scan(self) -> dict[int, tuple[State, Manifest | None]]:
        """What is there at the start."""

    def is_durable(self, manifest: Manifest) -> bool:
        """Whether every file is where it survives this host."""

    def delete(self, step: int) -> None:
        """Deletes one checkpoint, its manifest first: what is left by an interruption no longer counts as one."""


class LocalPlaces:
    """A local folder; durable as soon as complete, unless SageMaker copies the folder to `mirror`."""

    def __init__(self, root: Path, mirror: S3Folder | None, group: Group) -> None:
        self._root, self._mirror, self._group = root, mirror, group

    def scan(self) -> dict[int, tuple[State, Manifest | None]]:
        found: dict[int, tuple[State, Manifest | None]] = {}
        for step, folder in checkpoint_folders(self._root).items():
            try:
                manifest = read_manifest(folder)
                whole = self._fault(manifest, local_sizes(folder)) is None
            except ManifestError:
                found[step] = (State.BROKEN, None)
            else:
                complete = State.COMPLETE if self._mirror else State.DURABLE
                found[step] = (complete if whole else State.BROKEN, manifest)
        return found

    def _fault(self, manifest: Manifest, sizes: dict[str, int]) -> str | None:
        """What is wrong with the files that this host must have: of several hosts each has only its own ranks' files."""
        if self._group.hosts == 1:
            return size_faults(manifest, sizes)
        wanted = {name for name in manifest.files if name in sizes or self._is_own(name, manifest)}
        return size_faults(manifest.model_copy(update={"files": {n: manifest.files[n] for n in wanted}}), sizes)

    def _is_own(self, name: str, manifest: Manifest) -> bool:
        rank = RANK_FILE.match(name)
        return rank is not None and manifest.world_size == self._group.world_size and (
            int(rank[1]) in self._group.ranks_of_host
        )  # fmt: skip

    def is_durable(self, manifest: Manifest) -> bool:
        return self._mirror is None or mirrored(manifest, self._mirror)

    def delete(self, step: int) -> None:
        delete_folder(self._root / checkpoint_folder(step))


class S3Places:
    """Checkpoints that the trainer writes to S3 itself."""

    def __init__(self, folder: S3Folder) -> None:
        self._folder = folder

    def scan(self) -> dict[int, tuple[State, Manifest | None]]:
        found = remote_checkpoints(self._folder)
        return {c.step: (State.BROKEN if c.manifest is None else State.COMPLETE, c.manifest) for c in found}

    def is_durable(self, manifest: Manifest) -> bool:
        return mirrored(manifest, self._folder)

    def delete(self, step: int) -> None:
        name = f"{checkpoint_folder(step)}/"
        objects = list(self._folder.list(name))
        self._folder.delete([f"{name}{MANIFEST}"])
        self._folder.delete(o for o in objects if o != f"{name}{MANIFEST}")


def delete_folder(folder: Path) -> None:
    """Deletes a local checkpoint folder, its manifest first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def mirrored(manifest: Manifest, place: S3Folder) -> bool:
    """Whether S3 holds this very save of the checkpoint, whole.

    Data files have names that no other save has, so their sizes tell; the two that keep their names are compared.
    """
    prefix = f"{manifest.folder}/"
    found = {name.removeprefix(prefix): size for name, size in place.list(prefix).items()}
    if MANIFEST not in found or size_faults(manifest, found) is not None:
        return False
    try:
        if Manifest.decode(place.read(f"{prefix}{MANIFEST}") or b"") != manifest:
            return False
    except ManifestError:
        return False
    if METADATA not in manifest.files:
        return True
    metadata = place.read(f"{prefix}{METADATA}")
    return metadata is not None and hashlib.sha256(metadata).hexdigest() == manifest.files[METADATA].sha256


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A checkpoint folder in S3: its manifest, or what is wrong with it."""

    step: int
    uri: str
    manifest: Manifest | None
    error: ManifestError | None


def remote_checkpoints(place: S3Folder) -> list[RemoteCheckpoint]:
    """Every checkpoint folder in S3, newest first."""
    folders: dict[str, dict[str, int]] = {}
    for name, size in place.list("step-").items():
        folder, _, rest = name.partition("/")
        if CHECKPOINT_FOLDER.match(folder) and rest:
            folders.setdefault(folder, {})[rest] = size
    return [_remote_checkpoint(place, folder, folders[folder]) for folder in sorted(folders, reverse=True)]


def _remote_checkpoint(place: S3Folder, folder: str, sizes: dict[str, int]) -> RemoteCheckpoint:
    step, uri = int(folder.removeprefix("step-")), f"{place.uri}{folder}/"
    try:
        if MANIFEST not in sizes:
            raise HalfWrittenError(f"{MANIFEST} is missing: the upload was not finished")
        manifest = Manifest.decode(place.read(f"{folder}/{MANIFEST}") or b"")
        if reason := size_faults(manifest, sizes):
            raise ManifestError(reason)
    except ManifestError as error:
        return RemoteCheckpoint(step, uri, None, error)
    return RemoteCheckpoint(step, uri, manifest, None)


class Ledger:
    """Rank 0's account of the run's checkpoints. Its methods may be called from any thread."""

    def __init__(self, places: Places, keep: int, emit: Emit, clock: Callable[[], float]) -> None:
        self._places, self._keep, self._emit, self._clock = places, keep, emit, clock
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._states: dict[int, State] = {}
        self._manifests: dict[int, Manifest] = {}
        self._writing: int | None = None
        self.upload_seconds = 0.0
        """How long after its last file the newest durable checkpoint was seen to be durable."""

    def scan(self) -> None:
        """Takes in what is there at the start."""
        found = self._places.scan()
        with self._lock:
            self._states = {step: state for step, (state, _) in found.items()}
            self._manifests = {step: manifest for step, (_, manifest) in found.items() if manifest is not None}

    def distrust(self, steps: list[int]) -> None:
        """These turned out to be damaged: they count as nothing from now on."""
        with self._lock:
            for step in steps:
                if step in self._states:
                    self._states[step] = State.BROKEN

    def begin(self, step: int) -> None:
        """A save of this step begins: it must not be touched."""
        with self._lock:
            self._states.pop(step, None)
            self._manifests.pop(step, None)
            self._writing = step

    def end(self, manifest: Manifest | None) -> None:
        """The save is over, well (with its manifest) or not."""
        with self._lock:
            self._writing = None
            if manifest is not None:
                self._states[manifest.step] = State.COMPLETE
                self._manifests[manifest.step] = manifest

    @property
    def unsettled(self) -> bool:
        """Whether a complete checkpoint is not yet known to be durable."""
        with self._lock:
            return State.COMPLETE in self._states.values()

    @property
    def durable_step(self) -> int | None:
        """Step of the newest durable checkpoint."""
        with self._lock:
            return max((step for step, state in self._states.items() if state is State.DURABLE), default=None)

    @property
    def complete_step(self) -> int | None:
        """Step of the newest complete checkpoint, durable or not."""
        with self._lock:
            return max((step for step, state in self._states.items() if state is not State.BROKEN), default=None)

    @property
    def durable_lag_seconds(self) -> float | None:
        """Age of the newest durable checkpoint in seconds; None before the first."""
        newest = self.durable_step
        with self._lock:
            manifest = self._manifests.get(newest) if newest is not None else None
        return None if manifest is None else max(0.0, self._clock() - manifest.created)

    @property
    def retained(self) -> list[int]:
        """Steps whose folders must stay, the one being written too."""
        with self._lock:
            return sorted({*self._states, *(() if self._writing is None else (self._writing,))})

    def settle(self) -> None:
        """Finds out what has become durable, then deletes what may go. What fails is said and tried again later."""
        with self._settling:
            with self._lock:
                waiting = [self._manifests[step] for step, state in self._states.items() if state is State.COMPLETE]
            for manifest in sorted(waiting, key=lambda m: -m.step):
                try:
                    durable = self._places.is_durable(manifest)
                except Exception as error:  # botocore's errors have no common base
                    self._emit("checkpoint", step=manifest.step, phase="check_failed", reason=str(error)[:300])
                    return
                if durable and self._set_durable(manifest):
                    seconds = self.upload_seconds = max(0.0, self._clock() - manifest.created)
                    self._emit("checkpoint", step=manifest.step, phase="durable", seconds=round(seconds, 3),
                               bytes=manifest.total_bytes)  # fmt: skip
            self._prune()

    def _set_durable(self, manifest: Manifest) -> bool:
        with self._lock:
            if self._manifests.get(manifest.step) is not manifest:
                return False  # it was begun anew meanwhile
            self._states[manifest.step] = State.DURABLE
            return True

    def _prune(self) -> None:
        with self._lock:
            steps = prunable(self._states, self._keep)
        for step in steps:
            try:
                self._places.delete(step)
            except FileNotFoundError:
                pass
            except Exception as error:
                self._emit("checkpoint", step=step, phase="prune_failed", reason=str(error)[:300])
                continue
            with self._lock:
                self._states.pop(step, None)
                manifest = self._manifests.pop(step, None)
            self._emit("checkpoint", step=step, phase="pruned", bytes=manifest.total_bytes if manifest else 0)


def silent(*_: Any, **__: Any) -> None:
    """An `Emit` for ranks that say nothing."""
