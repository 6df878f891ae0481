"""The dashboard's graphs find what trainer, SageMaker and functions publish, and nothing of another stage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from policies import resolve
from stack_templates import Template, resources

from blackwell import metrics
from blackwell.telemetry import METRIC_DEFINITIONS, METRIC_FILTERS, METRIC_NAMESPACE
from local.dashboard import Graph, Line, UnknownExpression, picture, search
from stacks.roles import SAGEMAKER_NAMESPACE

pytestmark = pytest.mark.xdist_group("stacks")


def metric(namespace: str, name: str, **dimensions: str) -> dict[str, Any]:
    return {
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": k, "Value": v} for k, v in dimensions.items()],
    }


def published(stage: str, run: str) -> list[dict[str, Any]]:
    """All that one run makes appear in CloudWatch."""
    job = f"blackwell-{stage}-{run}-a1"
    return [
        *(metric(METRIC_NAMESPACE, name, Run=run) for name in METRIC_FILTERS),
        *(metric(SAGEMAKER_NAMESPACE, d["Name"], TrainingJobName=job) for d in METRIC_DEFINITIONS),
        metric(SAGEMAKER_NAMESPACE, "GPUUtilization", Host=f"{job}/algo-1"),
        *(metric(METRIC_NAMESPACE, name, Stage=stage) for name in metrics.UNITS),
        *(metric(METRIC_NAMESPACE, name, Stage=stage, Run=run) for name in metrics.UNITS),
    ]


@pytest.fixture
def expressions(template: Template) -> dict[str, str]:
    """Title -> SEARCH expression of the dashboard's graphs."""
    (dashboard,) = resources(template, "AWS::CloudWatch::Dashboard").values()
    body = json.loads(resolve(template, dashboard["Properties"]["DashboardBody"]))
    found = {}
    for widget in body["widgets"]:
        for row in widget["properties"]["metrics"]:
            if isinstance(row[-1], dict) and "expression" in row[-1]:
                found[widget["properties"]["title"]] = row[-1]["expression"]
    return found


def test_every_graph_finds_one_line_of_a_run(expressions: dict[str, str]) -> None:
    assert len(expressions) >= 8
    for title, expression in expressions.items():
        assert len(search(expression, published("dev", "my-run"))) == 1, title


def test_graphs_by_job_and_by_stage_show_no_other_stage(expressions: dict[str, str]) -> None:
    shared = {"Loss", "Tokens per second"}  # by run: a log line names no stage
    for title, expression in expressions.items():
        if title not in shared:
            assert search(expression, published("prod", "other")) == [], title


def test_unknown_expressions_are_refused() -> None:
    with pytest.raises(UnknownExpression):
        search("SUM(METRICS())", [])


def test_picture_names_what_it_has_no_data_for() -> None:
    line = Line("my-run", ((0.0, 4.0), (1.0, 3.0), (2.0, 2.5)))
    drawn = picture(
        [Graph("Loss", "nats", 0, 0, 12, 6, (line,)), Graph("GPU use", "%", 12, 0, 12, 6, ())],
    )
    assert drawn.count("<polyline") == 1
    assert "no data here" in drawn
    assert "my-run" in drawn
