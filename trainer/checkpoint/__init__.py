"""Checkpoints that survive: written in the background, verified byte by byte, never pruned before a newer is safe.

A checkpoint is a folder `step-00000100/` of PyTorch's distributed checkpoint files, one per rank, and MANIFEST.json,
written last, with the size and SHA-256 of every file.
*Complete*: the manifest is there and its files are. *Durable*: all of it is in S3, too.
"""

from trainer.checkpoint.manifest import Manifest, ManifestError
from trainer.checkpoint.store import CheckpointStore, Loaded, SaveHandle

__all__ = ["CheckpointStore", "Loaded", "Manifest", "ManifestError", "SaveHandle"]
