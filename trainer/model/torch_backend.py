"""Layers in PyTorch, with the parameter names, shapes and layouts of te.TransformerLayer (see trainer.model.backend).

Runs on CPU and GPU. With `emulate`, every matrix multiplication of a layer quantizes and dequantizes its operands as
the named format does on hardware; the multiplication itself stays in the compute type.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from blackwell.model import ModelShape
from trainer.model.backend import Documents, LayerInputs
from trainer.model.rope import angles, rotate

MatMul = Callable[[Tensor, Tensor], Tensor]
"""(x [..., k], weight [n, k]) -> [..., n]."""


def _parameter(*size: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(*size, dtype=dtype))


def _add(y: Tensor, bias: Any) -> Tensor:
    result: Tensor = y if bias is None else y + bias
    return result


class _Normed(nn.Module):
    """A norm fused with what follows it: RMSNorm, or LayerNorm where the shape has biases."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = shape.rms_norm_eps
        self.layer_norm_weight = _parameter(shape.hidden_size, dtype=dtype)
        if shape.bias:
            self.layer_norm_bias = _parameter(shape.hidden_size, dtype=dtype)
        else:
            self.register_parameter("layer_norm_bias", None)

    def norm(self, x: Tensor) -> Tensor:
        if self.layer_norm_bias is not None:
            return functional.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias, self.eps)
        return functional.rms_norm(x, x.shape[-1:], self.layer_norm_weight, self.eps)


