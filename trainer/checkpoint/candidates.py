"""Which checkpoints could be loaded, newest first, and why the others could not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blackwell.names import CHECKPOINT_FOLDER, split_s3_uri
from trainer.checkpoint.durability import RemoteCheckpoint, remote_checkpoints
from trainer.checkpoint.manifest import (
    HalfWrittenError,
    Manifest,
    ManifestError,
    checkpoint_folders,
    read_manifest,
)
from trainer.checkpoint.reader import CheckpointFiles
from trainer.s3 import S3Folder


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that has a manifest. Travels from rank 0 to all ranks."""

    manifest: Manifest
    place: str
    """The local folder, or an S3 URI."""
    local: bool
    remote_uri: str | None
    """Where its files are in S3, too."""

    def files(self, root: Path, scratch: Path) -> CheckpointFiles:
        """Its files, as this host finds them."""
        remote = S3Folder(self.remote_uri) if self.remote_uri else None
        return CheckpointFiles(self.manifest, root / self.manifest.folder if self.local else None, remote, scratch)


Skipped = dict[str, str]


class Search:
    """Looks for checkpoints in a run's own places, and in those of the run that it goes on from."""

    def __init__(self, root: Path, remote: S3Folder | None, resume: S3Folder | None, *, direct: bool) -> None:
        self._root, self._remote, self._resume, self._direct = root, remote, resume, direct

    def candidates(self) -> tuple[list[Candidate], list[Skipped]]:
        """Those with a manifest, newest first, and the rest with their reasons.

        A rest's `half_written` repeats the reason where the checkpoint was simply never finished.

        Raises:
            Exception: S3 cannot be read and there is no local checkpoint either.
        """
        found, skipped = self._local()
        if self._remote is not None:
            try:
                remote, remote_skipped = self._in_s3(remote_checkpoints(self._remote))
            except Exception as error:
                if not found:
                    raise
                skipped.append({"folder": self._remote.uri, "reason": f"S3 cannot be read: {error}"})
            else:
                known = {c.manifest.step: c.manifest for c in found}
                found += [c for c in remote if known.get(c.manifest.step) != c.manifest]
                skipped += remote_skipped
        return sorted(found, key=lambda c: (-c.manifest.step, not c.local)), skipped

    def elsewhere(self) -> tuple[list[Candidate], list[Skipped]]:
        """Those of the run that this one goes on from, likewise."""
        return self._in_s3(_other_run(self._resume)) if self._resume is not None else ([], [])

    def _local(self) -> tuple[list[Candidate], list[Skipped]]:
        found: list[Candidate] = []
        skipped: list[Skipped] = []
        for folder in checkpoint_folders(self._root).values() if not self._direct else ():
            try:
                manifest = read_manifest(folder)
            except ManifestError as error:
                skipped.append(_reason(str(folder), error))
            else:
                uri = f"{self._remote.uri}{folder.name}/" if self._remote else None
                found.append(Candidate(manifest, str(folder), local=True, remote_uri=uri))
        return found, skipped

    @staticmethod
    def _in_s3(checkpoints: list[RemoteCheckpoint]) -> tuple[list[Candidate], list[Skipped]]:
        found = [
            Candidate(c.manifest, c.uri, local=False, remote_uri=c.uri) for c in checkpoints if c.manifest is not None
        ]
        return found, [_reason(c.uri, c.error) for c in checkpoints if c.error is not None]


def _reason(place: str, error: ManifestError) -> Skipped:
    said = {"folder": place, "reason": str(error)}
    return said | {"half_written": str(error)} if isinstance(error, HalfWrittenError) else said


def _other_run(resume: S3Folder) -> list[RemoteCheckpoint]:
    """The checkpoints that a URI means, which may name one of them."""
    name = resume.prefix.rstrip("/").rpartition("/")[2]
    match = CHECKPOINT_FOLDER.match(name)
    if match is None:
        return remote_checkpoints(resume)
    bucket, key = split_s3_uri(resume.uri)
    parent = S3Folder(f"s3://{bucket}/{key.rstrip('/').removesuffix(name)}")
    return [c for c in remote_checkpoints(parent) if c.step == int(match[1])]
