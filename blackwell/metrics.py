"""CloudWatch metrics about runs, defined once: what the functions publish, what alarms and dashboard read.

The functions publish by printing one line of CloudWatch's embedded metric format, which needs no right and no call.
Every metric has dimension Stage, for alarms, and (Stage, Run), for the dashboard. What the trainer measures itself
(loss, tokens per second, ...) stands in `telemetry`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from blackwell.telemetry import METRIC_NAMESPACE

SPEND_FRACTION = "SpendFraction"
SILENCE_SECONDS = "SilenceSeconds"
DURABLE_AGE_SECONDS = "CheckpointDurableAgeSeconds"
THROUGHPUT_RATIO = "ThroughputRatio"
RUNS_COMPLETED = "RunsCompleted"
RUNS_FAILED = "RunsFailed"
ATTEMPTS = "Attempts"
GOODPUT = "Goodput"

UNITS: dict[str, str] = {
    SPEND_FRACTION: "None",
    SILENCE_SECONDS: "Seconds",
    DURABLE_AGE_SECONDS: "Seconds",
    THROUGHPUT_RATIO: "None",
    RUNS_COMPLETED: "Count",
    RUNS_FAILED: "Count",
    ATTEMPTS: "Count",
    GOODPUT: "None",
}
"""Metric -> CloudWatch unit.

SpendFraction: money spent / budget. SilenceSeconds: time since the last step line while the job trains.
CheckpointDurableAgeSeconds: age of the newest checkpoint that is whole in S3. ThroughputRatio: median tokens/s of the
newest steps / median of the steps before. Runs*: 1 when a run ends. Attempts: jobs that a run needed. Goodput:
productive time / billed time of a run.
"""

DIMENSION_STAGE = "Stage"
DIMENSION_RUN = "Run"


def metric_line(values: Mapping[str, float | None], *, stage: str, run: str, unix_time: float) -> str | None:
    """One embedded-metric-format line; None where no value is known. `unix_time` is in seconds.

    Raises:
        KeyError: for a metric that `UNITS` does not name.
    """
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    metrics = [{"Name": name, "Unit": UNITS[name]} for name in known]
    if not metrics:
        return None
    directive = {
        "Namespace": METRIC_NAMESPACE,
        "Dimensions": [[DIMENSION_STAGE], [DIMENSION_STAGE, DIMENSION_RUN]],
        "Metrics": metrics,
    }
    return json.dumps(
        {
            "_aws": {"Timestamp": int(unix_time * 1000), "CloudWatchMetrics": [directive]},
            DIMENSION_STAGE: stage,
            DIMENSION_RUN: run,
            **known,
        }
    )
