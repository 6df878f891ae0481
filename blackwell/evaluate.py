"""Scores the planner on a table of measured configurations; the rules stand in docs/planner.md.

Memory is compared in the metric of the row (allocated with allocated, reserved with reserved), speed as tokens per
second and GPU. Errors are averaged per source and then over sources, so a source with many rows weighs as much as one
with few. All percents are 0 to 100.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from blackwell.hardware import GB, GIB
from blackwell.planning.memory import memory
from blackwell.planning.resolve import CONTEXT_GB
from blackwell.planning.stacks import Constants, all_constants
from blackwell.planning.table import Row, scored
from blackwell.planning.throughput import speed

TOO_SMALL, LARGE_ENOUGH = 0.95, 1.20
"""Synthetic GPU sizes, relative to the measured peak: the first must be refused, the second accepted."""
TIE = 0.02
"""Speeds of two precisions that differ by less are no ranking."""
KNOWN_METRICS = frozenset({"max_allocated", "max_reserved", "peak_active"})
ALLOCATED_METRICS = frozenset({"max_allocated", "peak_active"})


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the planner says about a row, in the metric and unit of the row."""

    row: Row
    memory: float | None
    reserved_gb: float
    tokens_per_second: float
    margin: float

    @property
    def memory_error(self) -> float | None:
        """Relative, positive where the prediction is too high."""
        if self.memory is None or not self.row.memory_gb:
            return None
        return self.memory / self.row.memory_gb - 1

    @property
    def speed_error(self) -> float | None:
        """Relative, positive where the prediction is too high."""
        return self.tokens_per_second / self.row.tokens_per_second - 1 if self.row.tokens_per_second else None


def predict(row: Row, k: Constants) -> Prediction:
    """Predicts one row with the constants of its stack."""
    c = row.configuration
    assert c is not None
    m = memory(c, k.memory)
    value = m.allocated if row.metric in ALLOCATED_METRICS else m.reserved
    rate = speed(c, k.speed, m.reserved).tokens_per_second_per_gpu
    return Prediction(row, value * row.memory_unit, m.reserved, rate, k.memory_margin)


def single_node(row: Row) -> bool:
    """One node with data or fully sharded parallelism only."""
    c = row.configuration
    return c is not None and c.layout.ranks <= 8 and not c.layout.model_parallel


def evaluate(rows: Sequence[Row], constants: Mapping[int, Constants] | None = None) -> dict[str, Any]:
    """All scores of a table.

    `constants` gives, by line number, constants that were fitted without the row's group; without it, or for lines
    that it lacks, the shipped constants of the row's stack count.
    """
    known = all_constants()
    skipped: Counter[str] = Counter()
    predictions: list[Prediction] = []
    memory_wanted: Counter[str] = Counter()
    speed_wanted: Counter[str] = Counter()
    for row in scored(rows):
        wants_memory, wants_speed = bool(row.uses & {"mem", "seed"}), bool(row.uses & {"tps"})
        if wants_memory and not row.memory_gb:
            skipped["peak_mem_GB empty"] += 1
            wants_memory = False
        if wants_speed and not row.tokens_per_second:
            skipped["tokens_per_s_per_gpu empty"] += 1
            wants_speed = False
        memory_wanted[row.source] += wants_memory
        speed_wanted[row.source] += wants_speed
        c = row.configuration
        if c is None:
            skipped[row.skip or "unreadable"] += 1
            continue
        k = (constants or {}).get(row.number) or known[c.stack]
        predictions.append(predict(row, k))

    remembered = [p for p in predictions if p.row.memory_gb and p.row.uses & {"mem", "seed"}]
    timed = [p for p in predictions if p.row.tokens_per_second and "tps" in p.row.uses]
    plain = [p for p in remembered if p.row.metric in KNOWN_METRICS and not _parallel(p)]
    errors = sorted(abs(p.memory_error or 0.0) for p in plain)
    return {
        "memory_mape_percent": _macro(plain, "memory_error"),
        "memory_p95_percent": _percent(_quantile(errors, 0.95)),
        "memory_median_percent": _percent(_quantile(errors, 0.5)),
        "memory_mape_unknown_metric_percent": _macro(
            [p for p in remembered if p.row.metric not in KNOWN_METRICS], "memory_error"
        ),
        "memory_mape_model_parallel_percent": _macro([p for p in remembered if _parallel(p)], "memory_error"),
        "false_fits": _false_fits(remembered, predictions),
        "false_refusals": _false_refusals(remembered),
        "throughput_mape_single_node_percent": _macro([p for p in timed if single_node(p.row)], "speed_error"),
        "throughput_mape_multi_node_percent": _macro([p for p in timed if not single_node(p.row)], "speed_error"),
        "precision_ranking_percent": _ranking(timed),
        "coverage": {
            "memory_percent": _percent(len(remembered) / sum(memory_wanted.values()))
            if sum(memory_wanted.values())
            else None,
            "throughput_percent": _percent(len(timed) / sum(speed_wanted.values()))
            if sum(speed_wanted.values())
            else None,
        },
        "by_source": _by(remembered, timed, lambda p: p.row.source, memory_wanted, speed_wanted),
        "by_stack": _by(remembered, timed, lambda p: p.row.configuration.stack if p.row.configuration else ""),
        "skipped": dict(sorted(skipped.items())),
        "rows": {"read": len(rows), "scored": len(scored(rows)), "memory": len(remembered), "throughput": len(timed)},
        "worst": _worst(remembered, timed),
    }


