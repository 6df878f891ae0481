"""CloudWatch alarms and GetMetricData as AWS evaluates them.

Stock ministack (1.5.33) mixes the data of every dimension set into an alarm, evaluates one lump over all periods, and
leaves an alarm as it was when data is missing; GetMetricData without dimensions sums up every dimension set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ministack.core import responses
from ministack.services import cloudwatch

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

EVALUATE_SECONDS = 1.0
"""AWS evaluates every minute; here nobody wants to wait for it."""

BREACHES: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": lambda value, limit: value >= limit,
    "GreaterThanThreshold": lambda value, limit: value > limit,
    "LessThanThreshold": lambda value, limit: value < limit,
    "LessThanOrEqualToThreshold": lambda value, limit: value <= limit,
}


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the evaluation, and evaluate regularly: missing data is an answer too."""
    seams.take(cloudwatch, "_evaluate_alarm")
    seams.take(cloudwatch, "_evaluate_all_alarms")
    seams.take(cloudwatch, "_get_metric_data")
    seams.take(cloudwatch, "_get_metric_statistics")
    named = seams.take(cloudwatch, "_dims_from_list")
    cloudwatch._evaluate_alarm = evaluate
    cloudwatch._dims_from_list = lambda dimensions: _ExactDimensions(named(dimensions))

    def tick() -> None:
        while True:
            time.sleep(EVALUATE_SECONDS)
            for account, region in {key[:2] for key in list(cloudwatch._alarms.to_dict())}:
                with responses.request_scope(account, region):
                    cloudwatch._evaluate_all_alarms()

    if context.endpoint:
        context.spawn(tick, name="alarms")


class _ExactDimensions(dict[str, str]):
    """Dimensions asked for: both callers take an empty (false) dict for "any", where AWS means "those without"."""

    def __bool__(self) -> bool:
        return True


def evaluate(alarm: dict[str, Any]) -> None:
    """Set the alarm's state from its newest `EvaluationPeriods` periods; alarms on metric math stay as they are."""
    namespace, metric = alarm.get("Namespace"), alarm.get("MetricName")
    if not namespace or not metric or alarm.get("ComparisonOperator") not in BREACHES:
        return
    key = cloudwatch._dims_key(cloudwatch._dims_from_list(alarm.get("Dimensions") or []))
    points = list(cloudwatch._metrics.get((namespace, metric, key)) or [])
    values = [_period_value(alarm, points, back) for back in range(int(alarm.get("EvaluationPeriods", 1)))]
    state, reason = _state(alarm, values)
    former = alarm["StateValue"]
    if state == former:
        return
    alarm.update(StateValue=state, StateReason=reason, StateUpdatedTimestamp=int(time.time()))
    cloudwatch._record_history(alarm["AlarmName"], former, state, reason)
    cloudwatch._dispatch_alarm_actions(alarm, former, state, reason)
    cloudwatch._evaluate_parent_alarms(alarm)


def _period_value(alarm: dict[str, Any], points: list[dict[str, Any]], back: int) -> float | None:
    """The statistic of the period that ended `back` periods ago, None without data."""
    period = float(alarm.get("Period", 60))
    end = time.time() - back * period
    inside = [point for point in points if end - period <= point["Timestamp"] < end + (1 if back == 0 else 0)]
    if not inside:
        return None
    statistic = alarm.get("ExtendedStatistic") or alarm.get("Statistic", "Average")
    value = cloudwatch._stat_value(cloudwatch._calc_stats(inside), statistic, inside)
    return None if value is None else float(value)


def _state(alarm: dict[str, Any], values: list[float | None]) -> tuple[str, str]:
    treatment = alarm.get("TreatMissingData") or "missing"
    breaches = BREACHES[alarm["ComparisonOperator"]]
    threshold = float(alarm.get("Threshold", 0))
    judged = [None if value is None else breaches(value, threshold) for value in values]
    if treatment in ("breaching", "notBreaching"):
        judged = [treatment == "breaching" if breach is None else breach for breach in judged]
    if all(breach is None for breach in judged):
        unchanged = alarm["StateValue"] if treatment == "ignore" else "INSUFFICIENT_DATA"
        return unchanged, "Insufficient Data: no datapoints were received"
    needed = int(alarm.get("DatapointsToAlarm") or alarm.get("EvaluationPeriods", 1))
    state = "ALARM" if sum(breach is True for breach in judged) >= needed else "OK"
    return state, f"Threshold Crossed: {values} {alarm['ComparisonOperator']} {threshold}"
