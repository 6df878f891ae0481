"""The two models: a decoder-only language model and a bare stack of layers.

Both give `Output(scaled, total)` from their forward pass: the loss belongs to the model, so that the head's weight is
gathered once, by FSDP, for logits and loss together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from blackwell.model import ModelShape
from trainer.loss import chunked_cross_entropy, full_cross_entropy
from trainer.model.backend import Backend, Documents, LayerInputs


class Output(NamedTuple):
    """`scaled` is what backward() is called on; `total` is the plain FP32 sum over counted tokens, detached."""

    scaled: Tensor
    total: Tensor


class Embedding(nn.Module):
    """Token embedding; `weight` is [vocab, hidden]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.weight)


class Head(nn.Module):
    """Final norm, output projection and loss. Stays in the compute type whatever the layers are quantized to."""

    def __init__(self, shape: ModelShape, weight: nn.Parameter | None, cross_entropy: str) -> None:
        super().__init__()
        self.eps = shape.rms_norm_eps
        self.norm_weight = nn.Parameter(torch.empty(shape.hidden_size))
        self.weight = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size)) if weight is None else weight
        self._loss = chunked_cross_entropy if cross_entropy == "chunked" else full_cross_entropy

    def forward(self, hidden: Tensor, labels: Tensor | None, scale: float) -> Output | Tensor:
        hidden = functional.rms_norm(hidden, hidden.shape[-1:], self.norm_weight, self.eps)
        if labels is None:
            return functional.linear(hidden, self.weight)
        return Output(*self._loss(hidden.flatten(0, -2), self.weight, labels.flatten(), scale))


class LayerStack(nn.Module):
    """`layers` and how they are run; the part that both models share."""

    def __init__(self, shape: ModelShape, backend: Backend, dropout: float, params_dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.backend = backend
        self.reduce_every_micro_batch = False
        self.layers = nn.ModuleList(
            backend.make_layer(shape, index, dropout, params_dtype) for index in range(shape.num_hidden_layers)
        )

    def run_layers(self, hidden: Tensor, inputs: LayerInputs) -> Tensor:
        with self.backend.step_context():
            for layer in self.layers:
                hidden = layer(hidden, inputs)
        return hidden


class LanguageModel(LayerStack):
    """Embedding, layers, final norm and head (tied to the embedding where the shape says so)."""

    def __init__(self, shape: ModelShape, backend: Backend, dropout: float, cross_entropy: str) -> None:
        super().__init__(shape, backend, dropout, torch.float32)
        self.embedding = Embedding(shape)
        self.head = Head(shape, self.embedding.weight if shape.tie_word_embeddings else None, cross_entropy)

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor | None,
        scale: float = 1.0,
        documents: Documents | None = None,
    ) -> Any:
        """`Output` of one micro batch, or the logits where `labels` is None. tokens, labels: int64 [batch, seq]."""
        hidden = self.embedding(tokens)
        inputs = self.backend.layer_inputs(self.shape, hidden, documents)
        return self.head(self.run_layers(hidden, inputs), labels, scale)


class LayersModel(LayerStack):
    """Workload `layers`: Transformer Engine's FSDP example. Random input in, the mean of the output as the loss."""

    def __init__(self, shape: ModelShape, backend: Backend, dropout: float, params_dtype: torch.dtype) -> None:
        super().__init__(shape, backend, dropout, params_dtype)

    def forward(self, hidden: Tensor, scale: float = 1.0) -> Output:
        """hidden: [batch, seq, hidden_size]. The total is the sum over tokens of the mean output."""
        inputs = self.backend.layer_inputs(self.shape, hidden, None)
        total = self.run_layers(hidden, inputs).float().mean(dim=-1).sum()
        return Output(total * scale, total.detach())
