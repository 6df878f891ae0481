"""SageMaker training plans: reserved capacity that was paid beforehand."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from blackwell.planning import TrainingPlanFact
from lambdas.common.aws import client, error_code

PLAN_STATUSES = ("Scheduled", "Active")
"""Statuses of a training plan that takes jobs."""


def describe_plan(arn: str) -> dict[str, Any] | None:
    """DescribeTrainingPlan's answer (it takes the name, not the ARN); None where there is no such plan."""
    try:
        return dict(client("sagemaker").describe_training_plan(TrainingPlanName=arn.rpartition("/")[2]))
    except ClientError as error:
        if error_code(error) == "ResourceNotFound":
            return None
        raise


def training_plan_fact(arn: str) -> TrainingPlanFact:
    """When the plan ends and what an instance hour of it has cost."""
    plan = describe_plan(arn) or {}
    hours = (plan.get("DurationHours") or 0) * (plan.get("TotalInstanceCount") or 0)
    fee = plan.get("UpfrontFee")  # a string in the API
    return TrainingPlanFact(
        end_time=plan.get("EndTime"), upfront_fee=float(fee) if fee else None, instance_hours=hours or None
    )
