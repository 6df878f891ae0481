"""A run's checkpoints as they stand in S3: which are there whole (durable), and what their manifests say."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from blackwell.names import CHECKPOINT_FOLDER, MANIFEST
from lambdas.common.aws import client


class StoredCheckpoint(BaseModel):
    """One checkpoint folder with a manifest."""

    step: int
    folder: str
    durable: bool
    """Every file of the manifest is there with its size."""
    written_at: datetime
    manifest: dict[str, Any]
    """Without the list of files."""
    bytes: int = 0


def stored(bucket: str, prefix: str) -> list[StoredCheckpoint]:
    """Checkpoints under `prefix` (with a slash at its end), oldest first."""
    folders: dict[str, dict[str, int]] = {}
    manifests: dict[str, datetime] = {}
    for page in client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            folder, _, name = item["Key"].removeprefix(prefix).partition("/")
            if not name or CHECKPOINT_FOLDER.match(folder) is None:
                continue
            folders.setdefault(folder, {})[name] = item["Size"]
            if name == MANIFEST:
                manifests[folder] = item["LastModified"]
    found = [_read(bucket, prefix, folder, folders[folder], manifests[folder]) for folder in sorted(manifests)]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def _read(bucket: str, prefix: str, folder: str, sizes: dict[str, int], at: datetime) -> StoredCheckpoint | None:
    body = client("s3").get_object(Bucket=bucket, Key=f"{prefix}{folder}/{MANIFEST}")["Body"].read()
    try:
        manifest = json.loads(body)
        files = manifest.pop("files")
        durable = all(sizes.get(name) == entry["bytes"] for name, entry in files.items())
        total = sum(entry["bytes"] for entry in files.values())
        step = int(manifest["step"])
    except (ValueError, KeyError, TypeError, AttributeError):  # half written or damaged: no checkpoint
        return None
    return StoredCheckpoint(step=step, folder=folder, durable=durable, written_at=at, manifest=manifest, bytes=total)


def newest_durable(bucket: str, prefix: str) -> StoredCheckpoint | None:
    durable = [checkpoint for checkpoint in stored(bucket, prefix) if checkpoint.durable]
    return durable[-1] if durable else None
