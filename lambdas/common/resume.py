"""Where a run finds the checkpoints of the run that it goes on from."""

from __future__ import annotations

from blackwell.names import RunPlaces, s3_uri
from lambdas.common.environment import Environment


def resume_uri(resume_from: str, stack: Environment) -> str:
    """S3 URI of the checkpoints of a run of this stack, or the URI that was given."""
    if resume_from.startswith("s3://"):
        return resume_from if resume_from.endswith("/") else f"{resume_from}/"
    return s3_uri(stack.checkpoint_bucket, RunPlaces(resume_from).checkpoints)
