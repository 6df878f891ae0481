"""Writes the tables and plots of docs/planner.md: the planner's score on unseen groups, and its peers on the same rows.

python -m benchmarks.planner_report            writes them
python -m benchmarks.planner_report --check    exits 1 when the page differs from what the code says
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.planner_peers import MEMORY_PEERS, forty_percent_of_peak, median_tflops
from blackwell.evaluate import ALLOCATED_METRICS, KNOWN_METRICS, Prediction, evaluate, predict, single_node
from blackwell.planning.folds import fold_of, stored_folds, unseen_constants
from blackwell.planning.memory import memory
from blackwell.planning.stacks import STACKS, all_constants
from blackwell.planning.table import Row, read_table, scored

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "blackwell/planning/data/measured.csv"
PAGE = ROOT / "docs/planner.md"
CALCULON = ROOT / "benchmarks/results/planner_calculon.json"
TRACKER = ROOT / "benchmarks/results/planner_tracker.json"
PLOTS = {"planner-memory.svg", "planner-speed.svg", "planner-sources.svg"}
BEGIN, END = "<!-- planner-report: begin -->", "<!-- planner-report: end -->"

GOALS = (
    ("memory, macro MAPE, DP and FSDP rows of known metric", "memory_mape_percent", 5.0),
    ("the same, 95th percentile", "memory_p95_percent", 15.0),
    ("the same, median", "memory_median_percent", 4.0),
    ("memory, macro MAPE, unknown metric", "memory_mape_unknown_metric_percent", 7.0),
    ("memory, macro MAPE, tensor, pipeline and context ranks", "memory_mape_model_parallel_percent", 7.0),
    ("throughput, macro MAPE, single node", "throughput_mape_single_node_percent", 12.0),
    ("throughput, macro MAPE, several nodes or model parallel", "throughput_mape_multi_node_percent", 20.0),
)


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the heading."""
    head, *body = ("| " + " | ".join(r) + " |" for r in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def shown(value: Any) -> str:
    """A number for the page."""
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def score_section(seen: dict[str, Any], unseen: dict[str, Any]) -> str:
    """The goals, on unseen groups and in sample."""
    rows = [["measure", "goal", "on unseen groups", "in sample", ""]]
    for words, key, goal in GOALS:
        value = unseen[key]
        rows.append(
            [
                words,
                f"<= {goal:g} %",
                f"{shown(value)} %",
                f"{shown(seen[key])} %",
                "reached" if value <= goal else "**not reached**",
            ]
        )
    rank = unseen["precision_ranking_percent"]
    rows.append(
        [
            "pairs of precisions ranked right",
            ">= 90 %",
            f"{shown(rank)} %",
            f"{shown(seen['precision_ranking_percent'])} %",
            "reached" if rank >= 90 else "**not reached**",
        ]
    )
    for key, goal, words in (
        ("false_fits", 0.0, "false fits (GPU of 0.95 x the measured peak, and OOM labels)"),
        ("false_refusals", 5.0, "false refusals (GPU of 1.20 x)"),
    ):

        def rate(scores: dict[str, Any], key: str = key) -> str:
            x = scores[key]
            return f"{x['count']} of {x['total']} ({100 * x['count'] / x['total']:.1f} %)"

        x = unseen[key]
        reached = 100 * x["count"] / x["total"] <= goal
        bound = f"; 95 % upper bound {x['upper_bound_95']:.1f} %" if key == "false_fits" else ""
        rows.append(
            [
                words,
                f"<= {goal:g} %" if goal else "0",
                rate(unseen) + bound,
                rate(seen),
                "reached" if reached else "**not reached**",
            ]
        )
    return table_of(rows)


def source_section(unseen: dict[str, Any]) -> str:
    """Errors by source."""
    rows = [["source", "memory rows", "memory MAPE", "bias", "speed rows", "speed MAPE", "median"]]
    for name, e in unseen["by_source"].items():
        if e["memory_rows"] or e["throughput_rows"]:
            rows.append(
                [
                    name,
                    str(e["memory_rows"]),
                    shown(e["memory_mape_percent"]),
                    shown(e["memory_bias_percent"]),
                    str(e["throughput_rows"]),
                    shown(e["throughput_mape_percent"]),
                    shown(e["throughput_median_percent"]),
                ]
            )
    return table_of(rows)


def worst_section(unseen: dict[str, Any]) -> str:
    """Rows that carry the error."""
    rows = [["row of the table", "what", "predicted", "measured", "error"]]
    for kind, unit in (("memory", "GB"), ("throughput", "tokens/s")):
        for e in unseen["worst"][kind]:
            rows.append(
                [
                    e["row"],
                    kind,
                    f"{e['predicted']:,.1f} {unit}",
                    f"{e['measured']:,.1f} {unit}",
                    f"{e['error_percent']:+.0f} %",
                ]
            )
    return table_of(rows)


def macro(errors: dict[str, list[float]]) -> float | None:
    """Mean over sources of the mean."""
    return 100 * sum(sum(v) / len(v) for v in errors.values()) / len(errors) if errors else None


def peer_section(rows: Sequence[Row], predictions: Sequence[Prediction]) -> str:
    """Memory peers on the rows of known metric, by allocated memory (their own claim)."""
    remembered = [
        p for p in predictions if p.row.memory_gb and p.row.metric in KNOWN_METRICS and p.row.uses & {"mem", "seed"}
    ]
    lines = [
        ["memory estimator", "rows", "macro MAPE", "median error", "says too little", "false fits", "false refusals"]
    ]
    for name, answer in (("this planner, unseen groups", None), *MEMORY_PEERS.items()):
        errors: dict[str, list[float]] = defaultdict(list)
        signed: list[float] = []
        fits = refusals = 0
        for p in remembered:
            c = p.row.configuration
            assert c is not None
            assert p.row.memory_gb is not None
            value = p.memory if answer is None else answer(c)
            if value is None:
                continue
            margin = p.margin if answer is None else 0.0
            error = value / p.row.memory_gb - 1
            errors[p.row.source].append(abs(error))
            signed.append(error)
            fits += value * (1 + margin) <= 0.95 * p.row.memory_gb
            refusals += value * (1 + margin) > 1.20 * p.row.memory_gb
        ordered = sorted(map(abs, signed))
        lines.append(
            [
                name,
                str(len(signed)),
                f"{shown(macro(errors))} %",
                f"{100 * ordered[len(ordered) // 2]:.1f} %",
                f"{sum(e < 0 for e in signed)}",
                f"{fits}",
                f"{refusals}",
            ]
        )
    speed = [["throughput estimator", "rows", "macro MAPE, single node", "macro MAPE, others"]]
    median = median_tflops(scored(rows), lambda r: fold_of(r.group))
    timed = [p for p in predictions if p.row.tokens_per_second and "tps" in p.row.uses]
    for name in (
        "this planner, unseen groups",
        "40 % of the bf16 peak",
        "median TFLOPS of the same GPU and precision, other folds",
    ):
        one: dict[str, list[float]] = defaultdict(list)
        many: dict[str, list[float]] = defaultdict(list)
        for p in timed:
            c = p.row.configuration
            assert c is not None
            assert p.row.tokens_per_second is not None
            value = {"this": p.tokens_per_second, "40 %": forty_percent_of_peak(c), "medi": median.get(p.row.number)}[
                name[:4]
            ]
            if value is not None:
                (one if single_node(p.row) else many)[p.row.source].append(abs(value / p.row.tokens_per_second - 1))
        speed.append(
            [
                name,
                str(sum(map(len, one.values())) + sum(map(len, many.values()))),
                f"{shown(macro(one))} %",
                f"{shown(macro(many))} %",
            ]
        )
    return table_of(lines) + "\n\n" + table_of(speed)


def seed_section(rows: Sequence[Row]) -> str:
    """The published 1B example, with the shipped constants."""
    lines = [
        [
            "published 1B example (24 layers x 2048, workload layers, MXFP8, 8 x B200)",
            "published",
            "planned",
            "difference",
        ]
    ]
    for row in rows:
        c = row.configuration
        if c is not None and "seed" in row.uses and row.memory_gb:
            value = memory(c, all_constants()[c.stack].memory).allocated
            words = f"checkpointing {c.checkpointing}, micro batch {c.micro_batch:.0f}, sequence {c.seq_length}"
            lines.append(
                [words, f"{row.memory_gb:.1f} GB", f"{value:.2f} GB", f"{100 * (value / row.memory_gb - 1):+.1f} %"]
            )
    return table_of(lines)


def tracker_section() -> str:
    """Our own trainer: the planner against torch's FSDPMemTracker, as the last run of the benchmark left it."""
    kept = json.loads(TRACKER.read_text(encoding="utf-8"))
    rows = [["our trainer, PyTorch layers, 8 ranks", "planner, allocated", "FSDPMemTracker", "difference"]]
    for r in kept["rows"]:
        rows.append(
            [
                r["configuration"], f"{r['planner_gb']:.2f} GB", f"{r['tracker_gb']:.2f} GB",
                f"{100 * (r['planner_gb'] / r['tracker_gb'] - 1):+.1f} %",
            ]
        )  # fmt: skip
    return f"torch {kept['torch']}, {kept['date']}, nothing fitted:\n\n" + table_of(rows)


def calculon_section() -> str:
    """Calculon on the rows that it models, as the last run of the benchmark left it."""
    kept = json.loads(CALCULON.read_text(encoding="utf-8"))
    lines = [
        ["rows that Calculon models", "rows", "Calculon: MAPE", "median", "this planner, unseen groups: MAPE", "median"]
    ]
    for kind in ("memory", "speed"):
        known = [r[kind] for r in kept["rows"] if r[kind]]
        cells = [kind, str(len(known))]
        for i in (0, 1):
            errors = sorted(abs(x[i] / x[2] - 1) for x in known)
            cells += [f"{100 * sum(errors) / len(errors):.1f} %", f"{100 * errors[len(errors) // 2]:.1f} %"]
        lines.append(cells)
    words = f"Calculon at commit {kept['commit'][:12]}, {kept['date']}; it refused {kept['refused']} further rows, most for its own memory limit:"
    return words + "\n\n" + table_of(lines)


def constants_section() -> str:
    """The fitted constants of memory, by stack."""
    names = ("saved", "selective", "live", "gradients", "allocator", "logits", "fixed_gb", "waiting")
    rows = [["stack", "runs for memory", "runs for speed", *names, "margin", "90 % of unseen within, memory", "speed"]]
    for name, k in all_constants().items():
        rows.append(
            [
                name,
                str(k.memory_runs),
                str(k.speed_runs),
                *(f"{getattr(k.memory, n):.2f}" for n in names),
                f"{100 * k.memory_margin:.0f} %",
                f"{100 * k.memory_band:.0f} %",
                f"{100 * k.speed_band:.0f} %",
            ]
        )
    return table_of(rows)


def moments_section(rows: Sequence[Row]) -> str:
    """Which moment of the step carries the peak, over the scored rows."""
    count: dict[str, int] = defaultdict(int)
    for row in scored(rows):
        if row.configuration is not None and row.memory_gb:
            count[memory(row.configuration, all_constants()[row.configuration.stack].memory).moment] += 1
    return ", ".join(f"{name} in {n} rows" for name, n in sorted(count.items()))


COLOURS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#ff9da6",
    "#9d755d",
    "#bab0ac",
    "#eeca3b",
    "#86bcb6",
)


