"""Alarms, each with what it means and what to do; all go to the stack's topic."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as stepfunctions
from constructs import Construct

from blackwell import metrics
from blackwell.telemetry import METRIC_NAMESPACE
from stacks.image import Image
from stacks.settings import Settings

SPEND_ALARM_FRACTION = 0.9
THROUGHPUT_DROP_RATIO = 0.7
"""Alarm when the newest steps run at less than this share of the speed before."""
_ABOVE = cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD
_BELOW = cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD


_TYPED_ERRORS = frozenset({"Launch", "EnsureImage"})
"""Functions whose errors are ordinary outcomes: no capacity, throttled, not ready yet, an image that was not built. The
workflow retries them or gives them a verdict, and the alarms on runs and builds tell of those."""


class Alarms(Construct):
    """Missing data is no alarm: between runs there is none."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        topic: sns.Topic,
        image: Image,
        state_machine: stepfunctions.StateMachine,
        functions: Sequence[lambda_.Function],
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings, self._topic = settings, topic
        self._runs()
        self._plumbing(image, state_machine, functions)
        self._image_builds(image)

    def _runs(self) -> None:
        settings = self._settings
        guard = cdk.Duration.minutes(max(5, settings.guard_minutes))
        self._alarm("RunFailed", self._metric(metrics.RUNS_FAILED, "Sum"), 1, "A run failed; its report says why.")
        self._alarm(
            "Silence", self._metric(metrics.SILENCE_SECONDS, "Maximum", guard), settings.silence_minutes * 60,
            "A job trains but logs no step; the guard stops it as hung. Look at the stacks in its log.",
        )  # fmt: skip
        self._alarm(
            "CheckpointNotDurable", self._metric(metrics.DURABLE_AGE_SECONDS, "Maximum", guard),
            settings.durable_lag_minutes * 60,
            "The newest checkpoint that is whole in S3 is old: an interruption now would cost that much work.",
        )  # fmt: skip
        self._alarm(
            "ThroughputDrop", self._metric(metrics.THROUGHPUT_RATIO, "Minimum", guard), THROUGHPUT_DROP_RATIO,
            "The newest steps are much slower than those before. Look at data wait and checkpoint stall in the report.",
            comparison=_BELOW, periods=2,
        )  # fmt: skip
        self._alarm(
            "BudgetNearlySpent", self._metric(metrics.SPEND_FRACTION, "Maximum", guard), SPEND_ALARM_FRACTION,
            "A run has nearly used its budget; the guard stops it at the limit, after a checkpoint.",
        )  # fmt: skip

    def _plumbing(
        self, image: Image, state_machine: stepfunctions.StateMachine, functions: Sequence[lambda_.Function]
    ) -> None:
        five = cdk.Duration.minutes(5)
        self._alarm(
            "ExecutionTimedOut", state_machine.metric_timed_out(period=five), 1,
            "An execution timed out: the workflow itself is at fault, not the run.",
        )  # fmt: skip
        self._alarm(
            "ImageBuildFailed", image.project.metric_failed_builds(period=five), 1,
            "The training image was not built or failed its self-test; the build's log says why.",
        )  # fmt: skip
        for function in functions:
            owner = function.node.scope
            assert owner is not None
            if owner.node.id in _TYPED_ERRORS:
                continue
            self._alarm(
                f"{owner.node.id}Errors", function.metric_errors(period=five), 1,
                f"Function {owner.node.id} failed; its log has the error with the run's name.",
            )  # fmt: skip

    def _image_builds(self, image: Image) -> None:
        """The alarm says that; this message says which build, with the link to its log."""
        rule = events.Rule(
            self,
            "ImageBuildEnded",
            description="An image build failed",
            event_pattern=events.EventPattern(
                source=["aws.codebuild"],
                detail_type=["CodeBuild Build State Change"],
                detail={
                    "project-name": [image.project.project_name],
                    "build-status": ["FAILED", "FAULT", "TIMED_OUT", "STOPPED"],
                },
            ),
        )
        link = events.EventField.from_path("$.detail.additional-information.logs.deep-link")
        status = events.EventField.from_path("$.detail.build-status")
        text = f"The training image was not built: {status}. Nothing was pushed. Log: {link}"
        rule.add_target(targets.SnsTopic(self._topic, message=events.RuleTargetInput.from_text(text)))

    def _metric(self, name: str, statistic: str, period: cdk.Duration | None = None) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=METRIC_NAMESPACE,
            metric_name=name,
            dimensions_map={metrics.DIMENSION_STAGE: self._settings.stage},
            statistic=statistic,
            period=period or cdk.Duration.minutes(5),
        )

    def _alarm(
        self,
        name: str,
        metric: cloudwatch.IMetric,
        threshold: float,
        description: str,
        *,
        comparison: cloudwatch.ComparisonOperator = _ABOVE,
        periods: int = 1,
    ) -> None:
        alarm = cloudwatch.Alarm(
            self,
            name,
            metric=metric,
            threshold=threshold,
            evaluation_periods=periods,
            comparison_operator=comparison,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=description,
        )
        alarm.add_alarm_action(actions.SnsAction(self._topic))
