"""CloudWatch Logs as AWS answers: filter patterns, paging, metric filters and embedded metrics on every event.

Stock ministack (1.5.33): `{...}` patterns match everything, `?a ?b` nothing, terms ignore case; FilterLogEvents ignores
`logStreamNamePrefix` and never gives a nextToken; metric filters and the embedded metric format (EMF) are stored and
never evaluated.
"""

from __future__ import annotations

import base64
import heapq
import json
import logging
import time
from collections.abc import Iterable
from typing import Any

from ministack.services import cloudwatch, lambda_svc
from ministack.services import cloudwatch_logs as logs

from local.overlay.context import OverlayContext, Response, refuse, reply
from local.overlay.filter_pattern import PatternError, compile_pattern, number, resolve
from local.overlay.seams import Seams

log = logging.getLogger("local")

FILTER_PAGE = 10_000
"""FilterLogEvents gives at most this many events in one answer."""

Event = dict[str, Any]


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the log seams."""
    for name in ("_filter_log_events", "_subscription_pattern_matches", "_compile_filter_pattern"):
        seams.take(logs, name)
    put_filter = seams.take(logs, "_put_metric_filter")
    # The one function that sees the events of PutLogEvents and of Lambda's own log lines alike.
    fan_out = seams.take(logs, "_fanout_to_subscription_filters")
    seams.take(logs, "_put_log_events")
    seams.take(lambda_svc, "_emit_lambda_logs")
    seams.take(cloudwatch, "_store_datum")
    defaults = DefaultValues()

    def put_metric_filter(data: dict[str, Any]) -> Response:
        try:
            compile_pattern(data.get("filterPattern") or "")
        except PatternError as error:
            return refuse("InvalidParameterException", f"Invalid filter pattern: {error}")
        response: Response = put_filter(data)
        return response

    def see_events(group: str, stream: str, events: list[Event]) -> None:
        fan_out(group, stream, events)
        for metric_filter in list(logs._metric_filters.values()):
            if metric_filter["logGroupName"] == group:
                _evaluate_filter(metric_filter, events, defaults)
        for event in events:
            _record_embedded_metrics(event)

    logs._put_metric_filter = put_metric_filter
    logs._fanout_to_subscription_filters = see_events
    logs._filter_log_events = filter_log_events
    logs._subscription_pattern_matches = matches
    logs._compile_filter_pattern = lambda pattern: lambda message: matches(pattern, message)


def matches(pattern: str | None, message: str) -> bool:
    """Whether a log event matches; a pattern that does not parse matches nothing."""
    try:
        return compile_pattern(pattern or "").match(message) is not None
    except PatternError:
        return False


def filter_log_events(data: dict[str, Any]) -> Response:
    """FilterLogEvents: events of the chosen streams in time order, a nextToken while there are more."""
    group = logs._resolve_log_group_name(data)
    if group not in logs._log_groups:
        return refuse("ResourceNotFoundException", "The specified log group does not exist.")
    names, prefix = data.get("logStreamNames"), data.get("logStreamNamePrefix")
    if names and prefix:
        return refuse("InvalidParameterException", "logStreamNamePrefix and logStreamNames exclude each other.")
    try:
        pattern = compile_pattern(data.get("filterPattern") or "")
        position = _position(data.get("nextToken"))
    except PatternError as error:
        return refuse("InvalidParameterException", f"Invalid filter pattern: {error}")
    except ValueError:
        return refuse("InvalidParameterException", "The specified nextToken is invalid.")
    limit = min(data.get("limit") or FILTER_PAGE, FILTER_PAGE)
    start, end = data.get("startTime", 0), data.get("endTime", float("inf"))

    streams = logs._log_groups[group]["streams"]
    with logs._log_events_lock:
        chosen = [
            [(event["timestamp"], event.get("ingestionTime", 0), name, event) for event in stream["events"]]
            for name, stream in sorted(streams.items())
            if (name in names if names else name.startswith(prefix or ""))
        ]
    found: list[Event] = []
    scanned = 0
    for scanned, (timestamp, _, name, event) in enumerate(heapq.merge(*chosen, key=lambda entry: entry[:3]), 1):
        if scanned <= position or not start <= timestamp <= end or pattern.match(event["message"]) is None:
            continue
        shown = {key: event[key] for key in ("timestamp", "message", "ingestionTime", "eventId") if key in event}
        found.append({**shown, "logStreamName": name})
        if len(found) == limit:
            break
    more = scanned < sum(map(len, chosen))
    return reply({"events": found, "searchedLogStreams": [], **({"nextToken": _token(scanned)} if more else {})})


def _token(position: int) -> str:
    return base64.urlsafe_b64encode(f"events:{position}".encode()).decode()


def _position(token: str | None) -> int:
    if not token:
        return 0
    kind, _, position = base64.urlsafe_b64decode(token).decode().partition(":")
    if kind != "events":
        raise ValueError(token)
    return int(position)


class DefaultValues:
    """When a metric filter's default value is due: once in a minute that had events and no match."""

    def __init__(self) -> None:
        self._minute: dict[tuple[str, str], int] = {}

    def due(self, metric_filter: dict[str, Any], *, matched: bool) -> bool:
        """Whether to record the default now."""
        minute = int(time.time() // 60)
        key = metric_filter["logGroupName"], metric_filter["filterName"]
        seen = self._minute.get(key) == minute
        self._minute[key] = minute
        return not matched and not seen


def _evaluate_filter(metric_filter: dict[str, Any], events: Iterable[Event], defaults: DefaultValues) -> None:
    try:
        pattern = compile_pattern(metric_filter.get("filterPattern") or "")
    except PatternError:
        return
    matched = [(event, values) for event in events if (values := pattern.match(event["message"])) is not None]
    default_due = defaults.due(metric_filter, matched=bool(matched))
    for given in metric_filter["metricTransformations"]:
        transformation = {key[0].lower() + key[1:]: value for key, value in given.items()}  # CloudFormation's are Upper
        for event, values in matched:
            dimensions = _dimensions(transformation.get("dimensions"), values)
            value = number(resolve(str(transformation["metricValue"]), values))
            if value is not None and dimensions is not None:
                _record(transformation, value, dimensions, event.get("timestamp"))
        default = number(transformation.get("defaultValue"))
        if default_due and default is not None:
            _record(transformation, default, {}, None)


def _dimensions(given: Any, values: dict[str, Any]) -> dict[str, str] | None:
    """Dimension name -> value of this event; None when the event lacks one, which then gives no data point."""
    pairs = given.items() if isinstance(given, dict) else [(pair["Key"], pair["Value"]) for pair in given or []]
    found = {name: resolve(reference, values) for name, reference in pairs}
    return None if None in found.values() else {name: str(value) for name, value in found.items()}


def _record(transformation: dict[str, Any], value: float, dimensions: dict[str, str], timestamp: int | None) -> None:
    seconds = time.time() if timestamp is None else timestamp / 1000
    name = transformation["metricName"]
    unit = transformation.get("unit") or "None"
    cloudwatch._store_datum(transformation["metricNamespace"], name, dimensions, seconds, unit, value, None, None, None)


def _record_embedded_metrics(event: Event) -> None:
    """The embedded metric format: a log event that is JSON with an `_aws` member names metrics among its members."""
    if '"_aws"' not in event["message"]:
        return
    try:
        document = json.loads(event["message"])
        metadata = document["_aws"]
        for directive in metadata["CloudWatchMetrics"]:
            for names in directive.get("Dimensions") or [[]]:
                dimensions = {name: str(document[name]) for name in names}
                for metric in directive["Metrics"]:
                    values = document[metric["Name"]]
                    values = values if isinstance(values, list) else [values]
                    cloudwatch._store_datum(
                        directive["Namespace"],
                        metric["Name"],
                        dimensions,
                        metadata.get("Timestamp", time.time() * 1000) / 1000,
                        metric.get("Unit", "None"),
                        None,
                        values,
                        None,
                        None,
                    )
    except (ValueError, KeyError, TypeError) as error:
        log.warning("a log event with _aws is no embedded metric: %s", error)
