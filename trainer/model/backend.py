"""The contract of a layer backend: who makes the transformer layers, under one set of names, shapes and layouts.

Parameter names of a layer, in both backends (biases only where ModelShape.bias):

    self_attention.layernorm_qkv.layer_norm_weight  [hidden]
    self_attention.layernorm_qkv.weight             [kv_heads x (heads/kv_heads + 2) x head_dim, hidden]
    self_attention.proj.weight                      [hidden, heads x head_dim]
    layernorm_mlp.layer_norm_weight                 [hidden]
    layernorm_mlp.fc1_weight                        [2 x ffn, hidden], gate rows first; [ffn, hidden] without gate
    layernorm_mlp.fc2_weight                        [hidden, ffn]

The rows of the fused query-key-value weight go by group: the group's query heads, its key head, its value head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from blackwell.model import ModelShape


@dataclass(frozen=True, slots=True)
class Documents:
    """Where documents begin in one micro batch of [batch, seq] tokens. No pytree, as LayerInputs."""

    positions: Tensor
    """int64 [batch, seq], position inside the document."""
    ids: Tensor
    """int64 [batch, seq], number of the document in its row."""
    cu_seqlens: Tensor
    """int32 [documents + 1], borders in the flattened tokens."""
    max_seqlen: int


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What every layer of one forward pass gets besides the hidden states.

    No pytree on purpose: FSDP casts tensors in arguments to the compute type, and angles must stay FP32.
    """

    rotary: Any = None
    """The backend's own form of the rotary angles; None for the layers workload."""
    attention_mask: Tensor | None = None
    """[batch, 1, query, key], true where attention is allowed; None for plain causal attention."""
    cu_seqlens: Tensor | None = None
    """int32 [documents + 1], cumulative document lengths of the flattened micro batch (Transformer Engine's packing)."""
    max_seqlen: int | None = None


class Backend(Protocol):
    """Makes layers and says how they are run."""

    name: str

    def make_layer(self, shape: ModelShape, index: int, dropout: float, params_dtype: torch.dtype) -> nn.Module:
        """Layer `index` (from 0) on the current default device; FP32 parameters unless told otherwise."""
        ...

    def layer_inputs(self, shape: ModelShape, hidden: Tensor, documents: Documents | None) -> LayerInputs:
        """Rotary angles and masks for one forward pass.

        Args:
            hidden: [batch, seq, hidden_size], the embedded input; gives batch, length and device.
            documents: None lets attention cross document borders and counts positions from the row's start.
        """
        ...

    def run_layer(self, layer: nn.Module, forward: Any, index: int, hidden: Tensor, inputs: LayerInputs) -> Tensor:
        """Calls one layer's own forward."""
        ...

    def step_context(self) -> AbstractContextManager[Any]:
        """Goes around the forward pass only."""
        ...

    def recompute(self, function: Any, hidden: Tensor, mode: str) -> Tensor:
        """Runs `function(hidden)` and forgets what the mode (`selective`, `full`) says can be computed again."""
        ...

    def materialize(self, model: nn.Module, device: torch.device) -> None:
        """Gives memory to parameters that were made on the meta device; their values are set afterwards."""
        ...
