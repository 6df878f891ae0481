"""Random numbers as a function of their place in the run, so that nothing has to be saved or carried over.

Weights depend on (seed, canonical parameter name, block), dropout on (seed, step, micro batch, rank). A resumed run
therefore draws what the uninterrupted run would have drawn; on another world size dropout is different but defined.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *place: object) -> int:
    """A 63-bit seed from the run's seed and the names or numbers of a place in it."""
    digest = hashlib.blake2b("/".join(str(part) for part in (seed, *place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *place: object) -> torch.Generator:
    """A CPU generator for one place in the run."""
    return torch.Generator().manual_seed(derive(seed, *place))


def seed_micro_batch(seed: int, step: int, micro: int, rank: int) -> None:
    """Sets torch's generators (CPU and CUDA) for one forward and backward pass.

    Recomputation restores the state from the start of a layer, so activation checkpointing draws the same masks.
    """
    torch.manual_seed(derive(seed, "dropout", step, micro, rank))
