"""Logs: filter patterns, paging, metric filters, embedded metrics; overlay beside stock ministack."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from overlay_helpers import eventually, function, invoke, unique

from blackwell import telemetry
from local.overlay.filter_pattern import PatternError, compile_pattern, resolve, split_fields
from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("overlay")
ACCESS = '127.0.0.1 - frank [10/Oct/2000:13:25:15 -0700] "GET /index.html HTTP/1.0" 404 1534'


@pytest.mark.parametrize(
    ("pattern", "message", "expected"),
    [
        ("", "anything", True),
        ("ERROR", "[ERROR 400] BAD REQUEST", True),
        ("ERROR", "an error", False),
        ("ERROR ARGUMENTS", "ERROR INVALID ARGUMENTS", True),
        ("ERROR ARGUMENTS", "ERROR INVALID", False),
        ("?ERROR ?ARGUMENTS", "BAD ARGUMENTS", True),
        ("?ERROR ?ARGUMENTS", "BAD REQUEST", False),
        ("ERROR -ARGUMENTS", "ERROR 400", True),
        ("ERROR -ARGUMENTS", "ERROR ARGUMENTS", False),
        ('"out of memory"', "CUDA out of memory", True),
        ('"out of memory"', "out of the memory", False),
        ('ERROR -"in the end"', "ERROR not in the end", False),
        ("%\\d{3}$%", "code 404", True),
        ("%^\\d%", "code 404", False),
        ("{ $.loss = 2 }", '{"loss": 2}', True),
        ("{ $.loss = 2 }", '{"loss": 2.0}', True),
        ("{ $.loss > 1.5 }", '{"loss": 1}', False),
        ("{ $.loss >= 1.5e0 }", '{"loss": 1.5}', True),
        ("{ $.loss > 1 }", 'step 1 {"loss": 2}', False),
        ("{ $.loss > 1 }", '{"loss": "high"}', False),
        ('{ $.run = "a*" }', '{"run": "abc"}', True),
        ('{ $.run = "a*" }', '{"run": "bac"}', False),
        ("{ $.run = a*c }", '{"run": "abc"}', True),
        ('{ $.run != "a" }', '{"run": "b"}', True),
        ('{ $.run != "a" }', "{}", False),
        ('{ $.loss = "*" }', '{"loss": 2}', True),
        ('{ $.loss = "*" }', "{}", False),
        ("{ $.a.b[1] = 7 }", '{"a": {"b": [1, 7]}}', True),
        ("{ $.a.b[*].c = 7 }", '{"a": {"b": [{"c": 1}, {"c": 7}]}}', True),
        ("{ $.['a.b'] = 7 }", '{"a.b": 7}', True),
        ("{ $.x IS NULL }", '{"x": null}', True),
        ("{ $.x IS NULL }", "{}", False),
        ("{ $.x IS TRUE }", '{"x": true}', True),
        ("{ $.x IS FALSE }", '{"x": true}', False),
        ("{ $.x NOT EXISTS }", "{}", True),
        ("{ $.x NOT EXISTS }", '{"x": 0}', False),
        ("{ $.a = 1 && $.b = 2 || $.c = 3 }", '{"a": 1, "c": 3}', True),
        ("{ $.a = 1 && ($.b = 2 || $.c = 3) }", '{"a": 1, "c": 4}', False),
        ("{ $.host = %^node-[0-9]+$% }", '{"host": "node-12"}', True),
        ("{ $.level = ERROR }", "[1]", False),
        ("[ip, user, username, timestamp, request, status_code, bytes]", ACCESS, True),
        ("[ip, user, username, timestamp, request, status_code]", ACCESS, False),
        ("[ip, user, username, timestamp, request, status_code = 4*, bytes]", ACCESS, True),
        ("[ip, user, username, timestamp, request = *.html*, status_code = 4*, bytes > 1000]", ACCESS, True),
        ("[ip, ..., status_code = 404 || status_code = 410, bytes]", ACCESS, True),
        ("[..., status_code = 5*, bytes]", ACCESS, False),
        ("[..., size < 2000 && size > 1534]", ACCESS, False),
        ("[ip = %127\\.0\\.0\\.\\d%, ...]", ACCESS, True),
        ("[ip != 127.0.0.1, ...]", ACCESS, False),
        ("[a, b, ...]", "only", False),
        ('[, b = "two"]', "one two", True),
    ],
)
def test_pattern_language(pattern: str, message: str, expected: bool) -> None:
    assert (compile_pattern(pattern).match(message) is not None) is expected


@pytest.mark.parametrize(
    "pattern", ["{ $.a }", "{ $.a > x }", "{ $.a = 1", "[a, b", "{ a = 1 }", "[..., a, ...]", '"open']
)
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


def test_values_of_a_match() -> None:
    values = compile_pattern("[ip, ..., request, code, bytes > 1]").match(ACCESS)
    assert values is not None
    assert values["$request"] == "GET /index.html HTTP/1.0"
    assert resolve("$bytes", values) == "1534"
    values = compile_pattern("{ $.a.b = 1 }").match('{"a": {"b": 1, "c": [5]}}')
    assert values is not None
    assert resolve("$.a.c[0]", values) == 5
    assert resolve("$.none", values) is None
    assert resolve("1", values) == "1"


def test_brackets_make_one_field() -> None:
    assert split_fields("[rank 0] loss 2.5") == ["rank 0", "loss", "2.5"]


def _group(aws: LocalAws, lines: dict[str, list[str]]) -> str:
    """A log group with these streams; events are one millisecond apart, in the order given."""
    client, group = aws.client("logs"), unique("/test/group")
    client.create_log_group(logGroupName=group)
    _put(aws, group, lines)
    return group


def _put(aws: LocalAws, group: str, lines: dict[str, list[str]]) -> None:
    client, now = aws.client("logs"), int(time.time() * 1000)
    for stream, messages in lines.items():
        client.create_log_stream(logGroupName=group, logStreamName=stream)
        events = [{"timestamp": now + index, "message": message} for index, message in enumerate(messages)]
        client.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def _messages(aws: LocalAws, **arguments: Any) -> list[str]:
    return [event["message"] for event in aws.client("logs").filter_log_events(**arguments)["events"]]


def test_filter_log_events_by_prefix_and_pattern(aws: LocalAws, stock: LocalAws) -> None:
    lines = {"job-a/algo-1": ['{"loss": 3}', "plain ERROR"], "job-b/algo-1": ['{"loss": 4}', "plain error"]}
    for server, by_prefix, by_json, by_term in (
        (aws, ['{"loss": 3}', "plain ERROR"], ['{"loss": 4}'], ["plain ERROR"]),
        (stock, 4, 4, 2),
    ):
        group = _group(server, lines)
        found = (
            _messages(server, logGroupName=group, logStreamNamePrefix="job-a/"),
            _messages(server, logGroupName=group, filterPattern="{ $.loss > 3 }"),
            _messages(server, logGroupName=group, filterPattern="ERROR"),
        )
        expected = (by_prefix, by_json, by_term)
        assert (found if server is aws else tuple(map(len, found))) == expected


def test_filter_log_events_pages(aws: LocalAws, stock: LocalAws) -> None:
    lines = [f"line {number}" for number in range(25)]
    client, group = aws.client("logs"), _group(aws, {"one": lines[::2], "two": lines[1::2]})
    pages = list(client.get_paginator("filter_log_events").paginate(logGroupName=group, limit=10))
    assert [len(page["events"]) for page in pages] == [10, 10, 5]
    assert sorted(event["message"] for page in pages for event in page["events"]) == sorted(lines)
    assert "nextToken" not in stock.client("logs").filter_log_events(
        logGroupName=_group(stock, {"one": lines}), limit=10
    )


def test_filter_log_events_refuses(aws: LocalAws) -> None:
    client, group = aws.client("logs"), _group(aws, {"one": ["x"]})
    for arguments in (
        {"filterPattern": "{ $.a }"},
        {"logStreamNames": ["one"], "logStreamNamePrefix": "o"},
        {"nextToken": "garbage"},
    ):
        with pytest.raises(ClientError) as caught:
            client.filter_log_events(logGroupName=group, **arguments)
        assert caught.value.response["Error"]["Code"] == "InvalidParameterException"


def _values(
    aws: LocalAws, namespace: str, metric: str, dimensions: dict[str, str] | None = None, stat: str = "Sum"
) -> list[float]:
    now = datetime.now(UTC)
    given = [{"Name": name, "Value": value} for name, value in (dimensions or {}).items()]
    query = {
        "Id": "q",
        "MetricStat": {
            "Metric": {"Namespace": namespace, "MetricName": metric, "Dimensions": given},
            "Period": 3600,
            "Stat": stat,
        },
    }
    answer = aws.client("cloudwatch").get_metric_data(
        MetricDataQueries=[query], StartTime=now - timedelta(hours=2), EndTime=now + timedelta(hours=2)
    )
    return [float(value) for value in answer["MetricDataResults"][0]["Values"]]


def _telemetry_filters(server: LocalAws, group: str, namespace: str) -> None:
    for metric, value in telemetry.METRIC_FILTERS.items():
        transformation = {
            "metricName": metric,
            "metricNamespace": namespace,
            "metricValue": value,
            "dimensions": {"Run": "$run"},
        }
        server.client("logs").put_metric_filter(
            logGroupName=group,
            filterName=metric,
            filterPattern=telemetry.METRIC_FILTER_PATTERN,
            metricTransformations=[transformation],
        )


def test_metric_filters_read_the_telemetry(aws: LocalAws, stock: LocalAws) -> None:
    lines = [
        '[rank 0] loss 2.500000 tokens_per_second 1000.5 step 10 run my-run {"step": 10, "text": "a b"}',
        '[rank 0] loss 1.500000 tokens_per_second 999.5 step 20 run my-run {"step": 20}',
        '[rank 0] loss nan tokens_per_second 1.0 step 30 run my-run {"step": 30}',
        '[rank 1] loss 9.0 tokens_per_second 9.0 step 10 run my-run {"step": 10}',
        "[rank 0] event finish run my-run {}",
    ]
    found = {}
    for server in (aws, stock):
        namespace, group = unique("Test"), _group(server, {})
        _telemetry_filters(server, group, namespace)
        _put(server, group, {"job/algo-1": lines})
        found[server] = {
            metric: _values(server, namespace, metric, {"Run": "my-run"}, "Maximum")
            for metric in telemetry.METRIC_FILTERS
        }
        found[server]["count"] = _values(server, namespace, "Loss", {"Run": "my-run"}, "SampleCount")
        found[server]["without dimensions"] = _values(server, namespace, "Loss")
    assert found[aws] == {
        "Loss": [2.5],
        "TokensPerSecond": [1000.5],
        "Step": [30.0],
        "count": [2.0],
        "without dimensions": [],
    }
    assert not any(found[stock].values())


def test_metric_filter_on_function_logs_with_default_value(aws: LocalAws) -> None:
    namespace, name = unique("Test"), function(aws, "def handler(event, context):\n    print('lost', event['n'])\n")
    client, group = aws.client("logs"), f"/aws/lambda/{name}"
    client.create_log_group(logGroupName=group)
    client.put_metric_filter(
        logGroupName=group,
        filterName="lost",
        filterPattern="[word = lost, n]",
        metricTransformations=[
            {"metricName": "Lost", "metricNamespace": namespace, "metricValue": "$n", "defaultValue": 0}
        ],
    )
    invoke(aws, name, {"n": 5})
    invoke(aws, name, {"n": 7})
    eventually(lambda: _values(aws, namespace, "Lost") == [12.0])


def test_bad_metric_filter_is_refused(aws: LocalAws) -> None:
    group = _group(aws, {})
    with pytest.raises(ClientError, match="InvalidParameterException"):
        aws.client("logs").put_metric_filter(
            logGroupName=group,
            filterName="bad",
            filterPattern="{ $.a }",
            metricTransformations=[{"metricName": "M", "metricNamespace": "N", "metricValue": "1"}],
        )


def test_embedded_metrics(aws: LocalAws, stock: LocalAws) -> None:
    for server, expected in ((aws, [6.0]), (stock, [])):
        namespace = unique("Test")
        directive = {
            "Namespace": namespace,
            "Dimensions": [["stage"]],
            "Metrics": [{"Name": "Attempts", "Unit": "Count"}],
        }
        document = {"_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}}
        _group(server, {"s": [json.dumps({**document, "stage": "dev", "Attempts": [1, 5]})]})
        assert _values(server, namespace, "Attempts", {"stage": "dev"}) == expected


def _alarm(aws: LocalAws, namespace: str, **options: Any) -> str:
    name = unique("alarm")
    settings = {
        "Namespace": namespace,
        "MetricName": "M",
        "Dimensions": [{"Name": "Run", "Value": "a"}],
        "Statistic": "Sum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 5,
        "ComparisonOperator": "GreaterThanThreshold",
        **options,
    }
    aws.client("cloudwatch").put_metric_alarm(AlarmName=name, **settings)
    return name


def _alarm_state(aws: LocalAws, name: str) -> str:
    return str(aws.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"][0]["StateValue"])


def test_alarm_sees_its_dimensions_and_missing_data(aws: LocalAws, stock: LocalAws) -> None:
    def put(server: LocalAws, namespace: str, run: str, value: float) -> None:
        point = {"MetricName": "M", "Value": value, "Dimensions": [{"Name": "Run", "Value": run}]}
        server.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[point])

    states = {}
    for server in (aws, stock):
        namespace = unique("Test")
        put(server, namespace, "b", 100)
        quiet, silent = _alarm(server, namespace), _alarm(server, namespace, TreatMissingData="breaching")
        states[server] = [_alarm_state(server, quiet), _alarm_state(server, silent), _values(server, namespace, "M")]
    assert states[aws] == ["INSUFFICIENT_DATA", "ALARM", []]
    assert states[stock] == ["ALARM", "ALARM", [100.0]]
    namespace = unique("Test")
    name = _alarm(aws, namespace, TreatMissingData="notBreaching")
    put(aws, namespace, "a", 100)
    assert _alarm_state(aws, name) == "ALARM"
