"""One embedded AWS, and one stock ministack to compare it with, per test worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.server import LocalAws

QUICK = {"LAMBDA_ASYNC_RETRY_BASE_SECONDS": "0.1"}


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """The embedded AWS as the product uses it."""
    with LocalAws(tmp_path_factory.mktemp("aws"), environment=QUICK) as server:
        yield server


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """ministack without the overlay: shows the flaw that a test proves mended."""
    with LocalAws(tmp_path_factory.mktemp("stock"), overlay=False, environment=QUICK) as server:
        yield server
