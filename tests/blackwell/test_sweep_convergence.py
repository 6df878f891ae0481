"""The convergence verdict's own error rates, on curves whose truth is known."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from benchmarks import convergence_verdict as measured
from benchmarks.convergence_verdict import (
    AT_TOLERANCE,
    LONG,
    SETTINGS,
    STEPS,
    TOLERANCE,
    Case,
    data_noise,
    run_curve,
)
from blackwell.sweep.convergence import ConvergenceVerdict, Judgement, judge

TRIALS = 150


def trial(number: int, gap: float, seed_noise: float = 0.0, steps: int = STEPS, repeats: int = 2) -> Judgement:
    return measured.trial(number, Case("", gap, seed_noise, steps, repeats))


def rates(gap: float, seed_noise: float = 0.0, *, steps: int = STEPS, trials: int = TRIALS) -> dict[str, float]:
    verdicts = Counter(trial(number, gap, seed_noise, steps).verdict.value for number in range(trials))
    return {verdict.value: verdicts[verdict.value] / trials for verdict in ConvergenceVerdict}


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for a standard deviation; the product takes more so that two reports agree to the digit."""
    monkeypatch.setattr("blackwell.sweep.convergence.RESAMPLES", 200)


MOST = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / TRIALS)
"""What a rate of 5 % may show in so many trials, with a chance of less than one in a hundred of more."""


@pytest.mark.parametrize("seed_noise", [0.0, 0.004])
def test_a_gap_at_the_tolerance_is_seldom_called_either_way(seed_noise: float) -> None:
    """The hardest case: the mean of the last fifth stands exactly at the tolerance."""
    found = rates(AT_TOLERANCE, seed_noise)
    assert found["equivalent"] <= MOST, found
    assert found["worse"] <= MOST, found


def test_no_gap_is_hardly_ever_called_worse_and_mostly_equivalent() -> None:
    found = rates(0.0, steps=LONG, trials=30)
    assert found["worse"] == 0.0, found
    assert found["equivalent"] >= 0.6, found


def test_a_large_gap_is_called_worse_and_never_equivalent() -> None:
    found = rates(2 * TOLERANCE, steps=LONG, trials=30)
    assert found["equivalent"] == 0.0, found
    assert found["worse"] >= 0.6, found


def test_so_many_more_steps_do_decide() -> None:
    """Of runs that were inconclusive, most have a verdict after the steps that were asked for."""
    missing = [(number, trial(number, 0.0, repeats=0).needs_steps) for number in range(60)]
    open_cases = [(number, steps) for number, steps in missing if steps is not None and steps < 5 * STEPS]
    assert len(open_cases) >= 10
    decided = [trial(number, 0.0, steps=STEPS + steps, repeats=0).verdict for number, steps in open_cases[:20]]
    assert decided.count(ConvergenceVerdict.EQUIVALENT) >= 0.5 * len(decided)
    assert ConvergenceVerdict.WORSE not in decided


def test_divergence_is_found_where_it_begins_and_stays_worse_whatever_the_end() -> None:
    rng = random.Random(1)
    same = data_noise(rng)
    baseline, candidate = run_curve(rng, same), run_curve(rng, same)
    for index in range(100, 250):
        candidate.loss[index] += 3.0  # type: ignore[index]
    found = judge(baseline, candidate, [], SETTINGS)
    assert found.verdict is ConvergenceVerdict.WORSE
    assert found.diverged_at_step is not None
    assert 101 <= found.diverged_at_step <= 140


def test_losses_that_are_not_finite_are_worse() -> None:
    rng = random.Random(2)
    same = data_noise(rng)
    baseline, candidate = run_curve(rng, same), run_curve(rng, same)
    candidate.loss[-50:] = [math.nan] * 50  # type: ignore[index]
    assert judge(baseline, candidate, [], SETTINGS).verdict is ConvergenceVerdict.WORSE


def test_too_short_runs_say_how_many_steps_are_missing() -> None:
    rng = random.Random(3)
    same = data_noise(rng, 40)
    found = judge(run_curve(rng, same), run_curve(rng, same), [], SETTINGS)
    assert found.verdict is ConvergenceVerdict.INCONCLUSIVE
    assert found.needs_steps == 40  # 16 steps are a fifth of 80
    assert "40 more steps" in found.reason


def test_growing_gradient_norms_are_no_equivalence() -> None:
    rng = random.Random(4)
    same = data_noise(rng, LONG)
    baseline, candidate = run_curve(rng, same), run_curve(rng, same)
    assert judge(baseline, candidate, [], SETTINGS).verdict is ConvergenceVerdict.EQUIVALENT
    candidate.grad_norm = [math.exp(step / LONG * 3) for step in range(LONG)]
    found = judge(baseline, candidate, [], SETTINGS)
    assert found.verdict is ConvergenceVerdict.INCONCLUSIVE
    assert "drift" in found.reason


def test_seeds_that_differ_more_than_the_tolerance_leave_it_open() -> None:
    """More steps would not help, so none are asked for."""
    rng = random.Random(5)
    same = data_noise(rng, LONG)
    baseline, candidate = run_curve(rng, same), run_curve(rng, same, gap=0.01)
    repeats = [run_curve(rng, data_noise(rng, LONG), seed_noise=0.0) for _ in range(2)]
    for number, repeat in enumerate(repeats):
        repeat.loss = [value + (0.1 if number else -0.1) for value in repeat.loss]
    found = judge(baseline, candidate, repeats, SETTINGS)
    assert found.verdict is ConvergenceVerdict.INCONCLUSIVE
    assert found.needs_steps is None
    assert found.noise_nats is not None
    assert found.noise_nats > TOLERANCE


def test_the_same_curves_get_the_same_figures() -> None:
    assert trial(7, 0.01) == trial(7, 0.01)