def _parallel(p: Prediction) -> bool:
    c = p.row.configuration
    return c is not None and c.layout.model_parallel


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 3)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """By linear interpolation between the order statistics."""
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _macro(predictions: Sequence[Prediction], name: str) -> float | None:
    """Mean over sources of the mean absolute relative error."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for p in predictions:
        error = getattr(p, name)
        if error is not None:
            by_source[p.row.source].append(abs(error))
    return _percent(_mean(sum(v) / len(v) for v in by_source.values()))


def says_fits(p: Prediction, size: float) -> bool:
    """The planner's decision on a GPU of this size, in the metric and unit of the row."""
    return p.memory is not None and p.memory * (1 + p.margin) <= size


def _false_fits(remembered: Sequence[Prediction], everything: Sequence[Prediction]) -> dict[str, Any]:
    count = sum(says_fits(p, TOO_SMALL * (p.row.memory_gb or 0.0)) for p in remembered)
    total = len(remembered)
    for p in everything:
        c = p.row.configuration
        if c is not None and "oom_label" in p.row.uses and p.row.fits is False:
            total += 1
            usable = c.gpu.memory_gib_usable * GIB / GB - CONTEXT_GB
            count += p.reserved_gb * (1 + p.margin) <= usable
    return {"count": count, "total": total, "upper_bound_95": _percent(upper_bound_95(count, total))}


def _false_refusals(remembered: Sequence[Prediction]) -> dict[str, Any]:
    count = sum(not says_fits(p, LARGE_ENOUGH * (p.row.memory_gb or 0.0)) for p in remembered)
    return {
        "count": count,
        "total": len(remembered),
        "percent": _percent(count / len(remembered)) if remembered else None,
    }


def upper_bound_95(count: int, total: int) -> float | None:
    """One-sided 95 % upper bound of a rate (Clopper-Pearson); about 3 / total where nothing was seen."""
    if not total:
        return None
    if count >= total:
        return 1.0
    low, high = count / total, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        log_q, log_p = math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate)
        at_most = sum(math.exp(_log_choose(total, i) + i * log_p + (total - i) * log_q) for i in range(count + 1))
        low, high = (rate, high) if at_most > 0.05 else (low, rate)
    return high


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _ranking(timed: Sequence[Prediction]) -> float | None:
    """Share of pairs that differ in nothing but the precision whose faster one is predicted right."""
    same: dict[tuple[Any, ...], list[Prediction]] = defaultdict(list)
    for p in timed:
        c = p.row.configuration
        if c is not None:
            key = (
                p.row.source,
                c.shape,
                c.gpu.name,
                c.stack,
                c.layout,
                c.checkpointing,
                c.micro_batch,
                c.accumulation,
                c.seq_length,
            )
            same[key].append(p)
    right: list[bool] = []
    for group in same.values():
        means: dict[str, list[Prediction]] = defaultdict(list)
        for p in group:
            if p.row.configuration is not None:
                means[p.row.configuration.precision].append(p)
        sides = {
            name: (
                _mean(p.row.tokens_per_second or 0.0 for p in ps) or 1.0,
                _mean(p.tokens_per_second for p in ps) or 1.0,
            )
            for name, ps in means.items()
        }
        for one, other in combinations(sorted(sides), 2):
            measured, predicted = (sides[one][i] / sides[other][i] for i in (0, 1))
            if abs(measured - 1) >= TIE:
                right.append((measured > 1) == (predicted > 1))
    return _percent(_mean(map(float, right)))


def _by(
    remembered: Sequence[Prediction], timed: Sequence[Prediction], key: Any, memory_wanted: Mapping[str, int] | None = None,
    speed_wanted: Mapping[str, int] | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    result: dict[str, dict[str, Any]] = {}
    names = {key(p) for p in (*remembered, *timed)} | set(memory_wanted or ()) | set(speed_wanted or ())
    for name in sorted(names):
        memories = [p for p in remembered if key(p) == name]
        speeds = [p for p in timed if key(p) == name]
        entry: dict[str, Any] = {
            "memory_rows": len(memories),
            "memory_mape_percent": _percent(_mean(abs(p.memory_error or 0.0) for p in memories)),
            "memory_bias_percent": _percent(_mean(p.memory_error or 0.0 for p in memories)),
            "throughput_rows": len(speeds),
            "throughput_mape_percent": _percent(_mean(abs(p.speed_error or 0.0) for p in speeds)),
            "throughput_median_percent": _percent(_quantile(sorted(abs(p.speed_error or 0.0) for p in speeds), 0.5)),
        }
        if memory_wanted is not None and speed_wanted is not None:
            entry["memory_coverage_percent"] = (
                _percent(len(memories) / memory_wanted[name]) if memory_wanted.get(name) else None
            )
            entry["throughput_coverage_percent"] = (
                _percent(len(speeds) / speed_wanted[name]) if speed_wanted.get(name) else None
            )
        result[name] = entry
    return result


def _worst(
    remembered: Sequence[Prediction], timed: Sequence[Prediction], count: int = 10
) -> dict[str, list[dict[str, Any]]]:
    """The rows that carry most of the error."""
    by_memory = sorted(remembered, key=lambda p: -abs(p.memory_error or 0.0))[:count]
    by_speed = sorted(timed, key=lambda p: -abs(p.speed_error or 0.0))[:count]
    return {
        "memory": [
            {"row": p.row.label, "predicted": round(p.memory or 0.0, 2), "measured": p.row.memory_gb, "error_percent": _percent(p.memory_error)}
            for p in by_memory
        ],
        "throughput": [
            {"row": p.row.label, "predicted": round(p.tokens_per_second, 1), "measured": p.row.tokens_per_second, "error_percent": _percent(p.speed_error)}
            for p in by_speed
        ],
    }  # fmt: skip
