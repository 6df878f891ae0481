"""Charts as inline SVG, written by hand: no plotting library, no script, colours from the page's CSS variables.

Every chart is an image with a title and a description for screen readers. Coordinates are CSS pixels of the chart's
own viewBox; the page shows a wide and a narrow drawing of the same chart, whichever fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; `style` is a CSS class of the page (`raw`, `smooth`, `points`)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at `x` with words that appear when it is pointed at."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of time in one row of a timeline; `style` is a CSS class, `label` appears when it is pointed at."""

    start: float
    end: float
    style: str
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    blocks: Sequence[Block]
    marks: Sequence[Mark] = field(default=())


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers (1, 2 or 5 times a power of ten) from `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    if high <= low:
        return [low]
    rough = (high - low) / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def line_chart(
    lines: Sequence[Line],
    *,
    identity: str,
    title: str,
    description: str,
    x_label: str,
    y_format: Format,
    width: int,
    height: int,
    marks: Sequence[Mark] = (),
    from_zero: bool = False,
) -> str:
    """Curves over one x axis; empty text where no line has a point."""
    xs = [x for line in lines for x in line.x]
    if not xs:
        return ""
    low_x, high_x = min(xs), max(xs)
    low_y, high_y = _range([line.y for line in lines], from_zero=from_zero)
    y_ticks = nice_ticks(low_y, high_y, 5)
    labels = [y_format(tick) for tick in y_ticks]
    left = 12 + round(6.6 * max((len(label) for label in labels), default=1))
    right, top, bottom = 12, 10, 38
    plot_w, plot_h = width - left - right, height - top - bottom

    def px(x: float) -> float:
        return left + (plot_w / 2 if high_x == low_x else (x - low_x) / (high_x - low_x) * plot_w)

    def py(y: float) -> float:
        clipped = min(max(y, low_y), high_y)
        return top + (plot_h / 2 if high_y == low_y else (high_y - clipped) / (high_y - low_y) * plot_h)

    out = [_open(identity, title, description, width, height)]
    for tick, label in zip(y_ticks, labels, strict=True):
        y = py(tick)
        out.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    for tick in nice_ticks(low_x, high_x, 4 if width < 500 else 8):
        if tick != int(tick):
            continue
        x = px(tick)
        anchor = "start" if x < left + 14 else "end" if x > width - right - 22 else "middle"
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 16}" text-anchor="{anchor}">{tick:,.0f}</text>')
    out.append(
        f'<text class="axis" x="{left + plot_w / 2:.0f}" y="{height - 5}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for mark in marks:
        if low_x <= mark.x <= high_x:
            x = px(mark.x)
            out.append(
                f'<g class="mark"><title>{escape(mark.label)}</title>'
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + plot_h}"/>'
                f'<path d="M{x - 4:.1f} {top}h8l-4 7z"/></g>'
            )
    for line in lines:
        if not line.x:
            continue
        if line.style == "points" or len(line.x) == 1:
            out.extend(
                f'<circle class="{line.style}" cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.5">'
                f"<title>{escape(f'{line.name}: {y_format(y)} at {x:,.0f}')}</title></circle>"
                for x, y in zip(line.x, line.y, strict=True)
            )
            continue
        points = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        out.append(f'<polyline class="{line.style}" points="{points}"/>')
    out.append("</svg>")
    return "".join(out)


def sparkline(line: Line, *, identity: str, title: str, description: str, width: int, height: int) -> str:
    """One small curve without axes; empty text where it has no point. Extreme points are clipped as in a chart."""
    if not line.x:
        return ""
    low_x, high_x = min(line.x), max(line.x)
    low_y, high_y = _range([line.y], from_zero=False)
    margin = 3

    def px(x: float) -> float:
        return width / 2 if high_x == low_x else margin + (x - low_x) / (high_x - low_x) * (width - 2 * margin)

    def py(y: float) -> float:
        return margin + (high_y - min(max(y, low_y), high_y)) / (high_y - low_y) * (height - 2 * margin)

    places = [(px(x), py(y)) for x, y in zip(line.x, line.y, strict=True)]
    x, y = places[-1]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    opened = _open(identity, title, description, width, height).replace("<svg ", '<svg class="spark" ', 1)
    return f'{opened}<polyline class="{line.style}" points="{points}"/><circle class="{line.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'


def _range(curves: Sequence[Sequence[float]], *, from_zero: bool) -> tuple[float, float]:
    """What the y axis shows: everything, unless a few extreme points would flatten the rest (then they are clipped to
    the upper border)."""
    values = sorted(y for curve in curves for y in curve)
    low, high = values[0], values[-1]
    typical = values[min(len(values) - 1, int(len(values) * 0.995))]
    spread = typical - low
    if len(values) >= 50 and spread > 0 and high - low > 3 * spread:
        high = typical + 0.3 * spread
    if from_zero:
        low = min(0.0, low)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return (low if from_zero and low == 0 else low - pad), high + pad


def timeline(
    rows: Sequence[Row],
    *,
    identity: str,
    title: str,
    description: str,
    width: int,
    time_format: Format,
) -> str:
    """One row of blocks each, over a common time axis that starts at 0; empty text without blocks."""
    ends = [block.end for row in rows for block in row.blocks]
    if not ends:
        return ""
    begin = min(block.start for row in rows for block in row.blocks)
    span = max(max(ends) - begin, 1e-9)
    row_h, gap, top, bottom = 26, 22, 4, 26
    height = top + len(rows) * (row_h + gap) + bottom
    left = right = 4
    plot_w = width - left - right

    def px(time: float) -> float:
        return left + (time - begin) / span * plot_w

    out = [_open(identity, title, description, width, height)]
    for number, row in enumerate(rows):
        y = top + number * (row_h + gap)
        out.append(f'<text class="row" x="{left}" y="{y + 12}">{escape(row.name)}</text>')
        for block in row.blocks:
            x, w = px(block.start), max(1.5, (block.end - block.start) / span * plot_w)
            out.append(
                f'<rect class="{block.style}" x="{x:.1f}" y="{y + 18}" width="{w:.1f}" height="{row_h}">'
                f"<title>{escape(block.label)}</title></rect>"
            )
        for mark in row.marks:
            x = px(mark.x)
            out.append(
                f'<g class="mark"><title>{escape(mark.label)}</title>'
                f'<path d="M{x - 5:.1f} {y + 26 + row_h}h10l-5 -8z"/>'
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + 18}" y2="{y + 18 + row_h}"/></g>'
            )
    for tick in _time_ticks(span, 3 if width < 500 else 6):
        x = px(begin + tick)
        anchor = "start" if x < left + 20 else "end" if x > width - right - 24 else "middle"
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom + 4}"/>')
        out.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">{escape(time_format(tick))}</text>')
    out.append("</svg>")
    return "".join(out)


def _time_ticks(span: float, wanted: int) -> list[float]:
    units = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
    step = next((float(u) for u in units if span / u <= wanted), 86_400.0 * max(1, math.ceil(span / 86_400 / wanted)))
    return [number * step for number in range(int(span // step) + 1)]


def stacked_bar(
    parts: Sequence[tuple[str, float, str]], *, identity: str, title: str, description: str, width: int, height: int
) -> str:
    """One bar; `parts` are (label, share from 0 to 1, CSS class). Shares of 8 % and more carry their figure."""
    out = [_open(identity, title, description, width, height)]
    edges = [0.0]
    for _label, share, _style in parts:
        edges.append(edges[-1] + max(0.0, share))
    whole = edges[-1] or 1.0
    for (label, share, style), (low, high) in zip(parts, pairwise(edges), strict=True):
        if high <= low:
            continue
        x, w = low / whole * width, (high - low) / whole * width
        text = f"{share * 100:.1f} %"
        out.append(
            f'<rect class="{style}" x="{x:.1f}" y="0" width="{w:.1f}" height="{height}">'
            f"<title>{escape(f'{label}: {text}')}</title></rect>"
        )
        if w >= 44:
            out.append(
                f'<text class="onbar {style}" x="{x + w / 2:.1f}" y="{height / 2 + 4:.0f}" text-anchor="middle">'
                f"{share * 100:.0f} %</text>"
            )
    out.append("</svg>")
    return "".join(out)


def bar_with_mark(
    parts: Sequence[tuple[str, float, str]],
    mark: float,
    *,
    identity: str,
    title: str,
    description: str,
    width: int,
    mark_label: str,
    tick_format: Format,
) -> str:
    """One bar of stacked amounts over a scale from zero, and a line across it where `mark` is.

    `parts` are (label, amount, CSS class).
    """
    top, bar_h, height = 22, 34, 82
    high = max(sum(amount for _label, amount, _style in parts), mark) * 1.04 or 1.0

    def px(amount: float) -> float:
        return amount / high * width

    out = [_open(identity, title, description, width, height)]
    position = 0.0
    for label, amount, style in parts:
        out.append(
            f'<rect class="{style}" x="{px(position):.1f}" y="{top}" width="{px(amount):.1f}" height="{bar_h}">'
            f"<title>{escape(f'{label}: {tick_format(round(amount, 3))}')}</title></rect>"
        )
        position += amount
    x = px(mark)
    anchor = "end" if x > width / 2 else "start"
    out.append(
        f'<g class="mark"><line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8}" y2="{top + bar_h + 6}"/></g>'
        f'<text class="row" x="{x - 4 if anchor == "end" else x + 4:.1f}" y="12" text-anchor="{anchor}">'
        f"{escape(mark_label)}</text>"
    )
    for tick in nice_ticks(0, high, 3 if width < 500 else 7):
        place = "start" if tick == 0 else "end" if px(tick) > width - 24 else "middle"
        out.append(
            f'<text x="{px(tick):.1f}" y="{height - 6}" text-anchor="{place}">{escape(tick_format(tick))}</text>'
        )
    out.append("</svg>")
    return "".join(out)


def _open(identity: str, title: str, description: str, width: int, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{identity}-t {identity}-d">'
        f'<title id="{identity}-t">{escape(title)}</title><desc id="{identity}-d">{escape(description)}</desc>'
    )
