"""What a CreateTrainingJob request needs besides the spec, from this stack's settings."""

from __future__ import annotations

from blackwell.request import LaunchContext
from blackwell.runs import AttemptItem
from blackwell.spec import JobSpec
from lambdas.common.environment import environment
from lambdas.common.resume import resume_uri


def launch_context(item: AttemptItem, spec: JobSpec, image: str, *, plan_continues: bool = False) -> LaunchContext:
    """The context of one attempt; `image` is repository@digest."""
    stack = environment()
    return LaunchContext(
        run=item.run,
        attempt=item.attempt,
        stage=stack.stage,
        job_prefix=stack.job_prefix,
        image=image,
        role_arn=stack.execution_role_arn,
        artifacts_bucket=stack.artifacts_bucket,
        checkpoint_bucket=stack.checkpoint_bucket,
        resume_uri=resume_uri(spec.resume_from, stack) if spec.resume_from else None,
        plan_continues=plan_continues,
        skip_data=item.skip_data,
        subnets=stack.subnet_ids,
        security_groups=stack.security_group_ids,
        kms_key_arn=stack.kms_key_arn or None,
        network_isolation=stack.network_isolation,
    )
