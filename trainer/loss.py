"""Cross-entropy over a large vocabulary without ever holding all logits.

The chunked form computes logits, loss and both gradients of one chunk of tokens at a time in the forward pass, so the
peak is one chunk's logits plus the gradient of the head's weight; no matmul is computed twice. (The idea is that of
Liger Kernel's fused linear cross-entropy, arXiv 2410.10989.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""Label of a position that does not count."""
CHUNK_LOGITS = 2**25
"""Logits of one chunk, at most (FP32: 128 MiB); a chunk has at least one token."""


def full_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Loss with all logits at once.

    Args:
        hidden: [tokens, hidden_size].
        weight: [vocab, hidden_size].
        labels: int64 [tokens]; IGNORED does not count.
        scale: factor of the differentiable result (1 / tokens, and the loss scale of FP16).

    Returns:
        (scale x sum of the losses, which is differentiable; the plain sum in FP32, which is not).
    """
    logits = functional.linear(hidden, weight).float()
    total = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total * scale, total.detach()


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: float, chunk_logits: int = CHUNK_LOGITS
) -> tuple[Tensor, Tensor]:
    """As `full_cross_entropy`, with at most `chunk_logits` logits alive."""
    rows = max(1, min(hidden.shape[0], chunk_logits // weight.shape[0]))
    scaled, total = _Chunked.apply(hidden, weight, labels, scale, rows)  # type: ignore[no-untyped-call]
    return scaled, total


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, scale: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        wants_hidden, wants_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        # FP32, because the sum over chunks would lose what BF16 cannot hold.
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=hidden.device) if wants_weight else None
        for start in range(0, hidden.shape[0], rows):
            part, label = hidden[start : start + rows], labels[start : start + rows]
            logits = functional.linear(part, weight).float()
            norm = torch.logsumexp(logits, dim=-1)
            counts = label != IGNORED
            index = label.clamp(min=0)[:, None]
            picked = logits.gather(1, index)[:, 0]
            total += torch.where(counts, norm - picked, 0.0).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            # d loss / d logits = softmax - one hot, scaled before the cast so that FP16 does not underflow.
            grad = torch.exp_(logits.sub_(norm[:, None]))
            grad.scatter_add_(1, index, torch.full_like(index, -1, dtype=grad.dtype))
            grad.mul_((counts * scale)[:, None])
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[start : start + rows])
            if grad_weight is not None:
                if hidden.dtype == torch.float32:
                    grad_weight.addmm_(grad.t(), part)
                else:
                    grad_weight += grad.t() @ part
        ctx.save_for_backward(*(g for g in (grad_hidden, grad_weight) if g is not None))
        ctx.has = (grad_hidden is not None, grad_weight is not None)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(total)
        return total * scale, total.clone()

    @staticmethod
    def backward(ctx: Any, grad_scaled: Tensor, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        grad_hidden = saved.pop(0) * grad_scaled if ctx.has[0] else None
        grad_weight = (saved.pop(0) * grad_scaled).to(ctx.weight_dtype) if ctx.has[1] else None
        return grad_hidden, grad_weight, None, None, None
