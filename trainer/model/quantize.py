"""Quantize and dequantize in PyTorch, as the block formats do on hardware, for the torch backend's emulation.

Formats and block sizes: OCP Microscaling Formats v1.0 (MXFP8: E4M3 elements, blocks of 32, E8M0 scales); NVIDIA's
NVFP4 pre-training recipe, arXiv 2509.25149 (E2M1 elements, blocks of 16, E4M3 scales under one FP32 scale per tensor,
16 x 16 blocks for weights, random Hadamard transform and stochastic rounding in the weight gradient); FP8 with
current scaling (E4M3 forward, E5M2 gradients, one scale per tensor). It imitates the rounding, not the speed: the
multiplication runs in the compute type, and accumulation order differs from the hardware's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

E4M3_MAX = 448.0
E5M2_MAX = 57_344.0
E2M1_MAX = 6.0
MXFP8_BLOCK = 32
NVFP4_BLOCK = 16
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Quantizer = Callable[[Tensor], Tensor]
"""Quantizes and dequantizes; blocks run along the last dimension, which is the one that is summed over."""


def _blocks(x: Tensor, size: int) -> Tensor:
    """[..., n] as [..., n / size, size]."""
    return x.reshape(*x.shape[:-1], -1, size)


def per_tensor_fp8(x: Tensor, gradient: bool) -> Tensor:
    """FP8 with one scale from the tensor's own maximum (current scaling)."""
    dtype, largest = (torch.float8_e5m2, E5M2_MAX) if gradient else (torch.float8_e4m3fn, E4M3_MAX)
    wide = x.float()
    maximum = wide.abs().amax()
    scale = torch.where(maximum > 0, largest / maximum, 1.0)
    return ((wide * scale).clamp(-largest, largest).to(dtype).float() / scale).to(x.dtype)


def mxfp8(x: Tensor) -> Tensor:
    """Blocks of 32 E4M3 numbers with a power-of-two scale.

    The scale is rounded up, so that nothing saturates: Transformer Engine's float_to_e8m0 and arXiv 2506.08027, not the
    rounding down of OCP MX v1.0, section 6.3, which clips the largest numbers of a block.
    """
    blocks = _blocks(x.float(), MXFP8_BLOCK)
    mantissa, exponent = torch.frexp(blocks.abs().amax(dim=-1, keepdim=True) / E4M3_MAX)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)  # frexp's mantissa is in [0.5, 1)
    scale = torch.exp2(exponent.float().clamp(-127, 127))
    rounded = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()
    return (rounded * scale).flatten(-2).to(x.dtype)


def nvfp4(x: Tensor, *, two_dimensional: bool = False, stochastic: bool = False) -> Tensor:
    """Blocks of 16 (or 16 x 16) E2M1 numbers with an E4M3 scale each and one FP32 scale per tensor.

    Args:
        two_dimensional: one scale for 16 rows x 16 columns, so that a weight and its transpose quantize alike.
        stochastic: round up with the probability of the distance, so that the rounding error has no bias.
    """
    wide = x.float()
    maximum = wide.abs().amax()
    tensor_scale = torch.where(maximum > 0, maximum / (E2M1_MAX * E4M3_MAX), 1.0)
    blocks = _blocks(wide, NVFP4_BLOCK)
    if two_dimensional:
        rows = blocks.view(-1, NVFP4_BLOCK, *blocks.shape[1:])
        largest = rows.abs().amax(dim=(1, 3), keepdim=True).expand(-1, NVFP4_BLOCK, -1, -1).flatten(0, 1)
    else:
        largest = blocks.abs().amax(dim=-1, keepdim=True)
    block_scale = (largest / E2M1_MAX / tensor_scale).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).float()
    scale = block_scale * tensor_scale
    safe = torch.where(scale > 0, scale, 1.0)
    rounded = torch.where(scale > 0, _round_e2m1(blocks / safe, stochastic), 0.0)
    return (rounded * scale).flatten(-2).to(x.dtype)


