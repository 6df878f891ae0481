"""Recorded images on disk: `<work_dir>/images/<digest>/{config.json, rootfs/}` and the local tags."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_HOST_OWNED = frozenset({"PATH", "LD_LIBRARY_PATH"})
"""Variables of an image that mean folders of its base image, which is not here."""


class Image:
    """One recorded image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digest = f"sha256:{folder.name}"
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())

    @property
    def rootfs(self) -> Path:
        return self.folder / "rootfs"

    @property
    def working_directory(self) -> Path:
        """Where WORKDIR lies."""
        folder = self.inside(self.config["workdir"])
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def inside(self, path: str) -> Path:
        """Where an absolute path of the image lies."""
        return self.rootfs / path.lstrip("/")

    def command(self, entrypoint: Sequence[str] | None, arguments: Sequence[str] | None) -> list[str]:
        """The command to execute: the given entry point and arguments, else the image's. Raises ValueError if none."""
        given = list(entrypoint) if entrypoint else list(self.config["entrypoint"])
        rest = list(arguments) if arguments else ([] if entrypoint else list(self.config["cmd"]))
        command = given + rest
        if not command:
            raise ValueError("the image has no ENTRYPOINT and no CMD")
        return [self._executable(command[0]), *command[1:]]

    def _executable(self, name: str) -> str:
        if name.startswith("/"):
            if self.inside(name).exists():
                return str(self.inside(name))
            if Path(name).name.startswith("python"):
                return sys.executable
        elif "/" in name:
            return str(self.working_directory / name)
        return name

    def environment(self) -> dict[str, str]:
        """The image's ENV as far as it has a meaning without the base image."""
        kept = {}
        for name, value in self.config["env"].items():
            if name in _HOST_OWNED:
                continue
            if name == "PYTHONPATH":
                value = os.pathsep.join(
                    str(self.inside(part)) for part in value.split(":") if part and self.inside(part).exists()
                )
            elif value.startswith("/") and self.inside(value).exists():
                value = str(self.inside(value))
            kept[name] = value
        return kept


class ImageStore:
    """The images that builds on this server made."""

    def __init__(self, work_dir: Path) -> None:
        self.folder = work_dir / "images"

    def get(self, digest: str) -> Image:
        """The image with this digest. Raises KeyError."""
        folder = self.folder / digest.removeprefix("sha256:")
        if not (folder / "config.json").is_file():
            raise KeyError(f"no image {digest}")
        return Image(folder)

    def find(self, reference: str) -> Image:
        """The image with this tag, digest or beginning of a digest. Raises KeyError."""
        digest = self.tags().get(with_tag(reference))
        if digest is None and reference.startswith("sha256:"):
            digest = reference
        if digest is None:
            raise KeyError(f"no such image: {reference}")
        return self.get(digest)

    def tags(self) -> dict[str, str]:
        """Tag -> digest."""
        try:
            return dict(json.loads((self.folder / "tags.json").read_text()))
        except FileNotFoundError:
            return {}

    def tag(self, reference: str, digest: str | None) -> None:
        """Point a tag at an image; None takes the tag away."""
        with self._locked():
            tags = self.tags()
            if digest is None:
                tags.pop(with_tag(reference), None)
            else:
                tags[with_tag(reference)] = digest
            partial = self.folder / "tags.partial"
            partial.write_text(json.dumps(tags, indent=1))
            partial.replace(self.folder / "tags.json")

    def add(self, rootfs: Path, config: Mapping[str, Any]) -> Image:
        """Record an image; the same content and configuration give the same digest."""
        text = json.dumps(config, sort_keys=True, indent=1)
        name = _content_digest(rootfs, text)
        folder = self.folder / name
        with self._locked():
            if not folder.exists():
                made = Path(tempfile.mkdtemp(dir=self.folder))
                shutil.copytree(rootfs, made / "rootfs", symlinks=True)
                (made / "config.json").write_text(text)
                made.rename(folder)
        return Image(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _content_digest(rootfs: Path, config: str) -> str:
    """SHA-256 over the configuration and every file's path, mode and content."""
    total = hashlib.sha256(config.encode())
    for path in sorted(rootfs.rglob("*")):
        relative = path.relative_to(rootfs).as_posix()
        if path.is_symlink():
            total.update(f"\0{relative}\0link\0{path.readlink()}".encode())
        elif path.is_file():
            mode = path.stat().st_mode & 0o111
            total.update(f"\0{relative}\0{mode}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def with_tag(reference: str) -> str:
    """The reference with `:latest` where it names no tag."""
    return reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"


def registry_of(reference: str) -> str | None:
    """The registry's host in an image reference, None for Docker Hub."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else None
