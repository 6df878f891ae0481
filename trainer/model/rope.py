"""Rotary position embedding in the half-rotation form of Llama and of Transformer Engine (not interleaved)."""

from __future__ import annotations

import torch
from torch import Tensor


def angles(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin in FP32, [..., head_dim], of the angles position / theta^(2i / head_dim), halves repeated."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    half = positions.to(torch.float32)[..., None] / theta**exponents
    full = torch.cat((half, half), dim=-1)
    return full.cos(), full.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the angles ([..., head_dim], broadcastable to x) in FP32 and returns the type of x."""
    wide = x.float()
    low, high = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat((-high, low), dim=-1), sin).to(x.dtype)