def _round_e2m1(x: Tensor, stochastic: bool) -> Tensor:
    values = torch.tensor(_E2M1_VALUES, device=x.device)
    size = x.abs().clamp(max=E2M1_MAX)
    upper = torch.bucketize(size, values).clamp(min=1, max=len(_E2M1_VALUES) - 1)
    low, high = values[upper - 1], values[upper]
    share = (size - low) / (high - low)
    if stochastic:
        up = torch.rand_like(share) < share
    else:
        # To nearest, ties to the even mantissa: the numbers with an even index have mantissa bit 0.
        up = (share > 0.5) | ((share == 0.5) & (upper % 2 == 0))
    return torch.where(up, high, low).copysign(x)


@cache
def _hadamard(seed: int = 0) -> Tensor:
    """16 x 16 Hadamard matrix with random column signs, orthonormal (arXiv 2509.25149 section 4.2)."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < NVFP4_BLOCK:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    signs = torch.randint(0, 2, (NVFP4_BLOCK,), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1
    turned: Tensor = signs[:, None] * matrix / NVFP4_BLOCK**0.5
    return turned


def rotate(x: Tensor) -> Tensor:
    """The random Hadamard transform of every 16 numbers along the last dimension; two rotated operands cancel it."""
    matrix = _hadamard().to(x.device, x.dtype)
    turned: Tensor = torch.matmul(_blocks(x, NVFP4_BLOCK), matrix)
    return turned.flatten(-2)


@dataclass(frozen=True, slots=True)
class Operands:
    """How each operand of a layer's three multiplications is quantized; each sees blocks along its summed dimension."""

    input: Quantizer
    weight: Quantizer
    gradient: Quantizer
    """Of the output, for the gradient of the input."""
    wgrad_input: Quantizer
    wgrad_gradient: Quantizer


class QuantizedMatMul:
    """(x [..., k], weight [n, k]) -> [..., n] with every operand quantized, forward and backward."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = _MatMul.apply(x, weight, self.operands)  # type: ignore[no-untyped-call]
        return result


class _MatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operands: Operands) -> Tensor:
        flat = x.flatten(0, -2)
        ctx.save_for_backward(flat, weight)
        ctx.operands, ctx.lead = operands, x.shape[:-1]
        y = operands.input(flat) @ operands.weight(weight).t()
        return y.view(*ctx.lead, weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat, weight = ctx.saved_tensors
        operands: Operands = ctx.operands
        grad = grad.flatten(0, -2)
        grad_x = operands.gradient(grad) @ operands.weight(weight.t().contiguous()).t()
        by_token = operands.wgrad_gradient(grad.t().contiguous())
        grad_weight = by_token @ operands.wgrad_input(flat.t().contiguous()).t()
        return grad_x.view(*ctx.lead, weight.shape[1]), grad_weight, None


def operands(
    precision: str, *, hadamard: bool = True, stochastic: bool = True, two_dimensional: bool = True
) -> Operands:
    """The operands of `fp8`, `mxfp8` or `nvfp4`; the three switches are NVFP4's.

    Raises:
        ValueError: for a precision that has no emulation.
    """
    if precision == "fp8":
        forward: Quantizer = lambda x: per_tensor_fp8(x, gradient=False)  # noqa: E731
        backward: Quantizer = lambda x: per_tensor_fp8(x, gradient=True)  # noqa: E731
        return Operands(forward, forward, backward, forward, backward)
    if precision == "mxfp8":
        return Operands(mxfp8, mxfp8, mxfp8, mxfp8, mxfp8)
    if precision != "nvfp4":
        raise ValueError(f"no emulation of {precision}")

    def turned(x: Tensor) -> Tensor:
        return rotate(x) if hadamard else x

    return Operands(
        input=nvfp4,
        weight=lambda w: nvfp4(w, two_dimensional=two_dimensional),
        gradient=lambda g: nvfp4(g, stochastic=stochastic),
        wgrad_input=lambda x: nvfp4(turned(x)),
        wgrad_gradient=lambda g: nvfp4(turned(g), stochastic=stochastic),
    )
