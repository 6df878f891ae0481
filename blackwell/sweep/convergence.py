"""Whether a precision converges as the baseline does: a verdict on two loss curves over identical data.

Both runs read the same samples at the same step, so the difference of their losses is free of most of what makes a
loss noisy. Three tests, on that difference d in nats per token:

- early divergence: the mean of d over a stretch of steps is far above zero, or the run diverged or became not finite;
- final gap: the mean of d over the last steps, with an interval from a circular block bootstrap (Politis and Romano,
  1992; blocks, because neighbouring steps are correlated), widened by how far baselines that differ only in their seed
  end apart beyond what their own data explains;
- gradient norm: the median ratio of the gradient norms over the last steps, and whether it grows.

`equivalent` when the interval's upper end is within the tolerance, `worse` when its lower end is above it, else
`inconclusive`. Each end is one-sided at 5 % (two one-sided tests, Schuirmann 1987). How often each wrong verdict comes
on curves with a known truth is measured by `python -m benchmarks.convergence_verdict` and printed in docs/sweeps.md.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict

from blackwell.sweep.spec import ConvergenceSpec

RESAMPLES = 1_000
ONE_SIDED = 0.05
MIN_STEPS = 16
"""Steps in the final window below which nothing can be said."""
DIVERGED_NATS = 0.5
"""Mean difference over a tenth of the run that is no noise at any scale of language models."""
NORM_RATIO = 2.0
"""Gradient norms this much apart at the end, and growing, are no equivalence whatever the loss says so far."""
NORM_GROWTH = 1.25
MOST_STEPS_FACTOR = 100
"""More steps than this many times the run are not worth naming."""
_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860)
"""Student's t, 95 % one-sided, for 1 to 8 degrees of freedom."""
_Z = 1.645


class ConvergenceVerdict(StrEnum):
    EQUIVALENT = "equivalent"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"


@dataclass(slots=True)
class Curve:
    """What one run logged, by step. NaN where a loss was not finite or a norm not logged."""

    step: Sequence[int]
    loss: Sequence[float]
    grad_norm: Sequence[float] = field(default_factory=list)
    diverged: bool = False
    """The run itself ended as diverged."""


class Judgement(BaseModel):
    """The verdict on one curve against the baseline's, and everything that it rests on."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")

    verdict: ConvergenceVerdict
    reason: str
    gap_nats: float | None = None
    """Mean of candidate minus baseline over the last steps."""
    low_nats: float | None = None
    high_nats: float | None = None
    """Interval of the gap; each end is one-sided at 5 %."""
    tolerance_nats: float
    noise_nats: float | None = None
    """Standard deviation of a run's end that the seed alone makes; null without repeated baselines."""
    paired_steps: int = 0
    window_steps: int = 0
    """Logged steps at the end that the gap is the mean of."""
    diverged_at_step: int | None = None
    grad_norm_ratio: float | None = None
    """Candidate over baseline, median over the same steps."""
    needs_steps: int | None = None
    """More steps after which a verdict can be expected, if gap and noise stay as they are."""


