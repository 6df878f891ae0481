"""The functions' environment variables, set by the stack: read once, checked once."""

from __future__ import annotations

import os
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from blackwell.names import RunPlaces, s3_uri


class Environment(BaseModel):
    """One field per variable; the variable's name is the field's in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    run_table: str
    artifacts_bucket: str
    checkpoint_bucket: str
    repository_uri: str
    repository_name: str
    build_project: str
    execution_role_arn: str
    job_prefix: str
    image_tag: str
    allowed_instance_types: str
    max_instances: int
    max_budget_usd: float
    max_runtime_hours: float
    report_function: str = ""
    """Name of the report function, where a function may ask for a report outside the state machine."""
    topic_arn: str = ""
    """Of the topic that runs' ends are published to, where the function publishes itself."""
    state_machine_arn: str = ""
    """Known to the functions that the state machine does not itself call."""
    data_buckets: str = ""
    """Buckets beside the stack's own that jobs may read."""
    guard_minutes: int = Field(default=5, ge=1)
    subnets: str = ""
    security_groups: str = ""
    kms_key_arn: str = ""
    network_isolation: bool = False
    silence_minutes: int = Field(default=30, ge=1)
    durable_lag_minutes: int = Field(default=120, ge=1)

    @property
    def instance_types(self) -> tuple[str, ...]:
        return _split(self.allowed_instance_types)

    @property
    def data_bucket_names(self) -> tuple[str, ...]:
        return _split(self.data_buckets)

    @property
    def subnet_ids(self) -> tuple[str, ...]:
        return _split(self.subnets)

    @property
    def security_group_ids(self) -> tuple[str, ...]:
        return _split(self.security_groups)

    def document_uri(self, run: str, name: str) -> str:
        """S3 URI of one of the run's documents."""
        return s3_uri(self.artifacts_bucket, RunPlaces(run).document(name))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


@cache
def environment() -> Environment:
    """The environment of this function.

    Raises:
        pydantic.ValidationError: a variable is missing or of the wrong type.
    """
    names = {field.upper(): field for field in Environment.model_fields}
    return Environment.model_validate({names[k]: v for k, v in os.environ.items() if k in names})
