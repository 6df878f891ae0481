"""The order of the samples: a bijection per epoch, a pure function of seed and position."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.order import Permutation, SampleOrder

SIZES = st.one_of(st.integers(1, 40), st.integers(1, 20_000))


@given(seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 10_000), size=SIZES)
@settings(max_examples=60, deadline=None)
def test_every_epoch_visits_every_sample_once(seed: int, epoch: int, size: int) -> None:
    visited = Permutation(seed, epoch, size)(np.arange(size))
    assert np.array_equal(np.sort(visited), np.arange(size))


@given(seed=st.integers(0, 2**31 - 1), size=SIZES, start=st.integers(0, 50_000), count=st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_indices_do_not_depend_on_how_they_are_asked_for(seed: int, size: int, start: int, count: int) -> None:
    together = SampleOrder(seed, size).indices(start, count)
    fresh = SampleOrder(seed, size)
    backwards = [int(fresh.indices(p, 1)[0]) for p in range(start + count - 1, start - 1, -1)]
    assert together.tolist() == backwards[::-1]


@given(seed=st.integers(0, 2**31 - 1), size=st.integers(1, 300), epochs=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_a_run_of_whole_epochs_sees_each_sample_equally_often(seed: int, size: int, epochs: int) -> None:
    counts = Counter(SampleOrder(seed, size).indices(0, size * epochs).tolist())
    assert counts == dict.fromkeys(range(size), epochs)


def test_epochs_and_seeds_differ() -> None:
    size = 1_000
    orders = [SampleOrder(seed, size).indices(epoch * size, size).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(order != sorted(order) for order in orders)


def test_the_permutation_mixes_well() -> None:
    """Each eighth of the positions draws evenly from each eighth of the samples (chi-square, 49 degrees of freedom)."""
    size = 80_000
    visited = Permutation(7, 0, size)(np.arange(size))
    table = np.histogram2d(np.arange(size) * 8 // size, visited * 8 // size, bins=8)[0]
    expected = size / 64
    # Drawn without replacement the statistic is a little below chi-square(49), whose 99.9 % point is 85.4.
    assert ((table - expected) ** 2 / expected).sum() < 85.4
    neighbours = np.corrcoef(visited[:-1], visited[1:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(size)


def test_the_order_is_pinned() -> None:
    """A change here would make every existing checkpoint resume on other data."""
    assert SampleOrder(1234, 1_000).indices(0, 8).tolist() == PINNED
    assert SampleOrder(1234, 1_000).indices(1_000, 4).tolist() == PINNED_SECOND_EPOCH


PINNED = [653, 792, 647, 154, 11, 942, 122, 208]
PINNED_SECOND_EPOCH = [221, 169, 582, 958]


def test_an_empty_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Permutation(1, 0, 0)
