"""What is to be taken away: the custom resource's properties, all of this stack and nothing of any other."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Targets(BaseModel):
    """CloudFormation hands properties over as text and lists of text; pydantic makes them what they are."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    partition: str = Field(alias="Partition", default="aws")
    stage: str = Field(alias="Stage")
    job_prefix: str = Field(alias="JobPrefix")
    """Training jobs named `<job_prefix>-...` that carry the stage's tag are ours."""
    state_machines: list[str] = Field(alias="StateMachines", default_factory=list)
    build_project: str = Field(alias="BuildProject")
    artifacts_bucket: str = Field(alias="ArtifactsBucket")
    checkpoint_bucket: str = Field(alias="CheckpointBucket")
    retain_data: bool = Field(alias="RetainData", default=False)
    training_log_group: str = Field(alias="TrainingLogGroup")
    """Shared by the account: only streams of our jobs go."""
    log_groups: list[str] = Field(alias="LogGroups", default_factory=list)
    """Names that a service would give a log group of ours if it made one by itself."""
    security_group: str = Field(alias="SecurityGroup", default="")
    """Of the jobs in a network of the stack's own; empty without one."""
    service_timeout_seconds: int = Field(alias="ServiceTimeoutSeconds", default=3600)
