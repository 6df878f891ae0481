"""A run that was killed and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
from trainer_harness import ForkServer, Log, Place, numbers

from blackwell.names import MANIFEST, checkpoint_folder

STEPS = 10
INTERVAL = 4
KILL_STEP = {"between": 6, "before": 8, "inside": 8, "late": 8}
KILL_DELAY = {"before": 0.0, "inside": 0.004, "late": 0.012}
"""Seconds after the save of step 8 began."""


class Case(NamedTuple):
    kill: str
    asynchronous: bool
    precision: str
    recompute: str
    dropout: float
    accumulation: int

    @property
    def name(self) -> str:
        mode = "async" if self.asynchronous else "sync"
        drop = "-dropout" if self.dropout else ""
        return f"{self.kill}-{mode}-{self.precision}-{self.recompute}{drop}-accumulate{self.accumulation}"


LEVELS: tuple[tuple[Any, ...], ...] = (
    ("between", "before", "inside", "late"),
    (False, True),
    ("fp32", "bf16"),
    ("none", "selective", "full"),
    (0.0, 0.1),
    (1, 2),
)
PRODUCT = [Case(*levels) for levels in itertools.product(*LEVELS)]


@cache
def pairwise() -> list[Case]:
    """At most twelve rows in which every two levels of two factors meet, found greedily."""

    def pairs(case: Case) -> set[tuple[int, Any, int, Any]]:
        return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}

    missing = set().union(*(pairs(case) for case in PRODUCT))
    rows: list[Case] = []
    while missing:
        best = max(PRODUCT, key=lambda case: (len(pairs(case) & missing), -PRODUCT.index(case)))
        rows.append(best)
        missing -= pairs(best)
    return rows


def test_resume_table_meets_every_pair_in_at_most_twelve_rows() -> None:
    rows = pairwise()
    assert len(rows) <= 12
    for i, j in itertools.combinations(range(len(LEVELS)), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(LEVELS[i], LEVELS[j]))


def settings(case: Case) -> dict[str, Any]:
    return {
        "steps": STEPS,
        "checkpoint__interval_steps": INTERVAL,
        "checkpoint__asynchronous": case.asynchronous,
        "precision": case.precision,
        "activation_checkpointing": case.recompute,
        "dropout": case.dropout,
        "micro_batch_size": 4 // case.accumulation,
        "seed": 7,
    }


_REFERENCES: dict[tuple[Any, ...], Log] = {}


def reference(case: Case, forks: ForkServer, place: Callable[..., Place]) -> Log:
    """The uninterrupted run, without recomputation: recomputing must not change a bit either."""
    key = (case.precision, case.dropout, case.accumulation)
    if key not in _REFERENCES:
        whole = case._replace(recompute="none", asynchronous=False)
        _REFERENCES[key] = forks.run(place("reference", **{**settings(whole), "checkpoint__interval_steps": 100}))
    return _REFERENCES[key]


def check(case: Case, forks: ForkServer, place: Callable[..., Place]) -> None:
    expected = reference(case, forks, place).by_step()
    job = place("job", **settings(case))
    step = KILL_STEP[case.kill]
    fault = {"kind": "kill", "step": step, "rank": 1}
    if case.kill == "between":
        fault |= {"after": f"{checkpoint_folder(INTERVAL)}/{MANIFEST}"}  # steps are faster than a background save
    else:
        fault |= {"phase": "save", "seconds": KILL_DELAY[case.kill]}
    workers = forks.start(job, faults=[fault])
    assert -9 in workers.wait(), workers.output.read_text()[-3000:]
    before = workers.log()

    after = forks.run(job, faults=[fault])
    resumed_from = after.of("start")[0]["resumed_from_step"]
    assert resumed_from in ((4,) if case.kill == "between" else (4, 8))
    assert [r.step for r in after.steps] == list(range(resumed_from + 1, STEPS + 1))
    for record in (*before.steps, *after.steps):
        assert numbers(record) == numbers(expected[record.step]), f"step {record.step}"


@pytest.mark.parametrize("case", pairwise(), ids=lambda c: c.name)
@pytest.mark.xdist_group("trainer-resume")
def test_resume_after_kill_is_bitwise_equal(case: Case, forks: ForkServer, place: Callable[..., Place]) -> None:
    check(case, forks, place)


@pytest.mark.slow
@pytest.mark.parametrize("case", PRODUCT, ids=lambda c: c.name)
@pytest.mark.xdist_group("trainer-resume-product")
def test_resume_full_product(case: Case, forks: ForkServer, place: Callable[..., Place]) -> None:
    check(case, forks, place)
