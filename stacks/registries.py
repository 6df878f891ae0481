"""Which account of AWS holds the Deep Learning Containers in each region.

Source: AWS Deep Learning Containers, "Region Availability" (aws.github.io/deep-learning-containers), read 2026-12.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk.region_info import RegionInfo
from constructs import Construct

DEFAULT_ACCOUNT = "763104351884"
"""Of every region that is on by default in partition `aws`."""

ACCOUNTS: dict[str, str] = {
    "af-south-1": "626614931356",
    "ap-east-1": "871362719292",
    "ap-east-2": "975050140332",
    "ap-northeast-3": "364406365360",
    "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896",
    "ap-southeast-4": "457447274322",
    "ap-southeast-5": "550225433462",
    "ap-southeast-6": "633930458069",
    "ap-southeast-7": "590183813437",
    "ca-west-1": "204538143572",
    "cn-north-1": "727897471807",
    "cn-northwest-1": "727897471807",
    "eu-central-2": "380420809688",
    "eu-south-1": "692866216735",
    "eu-south-2": "503227376785",
    "il-central-1": "780543022126",
    "me-central-1": "914824155844",
    "me-south-1": "217643126080",
    "me-west-1": "124382933778",
    "mx-central-1": "637423239942",
    # GovCloud's accounts stand in the SageMaker Python SDK's image tables and the Terraform provider's, not on that page
    "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}

PARTITIONS = ("aws", "aws-cn", "aws-us-gov")
"""Partitions that have Deep Learning Containers."""

_MAPPING = "DeepLearningContainers"


def registry_account(scope: Construct) -> str:
    """Account of the region that the stack is deployed to: a CloudFormation mapping, so the template fits any region."""
    table = {
        region.name: {"account": ACCOUNTS.get(region.name, DEFAULT_ACCOUNT)}
        for region in RegionInfo.regions
        if region.partition in PARTITIONS
    }
    for region, account in ACCOUNTS.items():  # regions younger than the CDK's own list
        table.setdefault(region, {"account": account})
    stack = cdk.Stack.of(scope)
    existing = stack.node.try_find_child(_MAPPING)
    mapping = existing or cdk.CfnMapping(stack, _MAPPING, mapping=dict(sorted(table.items())))
    assert isinstance(mapping, cdk.CfnMapping)
    return mapping.find_in_map(cdk.Aws.REGION, "account")


def registry_host(scope: Construct) -> str:
    """Registry of AWS's Deep Learning Containers in the stack's region and partition."""
    return f"{registry_account(scope)}.dkr.ecr.{cdk.Aws.REGION}.{cdk.Aws.URL_SUFFIX}"
