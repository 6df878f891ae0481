"""MANIFEST.json: what a checkpoint consists of, and how to tell that it is whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blackwell.names import CHECKPOINT_FOLDER, MANIFEST, checkpoint_folder

MANIFEST_VERSION: Literal[1] = 1
_HASH_CHUNK = 8 << 20


class ManifestError(OSError):
    """A checkpoint folder that cannot be used; the text says why."""


class HalfWrittenError(ManifestError):
    """The folder has no manifest: its save was never finished."""


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(frozen=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a checkpoint holds. `tokens` and `position` count from the start of the run."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = MANIFEST_VERSION
    step: int = Field(ge=0)
    """Optimizer steps taken."""
    world_size: int = Field(ge=1)
    """Ranks that wrote it; any number may read it."""
    tokens: int = 0
    position: int = 0
    """Global sequences consumed: the whole state of the data."""
    config_hash: str = ""
    precision: str = ""
    backend: str = ""
    created: float = 0.0
    """Unix time at which the last file was complete."""
    files: dict[str, FileEntry]
    versions: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)
    """Whatever else the trainer wants to find again before it loads."""

    @property
    def folder(self) -> str:
        return checkpoint_folder(self.step)

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def encode(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises ManifestError for anything that is not a manifest of this version."""
        if not data:
            raise HalfWrittenError(f"{MANIFEST} is empty")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ManifestError(f"{MANIFEST} is damaged: {place + ': ' if place else ''}{first['msg']}") from None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a local checkpoint folder.

    Raises:
        HalfWrittenError: there is none.
        ManifestError: it is damaged, or belongs to another step than the folder's name says.
    """
    try:
        manifest = Manifest.decode((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise HalfWrittenError(f"{MANIFEST} is missing: the save was not finished") from None
    if manifest.folder != folder.name:
        raise ManifestError(f"{MANIFEST} is of step {manifest.step}")
    return manifest


def write_manifest(folder: Path, data: bytes) -> None:
    """Writes an encoded manifest and waits until it and the folder's entries are on disk."""
    write_file(folder / MANIFEST, data)
    sync_directory(folder.parent)


def write_file(path: Path, data: bytes) -> None:
    """Writes a small file that is there as a whole or not at all, and waits until it is on disk.

    Raises:
        OSError: not all of it could be written; `path` is as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Waits until the names in a directory are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_folders(root: Path) -> dict[int, Path]:
    """Step -> folder, of every checkpoint folder below `root`, newest first, whether whole or not."""
    found: dict[int, Path] = {}
    for path in root.iterdir() if root.is_dir() else ():
        match = CHECKPOINT_FOLDER.match(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))


def size_faults(manifest: Manifest, sizes: dict[str, int]) -> str | None:
    """The first file that is missing or has another size than the manifest says; None when all fit."""
    for name, entry in manifest.files.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != entry.bytes:
            return f"{name} has {sizes[name]} bytes instead of {entry.bytes}"
    return None


def local_sizes(folder: Path) -> dict[str, int]:
    """Name -> bytes of the files in a folder."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}


def verify_file(path: Path, name: str, entry: FileEntry) -> None:
    """Compares size and SHA-256 of a file with its manifest entry.

    Raises:
        ManifestError: the file is missing, too short, too long, unreadable, or has other bytes.
    """
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise ManifestError(f"{name} has {size} bytes instead of {entry.bytes}")
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_HASH_CHUNK):
                digest.update(chunk)
    except FileNotFoundError:
        raise ManifestError(f"{name} is missing") from None
    if digest.hexdigest() != entry.sha256:
        raise ManifestError(f"{name} has other bytes than were saved (SHA-256 differs)")
