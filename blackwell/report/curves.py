"""Curves for people: smoothing, and thinning a million points to what a screen can show without losing a spike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from blackwell.report.model import Series

MAX_POINTS = 1_200


def smooth(values: Sequence[float], half_life: float) -> list[float]:
    """Exponential moving average, corrected for its start, so that the first value stands for itself; values that are
    not finite are passed over.

    The weight of a value halves every `half_life` values: weight = 0.5 ** (1 / half_life), and the sum is divided by
    1 - weight ** n (Adam's bias correction, arXiv 1412.6980).
    """
    decay = 0.5 ** (1.0 / max(half_life, 1e-9))
    total, weight, out = 0.0, 0.0, []
    for value in values:
        if math.isfinite(value):
            total = decay * total + (1 - decay) * value
            weight = decay * weight + (1 - decay)
        out.append(total / weight if weight else math.nan)
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
