"""Names shared by the tests of the stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Template = dict[str, Any]

EVERYTHING: dict[str, Any] = {
    "stage": "prod",
    "vpc": True,
    "kms": True,
    "retain_data": True,
    "data_buckets": "some-data",
    "alarm_email": "a@example.com",
}
"""Settings that turn on whatever can be turned on."""
ISOLATED: dict[str, Any] = {"network_isolation": True, "base_image": "published", "base_image_check_days": 0}


def resources(template: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Logical id -> resource, of one type."""
    return {name: r for name, r in template["Resources"].items() if r["Type"] == kind}
