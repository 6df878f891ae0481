"""The state dict of a run for DCP: FP32 shards by canonical name, and one JSON text for everything that is no tensor.

Names do not depend on backend, recomputation or world size, so neither does the checkpoint. Transformer Engine's
`_extra_state` never enters it: the recipes with current and block scaling have none, and the history of delayed
scaling is built anew (a resumed fp8_delayed run is not bitwise the uninterrupted one, and says so).
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

_TEXT = "text"


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, train: dict[str, Any]) -> dict[str, Any]:
    """The live tensors (not copies) and the loop's state."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    moments: dict[str, Any] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                moments[f"{names[parameter]}.{key}"] = value.detach()
    return {
        "model": {name: parameter.detach() for parameter, name in names.items()},
        "optim": moments,
        "train": {_TEXT: json.dumps(train)},
    }


def train_state(state: dict[str, Any]) -> dict[str, Any]:
    """The loop's state out of a loaded state dict."""
    loaded: dict[str, Any] = json.loads(state["train"][_TEXT])
    return loaded


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
