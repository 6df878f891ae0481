"""ECR: DescribeImages of an image that is not there is an error, as on AWS; stock ministack (1.5.33) answers with none."""

from __future__ import annotations

from typing import Any

from ministack.core.responses import error_response_json, get_account_id
from ministack.services import ecr

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the operation."""
    describe = seams.take(ecr, "_describe_images")

    def describe_images(request: dict[str, Any]) -> Any:
        name = request.get("repositoryName", "")
        for identity in request.get("imageIds") or []:
            if name in ecr._repositories and ecr._find_image(name, identity) is None:
                digest, tag = identity.get("imageDigest", "null"), identity.get("imageTag", "null")
                return error_response_json(
                    "ImageNotFoundException",
                    f"The image with imageId {{imageDigest:'{digest}', imageTag:'{tag}'}} does not exist within the "
                    f"repository with name '{name}' in the registry with id '{get_account_id()}'",
                    400,
                )
        return describe(request)

    ecr._describe_images = describe_images
