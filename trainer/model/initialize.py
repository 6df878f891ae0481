"""Initial weights as a function of seed and canonical name only: not of world size, wrappers, backend or device.

Matrices are drawn in blocks of whole rows, each block from a generator of its own, so that a rank draws only the rows
it holds. Normal(0, 0.02); the two projections into the residual stream are scaled by 1 / sqrt(2 x layers), as in
GPT-2 and Megatron-LM. Norm weights are one, biases zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainer.rng import generator

STANDARD_DEVIATION = 0.02
BLOCK_ELEMENTS = 2**18
_RESIDUAL = ("proj.weight", "fc2_weight")


@torch.no_grad()
def initialize(model: nn.Module, seed: int, num_layers: int) -> None:
    """Sets every parameter; a tied weight is set once, under its first name."""
    for name, parameter in model.named_parameters():
        local, first_row = local_rows(parameter)
        if name.endswith("norm_weight"):
            local.fill_(1.0)
        elif parameter.ndim == 1:
            local.zero_()
        else:
            deviation = STANDARD_DEVIATION
            if name.endswith(_RESIDUAL):
                deviation /= math.sqrt(2 * num_layers)
            _fill_rows(local, first_row, parameter.shape[0], seed, name, deviation)


def local_rows(parameter: Tensor) -> tuple[Tensor, int]:
    """The rows that this rank holds, and the number of the first of them in the whole parameter."""
    if not isinstance(parameter, DTensor):
        return parameter, 0
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local(), offset[0] if offset else 0


def _fill_rows(local: Tensor, first_row: int, all_rows: int, seed: int, name: str, deviation: float) -> None:
    if local.numel() == 0:
        return
    per_block = max(1, BLOCK_ELEMENTS // local[0].numel())
    end = first_row + local.shape[0]
    for block in range(first_row // per_block, (end + per_block - 1) // per_block):
        start, stop = block * per_block, min((block + 1) * per_block, all_rows)
        rows = torch.empty(stop - start, *local.shape[1:]).normal_(
            0.0, deviation, generator=generator(seed, "weights", name, block)
        )
        low, high = max(start, first_row), min(stop, end)
        local[low - first_row : high - first_row].copy_(rows[low - start : high - start])
