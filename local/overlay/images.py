"""ECR images, looked up as on AWS: stock ministack (1.5.33) answers with an empty list where an image is missing."""

from __future__ import annotations

from typing import Any

from ministack.core.responses import error_response_json
from ministack.services import ecr

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams


def install(context: OverlayContext, seams: Seams) -> None:
    """DescribeImages refuses an id that the repository does not have."""
    describe = seams.take(ecr, "_describe_images")
    seams.take(ecr, "_find_image")

    def describe_images(data: dict[str, Any]) -> Any:
        name = data.get("repositoryName", "")
        if name in ecr._repositories:
            for wanted in data.get("imageIds") or []:
                if ecr._find_image(name, wanted) is None:
                    message = f"The image with imageId {wanted} does not exist within the repository '{name}'"
                    return error_response_json("ImageNotFoundException", message, 400)
        return describe(data)

    ecr._describe_images = describe_images
