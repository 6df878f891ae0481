"""What all tests share: no network but loopback, no surprises from the caller's AWS settings, no colours."""

import os
from pathlib import Path

import pytest

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