class LayerNormLinear(_Normed):
    """The parameters of te.LayerNormLinear."""

    def __init__(self, shape: ModelShape, out_features: int, matmul: MatMul, dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.matmul = matmul
        self.weight = _parameter(out_features, shape.hidden_size, dtype=dtype)
        self.register_parameter("bias", _parameter(out_features, dtype=dtype) if shape.bias else None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.matmul(self.norm(x), self.weight)
        return _add(y, self.bias)


class Projection(nn.Module):
    """The parameters of te.Linear."""

    def __init__(self, shape: ModelShape, matmul: MatMul, dtype: torch.dtype) -> None:
        super().__init__()
        self.matmul = matmul
        self.weight = _parameter(shape.hidden_size, shape.attention_width, dtype=dtype)
        self.register_parameter("bias", _parameter(shape.hidden_size, dtype=dtype) if shape.bias else None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.matmul(x, self.weight)
        return _add(y, self.bias)


class LayerNormMLP(_Normed):
    """The parameters of te.LayerNormMLP with activation swiglu or gelu."""

    def __init__(self, shape: ModelShape, matmul: MatMul, dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.matmul = matmul
        self.gated = shape.gated
        rows = shape.intermediate_size * (2 if shape.gated else 1)
        self.fc1_weight = _parameter(rows, shape.hidden_size, dtype=dtype)
        self.register_parameter("fc1_bias", _parameter(rows, dtype=dtype) if shape.bias else None)
        self.fc2_weight = _parameter(shape.hidden_size, shape.intermediate_size, dtype=dtype)
        self.register_parameter("fc2_bias", _parameter(shape.hidden_size, dtype=dtype) if shape.bias else None)

    def forward(self, x: Tensor) -> Tensor:
        up = _add(self.matmul(self.norm(x), self.fc1_weight), self.fc1_bias)
        if self.gated:
            gate, value = up.chunk(2, dim=-1)
            activated = functional.silu(gate) * value
        else:
            activated = functional.gelu(up, approximate="tanh")
        y = self.matmul(activated, self.fc2_weight)
        return _add(y, self.fc2_bias)


class SelfAttention(nn.Module):
    """Grouped-query attention, causal, with the parameters of te.MultiheadAttention."""

    def __init__(self, shape: ModelShape, dropout: float, matmul: MatMul, dtype: torch.dtype) -> None:
        super().__init__()
        self.groups = shape.num_key_value_heads
        self.queries = shape.num_attention_heads // shape.num_key_value_heads
        self.head_dim = shape.head_dim
        self.dropout = dropout
        rows = shape.attention_width + 2 * shape.key_value_width
        self.layernorm_qkv = LayerNormLinear(shape, rows, matmul, dtype)
        self.proj = Projection(shape, matmul, dtype)

    def forward(self, x: Tensor, inputs: LayerInputs) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.layernorm_qkv(x).view(batch, length, self.groups, self.queries + 2, self.head_dim)
        q, k, v = (
            part.reshape(batch, length, -1, self.head_dim).transpose(1, 2)
            for part in qkv.split((self.queries, 1, 1), dim=3)
        )
        if x.device.type == "cpu":
            q, k, v = q.float(), k.float(), v.float()  # PyTorch's CPU attention is 2.5 times as fast in FP32
        if inputs.rotary is not None:
            cos, sin = inputs.rotary
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=inputs.attention_mask,
            is_causal=inputs.attention_mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.queries > 1,
        )
        result: Tensor = self.proj(y.transpose(1, 2).reshape(batch, length, -1).to(x.dtype))
        return result


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward network; takes and gives [batch, seq, hidden]."""

    def __init__(self, shape: ModelShape, dropout: float, matmul: MatMul, dtype: torch.dtype) -> None:
        super().__init__()
        self.dropout = dropout
        self.self_attention = SelfAttention(shape, dropout, matmul, dtype)
        self.layernorm_mlp = LayerNormMLP(shape, matmul, dtype)

    def forward(self, x: Tensor, inputs: LayerInputs) -> Tensor:
        x = x + self._drop(self.self_attention(x, inputs))
        return x + self._drop(self.layernorm_mlp(x))

    def _drop(self, x: Tensor) -> Tensor:
        # native_dropout rather than dropout: one operator, which selective recomputation can keep (see _keep).
        return torch.native_dropout(x, self.dropout, True)[0] if self.training and self.dropout else x


class TorchBackend:
    """Layers in PyTorch; see the module's docstring."""

    name = "torch"

    def __init__(self, matmul_of_layer: Callable[[int], MatMul] | None = None) -> None:
        """`matmul_of_layer` gives each layer its (emulated) matrix multiplication; plain where it is None."""
        self._matmul_of_layer = matmul_of_layer

    def make_layer(self, shape: ModelShape, index: int, dropout: float, params_dtype: torch.dtype) -> nn.Module:
        matmul = functional.linear if self._matmul_of_layer is None else self._matmul_of_layer(index)
        return TransformerLayer(shape, dropout, matmul, params_dtype)

    def layer_inputs(self, shape: ModelShape, hidden: Tensor, documents: Documents | None) -> LayerInputs:
        length = hidden.shape[1]
        if documents is None:
            positions = torch.arange(length, device=hidden.device)
            rotary = angles(positions, shape.head_dim, shape.rope_theta) if shape.vocab_size else None
            return LayerInputs(rotary=rotary)
        cos, sin = angles(documents.positions, shape.head_dim, shape.rope_theta)
        same = documents.ids[:, :, None] == documents.ids[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril()
        return LayerInputs(rotary=(cos[:, None], sin[:, None]), attention_mask=(same & causal)[:, None])

    def run_layer(self, layer: nn.Module, forward: Any, index: int, hidden: Tensor, inputs: LayerInputs) -> Tensor:
        result: Tensor = forward(hidden, inputs)
        return result

    def step_context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def recompute(self, function: Any, hidden: Tensor, mode: str) -> Tensor:
        contexts: dict[str, Any] = {"context_fn": _selective_contexts} if mode == "selective" else {}
        result: Tensor = checkpoint(function, hidden, use_reentrant=False, **contexts)
        return result

    def materialize(self, model: nn.Module, device: torch.device) -> None:
        model.to_empty(device=device)


def _keep() -> set[Any]:
    """Operators whose results selective recomputation keeps: matmuls, attention, and whatever draws random numbers.

    Random draws must be kept: the recomputation skips kept operators, so a drawing one after a kept drawing one would
    otherwise see another generator state than in the forward pass.
    """
    aten = torch.ops.aten
    return {
        aten.mm.default,
        aten.addmm.default,
        aten.native_dropout.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }


def _selective_contexts() -> tuple[Any, Any]:
    keep = _keep()

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return contexts
