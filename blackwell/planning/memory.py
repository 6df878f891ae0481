"""Peak memory of one GPU, as a sum of physical terms.

A training step has three moments at which memory can peak: the end of the forward pass with the loss (all saved
activations and the logits), the start of the backward pass (all saved activations and one layer recomputed or
differentiated), and its end (all gradients, and the last reduction). Every moment is the sum of its terms; the peak is the largest, times what the
allocator loses. All terms are decimal GB per GPU.

Sources: activation counts after Korthikanti et al. 2022 (arXiv 2205.05198), recounted for SwiGLU, grouped queries and
flash attention; pipeline stages after Narayanan et al. 2021 (arXiv 2104.04473); quantized copies after
TransformerEngine's `mxfp8.rst` and issue 1880 (two copies of 1 + 1/32 byte per element).
"""

from __future__ import annotations

from dataclasses import dataclass

from blackwell.hardware import GB, GIB
from blackwell.planning.configuration import Configuration
from blackwell.planning.stacks import STACKS, MemoryConstants, Stack
from blackwell.spec import ActivationCheckpointing, Precision

COMPILED_LOGITS = 0.85
"""Of the bytes per logit, what a compiler leaves: torchtitan's compiled runs hold about 2 bytes per logit less."""
AHEAD_STEEPNESS = 8
"""How suddenly a host gets ahead of its GPU: it does or does not, within about a third of the work."""
CHUNKS = 8
"""Pieces into which a chunked cross-entropy cuts the tokens."""

COPY_BYTES: dict[Precision, float] = {
    Precision.FP8: 1.0,
    Precision.FP8_DELAYED: 1.0,
    Precision.MXFP8: 1.0 + 1 / 32,
    Precision.NVFP4: 0.5 + 1 / 16,
}
"""Bytes per element of one quantized copy, block scales included."""

NVFP4_FRAGMENTATION = 3.0
"""Reserved over allocated was 1.30 with NVFP4 where BF16 had 1.10 (NeMo on B200): three times the loss."""

BLOCK_SCALED = (Precision.MXFP8, Precision.NVFP4)


