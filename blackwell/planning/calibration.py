"""Fits the constants of each stack on a table of measured configurations, deterministically.

Least squares on the logarithm of predicted over measured, robust against single rows (soft L1), with every source
weighing the same whatever its number of rows, and every constant held near its prior by its own width: a stack with
few rows keeps the priors. For speed the priors of a stack are the constants fitted on all stacks together.

Cross-validation leaves out whole groups (near-duplicates share one), so its error is on configurations unlike those
that were fitted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from blackwell.evaluate import LARGE_ENOUGH
from blackwell.planning.folds import FOLDS, fold_of
from blackwell.planning.memory import memory
from blackwell.planning.resolve import LARGEST_MARGIN, SMALLEST_MARGIN
from blackwell.planning.stacks import STACKS, Constants, MemoryConstants, SpeedConstants
from blackwell.planning.table import Row, scored
from blackwell.planning.throughput import speed

MEMORY_WIDTHS: dict[str, float] = {
    "saved": 0.12, "selective": 0.06, "waiting": 0.7, "ahead_tflop": 0.5, "live": 0.35, "gradients": 0.4, "allocator": 0.6,
    "logits": 0.2, "fixed_gb": 0.7,
}  # fmt: skip
"""Standard deviation of each constant's logarithm around its prior; the allocator's of its loss."""
SPEED_WIDTHS: dict[str, float] = {
    "ampere_matmul": 0.15, "hopper_matmul": 0.15, "blackwell_matmul": 0.15, "hopper_fp8_matmul": 0.2,
    "blackwell_fp8_matmul": 0.2, "rowwise": 0.2, "mxfp8_matmul": 0.2, "nvfp4_matmul": 0.25, "ampere_attention": 0.3,
    "hopper_attention": 0.3, "blackwell_attention": 0.3, "bandwidth": 0.2, "eager_elementwise": 0.4,
    "compiled_elementwise": 0.3, "quantize": 0.5,
    "network": 0.3, "exposed": 0.7, "launch_us": 0.6, "tensor_launch_us": 1.0, "step_ms": 0.7,
}  # fmt: skip
STACK_PRIORS: dict[str, dict[str, float]] = {
    # nanotron's pipelines: seconds per micro batch grow with the tensor ranks once they cross nodes, with the nodes
    # where gradients are not sharded, and at the allocator's limit (read off the runs there: 1.0 to 1.3 seconds).
    "nanotron": {
        "waiting": 1.0, "pipelined_tensor_launch_us": 1200.0, "unsharded_node_ms": 280.0, "retry_ms": 1150.0,
    },
}  # fmt: skip
STACK_WIDTHS: dict[str, dict[str, float]] = {
    "nanotron": {"pipelined_tensor_launch_us": 0.5, "unsharded_node_ms": 0.5, "retry_ms": 0.08},
}
MEMORY_NOISE, SPEED_NOISE = 0.06, 0.10
"""Relative error of a row that counts as one standard deviation."""
ROWS_PER_SOURCE = 9.0
"""A source counts as this many rows, however many it has."""
UNCALIBRATED_BAND = 0.20
FEW = 5
"""With fewer rows than this a stack's own error says nothing."""

Vector = NDArray[np.float64]


def predicted_memory(row: Row, k: MemoryConstants) -> float:
    """The predicted value of the metric and in the unit that the row's column has."""
    assert row.configuration is not None
    m = memory(row.configuration, k)
    return (m.allocated if row.metric in ("max_allocated", "peak_active") else m.reserved) * row.memory_unit


def predicted_speed(row: Row, k: Constants) -> float:
    """Predicted tokens per second and GPU."""
    assert row.configuration is not None
    reserved = memory(row.configuration, k.memory).reserved if k.speed.retry_ms else 0.0
    return speed(row.configuration, k.speed, reserved).tokens_per_second_per_gpu


def speed_as_remembered(row: Row, k: Constants) -> float:
    """Predicted tokens per second and GPU with the memory that was measured, where it was.

    For fitting only: what a full allocator costs is told by runs that filled it, not by those predicted to.
    """
    assert row.configuration is not None
    if not (k.speed.retry_ms and row.memory_gb):
        return predicted_speed(row, k)
    return speed(row.configuration, k.speed, row.memory_gb / row.memory_unit).tokens_per_second_per_gpu


def memory_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows whose memory is scored."""
    return [r for r in rows if r.configuration and r.memory_gb and r.uses & {"mem", "seed"}]


def speed_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows whose speed is scored; the seed's are means over a warm-up and are not fitted."""
    return [r for r in rows if r.configuration and r.tokens_per_second and "tps" in r.uses]


def _soft(residuals: Vector) -> Vector:
    return np.asarray(np.sign(residuals) * np.sqrt(2 * (np.sqrt(1 + residuals**2) - 1)))


def _fit(
    rows: Sequence[Row], names: Sequence[str], widths: Mapping[str, float], predict: Callable[[Row, Vector], float],
    measured: Callable[[Row], float], noise: float,
) -> Vector:  # fmt: skip
    counts = Counter(r.source for r in rows)
    weights = np.array([math.sqrt(min(1.0, ROWS_PER_SOURCE / counts[r.source])) for r in rows])
    sigma = np.array([widths[n] for n in names])

    def residuals(x: Vector) -> Vector:
        logs = np.array([math.log(predict(r, x) / measured(r)) for r in rows])
        return np.concatenate([_soft(logs / noise) * weights, x / sigma])

    result = least_squares(residuals, np.zeros(len(names)), max_nfev=25)
    return np.asarray(result.x)


