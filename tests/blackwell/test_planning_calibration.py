"""Fitting: deterministic, by group, and what is shipped belongs to the shipped table."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from blackwell.planning.calibration import (
    MEMORY_WIDTHS,
    document,
    fit,
    fit_memory,
    margin_for,
    memory_rows,
    predicted_memory,
)
from blackwell.planning.folds import FOLDS, fold_of, stored_folds, unseen_constants
from blackwell.planning.stacks import CONSTANTS_FILE, FOLDS_FILE, STACKS, MemoryConstants, all_constants, constants_from
from blackwell.planning.table import Row, read_table, scored

DATA = Path(__file__).parents[2] / "blackwell/planning/data"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read_table(DATA / "measured.csv")


@pytest.fixture(scope="module")
def some(rows: list[Row]) -> list[Row]:
    """A few rows of three stacks, so that a fit takes a moment."""
    stacks = ("torchtune", "te-fsdp", "megatron")
    return [r for r in scored(rows) if r.configuration is not None and r.configuration.stack in stacks]


def test_a_fit_is_deterministic_and_independent_of_the_rows_order(some: list[Row]) -> None:
    shuffled = list(some)
    random.Random(3).shuffle(shuffled)
    one, again, other = (document(fit(r), "") for r in (some, some, shuffled))
    assert json.dumps(one) == json.dumps(again)
    for name in STACKS:
        for part in ("memory", "speed"):
            assert other["stacks"][name][part] == pytest.approx(one["stacks"][name][part], rel=1e-2)


def test_a_stack_without_rows_keeps_the_priors(some: list[Row]) -> None:
    fitted = fit(some)
    assert fitted["blackwell"].memory == MemoryConstants()
    assert fitted["blackwell"].memory_runs == 0


def test_a_fit_finds_the_constants_that_made_the_data(some: list[Row]) -> None:
    truth = replace(MemoryConstants(), saved=1.15)
    made = [
        replace(r, memory_gb=predicted_memory(r, truth))
        for r in memory_rows(some)
        if r.configuration and r.configuration.stack == "torchtune"
    ]
    assert fit_memory(made, MemoryConstants()).saved == pytest.approx(1.12, abs=0.04)  # held a little by the prior of 1


def test_near_duplicates_share_a_fold(rows: list[Row]) -> None:
    folds = {r.group: fold_of(r.group) for r in rows}
    assert set(folds.values()) == set(range(FOLDS))
    unseen = unseen_constants(rows, stored_folds())
    stored = stored_folds()
    for row in scored(rows):
        if row.configuration is not None:
            assert unseen[row.number] == stored[folds[row.group]][row.configuration.stack]


def test_what_is_shipped_was_fitted_on_the_shipped_table() -> None:
    digest = hashlib.sha256((DATA / "measured.csv").read_bytes()).hexdigest()
    shipped = json.loads((DATA / CONSTANTS_FILE).read_text())
    folds = json.loads((DATA / FOLDS_FILE).read_text())["folds"]
    assert {shipped["table_sha256"], *(f["table_sha256"] for f in folds)} == {digest}
    assert set(shipped["stacks"]) == set(STACKS)
    assert all_constants() == constants_from(shipped)


def test_fitted_constants_stay_near_what_was_counted() -> None:
    """Counted terms times a factor near one: a factor far away would mean that a term is missing."""
    for name, k in all_constants().items():
        assert 0.8 <= k.memory.saved <= 1.25, name
        assert 0.8 <= k.memory.selective <= 1.25, name
        assert 1.0 <= k.memory.allocator <= 1.2, name
    assert set(MEMORY_WIDTHS) <= set(MemoryConstants.__dataclass_fields__)


def test_the_margin_leaves_room_for_twenty_percent() -> None:
    assert margin_for([1.0] * 20) == pytest.approx(0.12)
    assert margin_for([1.11] * 20) == pytest.approx(0.081, abs=0.001)
    assert margin_for([1.5] * 20) == pytest.approx(0.07)
