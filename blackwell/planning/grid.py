"""Hundreds of configurations around a spec, ranked: precision x micro batch x checkpointing x sequence length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from blackwell.hardware import ALIGNMENT, instance
from blackwell.planning.resolve import (
    Choice,
    base_configuration,
    evaluate,
    illegal_dimensions,
    ladder,
    place_of,
)
from blackwell.planning.stacks import constants
from blackwell.spec import JobSpec, Precision

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LENGTH_FACTORS = (0.25, 0.5, 1, 2, 4)
SHOWN = 40


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration of the grid."""

    precision: Precision
    micro_batch: int
    checkpointing: str
    seq_length: int
    memory_gb: float
    tokens_per_second_per_gpu: float
    fits: bool
    limit_gb: float
    frontier: bool = False
    """No other configuration that fits is faster with less memory."""


def grid_points(spec: JobSpec) -> list[Point]:
    """All combinations, the feasible ones first and the fastest first. Precisions are those of the device."""
    entry = spec.capacity[0]
    place = place_of(spec, entry, instance(entry.instance_type))
    base = base_configuration(spec, place)
    known = constants(base.stack)
    points: list[Point] = []
    for precision in Precision:
        if not place.gpu.has(precision) or precision is Precision.FP32 or illegal_dimensions(base.shape, precision):
            continue
        tail = spec.training.nvfp4.high_precision_tail_fraction if precision is Precision.NVFP4 else 0.0
        recipe = {Precision.FP8: "current", Precision.FP8_DELAYED: "delayed"}.get(precision, "")
        for factor in LENGTH_FACTORS:
            length = max(32, int(base.seq_length * factor))
            for micro in MICRO_BATCHES:
                if micro * length % ALIGNMENT[precision].tokens:
                    continue
                for checkpointing in ladder(base):
                    c = replace(
                        base, precision=precision, recipe=recipe, quantized_layers=1 - tail, seq_length=length,
                        micro_batch=micro, checkpointing=checkpointing,
                    )  # fmt: skip
                    points.append(_point(evaluate(c, place.limit_gb, known), place.limit_gb))
    points.sort(key=lambda p: (not p.fits, -p.tokens_per_second_per_gpu, p.memory_gb))
    lightest = float("inf")
    marked: list[Point] = []
    for p in points:
        on_frontier = p.fits and p.memory_gb < lightest
        if on_frontier:
            lightest = p.memory_gb
        marked.append(replace(p, frontier=on_frontier))
    return marked


def _point(choice: Choice, limit: float) -> Point:
    c = choice.configuration
    return Point(
        c.precision, int(c.micro_batch), c.checkpointing.value, c.seq_length, choice.memory.reserved,
        choice.speed.tokens_per_second_per_gpu, choice.fits, limit,
    )  # fmt: skip


def grid_lines(points: Sequence[Point], shown: int = SHOWN) -> Iterator[str]:
    """A table: the fastest that fit, and the whole frontier."""
    fitting = sum(p.fits for p in points)
    yield f"{len(points)} configurations, {fitting} fit; * is on the frontier of memory against speed"
    yield f"  {'precision':<12}{'micro':>6}{'sequence':>10}  {'checkpointing':<14}{'GB':>8}{'tokens/s/GPU':>14}"
    for index, p in enumerate(points):
        if p.fits and (index < shown or p.frontier):
            mark = "*" if p.frontier else " "
            yield (
                f"{mark} {p.precision:<12}{p.micro_batch:>6}{p.seq_length:>10}  {p.checkpointing:<14}{p.memory_gb:>8.1f}"
                f"{p.tokens_per_second_per_gpu:>14,.0f}"
            )


COLOURS = {
    Precision.BF16: "#4c78a8", Precision.FP16: "#9ecae9", Precision.FP8: "#f58518", Precision.FP8_DELAYED: "#ffbf79",
    Precision.MXFP8: "#54a24b", Precision.NVFP4: "#b279a2",
}  # fmt: skip


def grid_svg(points: Sequence[Point]) -> str:
    """Memory against speed, one dot a configuration, hollow where it does not fit, the frontier as a line."""
    width, height, left, bottom, top, right = 860, 520, 70, 50, 40, 150
    limit = points[0].limit_gb if points else 1.0
    high = 1.5 * limit
    fastest = max((p.tokens_per_second_per_gpu for p in points), default=1.0) * 1.05

    def x(gb: float) -> float:
        return left + (width - left - right) * min(gb, high) / high

    def y(rate: float) -> float:
        return height - bottom - (height - bottom - top) * rate / fastest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        "<title>Peak memory against speed</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<rect x="{x(limit):.1f}" y="{top}" width="{x(high) - x(limit):.1f}" height="{height - bottom - top}" fill="#f3d6d6"/>',
        f'<text x="{x(limit) + 4:.1f}" y="{top + 14}" fill="#a33">does not fit</text>',
        f'<line x1="{left}" y1="{height - bottom}" x2="{width - right}" y2="{height - bottom}" stroke="#333"/>',
        f'<line x1="{left}" y1="{top}" x2="{left}" y2="{height - bottom}" stroke="#333"/>',
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 12}" text-anchor="middle">peak memory per GPU, GB</text>',
        f'<text x="16" y="{height / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {height / 2:.0f})">tokens/s per GPU</text>',
    ]
    for tick in _ticks(high):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 16}" text-anchor="middle">{tick:,.0f}</text>')
    for tick in _ticks(fastest):
        parts.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.0f}</text>')
    for p in points:
        if p.memory_gb > high:
            continue
        colour = COLOURS.get(p.precision, "#888")
        fill = colour if p.fits else "none"
        label = escape(
            f"{p.precision}, micro batch {p.micro_batch}, sequence {p.seq_length}, checkpointing {p.checkpointing}: {p.memory_gb:.1f} GB, {p.tokens_per_second_per_gpu:,.0f} tokens/s"
        )
        parts.append(
            f'<circle cx="{x(p.memory_gb):.1f}" cy="{y(p.tokens_per_second_per_gpu):.1f}" r="3" fill="{fill}" stroke="{colour}" '
            f'fill-opacity="0.7"><title>{label}</title></circle>'
        )
    frontier = sorted((p for p in points if p.frontier), key=lambda p: p.memory_gb)
    line = " ".join(f"{x(p.memory_gb):.1f},{y(p.tokens_per_second_per_gpu):.1f}" for p in frontier)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#222" stroke-width="1.5"/>')
    for index, precision in enumerate(dict.fromkeys(p.precision for p in points)):
        parts.append(
            f'<circle cx="{width - right + 20}" cy="{top + 20 * index}" r="5" fill="{COLOURS.get(precision, "#888")}"/>'
        )
        parts.append(f'<text x="{width - right + 32}" y="{top + 20 * index + 4}">{precision}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _ticks(highest: float) -> Iterator[float]:
    """Round numbers from 0 to the highest, four to ten of them."""
    power = 10.0 ** math.floor(math.log10(highest))
    step = next(s for s in (0.2 * power, 0.5 * power, power) if highest / s <= 10)
    for i in range(int(highest / step) + 1):
        yield i * step
