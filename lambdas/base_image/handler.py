"""Looks for a newer base image of the same family, and says so: nothing is changed by itself."""

from __future__ import annotations

import os
import re
from typing import Any

import boto3
from aws_lambda_powertools import Logger
from botocore.exceptions import ClientError
from pydantic import BaseModel, ConfigDict

log = Logger(service="base_image")

_VERSION = re.compile(r"\d+(?:\.\d+)*")


class BaseImageEnvironment(BaseModel):
    """Where the base image comes from; the variables' names are these in capitals."""

    model_config = ConfigDict(frozen=True)

    base_registry_account: str
    base_repository: str
    base_tag: str
    topic_arn: str


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    settings = BaseImageEnvironment.model_validate({k.lower(): v for k, v in os.environ.items()})
    try:
        newer = newer_tags(settings.base_tag, _tags(settings))
    except ClientError as error:
        # AWS decides whether its registry may be listed; not being told is no fault of ours, but must be seen
        log.warning("the registry of the base images could not be listed", extra={"error": str(error)})
        return {"asked": False, "newer": []}
    log.info("looked for newer base images", extra={"current": settings.base_tag, "newer": newer})
    if newer:
        boto3.client("sns").publish(
            TopicArn=settings.topic_arn,
            Subject="A newer base image is there",
            Message=(
                f"Training images are built on {settings.base_repository}:{settings.base_tag}. "
                f"Newer: {', '.join(newer)}. Setting base_image in cdk.json chooses it; the next run then builds and "
                "tests an image on it."
            ),
        )
    return {"asked": True, "newer": newer}


def _tags(settings: BaseImageEnvironment) -> list[str]:
    pages = (
        boto3.client("ecr")
        .get_paginator("list_images")
        .paginate(
            registryId=settings.base_registry_account,
            repositoryName=settings.base_repository,
            filter={"tagStatus": "TAGGED"},
        )
    )
    return [image["imageTag"] for page in pages for image in page["imageIds"]]


def newer_tags(current: str, tags: list[str]) -> list[str]:
    """Tags of the current one's family (equal but for version numbers) with a higher version, highest last.

    The family of `2.13-cu133-amzn2023-sagemaker` is `#-cu#-amzn2023-sagemaker`: the first two numbers may differ, the
    operating system may not.
    """
    mine = _version(current)
    family = {tag for tag in tags if _family(tag) == _family(current) and _version(tag) > mine}
    return sorted(family, key=_version)


def _family(tag: str) -> str:
    return _VERSION.sub("#", tag, count=2)


def _version(tag: str) -> tuple[int, ...]:
    first = _VERSION.search(tag)
    return tuple(int(part) for part in first[0].split(".")) if first else ()
