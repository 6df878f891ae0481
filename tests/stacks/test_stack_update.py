"""An update of a deployed stack must not replace anything that holds data.

CloudFormation replaces a resource whose logical id changes, or one of the properties that its type cannot change in
place. Both are written down here; who changes them on purpose moves the data first.
"""

from __future__ import annotations

import pytest
from stack_templates import Template

pytestmark = pytest.mark.xdist_group("stacks")

HOLDS_DATA = {
    "StorageArtifacts08431D1F": ("AWS::S3::Bucket", {}),
    "StorageCheckpoints2CDBDF43": ("AWS::S3::Bucket", {}),
    "StorageRunsEDEB48FF": (
        "AWS::DynamoDB::Table",
        {"KeySchema": [{"AttributeName": "run", "KeyType": "HASH"}, {"AttributeName": "attempt", "KeyType": "RANGE"}]},
    ),
    "ImageRepositoryD8036990": ("AWS::ECR::Repository", {"EncryptionConfiguration": None}),
    "ObservabilityTopicFFC7823B": ("AWS::SNS::Topic", {}),
}
"""Logical id -> type and those properties whose change replaces the resource, with their present values."""
NAMED = ("BucketName", "TableName", "RepositoryName", "TopicName")
"""Physical names: setting one replaces the resource, and makes every later replacement fail."""


@pytest.mark.parametrize("logical_id", HOLDS_DATA)
def test_what_holds_data_stays_the_same_resource(template: Template, logical_id: str) -> None:
    kind, fixed = HOLDS_DATA[logical_id]
    resource = template["Resources"][logical_id]
    assert resource["Type"] == kind
    properties = resource.get("Properties", {})
    assert {name: properties.get(name) for name in fixed} == fixed
    assert not set(NAMED) & set(properties)


def test_every_resource_that_holds_data_is_written_down(template: Template) -> None:
    kinds = {kind for kind, _ in HOLDS_DATA.values()}
    assert {n for n, r in template["Resources"].items() if r["Type"] in kinds} == set(HOLDS_DATA)
