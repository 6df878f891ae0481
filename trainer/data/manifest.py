"""The dataset folder's manifest.json: what is in the folder, and how to tell that it is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blackwell.findings import Finding, FindingsError

DATASET_MANIFEST = "manifest.json"
DATASET_VERSION: Literal[1] = 1
UINT16_VOCABULARY = 65_536
"""Vocabularies below this size are stored in two bytes a token, all others in four."""

TokenType = Literal["uint16", "uint32"]


def token_type(vocab_size: int) -> TokenType:
    """The stored type for a vocabulary of this size."""
    return "uint16" if vocab_size < UINT16_VOCABULARY else "uint32"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SideFile(_Part):
    """A file beside a shard: its name, the number of its entries, and the SHA-256 of its bytes."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    count: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Shard(_Part):
    """One file of consecutive tokens; a document never spans two shards."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    tokens: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    documents: SideFile
    """Little-endian uint64, one per document: the offset in tokens, within the shard, at which it starts."""
    loss_mask: SideFile | None = None
    """uint8 per token, 1 where the token is to be predicted; without it all tokens are."""


class Split(_Part):
    """One split: shards in their order; token i of the split is found by counting through them."""

    tokens: int = Field(ge=1)
    documents: int = Field(ge=1)
    shards: list[Shard] = Field(min_length=1)


class DatasetManifest(_Part):
    """Everything about a dataset folder. Counts are of tokens, every document's end token included."""

    version: Literal[1] = DATASET_VERSION
    vocab_size: int = Field(ge=2)
    dtype: TokenType
    eos_id: int = Field(ge=0)
    tokenizer: str | None = None
    """The tokenizer's file inside the folder."""
    tokenizer_sha256: str | None = None
    splits: dict[str, Split]

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "uint16" else 4

    def fingerprint(self, split: str) -> str:
        """16 hex digits that name the split's content: a digest over the shards' digests, in their order."""
        digest = hashlib.sha256(f"{self.dtype} {self.eos_id}".encode())
        for shard in self.splits[split].shards:
            digest.update(bytes.fromhex(shard.sha256))
            digest.update(bytes.fromhex(shard.loss_mask.sha256) if shard.loss_mask else b"")
        return digest.hexdigest()[:16]

    def files(self, split: str) -> list[tuple[str, int, str]]:
        """(name, bytes, sha256) of every file of the split."""
        found = []
        for shard in self.splits[split].shards:
            found.append((shard.file, shard.tokens * self.token_bytes, shard.sha256))
            found.append((shard.documents.file, shard.documents.count * 8, shard.documents.sha256))
            if shard.loss_mask is not None:
                found.append((shard.loss_mask.file, shard.loss_mask.count, shard.loss_mask.sha256))
        return found


def read_manifest(root: Path) -> DatasetManifest:
    """The manifest of a dataset folder.

    Raises:
        FindingsError: BTS-401 when there is none or it does not read.
    """
    path = root / DATASET_MANIFEST
    try:
        return DatasetManifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        there = ", ".join(sorted(p.name for p in root.iterdir())[:5]) if root.is_dir() else "no such folder"
        message = f"{path} does not exist (found: {there or 'nothing'})"
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        message = f"{path} cannot be read: {error}"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    legal = "a folder written by `python -m trainer.data prepare`"
    raise FindingsError([Finding(id="BTS-401", path="data", message=message, legal=legal)])
