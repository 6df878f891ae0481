"""AdamW, its learning rate as a pure function of the step, gradient norm and clipping, FP16 loss scaling."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from blackwell.spec import TrainingSpec


def learning_rate(training: TrainingSpec, step: int, steps: int) -> float:
    """Learning rate of optimizer step `step` (from 1) of `steps`. Nothing to save, nothing to restore.

    Linear warm-up over warmup_steps, then: `cosine` or `linear` down to min_learning_rate_ratio at the last step;
    `wsd` (warm-up, stable, decay: arXiv 2404.06395) flat until the last decay_fraction of the run, then linear;
    `constant` flat.
    """
    peak, floor = training.learning_rate, training.min_learning_rate_ratio
    if step <= training.warmup_steps:
        return peak * step / training.warmup_steps
    if training.lr_schedule == "constant":
        return peak
    start = training.warmup_steps
    if training.lr_schedule == "wsd":
        start = max(start, steps - round(training.decay_fraction * steps))
    if step <= start:
        return peak
    progress = min(1.0, (step - start) / max(1, steps - start))
    remaining = 0.5 * (1 + math.cos(math.pi * progress)) if training.lr_schedule == "cosine" else 1 - progress
    return peak * (floor + (1 - floor) * remaining)


def make_optimizer(model: nn.Module, training: TrainingSpec) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only (embedding and head included); fused kernels.

    With quantized weights it is Transformer Engine's FusedAdam with FP32 master weights, the only one that can step
    them.
    """
    parameters = list(dict(model.named_parameters()).values())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (training.adam_beta1, training.adam_beta2)
    if training.quantized_weights:
        from transformer_engine.pytorch.optimizers import FusedAdam

        optimizer: torch.optim.Optimizer = FusedAdam(
            groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, master_weights=True
        )
        return optimizer
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Global L2 norm over all ranks, FP32 scalar on the device. Collective: every rank must call it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients, norm_type=2.0, foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


@torch.no_grad()
def scale_gradients(parameters: Iterable[Tensor], factor: float) -> None:
    """Multiplies all gradients; does nothing for 1, so that an unclipped step keeps its bits."""
    if factor == 1.0:
        return
    local = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
    torch._foreach_mul_(local, factor)


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied by: 1 up to the limit, limit / norm above it."""
    return 1.0 if norm <= limit else limit / (norm + 1e-6)


@dataclass(slots=True)
class LossScale:
    """Dynamic loss scaling for FP16: halved on overflow, doubled after `growth_steps` steps without one.

    The rule and the numbers are those of torch.amp.GradScaler. For other precisions `enabled` is false and the scale 1.
    """

    enabled: bool
    value: float = 65_536.0
    good_steps: int = 0
    growth_steps: int = 2_000

    def __post_init__(self) -> None:
        if not self.enabled:
            self.value = 1.0

    def update(self, finite: bool) -> None:
        """Call once per step, with whether all gradients were finite."""
        if not self.enabled:
            return
        if not finite:
            self.value, self.good_steps = self.value / 2, 0
            return
        self.good_steps += 1
        if self.good_steps >= self.growth_steps:
            self.value, self.good_steps = self.value * 2, 0

    @property
    def exhausted(self) -> bool:
        """True when even unscaled gradients overflow: no scaling problem any more."""
        return self.enabled and self.value < 1.0

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "good_steps": self.good_steps}

    def load(self, state: dict[str, Any]) -> None:
        if self.enabled and state:
            self.value, self.good_steps = float(state["value"]), int(state["good_steps"])
