"""The stack's dashboard, filled from what one real run published: `python -m local.dashboard OUT.svg`.

Deploys the stack on an embedded AWS, carries out a short run with one interruption, reads the deployed dashboard,
finds for each of its graphs the metrics that are there, and draws them. A graph without data says so: the embedded AWS
has no GPUs, and what only AWS publishes is not there either.
"""

from __future__ import annotations

import html
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from blackwell.spec import load_job_spec
from local.deployment import Deployment, deployed
from local.server import PROJECT

JOB = PROJECT / "examples" / "jobs" / "tiny-scenario.json"
STEPS = 200
FAULTS = [{"kind": "interruption", "step": 90}]

_SEARCH = re.compile(r"^SEARCH\('\{(?P<schema>[^}]*)\} (?P<terms>.*)', '(?P<statistic>\w+)', \d+\)$")
_TERM = re.compile(r'(\w+)=(?:"([^"]*)"|(\S+))')

UNIT_WIDTH, UNIT_HEIGHT, MARGIN = 52, 38, 8
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")


@dataclass(frozen=True, slots=True)
class Line:
    """One time series: seconds since the first point of the run, value."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """One widget: its place on CloudWatch's grid and what is on it."""

    title: str
    unit: str
    x: int
    y: int
    width: int
    height: int
    lines: tuple[Line, ...]


class UnknownExpression(ValueError):  # noqa: N818 - reads as what it says
    """The dashboard has an expression that is no SEARCH as this module reads it."""


def graphs(client: Any, body: dict[str, Any], *, begun: datetime, ended: datetime) -> list[Graph]:
    """The dashboard's graphs with their data. `client` is a CloudWatch client."""
    known = [m for page in client.get_paginator("list_metrics").paginate() for m in page["Metrics"]]
    found = []
    for widget in body["widgets"]:
        properties = widget["properties"]
        axis = properties.get("yAxis", {}).get("left", {})
        lines = []
        for label, metric, statistic in _metrics(properties["metrics"], known):
            points = _points(client, metric, statistic, begun, ended)
            if points:
                lines.append(Line(label, points))
        found.append(
            Graph(
                properties["title"], axis.get("label", ""), widget["x"], widget["y"], widget["width"], widget["height"],
                tuple(lines),
            )
        )  # fmt: skip
    return found


