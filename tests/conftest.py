"""What all tests share: no network but loopback, no surprises from the caller's AWS settings, no colours."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from local.deployment import Deployment

for name in list(os.environ):  # at import: before any test module makes a client
    if name.startswith("AWS_") or name in ("LOCAL_AWS_FAULTS", "BLACKWELL_ML_ROOT"):
        del os.environ[name]
os.environ.update(
    {
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_COLOR": "1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
)


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The checkout under test."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The stack deployed once for all tests of group `e2e`, which one worker runs; runs have names of their own."""
    from local.deployment import deployed

    with deployed(tmp_path_factory.mktemp("deployed") / "stack") as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Makes `xdist_group` work: pytest-xdist 3.8 writes the group to an attribute that pytest 9.2 no longer reads."""
    result = yield
    for item in items:
        grouped = vars(item).get("_nodeid")
        if grouped is not None and grouped != item.nodeid:
            item._id = type(item.id).parse(grouped)  # type: ignore[attr-defined]
    return result
