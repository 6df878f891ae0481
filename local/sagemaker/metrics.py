"""Algorithm metrics: MetricDefinitions' regular expressions over the log, to CloudWatch and FinalMetricDataList."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ministack.services import cloudwatch

NAMESPACE = "/aws/sagemaker/TrainingJobs"
MAX_FINAL_METRICS = 40


class AlgorithmMetrics:
    """What SageMaker reads from one job's log."""

    def __init__(self, job: str, definitions: Iterable[Mapping[str, str]]) -> None:
        self._job = job
        self._patterns = [(d["Name"], re.compile(d["Regex"])) for d in definitions]
        self._last: dict[str, tuple[float, float]] = {}

    def take(self, lines: Iterable[str]) -> None:
        """Publish every value that these lines hold; the first group of the expression is the value."""
        for line in lines:
            for name, pattern in self._patterns:
                match = pattern.search(line)
                if match is None or not match.groups():
                    continue
                try:
                    value = float(match[1])
                except ValueError:
                    continue
                self._last[name] = (value, time.time())
                cloudwatch.record_metric(NAMESPACE, name, value, dimensions={"TrainingJobName": self._job})

    def final(self) -> list[dict[str, Any]]:
        """FinalMetricDataList: the last value of each metric."""
        rows = [{"MetricName": n, "Value": v, "Timestamp": t} for n, (v, t) in self._last.items()]
        return rows[:MAX_FINAL_METRICS]