def judge(
    baseline: Curve, candidate: Curve, repeats: Sequence[Curve], settings: ConvergenceSpec, *, seed: int = 0
) -> Judgement:
    """Compares two curves.

    Args:
        repeats: the baseline with other seeds.
        seed: of the bootstrap.
    """
    steps, difference = _difference(baseline, candidate)
    tolerance = settings.tolerance_nats
    window = _window(len(difference), settings)
    ratio, growth = _norms(baseline, candidate, window)
    if (at := _divergence(steps, difference)) is not None or candidate.diverged or _not_finite(candidate):
        where = at if at is not None else (candidate.step[-1] if candidate.step else 0)
        return Judgement(
            verdict=ConvergenceVerdict.WORSE, reason=f"it diverged from the baseline at step {where:,}",
            tolerance_nats=tolerance, paired_steps=len(difference), diverged_at_step=where, grad_norm_ratio=ratio,
        )  # fmt: skip
    if window < MIN_STEPS:
        wanted = math.ceil(MIN_STEPS / settings.final_share) - len(difference)
        each = (steps[-1] / len(steps)) if steps else 1.0
        needed = max(1, math.ceil(wanted * each))
        return Judgement(
            verdict=ConvergenceVerdict.INCONCLUSIVE,
            reason=f"too short to say: needs {needed:,} more steps",
            tolerance_nats=tolerance, paired_steps=len(difference), window_steps=window, grad_norm_ratio=ratio,
            needs_steps=needed,
        )  # fmt: skip
    rng = random.Random(seed)  # noqa: S311  a bootstrap, no secret
    last = difference[-window:]
    gap, deviation = fmean(last), _bootstrap_deviation(last, rng)
    noise = _noise(baseline, repeats, settings, rng)
    degrees = len(repeats)
    shaken = 0.0 if noise is None else _t(degrees) * math.sqrt(2) * noise
    sampled = _t(_blocks(last) - 1) * deviation
    half = math.hypot(sampled, shaken)
    found = Judgement(
        verdict=ConvergenceVerdict.INCONCLUSIVE, reason="", gap_nats=gap, low_nats=gap - half, high_nats=gap + half,
        tolerance_nats=tolerance, noise_nats=noise, paired_steps=len(difference), window_steps=window,
        grad_norm_ratio=ratio,
    )  # fmt: skip
    interval = f"{gap:+.4f} nats, interval {gap - half:+.4f} to {gap + half:+.4f}"
    if gap - half > tolerance:
        found.verdict = ConvergenceVerdict.WORSE
        found.reason = f"it ends {interval}: all of it above the tolerance of {tolerance:g}"
    elif gap + half <= tolerance and not _drifts(ratio, growth):
        found.verdict = ConvergenceVerdict.EQUIVALENT
        found.reason = f"it ends {interval}: at most the tolerance of {tolerance:g} above"
    elif gap + half <= tolerance:
        found.needs_steps = max(1, steps[-1] // 2)
        found.reason = (
            f"the loss is within the tolerance, but gradient norms are {ratio:.2f} times the baseline's and drift apart: "
            f"needs {found.needs_steps:,} more steps"
        )
    else:
        found.needs_steps = _more_steps(steps[-1], abs(gap - tolerance), sampled, shaken)
        found.reason = f"it ends {interval}, on both sides of the tolerance of {tolerance:g}: " + (
            f"needs {found.needs_steps:,} more steps"
            if found.needs_steps is not None
            else "seeds alone differ too much; more baseline_repeats may decide it, more steps will not"
        )
    return found


def _difference(baseline: Curve, candidate: Curve) -> tuple[list[int], array[float]]:
    """(steps, candidate minus baseline) where both logged a finite loss."""
    known = dict(zip(baseline.step, baseline.loss, strict=True))
    steps: list[int] = []
    values = array("d")
    for step, loss in zip(candidate.step, candidate.loss, strict=True):
        other = known.get(step, math.nan)
        if math.isfinite(loss) and math.isfinite(other):
            steps.append(step)
            values.append(loss - other)
    return steps, values


def _window(count: int, settings: ConvergenceSpec) -> int:
    return int(count * settings.final_share)


def _not_finite(candidate: Curve) -> bool:
    """The last logged losses are not finite: the run never came back."""
    return bool(candidate.loss) and not any(math.isfinite(loss) for loss in candidate.loss[-3:])


def _divergence(steps: Sequence[int], difference: Sequence[float]) -> int | None:
    """First step at the end of a tenth of the run over which the difference is DIVERGED_NATS on average."""
    width = max(8, len(difference) // 10)
    total = 0.0
    for index, value in enumerate(difference):
        total += value
        if index >= width:
            total -= difference[index - width]
        if index >= width - 1 and total / width > DIVERGED_NATS:
            return int(steps[index])
    return None


def _norms(baseline: Curve, candidate: Curve, window: int) -> tuple[float | None, float | None]:
    """(median ratio of gradient norms over the window, that over the ratio in the window before)."""
    known = dict(zip(baseline.step, baseline.grad_norm, strict=False))
    ratios = [
        norm / known[step]
        for step, norm in zip(candidate.step, candidate.grad_norm, strict=False)
        if known.get(step, 0.0) > 0 and math.isfinite(norm) and math.isfinite(known[step])
    ]
    if window < 1 or len(ratios) < 2 * window:
        return (median(ratios[-window:]) if window >= 1 and ratios else None), None
    last, before = median(ratios[-window:]), median(ratios[-2 * window : -window])
    return last, last / before if before > 0 else None


def _drifts(ratio: float | None, growth: float | None) -> bool:
    return ratio is not None and ratio > NORM_RATIO and (growth is None or growth > NORM_GROWTH)


def _block_length(values: Sequence[float]) -> int:
    """Twice the integrated autocorrelation time, at least the cube root of the length, at most an eighth of it."""
    count, mean = len(values), fmean(values)
    centred = [value - mean for value in values]
    variance = sum(c * c for c in centred)
    time = 1.0
    if variance > 0:
        for lag in range(1, count // 4):
            correlation = sum(centred[i] * centred[i + lag] for i in range(count - lag)) / variance
            if correlation < 0.05:
                break
            time += 2 * correlation
    return max(1, min(count // 8, max(math.ceil(math.cbrt(count)), math.ceil(2 * time))))


def _blocks(values: Sequence[float]) -> int:
    return max(2, len(values) // _block_length(values))


def _bootstrap_deviation(values: Sequence[float], rng: random.Random) -> float:
    """Standard deviation of the mean by circular block bootstrap, corrected for the few blocks there are."""
    count, length = len(values), _block_length(values)
    sums = array("d", [0.0])
    for value in (*values, *values[: length - 1]):
        sums.append(sums[-1] + value)
    blocks = max(2, count // length)
    means = [
        sum(sums[start + length] - sums[start] for start in rng.choices(range(count), k=blocks)) / (blocks * length)
        for _ in range(RESAMPLES)
    ]
    centre = fmean(means)
    return math.sqrt(sum((m - centre) ** 2 for m in means) / RESAMPLES * blocks / (blocks - 1))


def _noise(baseline: Curve, repeats: Sequence[Curve], settings: ConvergenceSpec, rng: random.Random) -> float | None:
    """Standard deviation of a run's end that the seed makes, beyond what each pair's own data explains."""
    squares: list[float] = []
    for other in repeats:
        _, difference = _difference(baseline, other)
        window = _window(len(difference), settings)
        if window >= MIN_STEPS:
            last = difference[-window:]
            squares.append(fmean(last) ** 2 - _bootstrap_deviation(last, rng) ** 2)
    return math.sqrt(max(0.0, fmean(squares)) / 2) if squares else None


def _t(degrees: int) -> float:
    if degrees < 1:
        return _Z
    return _T[degrees - 1] if degrees <= len(_T) else _Z + 1.6 / degrees


def _more_steps(steps: int, distance: float, sampled: float, shaken: float) -> int | None:
    """Steps until the sampled part of the interval is short enough; None where the seeds' part is too long already."""
    room = distance**2 - shaken**2
    if room <= 0 or sampled**2 > room * MOST_STEPS_FACTOR:
        return None
    return max(1, math.ceil(steps * (sampled**2 / room - 1)))
