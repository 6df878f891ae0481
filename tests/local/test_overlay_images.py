"""ECR: a missing image is an error, not an empty answer."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from local.server import LocalAws

MISSING = {"repositoryName": "overlay-images", "imageIds": [{"imageTag": "missing"}]}


def test_missing_image_is_refused(aws: LocalAws, stock: LocalAws) -> None:
    for server in (aws, stock):
        server.client("ecr").create_repository(repositoryName="overlay-images")
    assert stock.client("ecr").describe_images(**MISSING)["imageDetails"] == []
    with pytest.raises(ClientError) as refused:
        aws.client("ecr").describe_images(**MISSING)
    assert refused.value.response["Error"]["Code"] == "ImageNotFoundException"
