"""Pins what the hosts beside ministack (`local.sagemaker`, `local.codebuild`, `local.faults`) replace or call in it."""

from __future__ import annotations

from ministack.services import cloudwatch, codebuild, ecr, eventbridge
from ministack.services.cloudformation import provisioners

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams


def install(context: OverlayContext, seams: Seams) -> None:
    """Nothing is replaced here: the hosts do that themselves once all seams are known to be the expected ones."""
    for name in ("_start_build", "_stop_build", "_make_build_record", "_build_id"):
        seams.take(codebuild, name)
    for name in ("_codebuild_project_create", "_codebuild_project_update"):
        seams.take(provisioners, name)
    seams.take(eventbridge, "_put_events")
    seams.take(ecr, "_put_image")
    seams.take(cloudwatch, "record_metric")
