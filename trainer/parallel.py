"""How the model is spread over ranks: FSDP2, whole or per node, with recomputation and compilation inside."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from blackwell.model import ModelShape
from blackwell.spec import ActivationCheckpointing, ParallelSpec
from trainer.model.backend import Backend, LayerInputs
from trainer.model.transformer import LanguageModel, LayersModel, LayerStack

STATE_BYTES_PER_PARAMETER = 16
"""FP32 parameter, gradient and two Adam moments."""
NODE_SHARE = 0.5
"""`shard_across: auto` shards inside a node while the states take at most this share of its GPU memory."""


def make_mesh(parallel: ParallelSpec, shape: ModelShape, device: torch.device, node_memory_bytes: float) -> DeviceMesh:
    """One dimension (`shard`) for full sharding, two (`replicate`, `shard`) for sharding inside a node.

    Args:
        node_memory_bytes: GPU memory of one node; 0 where it is unknown, then `auto` shards across all ranks.
    """
    world, per_node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = world // per_node
    by_node = parallel.shard_across == "node"
    if parallel.shard_across == "auto" and nodes > 1:
        by_node = shape.num_parameters * STATE_BYTES_PER_PARAMETER <= NODE_SHARE * node_memory_bytes
    if by_node and nodes > 1:
        return init_device_mesh(device.type, (nodes, per_node), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device.type, (world,), mesh_dim_names=("shard",))


def adapt_layers(model: LayerStack, recompute: ActivationCheckpointing, compiled: bool) -> None:
    """Gives each layer the contract's forward(hidden, inputs), with recomputation and compilation inside.

    The forward is replaced on the instance rather than the layer wrapped: parameter names stay canonical, and FSDP's
    hooks stay outside of the recomputation.
    """
    for index, layer in enumerate(model.layers):
        object.__setattr__(layer, "forward", _forward(model.backend, layer, index, recompute, compiled))


def _forward(backend: Backend, layer: nn.Module, index: int, recompute: ActivationCheckpointing, compiled: bool) -> Any:
    original = torch.compile(layer.forward) if compiled else layer.forward

    def forward(hidden: torch.Tensor, inputs: LayerInputs) -> torch.Tensor:
        def run(x: torch.Tensor) -> torch.Tensor:
            return backend.run_layer(layer, original, index, x, inputs)

        if recompute is ActivationCheckpointing.NONE or not layer.training:
            return run(hidden)
        return backend.recompute(run, hidden, recompute.value)

    return forward


def shard(model: LayerStack, mesh: DeviceMesh, dtype: torch.dtype, parallel: ParallelSpec) -> None:
    """Applies FSDP2 to every layer, embedding and head. Gradients are reduced in FP32 where parameters are.

    Args:
        dtype: the type that parameters are gathered in.
    """
    keeps_type = isinstance(model, LayersModel) or dtype is torch.float32
    policy = (
        MixedPrecisionPolicy() if keeps_type else MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    )
    reshard = parallel.reshard_after_forward
    model.reduce_every_micro_batch = parallel.accumulate == "sharded"
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if isinstance(model, LanguageModel) and not model.shape.tie_word_embeddings:
        fully_shard(model.embedding, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        # Never resharded: its backward comes right after its forward.
        fully_shard(model.head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def set_gradient_sync(model: nn.Module, last: bool) -> None:
    """Gradients are reduced over ranks only in the last micro batch of a step, unless whole ones do not fit."""
    assert isinstance(model, FSDPModule)
    last = last or getattr(model, "reduce_every_micro_batch", False) is True
    model.set_requires_gradient_sync(last)
    model.set_is_last_backward(last)


def reshard(model: nn.Module) -> None:
    """Gives gathered parameters back: a forward pass without a backward leaves those of the root gathered, under which
    neither the optimizer nor a checkpoint knows them."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
