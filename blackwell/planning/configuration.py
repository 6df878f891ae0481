"""One training configuration as the models see it: a shape on ranks of a GPU, with a stack of software.

Both a job spec and a row of a measured table become a `Configuration`; memory and throughput are functions of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from blackwell.hardware import Gpu
from blackwell.model import ModelShape
from blackwell.spec import ActivationCheckpointing, Precision

Loss = Literal["full", "compiled", "chunked", "none"]
"""How cross-entropy holds its logits: all of them in several copies, all of them fused by a compiler, a part, none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks divide the work. Their product data x tensor x pipeline x context is the number of ranks."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    zero: int = 3
    """What the data ranks shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (FSDP)."""
    shard: int = 0
    """Ranks that share one copy of what is sharded; 0 for all data x context ranks."""
    sequence_parallel: bool = True
    """Norms and residuals divided over the tensor ranks too."""
    virtual: int = 1
    """Interleaved pipeline chunks per rank."""
    expert: int = 1

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def shards(self) -> int:
        """Ranks over which the sharded states are divided."""
        return self.shard or self.data * self.context

    @property
    def model_parallel(self) -> bool:
        """True where tensor, pipeline, context or expert ranks exist."""
        return self.tensor > 1 or self.pipeline > 1 or self.context > 1 or self.expert > 1


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that memory and speed depend on."""

    shape: ModelShape
    gpu: Gpu
    stack: str
    """Key of `stacks.STACKS`."""
    layout: Layout
    precision: Precision = Precision.BF16
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    micro_batch: float = 1
    """Sequences per forward pass."""
    accumulation: float = 1
    """Micro batches per rank and optimizer step."""
    seq_length: int = 4096
    loss: Loss = "full"
    compiled: bool = False
    reshard: bool = True
    gradient_buckets: bool = True
    """A data-parallel wrapper copies gradients into buckets; off where a framework has no data ranks to wrap for."""
    accumulate_locally: bool = False
    """Sharded data parallel: whole gradients of several micro batches add up on every rank and are reduced once."""
    checkpointed_layers: float = 1.0
    """Share of the layers to which `checkpointing` applies."""
    quantized_layers: float = 1.0
    """Share of the layers that run in a quantized precision."""
    recipe: str = ""
    """Variant of the precision's scaling: `tensorwise`, `rowwise`, `current`, `delayed`, or empty."""
    optimizer_bytes: float | None = None
    """Bytes per parameter of the optimizer's states where they differ from the stack's."""
    gradients_freed: bool = False
    """The optimizer runs inside the backward pass, so gradients never exist all at once."""
    activations_offloaded: bool = False
    gpus_per_node: int = 8
    asynchronous_tensor: bool = False
    """Tensor-parallel communication is overlapped in pieces with the matrix multiplications."""
    network_gb_per_second: float | None = None
    """Per GPU, one way, between nodes; by GPU generation where it is not known."""
    dropout: bool = False
    attention_bytes: float = 2
    """Of an element inside attention: 4 where our trainer runs it in FP32, on CPU."""

    def with_(self, **changes: object) -> Configuration:
        """A copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def tokens(self) -> float:
        """Tokens per micro batch and rank (context ranks divide the sequence)."""
        return self.micro_batch * self.seq_length / self.layout.context

    @property
    def tokens_per_step(self) -> float:
        """Tokens per optimizer step over all ranks."""
        return self.micro_batch * self.seq_length * self.accumulation * self.layout.data
