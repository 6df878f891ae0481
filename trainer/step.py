"""One optimizer step: forward and backward over the micro batches, one exchange between ranks, the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from blackwell.spec import TrainingSpec
from trainer.data import Batch
from trainer.model.backend import Documents
from trainer.model.transformer import LayerStack, Output
from trainer.optim import LossScale, clip_factor, gradient_norm, scale_gradients
from trainer.parallel import set_gradient_sync
from trainer.rng import seed_micro_batch
from trainer.watch.control import Action, Request


def run_model(model: LayerStack, batch: Batch | Tensor, scale: float) -> Output:
    """Forward pass of one micro batch."""
    if isinstance(batch, Tensor):
        output: Output = model(batch, scale)
        return output
    documents = None
    if batch.positions is not None and batch.doc_ids is not None and batch.cu_seqlens is not None:
        documents = Documents(batch.positions, batch.doc_ids, batch.cu_seqlens, batch.max_seqlen or 0)
    result: Output = model(batch.inputs, batch.labels, scale, documents)
    return result


def forward_backward(
    model: LayerStack, batches: Sequence[Batch | Tensor], seed: int, step: int, rank: int, scale: float
) -> Tensor:
    """Accumulates the gradients of one step.

    Args:
        scale: factor of the loss sum: the FP16 loss scale over the nominal tokens of this rank and step.

    Returns:
        The plain loss sum of this rank, FP64 on the device.
    """
    total: Tensor | None = None
    for index, batch in enumerate(batches):
        set_gradient_sync(model, last=index == len(batches) - 1)
        seed_micro_batch(seed, step, index, rank)
        output = run_model(model, batch, scale)
        output.scaled.backward()  # type: ignore[no-untyped-call]
        part = output.total.double()
        total = part if total is None else total + part
    assert total is not None
    return total


@dataclass(frozen=True, slots=True)
class Votes:
    """What a rank brings to the exchange besides its loss."""

    stop: bool = False
    plan_end: bool = False
    save: bool = False
    request: Request | None = None
    """Rank 0's alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all ranks know alike after the exchange."""

    loss: float
    """Mean over all tokens with a loss."""
    labels: int
    norm: float
    """Global gradient norm before clipping, of the unscaled mean loss."""
    stop: bool
    plan_end: bool
    save: bool
    action: Action
    action_step: int


def exchange(
    loss_sum: Tensor, labels: int, votes: Votes, parameters: list[nn.Parameter] | None, unscale: float
) -> Outcome:
    """The one all-reduce of a step: loss, tokens and votes travel together; one wait for the device.

    Args:
        parameters: their gradient norm is taken too; None where there are no gradients (start, evaluation).
        unscale: nominal tokens of the step over all ranks / loss scale; the gradients are those of loss sum / unscale.
    """
    request = votes.request
    asked = (request.action, request.step) if request else (0, 0)
    values = [labels, votes.stop, votes.plan_end, votes.save, *asked]
    local = torch.tensor(values, dtype=torch.float64, device=loss_sum.device)
    shared = torch.cat((loss_sum.reshape(1).double(), local))
    dist.all_reduce(shared)
    norm = gradient_norm(parameters).double().reshape(1) if parameters is not None else shared.new_zeros(1)
    total, count, stop, plan_end, save, action, action_step, raw_norm = torch.cat((shared, norm)).tolist()
    return Outcome(
        loss=total / count if count else 0.0,
        labels=int(count),
        norm=raw_norm * unscale / count if count else 0.0,
        stop=stop > 0,
        plan_end=plan_end > 0,
        save=save > 0,
        action=Action(int(action)),
        action_step=int(action_step),
    )


def update(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    outcome: Outcome,
    training: TrainingSpec,
    scale: LossScale,
    nominal: int,
) -> bool:
    """Clips and steps; False where FP16 overflowed and the step was left out.

    Args:
        nominal: tokens of the step over all ranks, with or without a loss.
    """
    finite = math.isfinite(outcome.norm) and math.isfinite(outcome.loss)
    if finite:
        # Gradients are of loss sum x scale / nominal; wanted is loss sum / labels.
        unscaled = nominal / outcome.labels / scale.value if outcome.labels else 0.0
        scale_gradients(parameters, unscaled * clip_factor(outcome.norm, training.grad_clip_norm))
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    scale.update(finite)
    return finite
