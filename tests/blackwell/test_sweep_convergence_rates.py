"""The error rates that docs/sweeps.md prints are those of today's verdict."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.convergence_verdict import CASES, FIRST, RESULT, TOLERANCE, Case, count

PRINTED = json.loads(RESULT.read_text())


def test_printed_rates_are_of_todays_cases() -> None:
    assert PRINTED["tolerance_nats"] == TOLERANCE
    for printed, case in zip(PRINTED["cases"], CASES, strict=True):
        assert {name: printed[name] for name in asdict(case)} == asdict(case)
        assert sum(printed["verdicts"].values()) == printed["trials"] >= 1_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_printed_rates_come_out_again(case: Case) -> None:
    """The first trials of each case, to the last one; `python -m benchmarks.convergence_verdict` makes all."""
    (printed,) = [found for found in PRINTED["cases"] if found["name"] == case.name]
    assert printed["first"] == count(case, range(FIRST))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_printed_rates_come_out_again_in_full(case: Case) -> None:
    (printed,) = [found for found in PRINTED["cases"] if found["name"] == case.name]
    assert printed["verdicts"] == count(case, range(printed["trials"]))
