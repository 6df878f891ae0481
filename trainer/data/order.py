"""The order of the samples: a pure function of (seed, position), in constant memory.

Epoch e visits its samples in the order of a keyed permutation of 0 .. size-1: an unbalanced Feistel network over the
next power of two, walked until it falls inside the range (Black and Rogaway, "Ciphers with arbitrary finite domains",
2002). The network is a bijection for any round function, so no sample is repeated or dropped within an epoch.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

_ROUNDS = 8
_BLOCK = 4096
"""Positions permuted at once: 32 KiB, and the cost of one call is spread over many batches. Fewer where a block would
hold many epochs, each of which costs a call."""


class Permutation:
    """A permutation of 0 .. size-1 chosen by (seed, epoch), evaluated anywhere without a table."""

    def __init__(self, seed: int, epoch: int, size: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, got {size}")
        self._size = size
        bits = max(2, (size - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << (bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        key = hashlib.blake2b(f"{seed}/{epoch}/{size}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(key, dtype="<u8").astype(np.uint64)

    def __call__(self, positions: Indices) -> Indices:
        """Where the given positions (each in 0 .. size-1) go."""
        values = self._network(positions.astype(np.uint64))
        limit = np.uint64(self._size)
        outside = np.flatnonzero(values >= limit)
        while outside.size:
            walked = self._network(values[outside])
            values[outside] = walked
            outside = outside[walked >= limit]
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = values & self._low_mask, values >> self._low_bits
        for index in range(0, _ROUNDS, 2):
            low = low ^ (_scramble(high ^ self._keys[index]) & self._low_mask)
            high = high ^ (_scramble(low ^ self._keys[index + 1]) & self._high_mask)
        return (high << self._low_bits) | low


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class SampleOrder:
    """Sample index at every position of an endless run over `size` samples, reshuffled every epoch."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed = seed
        self.size = size
        self._epoch: tuple[int, Permutation] = (0, Permutation(seed, 0, size))
        self._block_size = max(64, min(_BLOCK, 16 * size))
        self._block: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def indices(self, position: int, count: int) -> Indices:
        """Sample indices at positions position .. position+count-1; position counts from the start of the run."""
        first, last = position // self._block_size, (position + count - 1) // self._block_size
        start = position - first * self._block_size
        if first == last:
            return self._at(first)[start : start + count]
        joined = np.concatenate([self._at(block) for block in range(first, last + 1)])
        return joined[start : start + count]

    def _at(self, block: int) -> Indices:
        cached, values = self._block  # one reference, so that prefetching threads never see half of a change
        if cached == block:
            return values
        positions = np.arange(block * self._block_size, (block + 1) * self._block_size, dtype=np.int64)
        epochs, within = np.divmod(positions, self.size)
        values = np.empty_like(within)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            values[chosen] = self._permutation(int(epoch))(within[chosen])
        self._block = (block, values)
        return values

    def _permutation(self, epoch: int) -> Permutation:
        cached, permutation = self._epoch
        if cached != epoch:
            permutation = Permutation(self.seed, epoch, self.size)
            self._epoch = (epoch, permutation)
        return permutation
