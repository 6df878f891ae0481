"""One embedded AWS, and one stock ministack to compare it with, per test worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.server import LocalAws


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """The embedded AWS as the product uses it."""
    with LocalAws(tmp_path_factory.mktemp("aws")) as server:
        yield server


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """ministack without the overlay: shows the flaw that a test proves mended."""
    with LocalAws(tmp_path_factory.mktemp("stock"), overlay=False) as server:
        yield server
