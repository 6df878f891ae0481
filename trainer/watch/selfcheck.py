"""A check of every rank's arithmetic and of the links between them, before step 1: minutes of broken hardware saved."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainer.rng import generator

_SIZE = 256
_BROADCAST_ELEMENTS = 1 << 16


class HardwareError(RuntimeError):
    """A device or a link computes or carries wrong numbers."""


def self_check(device: torch.device) -> None:
    """Multiplies matrices with a known result on each rank and sums known numbers over all ranks.

    Integers up to 2^24 are exact in FP32, so every device must give the same bits.

    Raises:
        HardwareError: with the rank's device and what was wrong.
    """
    source = generator(0, "self-check")
    a = torch.randint(-8, 9, (_SIZE, _SIZE), generator=source).float()
    b = torch.randint(-8, 9, (_SIZE, _SIZE), generator=source).float()
    if not torch.equal((a.to(device) @ b.to(device)).cpu(), a @ b):
        raise HardwareError(f"{device} multiplies matrices wrongly")
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = torch.arange(_BROADCAST_ELEMENTS, dtype=torch.float64, device=device) + rank
    dist.all_reduce(numbers)
    expected = torch.arange(_BROADCAST_ELEMENTS, dtype=torch.float64) * world + world * (world - 1) / 2
    if not torch.equal(numbers.cpu(), expected):
        raise HardwareError(f"an all-reduce over {world} ranks gave wrong sums on {device}")
