"""Layers by Transformer Engine. Imported only where it is used: the package needs a CUDA build of its extension.

Supported from 2.11.0 to 2.20.2; every call here is checked against the Python API of both in tests/trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformer_engine.pytorch as te
from torch import Tensor, nn

from blackwell.model import ModelShape
from trainer.model.backend import Documents, LayerInputs


def layer_arguments(
    shape: ModelShape, index: int, dropout: float, params_dtype: torch.dtype, packed: bool
) -> dict[str, Any]:
    """Keyword arguments of te.TransformerLayer that give the contract's names, shapes and layouts.

    Args:
        packed: attention goes by document (`thd`) instead of by row (`bshd`).
    """
    return {
        "hidden_size": shape.hidden_size,
        "ffn_hidden_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_gqa_groups": shape.num_key_value_heads,
        "kv_channels": shape.head_dim,
        "layer_number": index + 1,
        "layernorm_epsilon": shape.rms_norm_eps,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "fuse_qkv_params": True,
        "normalization": "LayerNorm" if shape.bias else "RMSNorm",
        "activation": "swiglu" if shape.gated else "gelu",
        "bias": shape.bias,
        "attn_input_format": "thd" if packed else "bshd",
        "self_attn_mask_type": "padding_causal" if packed else "causal",
        "params_dtype": params_dtype,
    }


class TransformerEngineBackend:
    """Layers by Transformer Engine; see the module's docstring."""

    name = "te"

    def __init__(
        self,
        recipe: Any | None,
        *,
        high_precision_from: int,
        packed: bool = False,
        quantized_weights: bool = False,
        amax_group: Callable[[], Any] | None = None,
    ) -> None:
        """
        Args:
            recipe: how to quantize; None computes in the parameters' gathered type (BF16, FP16 or FP32).
            high_precision_from: first layer that is not quantized; the number of layers for none.
            packed: every forward pass gets documents; attention and positions stop at their borders.
            quantized_weights: keep the layers' weights quantized between steps.
            amax_group: gives the process group of delayed scaling's maxima; None for recipes without history.
        """
        self.recipe = recipe
        self.high_precision_from = high_precision_from
        self.packed = packed
        self.quantized_weights = quantized_weights and recipe is not None
        self._amax_group = amax_group

    def make_layer(self, shape: ModelShape, index: int, dropout: float, params_dtype: torch.dtype) -> nn.Module:
        arguments = layer_arguments(shape, index, dropout, params_dtype, self.packed)
        device = str(torch.get_default_device())
        if self.quantized_weights and index < self.high_precision_from:
            with te.quantized_model_init(enabled=True, recipe=self.recipe):
                layer: nn.Module = te.TransformerLayer(**arguments, device=device)
        else:
            layer = te.TransformerLayer(**arguments, device=device)
        return layer

    def layer_inputs(self, shape: ModelShape, hidden: Tensor, documents: Documents | None) -> LayerInputs:
        rotary = None
        if shape.vocab_size:
            embedding = te.RotaryPositionEmbedding(shape.head_dim, rotary_base=shape.rope_theta)
            rotary = embedding.to(hidden.device)(hidden.shape[1])
        if documents is None:
            return LayerInputs(rotary=rotary)
        return LayerInputs(rotary=rotary, cu_seqlens=documents.cu_seqlens, max_seqlen=documents.max_seqlen)

    def run_layer(self, layer: nn.Module, forward: Any, index: int, hidden: Tensor, inputs: LayerInputs) -> Tensor:
        with self._layer_context(index):
            if inputs.cu_seqlens is None:
                result: Tensor = forward(hidden, rotary_pos_emb=inputs.rotary)
                return result
            # Packed documents: [tokens, hidden], one attention per document, positions from each one's start.
            packed: Tensor = forward(
                hidden.flatten(0, 1),
                rotary_pos_emb=inputs.rotary,
                cu_seqlens_q=inputs.cu_seqlens,
                cu_seqlens_kv=inputs.cu_seqlens,
                max_seqlen_q=inputs.max_seqlen,
                max_seqlen_kv=inputs.max_seqlen,
            )
            return packed.view_as(hidden)

    def step_context(self) -> AbstractContextManager[Any]:
        if self.recipe is None:
            return nullcontext()
        group = self._amax_group() if self._amax_group is not None else None
        context: AbstractContextManager[Any] = te.autocast(enabled=True, recipe=self.recipe, amax_reduction_group=group)
        return context

    def _layer_context(self, index: int) -> AbstractContextManager[Any]:
        if self.recipe is None or index < self.high_precision_from:
            return nullcontext()
        context: AbstractContextManager[Any] = te.autocast(enabled=False)
        return context

    def recompute(self, function: Any, hidden: Tensor, mode: str) -> Tensor:
        # te.checkpoint also restores the state of the quantizers; it recomputes everything in `function`.
        result: Tensor = te.checkpoint(function, hidden, use_reentrant=False)
        return result

    def materialize(self, model: nn.Module, device: torch.device) -> None:
        if not self.quantized_weights:
            model.to_empty(device=device)
        for module in model.modules():
            if isinstance(module, te.module.base.TransformerEngineBaseModule):
                module.reset_parameters(defer_init=False)
        for module in model.modules():
            own = [p for p in module.parameters(recurse=False) if p.is_meta]
            if own:
                module.to_empty(device=device, recurse=False)


def unavailable_reason(precision: str) -> str | None:
    """Why this machine cannot run a quantized precision, in Transformer Engine's own words; None where it can."""
    checks = {
        "fp8": te.is_fp8_available,
        "fp8_delayed": te.is_fp8_available,
        "mxfp8": te.is_mxfp8_available,
        "nvfp4": te.is_nvfp4_available,
    }
    available, reason = checks[precision](return_reason=True)
    return None if available else str(reason)
