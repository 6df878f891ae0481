"""Who this AWS is: account, region, keys, and the marker of its processes. Imports nothing heavy: both sides use it."""

from __future__ import annotations

ACCOUNT = "000000000000"
REGION = "us-east-1"
ACCESS_KEY = "test"
SECRET_KEY = "test"  # noqa: S105 - any key is accepted on this server

MARKER_ENV = "LOCAL_AWS_ID"
"""Set in the server's environment and inherited by everything it starts; `down` ends every process that carries it."""


def sdk_environment(endpoint: str) -> dict[str, str]:
    """Environment with which every SDK reaches `endpoint`."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
    }