def scatter(title: str, unit: str, points: Sequence[tuple[str, float, float, str]]) -> str:
    """Predicted against measured on logarithmic axes: (stack, measured, predicted, label)."""
    from math import ceil, floor, log10

    width, height, left, bottom, top, right = 720, 560, 70, 50, 40, 170
    values = [v for _, m, p, _ in points for v in (m, p)]
    low, high = floor(log10(min(values)) * 2) / 2, ceil(log10(max(values)) * 2) / 2

    def x(v: float) -> float:
        return left + (width - left - right) * (log10(v) - low) / (high - low)

    def y(v: float) -> float:
        return height - bottom - (height - bottom - top) * (log10(v) - low) / (high - low)

    parts = _svg(width, height, title)
    a, b = 10**low, 10**high
    for factor, style in ((1.0, "#333"), (0.8, "#bbb"), (1.25, "#bbb")):
        lo, hi = max(a, a / factor), min(b, b / factor)
        parts.append(
            f'<line x1="{x(lo):.1f}" y1="{y(lo * factor):.1f}" x2="{x(hi):.1f}" y2="{y(hi * factor):.1f}" stroke="{style}"/>'
        )
    exponent = ceil(low)
    while exponent <= high:
        v = 10.0**exponent
        parts.append(f'<text x="{x(v):.1f}" y="{height - bottom + 16}" text-anchor="middle">{v:,g}</text>')
        parts.append(f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:,g}</text>')
        exponent += 1
    stacks = sorted({s for s, *_ in points})
    for stack, measured, predicted, label in points:
        colour = COLOURS[stacks.index(stack) % len(COLOURS)]
        parts.append(
            f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2.5" fill="{colour}" fill-opacity="0.6"><title>{escape(label)}</title></circle>'
        )
    for i, stack in enumerate(stacks):
        parts.append(
            f'<circle cx="{width - right + 16}" cy="{top + 18 * i}" r="5" fill="{COLOURS[i % len(COLOURS)]}"/>'
        )
        parts.append(f'<text x="{width - right + 28}" y="{top + 18 * i + 4}">{escape(stack)}</text>')
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 12}" text-anchor="middle">measured, {unit}</text>'
    )
    parts.append(
        f'<text x="16" y="{height / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {height / 2:.0f})">predicted on unseen groups, {unit}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(title: str, values: Sequence[tuple[str, float | None, float | None]]) -> str:
    """Error by source: (source, memory, speed), percent; capped at 50."""
    width, line, left, top, cap = 720, 30, 300, 50, 50.0
    height = top + line * len(values) + 30
    parts = _svg(width, height, title)
    scale = (width - left - 60) / cap
    for i, (name, memory_error, speed_error) in enumerate(values):
        base = top + line * i
        parts.append(f'<text x="{left - 8}" y="{base + 16}" text-anchor="end">{escape(name)}</text>')
        for j, (value, colour) in enumerate(((memory_error, COLOURS[0]), (speed_error, COLOURS[1]))):
            if value is not None:
                length = min(cap, value) * scale
                parts.append(
                    f'<rect x="{left}" y="{base + 3 + 11 * j}" width="{length:.1f}" height="10" fill="{colour}"/>'
                )
                parts.append(
                    f'<text x="{left + length + 4:.1f}" y="{base + 12 + 11 * j}" font-size="10">{value:.1f}{" (cut)" if value > cap else ""}</text>'
                )
    parts.append(
        f'<rect x="{left}" y="{top - 18}" width="10" height="10" fill="{COLOURS[0]}"/><text x="{left + 14}" y="{top - 9}">memory</text>'
    )
    parts.append(
        f'<rect x="{left + 90}" y="{top - 18}" width="10" height="10" fill="{COLOURS[1]}"/><text x="{left + 104}" y="{top - 9}">speed</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _svg(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2:.0f}" y="22" text-anchor="middle" font-size="14">{escape(title)}</text>',
    ]


def documents() -> Iterator[tuple[Path, str]]:
    """Every file that the report writes, with its content."""
    rows = read_table(TABLE)
    constants = unseen_constants(rows, stored_folds())
    unseen, seen = evaluate(rows, constants), evaluate(rows)
    predictions = [predict(r, constants[r.number]) for r in scored(rows) if r.configuration is not None]
    part = "\n\n".join(
        [
            BEGIN,
            "## Score",
            f"{unseen['rows']['scored']} scored rows of {unseen['rows']['read']}, {len(unseen['by_source'])} sources; every row is predicted with constants that were "
            f"fitted without its group (five folds). Skipped parts: {', '.join(f'{n} x {reason}' for reason, n in unseen['skipped'].items())}.",
            score_section(seen, unseen),
            "## Peers on the same rows",
            peer_section(rows, predictions),
            calculon_section(),
            tracker_section(),
            seed_section(rows),
            "## By source, unseen groups, percent",
            source_section(unseen),
            "![Predicted against measured memory](planner-memory.svg)",
            "![Predicted against measured speed](planner-speed.svg)",
            "![Error by source](planner-sources.svg)",
            "## Rows that carry the error",
            worst_section(unseen),
            "## Fitted constants of memory",
            constants_section(),
            f"The peak is at: {moments_section(rows)} (`loss`: end of the forward pass; `backward`: its start; `end`: all gradients there).",
            END,
        ]
    )
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    yield PAGE, before + part + after
    remembered = [p for p in predictions if p.row.memory_gb and p.memory and p.row.uses & {"mem", "seed"}]
    yield PAGE.parent / "planner-memory.svg", scatter(
        "Peak memory, predicted without the row's group against measured (grey: 20 %)", "GB",
        [(_stack(p), p.row.memory_gb or 1.0, p.memory or 1.0, f"{p.row.label}: {p.memory:.1f} for {p.row.memory_gb:.1f}") for p in remembered],
    )  # fmt: skip
    timed = [p for p in predictions if p.row.tokens_per_second and "tps" in p.row.uses]
    yield PAGE.parent / "planner-speed.svg", scatter(
        "Speed, predicted without the row's group against measured (grey: 20 %)", "tokens/s per GPU",
        [(_stack(p), p.row.tokens_per_second or 1.0, p.tokens_per_second, f"{p.row.label}: {p.tokens_per_second:,.0f} for {p.row.tokens_per_second:,.0f}") for p in timed],
    )  # fmt: skip
    yield PAGE.parent / "planner-sources.svg", bars(
        "Mean absolute error by source on unseen groups, percent",
        [(name[:44], e["memory_mape_percent"], e["throughput_mape_percent"]) for name, e in unseen["by_source"].items() if e["memory_rows"] or e["throughput_rows"]],
    )  # fmt: skip


def _stack(p: Prediction) -> str:
    assert p.row.configuration is not None
    assert p.row.metric in ALLOCATED_METRICS or p.row.metric in {*KNOWN_METRICS, "unknown"}
    return STACKS[p.row.configuration.stack].name


def main(arguments: Sequence[str]) -> int:
    stale = []
    for path, content in documents():
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if current != content:
            stale.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.write_text(content, encoding="utf-8")
    verb = "differs" if "--check" in arguments else "written"
    for name in stale:
        print(f"{verb}: {name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