@dataclass(frozen=True, slots=True)
class Memory:
    """Terms of the peak in GB."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    quantized_weights: float
    live_layer: float
    logits: float
    fixed: float
    allocator: float
    moment: str
    """When the peak is: `loss` (end of the forward pass), `backward` (its start) or `end` (gradients complete)."""

    @property
    def allocated(self) -> float:
        """Peak of what tensors take, GB (torch's `max_memory_allocated`)."""
        return (
            self.weights + self.gradients + self.optimizer + self.gathered + self.activations
            + self.quantized_weights + self.live_layer + self.logits + self.fixed
        )  # fmt: skip

    @property
    def reserved(self) -> float:
        """Peak of what the allocator takes from the GPU, GB (torch's `max_memory_reserved`)."""
        return self.allocated + self.allocator

    def terms(self) -> dict[str, float]:
        """Name -> GB."""
        return {
            "sharded weights": self.weights,
            "gradients": self.gradients,
            "optimizer states": self.optimizer,
            "gathered units and reduction": self.gathered,
            "saved activations": self.activations,
            "quantized weight copies": self.quantized_weights,
            "live layer": self.live_layer,
            "loss and logits": self.logits,
            "workspace": self.fixed,
            "allocator and streams": self.allocator,
        }


@dataclass(frozen=True, slots=True)
class Stage:
    """What one pipeline rank holds."""

    layers: float
    in_flight: float
    """Micro batches whose activations are alive at once."""
    embedding: bool
    head: bool


def stages(c: Configuration, stack: Stack) -> list[Stage]:
    """The pipeline stages that can be the fullest: the first and the last."""
    pp, count = c.layout.pipeline, c.shape.num_hidden_layers
    if pp == 1:
        return [Stage(float(count), 1, embedding=True, head=True)]
    micro_batches = max(1.0, c.accumulation)
    first = last = count / pp
    if stack.pipeline_split == "by_cost":
        first, last = map(float, _split_by_cost(c))
    virtual = c.layout.virtual
    flight = min(micro_batches, pp * (1 + (pp - 1) / (pp * virtual)) if virtual > 1 else pp)
    return [
        Stage(first, flight, embedding=True, head=False),
        Stage(last, min(micro_batches, flight - pp + 1 if virtual > 1 else 1.0), embedding=False, head=True),
    ]


def _split_by_cost(c: Configuration) -> tuple[int, int]:
    """Layers of the first and last stage where blocks are dealt out until a stage reaches its share of the cost."""
    s, pp = c.shape, c.layout.pipeline
    layer = 4 * s.attention_width * s.hidden_size + 3 * s.intermediate_size * s.hidden_size
    head = s.vocab_size * s.hidden_size
    total = s.num_hidden_layers * layer + head
    counts = [0] * pp
    stage, cumulative = 0, 0.0
    for _ in range(s.num_hidden_layers):
        counts[stage] += 1
        cumulative += layer
        if cumulative >= total * (stage + 1) / pp and stage < pp - 1:
            stage += 1
    return counts[0], counts[-1]


def saved_bytes(c: Configuration, stack: Stack) -> tuple[float, float, float]:
    """Bytes saved per token and layer: without checkpointing, with selective, with full. Divided by tensor ranks.

    Counted per tensor that the backward pass needs, 2 bytes each: inputs of both norms, inputs of the fused QKV
    product and of the up-projection, Q, K and V, the attention's output, gate, up and their product.
    """
    s, tp = c.shape, c.layout.tensor
    h, a, kv, f = s.hidden_size, s.attention_width, s.key_value_width, s.intermediate_size
    along = tp if c.layout.sequence_parallel else 1
    quantized = c.quantized_layers if c.precision in stack.saves_quantized else 0.0
    operand = 2.0 * (1 - quantized)
    if quantized:
        copy = COPY_BYTES[c.precision]
        operand += quantized * copy
        both = stack.mlp_keeps_both_copies and c.precision in BLOCK_SCALED
        feed_forward_operand = 2 * (1 - quantized) + quantized * copy * (2 if both else 1)
    else:
        feed_forward_operand = operand
    ups = 2 * f if s.gated else f
    none = (
        2 * 2 * h / along  # inputs of the two norms
        + operand * h / along  # input of QKV
        + feed_forward_operand * h / along  # input of the up-projection
        + c.attention_bytes * (a + 2 * kv) / tp  # Q, K, V
        + c.attention_bytes * a / tp  # attention output
        + (operand * a / tp if quantized or c.attention_bytes > 2 else 0)  # its copy for the projection
        + 2 * ups / tp
        + feed_forward_operand * f / tp  # input of the down-projection
        + (2 * h / along if c.dropout else 0)  # masks of two dropouts
    )  # fmt: skip
    if not (c.compiled or stack.fused_kernels):
        # Eager norms keep a 32-bit copy of their input and the normalized value.
        none += 2 * (4 + 2) * h / along
    if s.gated and (stack.keeps_gate or not (c.compiled or stack.fused_kernels)):
        none += 2 * f / tp
    if stack.selective == "core_attention":
        selective = none
    elif stack.selective == "everything":
        selective = 2 * h / along
    elif stack.selective == "products":
        selective = 2 * (3 * h / along + (a + 2 * kv) / tp + ups / tp) + c.attention_bytes * a / tp
    else:
        # PyTorch's per-operator list keeps the layer's input, attention outputs and every second matrix product, of which
        # a compiler drops the down-projection's output, since no backward pass reads it. Quantized products are no
        # operators of that list: their quantized inputs are kept instead, where they cannot be quantized again from
        # what is kept anyway (the layer's input, the attention's output).
        down = 0.0 if c.compiled and stack.reduction_stream else h / along
        products = 2 * (down + (a + kv) / tp + f / tp)
        copies = COPY_BYTES.get(c.precision, 0.0) * (h / along + f / tp)
        selective = 2 * (h / along + a / tp) + (1 - quantized) * products + quantized * copies
    return none, selective, 2 * h / along


def logit_bytes(c: Configuration, stack: Stack) -> float:
    """Bytes per logit of a rank when the loss peaks, before the fitted factor."""
    parallel = c.layout.tensor > 1 and stack.parallel_logit_bytes > 0
    whole = stack.parallel_logit_bytes if parallel else stack.logit_bytes
    if c.loss == "chunked":
        return stack.whole_chunk_bytes + whole / CHUNKS
    return whole * (COMPILED_LOGITS if c.loss == "compiled" and not stack.reduction_stream else 1.0)


def waiting_bytes(c: Configuration, k: MemoryConstants, stack: Stack, stage: Stage) -> float:
    """Bytes of freed whole tensors whose blocks wait for a collective, on a rank.

    NCCL's streams keep the inputs of row-parallel reductions and what was gathered for column-parallel products. A host
    that runs ahead of the GPU asks for new blocks meanwhile; in a pipeline it only gets ahead when a layer takes the GPU
    longer than it takes the host to launch it, since stages wait for each other's messages.
    """
    tp, pp = c.layout.tensor, c.layout.pipeline
    if not stack.waiting_outputs or tp == 1:
        return 0.0
    ahead = 1.0
    if pp > 1:
        work = 2 * c.tokens * c.shape.layer_parameters / tp / 1e12 * (pp - 1) ** 2
        ahead = 1 / (1 + (k.ahead_tflop / max(work, 1e-9)) ** AHEAD_STEEPNESS)
    pair = 2 * 2 * c.shape.hidden_size * (1 - 1 / tp)
    return k.waiting * ahead * c.tokens * pair * stage.layers * stage.in_flight


def memory(c: Configuration, k: MemoryConstants) -> Memory:
    """The peak of the fullest rank. `k` are the fitted constants of the configuration's stack."""
    stack = STACKS[c.stack]
    best: Memory | None = None
    for stage in stages(c, stack):
        candidate = _stage_memory(c, k, stack, stage)
        if best is None or candidate.reserved > best.reserved:
            best = candidate
    assert best is not None
    return best


def _stage_memory(c: Configuration, k: MemoryConstants, stack: Stack, stage: Stage) -> Memory:
    s, layout = c.shape, c.layout
    tp, shards, zero = layout.tensor, layout.shards, layout.zero
    layer = s.layer_parameters / tp
    vocabulary = s.embedding_parameters / tp
    root = (vocabulary if stage.embedding else 0) + (
        vocabulary if stage.head and not (s.tie_word_embeddings and stage.embedding) else 0
    )
    count = stage.layers * layer + root

    weights = stack.weight_bytes * count / (shards if zero >= 3 else 1)
    gradients = 0.0 if c.gradients_freed else stack.gradient_bytes * count / (shards if zero >= 2 else 1)
    if c.gradient_buckets:
        gradients += stack.bucket_bytes * count
    optimizer = (
        (stack.optimizer_bytes if c.optimizer_bytes is None else c.optimizer_bytes)
        * count
        / (shards if zero >= 1 else 1)
    )

    none, selective, full = saved_bytes(c, stack)
    tokens = c.tokens
    none *= k.saved
    selective = none if stack.selective == "core_attention" else selective * k.selective
    chosen = {
        ActivationCheckpointing.NONE: none,
        ActivationCheckpointing.SELECTIVE: min(none, selective),
        ActivationCheckpointing.FULL: min(none, full),
    }[c.checkpointing]
    per_layer = tokens * (c.checkpointed_layers * chosen + (1 - c.checkpointed_layers) * none)
    activations = per_layer * stage.layers * stage.in_flight
    if c.activations_offloaded:
        activations = per_layer * min(2.0, stage.layers)
    recomputes = c.checkpointing is not ActivationCheckpointing.NONE
    # One layer's tensors recomputed, and the gradients of its widest tensors; without recomputation gradients only.
    live = tokens * k.live * (none if recomputes else 0.5 * none)
    if layout.tensor > 1:
        # Inputs gathered from the tensor ranks and outputs before they are scattered, around two blocks.
        live += tokens * k.live * 2 * s.hidden_size * 4 * (1 - 1 / tp)

    quantized = 0.0
    if c.precision.quantized and stack.keeps_quantized_weights:
        copies = COPY_BYTES[c.precision] * (
            2 if c.precision in BLOCK_SCALED or c.gpu.compute_capability < (10, 0) else 1
        )
        layers = stage.layers if not (recomputes and zero >= 3) else min(1.0, stage.layers)
        quantized = copies * layer * layers * c.quantized_layers

    gathered = root_gathered = reduction = layer_reduction = 0.0
    if zero >= 3:
        gathered = stack.compute_bytes * layer * (2 if c.reshard else stage.layers)
        if stage.head or stage.embedding:
            root_gathered = stack.compute_bytes * vocabulary
            gathered += root_gathered
        layer_reduction = (stack.compute_bytes + stack.reduce_bytes) * layer
        reduction = max(layer_reduction, (stack.compute_bytes + stack.reduce_bytes) * vocabulary if stage.head else 0.0)
        if layout.pipeline > 1:
            # Gradients of all micro batches add up unsharded, in the width of the reduction, before they are reduced.
            reduction = layer_reduction = stack.reduce_bytes * (stage.layers * layer + root)

    logits = 0.0
    if stage.head and s.vocab_size and c.loss != "none":
        each = k.logits * logit_bytes(c, stack)
        logits = tokens * s.vocab_size / tp * each
        if c.loss == "chunked":
            if stack.chunk_logits:
                # One chunk, the head's gradient in 32 bit and as it is handed on, the gradient of the hidden states.
                logits = min(logits * CHUNKS, stack.chunk_logits * stack.logit_bytes) + 2 * 4 * vocabulary
            elif zero >= 3 and stack.sums_head_gradient:
                # The head's whole gradient adds up over the chunks; a chunk's own is there when its logits are gone.
                logits = max(logits, stack.compute_bytes * vocabulary) + stack.reduce_bytes * vocabulary
            logits += (2 if stack.chunk_logits else 4) * tokens * s.hidden_size
        logits += 2 * 2 * tokens * s.hidden_size * (1 - 1 / tp)  # the head's gathered input and its gradient

    # Before the backward pass no gradient is alive, unless it is a buffer or a sum over micro batches.
    held = gradients if stack.gradient_buffers or c.accumulation > 1 else 0.0
    if c.accumulate_locally and c.accumulation > 1 and zero >= 3:
        held = stack.reduce_bytes * count
        gradients = max(gradients, held)  # the last unit is reduced while nearly all others are still whole
    unreduced = reduction if layout.pipeline > 1 and zero >= 3 else 0.0
    # What is allocated in the stream of the reductions can never reuse blocks of the computation.
    apart = (
        k.gradients * max(0.0, gradients + reduction - held - unreduced)
        if stack.reduction_stream and zero >= 3
        else 0.0
    )
    last_live = live + per_layer
    moments = {
        "loss": (held, gathered + unreduced, activations, quantized, 0.0, logits),
        "backward": (held, gathered + unreduced, activations, quantized, live, 0.0),
        # The first layer runs backward and is reduced, then the embedding is reduced alone.
        "end": max(
            (gradients, gathered + layer_reduction, 0.0, 0.0, last_live, 0.0),
            (gradients, root_gathered + reduction, 0.0, 0.0, 0.0, 0.0),
            key=sum,
        ),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    g, ga, ac, qu, li, lo = (value / GB for value in moments[moment])
    w, o = weights / GB, optimizer / GB
    allocated = w + g + o + ga + ac + qu + li + lo + k.fixed_gb
    lost = k.allocator - 1
    if c.precision is Precision.NVFP4 and stack.keeps_quantized_weights:
        lost *= NVFP4_FRAGMENTATION
    # At the end the gradients and reductions are part of what is allocated; before, they only keep their blocks.
    before = w + o + k.fixed_gb + max(sum(moments["loss"]), sum(moments["backward"])) / GB
    reserved = max((1 + lost) * allocated, (1 + lost) * before + apart / GB)
    # At the GPU's limit the allocator waits for the collectives and takes what they held.
    free = max(0.0, c.gpu.memory_gib_usable * GIB / GB - reserved)
    waiting = min(waiting_bytes(c, k, stack, stage) / GB, free)
    return Memory(w, g, o, ga, ac, qu, li, lo, k.fixed_gb, reserved - allocated + waiting, moment)
