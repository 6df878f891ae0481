"""A folder in S3: the few operations that checkpoints need, by the names of the objects inside it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blackwell.names import split_s3_uri

_DELETE_MAX = 1_000  # keys of one DeleteObjects call, S3 API reference


def region() -> str:
    """The region of S3 calls, as boto3 finds it."""
    import boto3

    return boto3.session.Session().region_name or "us-east-1"


def client() -> Any:
    """The boto3 S3 client of this process: safe in threads, rides out throttling and lost connections."""
    return _client(region(), _endpoint())


@functools.lru_cache(maxsize=4)
def _client(region_name: str, endpoint: str | None) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        region_name=region_name,
        endpoint_url=endpoint,
        config=Config(
            retries={"mode": "standard", "total_max_attempts": 8},
            connect_timeout=10,
            read_timeout=60,
            s3={"addressing_style": "path" if endpoint else "auto"},
        ),
    )


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def custom_endpoint() -> bool:
    """Whether S3 is another service than AWS's (an emulator): those want the bucket in the path."""
    return _endpoint() is not None


class S3Folder:
    """All objects below one prefix. Names are relative to it, with `/` between parts.

    Any method raises botocore's ClientError or BotoCoreError when S3 refuses or cannot be reached.
    """

    def __init__(self, uri: str) -> None:
        self.bucket, key = split_s3_uri(uri)
        self.prefix = key if not key or key.endswith("/") else f"{key}/"

    @property
    def uri(self) -> str:
        """The folder's URI, with a slash at its end."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def _s3(self) -> Any:
        return client()

    def list(self, name: str = "") -> dict[str, int]:
        """Name -> size in bytes of every object whose name starts with `name`."""
        found: dict[str, int] = {}
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + name)
        for page in pages:
            for item in page.get("Contents", ()):
                found[item["Key"][len(self.prefix) :]] = item["Size"]
        return found

    def read(self, name: str) -> bytes | None:
        """An object's bytes; None when there is no such object."""
        try:
            return bytes(self._s3.get_object(Bucket=self.bucket, Key=self.prefix + name)["Body"].read())
        except self._s3.exceptions.NoSuchKey:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Writes a small object in one request."""
        self._s3.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=data)

    def upload(self, path: Path, name: str) -> None:
        """Uploads a file, large ones in parallel parts."""
        self._s3.upload_file(str(path), self.bucket, self.prefix + name)

    def download(self, name: str, path: Path) -> None:
        """Downloads an object to a file, large ones in parallel parts."""
        self._s3.download_file(self.bucket, self.prefix + name, str(path))

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects; those that do not exist are no error.

        Raises:
            OSError: S3 answered that some could not be deleted.
        """
        keys = [{"Key": self.prefix + name} for name in names]
        for start in range(0, len(keys), _DELETE_MAX):
            part = {"Objects": keys[start : start + _DELETE_MAX], "Quiet": True}
            errors = self._s3.delete_objects(Bucket=self.bucket, Delete=part).get("Errors", [])
            if errors:
                raise OSError(
                    f"s3://{self.bucket}/{errors[0]['Key']}: {errors[0].get('Message')} ({len(errors)} in all)"
                )
