"""How often a sweep's convergence verdict is wrong, on pairs of loss curves whose truth is known.

    python -m benchmarks.convergence_verdict [--trials N] [--out FILE]

Each curve is a common power law, noise of its data, correlated noise of its own and, where seeds are to differ, an
offset of its own. At a gap of exactly the tolerance neither `equivalent` nor `worse` is right: the hardest case, in
which each should come in at most 5 %. Every random number follows from the trial's number, so the figures are the same
on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blackwell.sweep.convergence import ConvergenceVerdict, Curve, Judgement, judge
from blackwell.sweep.spec import ConvergenceSpec

SETTINGS = ConvergenceSpec(tolerance_nats=0.02)
TOLERANCE = SETTINGS.tolerance_nats
AT_TOLERANCE = TOLERANCE / (1 - SETTINGS.final_share / 2)
"""The gap grows over the run; with this much at its end, the mean over the final share is the tolerance."""
STEPS, LONG = 400, 1_200
FIRST = 10
"""Trials of each case that a test repeats."""
RESULT = Path(__file__).parent / "results" / "convergence_verdict.json"


@dataclass(frozen=True, slots=True)
class Case:
    """What the curves are truly like."""

    name: str
    gap_nats: float
    """Of the candidate at its last step."""
    seed_noise_nats: float = 0.0
    """Standard deviation of what the seed adds to a run's end."""
    steps: int = STEPS
    repeats: int = 2
    """Repeated baselines."""


CASES = (
    Case("gap at the tolerance", AT_TOLERANCE),
    Case("gap at the tolerance, seeds differ by 0.004", AT_TOLERANCE, seed_noise_nats=0.004),
    Case("gap at the tolerance, no repeated baselines", AT_TOLERANCE, repeats=0),
    Case("gap at the tolerance, 1,200 steps", AT_TOLERANCE, steps=LONG),
    Case("no gap, 1,200 steps", 0.0, steps=LONG),
    Case("twice the tolerance, 1,200 steps", 2 * TOLERANCE, steps=LONG),
)


def truth(step: int) -> float:
    """The loss of every run without noise, nats per token."""
    return float(2.0 + 6.0 * (step + 3) ** -0.4)


def data_noise(rng: random.Random, steps: int = STEPS) -> list[float]:
    """What the samples of each step add to the loss of every run that reads them."""
    return [rng.gauss(0, 0.05) for _ in range(steps)]


def run_curve(rng: random.Random, data: list[float], *, gap: float = 0.0, seed_noise: float = 0.0) -> Curve:
    """One run: the common curve, the data's noise, an offset of this run's own, and correlated noise of its own."""
    offset, own, loss = rng.gauss(0, seed_noise), 0.0, []
    for step, noise in enumerate(data, 1):
        own = 0.7 * own + rng.gauss(0, 0.015)
        loss.append(truth(step) + noise + own + offset + gap * step / len(data))
    return Curve(step=range(1, len(data) + 1), loss=loss, grad_norm=[1.0] * len(data))


def trial(number: int, case: Case) -> Judgement:
    """The verdict on the pair of this number."""
    rng = random.Random(f"{number} {case.gap_nats} {case.seed_noise_nats}")  # noqa: S311  curves, no secret
    same = data_noise(rng, case.steps)
    baseline = run_curve(rng, same, seed_noise=case.seed_noise_nats)
    candidate = run_curve(rng, same, gap=case.gap_nats, seed_noise=case.seed_noise_nats)
    others = [run_curve(rng, data_noise(rng, case.steps), seed_noise=case.seed_noise_nats) for _ in range(case.repeats)]
    return judge(baseline, candidate, others, SETTINGS, seed=number)


def count(case: Case, numbers: Iterable[int]) -> dict[str, int]:
    """How often each verdict came over these trials."""
    found = Counter(trial(number, case).verdict.value for number in numbers)
    return {verdict.value: found[verdict.value] for verdict in ConvergenceVerdict}


def measure(trials: int) -> dict[str, Any]:
    """Every case, over so many trials."""
    cases = []
    for case in CASES:
        first, rest = count(case, range(FIRST)), count(case, range(FIRST, trials))
        verdicts = {verdict: first[verdict] + rest[verdict] for verdict in first}
        cases.append({**asdict(case), "trials": trials, "verdicts": verdicts, "first": first})
    return {"tolerance_nats": TOLERANCE, "cases": cases}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    if options.trials <= FIRST:
        parser.error(f"--trials must be more than {FIRST}")
    found = measure(options.trials)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for case in found["cases"]:
        shares = ", ".join(f"{name} {number / options.trials:.1%}" for name, number in case["verdicts"].items())
        print(f"{case['name']}: {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
