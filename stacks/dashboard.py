"""The dashboard: one page about the runs of a stage, then the workflow below it. Runs need not be known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as stepfunctions
from constructs import Construct

from blackwell import metrics
from blackwell.telemetry import METRIC_NAMESPACE
from stacks.roles import SAGEMAKER_NAMESPACE
from stacks.settings import Settings

HEIGHT = 6
HALF, THIRD = 12, 8
"""Widths on CloudWatch's grid of 24."""


class Dashboard(Construct):
    """`dashboard`."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        state_machine: stepfunctions.StateMachine,
        functions: Sequence[lambda_.Function],
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self.dashboard = cloudwatch.Dashboard(self, "Dashboard", period_override=cloudwatch.PeriodOverride.AUTO)
        self.dashboard.add_widgets(
            self._trainer("Loss", "Loss", "nats per token"),
            self._trainer("Tokens per second", "TokensPerSecond", "tokens/s"),
        )
        self.dashboard.add_widgets(
            self._algorithm("MFU", "mfu_percent", "%"),
            self._algorithm("Peak memory reserved, per GPU", "memory_reserved_peak_gb", "GB"),
            self._instance("GPU use, sum over the instance's GPUs", "GPUUtilization", "%"),
        )
        self.dashboard.add_widgets(
            self._guard(
                "Age of the newest durable checkpoint",
                metrics.DURABLE_AGE_SECONDS,
                "s",
                settings.durable_lag_minutes * 60,
            ),
            self._guard("Spend against budget", metrics.SPEND_FRACTION, "of budget", 1.0),
            self._guard("Goodput of finished runs", metrics.GOODPUT, "of billed time", None),
        )
        self.dashboard.add_widgets(
            self._ends(),
            self._guard("Attempts that a run needed", metrics.ATTEMPTS, "jobs", None),
            self._guard("Silence while training", metrics.SILENCE_SECONDS, "s", settings.silence_minutes * 60),
        )
        self.dashboard.add_widgets(
            _graph("Executions", [state_machine.metric_started(), state_machine.metric_succeeded(), state_machine.metric_failed(), state_machine.metric_aborted()], "count", HALF),
            _graph("Errors of the functions", [f.metric_errors(label=f.node.scope.node.id if f.node.scope else "") for f in functions], "count", HALF),
        )  # fmt: skip

    def _search(
        self, title: str, expression: str, unit: str, width: int, limit: float | None = None
    ) -> cloudwatch.GraphWidget:
        lines = cloudwatch.MathExpression(
            expression=expression, label="", using_metrics={}, period=cdk.Duration.minutes(1)
        )
        return _graph(title, [lines], unit, width, limit)

    def _trainer(self, title: str, metric: str, unit: str) -> cloudwatch.GraphWidget:
        """From the metric filters on the trainer's lines."""
        return self._search(
            title, f"SEARCH('{{{METRIC_NAMESPACE},Run}} MetricName=\"{metric}\"', 'Average', 60)", unit, HALF
        )

    def _algorithm(self, title: str, metric: str, unit: str) -> cloudwatch.GraphWidget:
        """From SageMaker's metric definitions; the job's name carries the stage's prefix."""
        what = f'{{"{SAGEMAKER_NAMESPACE}",TrainingJobName}} MetricName="{metric}" {self._ours("TrainingJobName")}'
        return self._search(title, f"SEARCH('{what}', 'Average', 60)", unit, THIRD)

    def _instance(self, title: str, metric: str, unit: str) -> cloudwatch.GraphWidget:
        what = f'{{"{SAGEMAKER_NAMESPACE}",Host}} MetricName="{metric}" {self._ours("Host")}'
        return self._search(title, f"SEARCH('{what}', 'Average', 60)", unit, THIRD)

    def _ours(self, dimension: str) -> str:
        """Terms that the job prefix's words be in the dimension's value; unquoted terms match words, not phrases."""
        return " ".join(f"{dimension}={word}" for word in self._settings.job_prefix.split("-"))

    def _guard(self, title: str, metric: str, unit: str, limit: float | None) -> cloudwatch.GraphWidget:
        what = f'{{{METRIC_NAMESPACE},Run,Stage}} MetricName="{metric}" Stage="{self._settings.stage}"'
        return self._search(title, f"SEARCH('{what}', 'Maximum', 60)", unit, THIRD, limit)

    def _ends(self) -> cloudwatch.GraphWidget:
        ends = [
            cloudwatch.Metric(
                namespace=METRIC_NAMESPACE, metric_name=name, statistic="Sum", period=cdk.Duration.hours(1),
                dimensions_map={metrics.DIMENSION_STAGE: self._settings.stage},
            )
            for name in (metrics.RUNS_COMPLETED, metrics.RUNS_FAILED)
        ]  # fmt: skip
        return _graph("Runs ended", ends, "count", THIRD)


def _graph(
    title: str, left: Sequence[cloudwatch.IMetric], unit: str, width: int, limit: float | None = None
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(
        title=title,
        left=list(left),
        width=width,
        height=HEIGHT,
        left_y_axis=cloudwatch.YAxisProps(label=unit, show_units=False),
        left_annotations=[cloudwatch.HorizontalAnnotation(value=limit, label="alarm")] if limit is not None else [],
    )
