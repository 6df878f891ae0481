"""The AWS calls of every function, as recorded in real runs on the embedded AWS.

LOCAL_AWS_CALLS=build/calls python -m local.scenarios       (and make demo, tests/stacks/test_stack_destroy.py)
python tests/stacks/recorded_calls.py build/calls           adds them to recorded_calls.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")

SERVICES = {"stepfunctions": "states", "service-quotas": "servicequotas"}
"""boto3's name of a service -> IAM's, where they differ."""
ACTIONS = {
    "s3:ListObjectsV2": ["s3:ListBucket"],
    "s3:HeadObject": ["s3:GetObject"],
    "s3:DeleteObjects": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
    "s3:ListObjectVersions": ["s3:ListBucketVersions"],
    "s3:ListMultipartUploads": ["s3:ListBucketMultipartUploads"],
    "lambda:Invoke": ["lambda:InvokeFunction"],
    # tagging at creation is authorised apart, and the role is passed
    "sagemaker:CreateTrainingJob": ["sagemaker:CreateTrainingJob", "sagemaker:AddTags", "iam:PassRole"],
}
"""API operation -> IAM actions, where they are not of the same name."""


def recorded() -> dict[str, list[str]]:
    """Function (its folder under lambdas/) -> operations as boto3 names them."""
    calls: dict[str, list[str]] = json.loads(FILE.read_text())
    return calls


def needed_actions(operations: list[str]) -> set[str]:
    """The IAM actions that these calls need."""
    found: set[str] = set()
    for operation in operations:
        service, name = operation.split(":")
        found.update(ACTIONS.get(operation, [f"{SERVICES.get(service, service)}:{name}"]))
    return found


def add(lines: list[str]) -> None:
    """Adds `lambdas.<name>.handler service:Operation` lines to the file."""
    calls = {name: set(operations) for name, operations in recorded().items()} if FILE.exists() else {}
    for line in lines:
        module, operation = line.split()
        calls.setdefault(module.split(".")[1], set()).add(operation)
    FILE.write_text(json.dumps({name: sorted(calls[name]) for name in sorted(calls)}, indent=2) + "\n")


if __name__ == "__main__":
    for file in sys.argv[1:]:
        add(Path(file).read_text().splitlines())