def _metrics(rows: list[list[Any]], known: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(label, metric, statistic) of every row of a widget: named metrics, and what its SEARCH expressions find."""
    for row in rows:
        options = row[-1] if isinstance(row[-1], dict) else {}
        if "expression" in options:
            for metric in search(options["expression"], known):
                yield _label(metric), metric, _parsed(options["expression"])["statistic"]
        else:
            words = [word for word in row if not isinstance(word, dict)]
            dimensions = [{"Name": n, "Value": v} for n, v in zip(words[2::2], words[3::2], strict=True)]
            statistic = options.get("stat", "Average")
            metric = {"Namespace": words[0], "MetricName": words[1], "Dimensions": dimensions}
            yield options.get("label") or words[1], metric, statistic


def _parsed(expression: str) -> re.Match[str]:
    found = _SEARCH.match(expression)
    if found is None:
        raise UnknownExpression(expression)
    return found


def search(expression: str, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The metrics that CloudWatch's SEARCH finds: of this schema exactly, each term in the named property.

    A quoted term must be equal, any other must be one of the words of the value.

    Raises:
        UnknownExpression: for an expression of another form.
    """
    found = _parsed(expression)
    namespace, *names = (part.strip().strip('"') for part in found["schema"].split(","))
    terms = _TERM.findall(found["terms"])
    return [
        metric
        for metric in known
        if metric["Namespace"] == namespace
        and {d["Name"] for d in metric["Dimensions"]} == set(names)
        and all(_matches(metric, *term) for term in terms)
    ]


def _matches(metric: dict[str, Any], name: str, exact: str, word: str) -> bool:
    values = {d["Name"]: d["Value"] for d in metric["Dimensions"]} | {"MetricName": metric["MetricName"]}
    value = values.get(name, "")
    return value == exact if exact else word.lower() in re.findall(r"[a-z]+|\d+", value.lower())


def _points(
    client: Any, metric: dict[str, Any], statistic: str, begun: datetime, ended: datetime
) -> tuple[tuple[float, float], ...]:
    answer = client.get_metric_statistics(
        Namespace=metric["Namespace"], MetricName=metric["MetricName"], Dimensions=metric["Dimensions"],
        StartTime=begun, EndTime=ended, Period=1, Statistics=[statistic],
    )  # fmt: skip
    rows = sorted((d["Timestamp"], d[statistic]) for d in answer["Datapoints"])
    return tuple(((at - begun).total_seconds(), float(value)) for at, value in rows)


def _label(metric: dict[str, Any]) -> str:
    return " ".join(d["Value"] for d in metric["Dimensions"] if d["Name"] != "Stage")


def picture(drawn: list[Graph]) -> str:
    """One SVG, laid out on CloudWatch's grid."""
    width = max(g.x + g.width for g in drawn) * UNIT_WIDTH
    height = max(g.y + g.height for g in drawn) * UNIT_HEIGHT
    boxes = "\n".join(_box(graph) for graph in drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#f2f3f3"/>\n{boxes}\n</svg>\n'
    )


def _box(graph: Graph) -> str:
    left, top = graph.x * UNIT_WIDTH + MARGIN / 2, graph.y * UNIT_HEIGHT + MARGIN / 2
    width, height = graph.width * UNIT_WIDTH - MARGIN, graph.height * UNIT_HEIGHT - MARGIN
    plot = (56.0, 34.0, width - 12.0, height - 44.0)  # left, top, right, bottom within the box
    parts = [
        f'<g transform="translate({left:g} {top:g})">',
        f'<rect width="{width:g}" height="{height:g}" rx="4" fill="#fff" stroke="#d5dbdb"/>',
        f'<text x="10" y="20" font-weight="bold">{html.escape(graph.title)}</text>',
    ]
    if graph.lines:
        parts += _plot(graph, plot)
    else:
        parts.append(
            f'<text x="{width / 2:g}" y="{height / 2:g}" text-anchor="middle" fill="#687078">no data here</text>'
        )
    return "\n".join([*parts, "</g>"])


def _plot(graph: Graph, area: tuple[float, float, float, float]) -> list[str]:
    left, top, right, bottom = area
    every = [p for line in graph.lines for p in line.points]
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(0.0, *(y for _, y in every)), max(y for _, y in every)
    high = high if high > low else low + 1.0

    def place(point: tuple[float, float]) -> str:
        x = left + (point[0] - first) / ((last - first) or 1.0) * (right - left)
        y = bottom - (point[1] - low) / (high - low) * (bottom - top)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<path d="M{left},{top} V{bottom} H{right}" fill="none" stroke="#aab7b8"/>']
    for value, y in ((high, top + 4), (low, bottom)):
        parts.append(f'<text x="{left - 6:g}" y="{y:g}" text-anchor="end" fill="#545b64">{value:.4g}</text>')
    parts.append(
        f'<text x="{right:g}" y="{top - 14:g}" text-anchor="end" fill="#545b64">{html.escape(graph.unit)}</text>'
    )
    for line, colour in zip(graph.lines, COLOURS * len(graph.lines), strict=False):
        if len(line.points) == 1:
            across, up = place(line.points[0]).split(",")
            parts.append(f'<circle cx="{across}" cy="{up}" r="3.5" fill="{colour}"/>')
        else:
            points = " ".join(place(point) for point in line.points)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for number, line in enumerate(graph.lines[:3]):
        down, colour = bottom + 16 + number * 13, COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{left:g}" y="{down - 9:g}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{left + 15:g}" y="{down:g}" fill="#545b64">{html.escape(line.label[:60])}</text>')
    return parts


def filled(deployment: Deployment, steps: int = STEPS) -> list[Graph]:
    """Carries out one run and returns the deployed dashboard's graphs about it."""
    spec = load_job_spec(JOB)
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"steps": steps})})
    begun = datetime.now(UTC) - timedelta(seconds=1)
    deployment.aws.set_faults(FAULTS)
    run = deployment.client.submit(spec, "dashboard-run")
    for _ in deployment.client.follow(run.run):
        pass
    name = deployment.client.outputs.all["DashboardName"]
    cloudwatch = deployment.aws.client("cloudwatch")
    body = json.loads(cloudwatch.get_dashboard(DashboardName=name)["DashboardBody"])
    return graphs(cloudwatch, body, begun=begun, ended=datetime.now(UTC) + timedelta(minutes=1))


def main() -> int:
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder) / "aws") as deployment:
        drawn = filled(deployment)
    out.write_text(picture(drawn))
    for graph in drawn:
        print(
            f"dashboard: {graph.title}: {len(graph.lines)} lines, {sum(len(line.points) for line in graph.lines)} points"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
