"""The state of a run: FP32 shards by canonical name for DCP, and a few numbers for the checkpoint's manifest.

Names do not depend on backend, recomputation or world size, so neither does the checkpoint. DCP gets sharded tensors
only: what all ranks hold alike (the loop's numbers, the optimizer's step count) is in the manifest, which every host
has, so that on the same ranks each host restarts from its own files. Transformer Engine's `_extra_state` never enters:
the recipes with current and block scaling have none, and the history of delayed scaling is built anew (a resumed
fp8_delayed run is not bitwise the uninterrupted one, and says so).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_STEP = "step"


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The live sharded tensors, not copies: what is loaded into them is loaded."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    moments: dict[str, Any] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and key != _STEP:
                moments[f"{names[parameter]}.{key}"] = value.detach()
    return {"model": {name: parameter.detach() for parameter, name in names.items()}, "optim": moments}


def optimizer_step(optimizer: torch.optim.Optimizer) -> int:
    """Steps that the optimizer has taken; fewer than the run's where FP16 overflowed."""
    counts = [state[_STEP] for state in optimizer.state.values() if _STEP in state]  # AdamW, per parameter
    counts += [group[_STEP] for group in optimizer.param_groups if _STEP in group]  # FusedAdam, per group
    return max((int(count) for count in counts), default=0)


def set_optimizer_step(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Restores what `optimizer_step` gave."""
    for state in optimizer.state.values():
        if _STEP in state:
            state[_STEP].fill_(step)
    for group in optimizer.param_groups:
        if _STEP in group:
            group[_STEP] = step


def create_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the states that the first step would make, so that there is something to load into.

    A step with zero gradients and a learning rate of zero changes no parameter.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
