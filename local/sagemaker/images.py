"""Which recorded image a job's TrainingImage means: looked up in the emulated ECR, by digest or tag."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ministack.core.responses import get_account_id, get_region
from ministack.services import ecr

from local.docker_shim.store import Image, ImageStore
from local.sagemaker.validation import ApiError, invalid

_REFERENCE = re.compile(
    r"^(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/"
    r"(?P<repository>[a-z0-9._/-]+)(?:@(?P<digest>sha256:[0-9a-f]{64})|:(?P<tag>[A-Za-z0-9_.-]+))?$"
)


def find_image(reference: str, work_dir: Path) -> Image:
    """The recorded image behind an ECR reference. Raises ApiError as CreateTrainingJob does when there is none."""
    match = _REFERENCE.match(reference)
    if match is None:
        raise invalid(f"Invalid image URI {reference}. Please provide a valid Amazon Elastic Container Registry path.")
    if (match["account"], match["region"]) != (get_account_id(), get_region()):
        raise invalid(f"Access denied for repository: {match['repository']} in registry ID: {match['account']}")
    if match["repository"] not in ecr._repositories:
        raise invalid(
            f"Cannot find repository: {match['repository']} in registry ID: {match['account']} "
            "Please check if your ECR repository exists"
        )
    identity = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"] or "latest"}
    pushed = ecr._find_image(match["repository"], identity)
    if pushed is None:
        raise invalid(f"Requested image {reference} not found. Please check that the image exists in the repository.")
    try:
        config = json.loads(pushed["imageManifest"])["config"]["digest"]
        return ImageStore(work_dir).get(config)
    except (KeyError, ValueError) as error:
        raise ApiError(
            "ValidationException", f"Image {reference} was not pushed by this server's docker stand-in: {error}"
        ) from None
