"""Curves in a terminal: two by four dots to a character (Unicode braille), or stars where there is no Unicode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot of a braille character, by row and column (Unicode 2800)."""


def plot(
    x: Sequence[float],
    y: Sequence[float],
    *,
    width: int,
    height: int,
    y_format: Callable[[float], str] = "{:.3g}".format,
    marks: Sequence[float] = (),
    unicode: bool = True,
) -> list[str]:
    """Lines of text, at most `width` characters wide: the curve, a y scale at the left, an x scale below.

    `marks` are x values that get a triangle under the curve. Points that are not finite are passed over.
    """
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    if not points:
        return []
    low_x, high_x = points[0][0], points[-1][0]
    low_y, high_y = min(b for _, b in points), max(b for _, b in points)
    labels = [y_format(high_y), y_format((low_y + high_y) / 2), y_format(low_y)]
    gutter = max(map(len, labels)) + 1
    columns = max(8, width - gutter - 1)
    wide, tall = (columns * 2, height * 4) if unicode else (columns, height)
    grid = [[False] * wide for _ in range(tall)]

    def across(a: float) -> int:
        return 0 if high_x == low_x else round((a - low_x) / (high_x - low_x) * (wide - 1))

    def down(b: float) -> int:
        return tall // 2 if high_y == low_y else round((high_y - b) / (high_y - low_y) * (tall - 1))

    previous: tuple[int, int] | None = None
    for a, b in points:
        column, row = across(a), down(b)
        for c, r in _between(previous, (column, row)):
            grid[r][c] = True
        previous = (column, row)
    rows = _braille(grid, columns, height) if unicode else ["".join("*" if d else " " for d in r) for r in grid]
    bar = "│" if unicode else "|"
    at = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    out = [f"{at.get(n, ''):>{gutter - 1}} {bar}{row}".rstrip() for n, row in enumerate(rows)]
    if marks:
        line = [" "] * columns
        for mark in marks:
            if low_x <= mark <= high_x:
                line[min(columns - 1, across(mark) * columns // wide)] = "▲" if unicode else "^"
        out.append(" " * (gutter + 1) + "".join(line).rstrip())
    left, right = f"{low_x:,.0f}", f"{high_x:,.0f}"
    out.append(" " * (gutter + 1) + left + right.rjust(max(len(right) + 1, columns - len(left))))
    return out


def _between(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """Grid points from `start` (left out) to `end`, so that a curve has no holes."""
    if start is None:
        return [end]
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * n / steps), round(start[1] + (end[1] - start[1]) * n / steps))
        for n in range(1, steps + 1)
    ]


def _braille(grid: list[list[bool]], columns: int, height: int) -> list[str]:
    rows = []
    for row in range(height):
        text = ""
        for column in range(columns):
            bits = sum(_DOTS[r][c] for r in range(4) for c in range(2) if grid[row * 4 + r][column * 2 + c])
            text += chr(0x2800 + bits) if bits else " "
        rows.append(text)
    return rows
