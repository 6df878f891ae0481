"""Curves for people: smoothing, and thinning a million points to what a screen can show without losing a spike."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from blackwell.report.model import Series

MAX_POINTS = 1_200


def smooth(values: Sequence[float], half_life: float) -> array[float]:
    """Exponential moving average whose half-life grows with what has been seen, up to `half_life` values: a loss that
    falls steeply at the start is not drawn too high. Values that are not finite are passed over.

    After n values the half-life is min(half_life, max(1, n / 8)).
    """
    average, seen, out = math.nan, 0, array("d")
    for value in values:
        if math.isfinite(value):
            seen += 1
            decay = 0.5 ** (1.0 / min(half_life, max(1.0, seen / 8)))
            average = value if seen == 1 else decay * average + (1 - decay) * value
        out.append(average)
    return out


def thin(steps: Sequence[int], values: Sequence[float], limit: int = MAX_POINTS) -> Series:
    """At most `limit` points: first, last, lowest and highest of each equal stretch (M4, Jugel et al., VLDB 2014).

    Values that are not finite are left out.
    """
    total = len(values)
    if total <= limit:
        picked = range(total)
        return _series(steps, values, picked)
    buckets = max(1, limit // 4)
    chosen: list[int] = []
    for number in range(buckets):
        low, high = number * total // buckets, (number + 1) * total // buckets
        finite = [i for i in range(low, high) if math.isfinite(values[i])]
        if finite:
            lowest = min(finite, key=values.__getitem__)
            highest = max(finite, key=values.__getitem__)
            chosen.extend(sorted({finite[0], lowest, highest, finite[-1]}))
    return _series(steps, values, chosen)


def _series(steps: Sequence[int], values: Sequence[float], picked: Sequence[int]) -> Series:
    finite = [i for i in picked if math.isfinite(values[i])]
    return Series(step=[int(steps[i]) for i in finite], value=[_short(values[i]) for i in finite])


def _short(value: float) -> float:
    """Six significant digits: more is invisible in a plot and only makes the report larger."""
    return float(f"{value:.6g}")