def fit_memory(
    rows: Sequence[Row], prior: MemoryConstants, widths: Mapping[str, float] = MEMORY_WIDTHS
) -> MemoryConstants:
    """Constants of one stack from its rows; the priors where there are none."""
    if not rows:
        return prior
    names = list(widths)

    def constants(x: Vector) -> MemoryConstants:
        changes: dict[str, float] = {}
        for name, value in zip(names, x, strict=True):
            before = getattr(prior, name)
            factor = math.exp(float(value))
            changes[name] = 1 + (before - 1) * factor if name == "allocator" else before * factor
        changes["gradients"] = min(1.0, changes["gradients"])
        return replace(prior, **changes)

    x = _fit(
        rows, names, widths, lambda r, x: predicted_memory(r, constants(x)), lambda r: r.memory_gb or 1.0, MEMORY_NOISE
    )
    return constants(x)


def fit_speed(rows: Sequence[Row], prior: Constants, widths: Mapping[str, float] = SPEED_WIDTHS) -> SpeedConstants:
    """The same for speed; `prior.memory` tells how full a GPU was."""
    if not rows:
        return prior.speed
    names = list(widths)

    def constants(x: Vector) -> Constants:
        changes = {n: getattr(prior.speed, n) * math.exp(float(v)) for n, v in zip(names, x, strict=True)}
        return replace(prior, speed=replace(prior.speed, **changes))

    x = _fit(
        rows,
        names,
        widths,
        lambda r, x: speed_as_remembered(r, constants(x)),
        lambda r: r.tokens_per_second or 1.0,
        SPEED_NOISE,
    )
    return constants(x).speed


def fit(rows: Sequence[Row]) -> dict[str, Constants]:
    """Constants of every stack from a table's scored rows."""
    usable = scored(rows)
    by_stack: dict[str, list[Row]] = {name: [] for name in STACKS}
    for row in usable:
        if row.configuration is not None:
            by_stack[row.configuration.stack].append(row)
    defaults = Constants()
    pooled = fit_speed([r for name, some in by_stack.items() if name != "nanotron" for r in speed_rows(some)], defaults)
    fitted: dict[str, Constants] = {}
    for name, some in by_stack.items():
        priors = STACK_PRIORS.get(name, {})
        memory_prior = replace(MemoryConstants(), **{k: v for k, v in priors.items() if hasattr(MemoryConstants(), k)})
        speed_prior = replace(pooled, **{k: v for k, v in priors.items() if hasattr(SpeedConstants(), k)})
        remembered, timed = memory_rows(some), speed_rows(some)
        k = Constants(memory=fit_memory(remembered, memory_prior), speed=speed_prior)
        k = replace(k, speed=fit_speed(timed, k, {**SPEED_WIDTHS, **STACK_WIDTHS.get(name, {})}))
        fitted[name] = replace(k, memory_runs=len(remembered), speed_runs=len(timed))
    return fitted


def fit_folds(rows: Sequence[Row], folds: int = FOLDS) -> list[dict[str, Constants]]:
    """For every fold, the constants that were fitted without its groups."""
    usable = scored(rows)
    return [fit([r for r in usable if fold_of(r.group, folds) != fold]) for fold in range(folds)]


def with_bands(
    fitted: Mapping[str, Constants], rows: Sequence[Row], unseen: Mapping[int, Constants]
) -> dict[str, Constants]:
    """Adds to every stack the error that nine in ten of its unseen rows stay under, and the margin that follows."""
    usable = scored(rows)
    result: dict[str, Constants] = {}
    for name, k in fitted.items():
        mine = [
            r for r in usable if r.configuration is not None and r.configuration.stack == name and r.number in unseen
        ]
        ratios = [predicted_memory(r, unseen[r.number].memory) / (r.memory_gb or 1.0) for r in memory_rows(mine)]
        speeds = [predicted_speed(r, unseen[r.number]) / (r.tokens_per_second or 1.0) for r in speed_rows(mine)]
        result[name] = replace(
            k,
            memory_margin=margin_for(ratios),
            memory_band=_band([abs(x - 1) for x in ratios], 0.04),
            speed_band=_band([abs(x - 1) for x in speeds], 0.08),
        )
    return result


def same_bands(fold: Mapping[str, Constants], fitted: Mapping[str, Constants]) -> dict[str, Constants]:
    """A fold's constants with the bands and margins of the whole fit, which are what is shipped."""
    return {
        name: replace(
            k,
            memory_margin=fitted[name].memory_margin,
            memory_band=fitted[name].memory_band,
            speed_band=fitted[name].speed_band,
        )
        for name, k in fold.items()
    }


def margin_for(ratios: Sequence[float]) -> float:
    """The largest margin that refuses at most one in twenty GPUs of 1.2 times the measured peak, within bounds."""
    if len(ratios) < FEW:
        return Constants().memory_margin
    ordered = sorted(ratios)
    high = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return round(min(LARGEST_MARGIN, max(SMALLEST_MARGIN, LARGE_ENOUGH / high - 1)), 3)


def _band(errors: Sequence[float], floor: float) -> float:
    if len(errors) < FEW:
        return UNCALIBRATED_BAND
    ordered = sorted(errors)
    return round(min(0.5, max(floor, ordered[math.ceil(0.9 * len(ordered)) - 1])), 3)


def document(fitted: Mapping[str, Constants], digest: str) -> dict[str, Any]:
    """What `constants.json` holds, and each entry of `folds.json`."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: rounded(v) for k, v in value.items()}
        return float(f"{value:.5g}") if isinstance(value, float) else value

    return {
        "written_by": "python -m blackwell calibrate",
        "table_sha256": digest,
        "stacks": {name: rounded(asdict(k)) for name, k in sorted(fitted.items())},
    }
