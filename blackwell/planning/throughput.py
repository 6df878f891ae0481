"""Time of one optimizer step, as a sum of physical terms, and the tokens per second that follow.

Matrix multiplications pay for their operations at a share of the peak and for their operands at a share of the memory
bandwidth (an additive roofline, so small and narrow ones are slow); attention, elementwise kernels, quantization, the
optimizer, collectives, the pipeline's bubble and the host's launches are added, each with its own count.

Sources: operation counts 6N + 12 L h s with causal attention counted half (PaLM, Megatron); communication volumes of
FSDP, tensor and pipeline parallelism after Narayanan et al. 2021 and Korthikanti et al. 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blackwell.hardware import GB, GIB
from blackwell.planning.configuration import Configuration
from blackwell.planning.memory import COPY_BYTES, Stage, stages
from blackwell.planning.stacks import STACKS, SpeedConstants, Stack
from blackwell.spec import ActivationCheckpointing, Precision

NETWORK_GB_PER_SECOND = {
    "A100": 25.0,
    "H100": 50.0,
    "H200": 50.0,
    "B200": 50.0,
    "B300": 100.0,
    "GB200": 50.0,
    "GB300": 100.0,
}
"""Between nodes, per GPU, one way, where a row or an instance does not say: the usual NIC of each generation."""

ELEMENTWISE_BACKWARD = 2.0
RETRY_PER_TENSOR_RANK = 0.15
"""What each further tensor rank adds to the time that an allocator at its limit costs: every collective of a layer waits for
whichever rank is freeing blocks. nanotron lost 1.0 to 1.2 seconds a micro batch with 1 rank, 1.4 with 4, 6 to 9 with 32."""
RETRY_FROM, RETRY_WIDTH = 0.905, 0.007
"""Share of the device's memory at which half of the micro batches meet a full allocator, and how sharply: of the measured
runs those up to 0.87 lost nothing, one at 0.904 half of what all from 0.92 on did."""
PACE = 2.0
"""Exponent with which host time and GPU time of a micro batch combine: infinity would be the larger of the two."""
REDUCED_BYTES = 2.0
"""Per parameter of a reduce-scatter: 4 in fp32, half hidden since nothing waits for it."""
OPTIMIZER_BYTES = 28.0
"""Moved per parameter: read gradient, weight and two moments, write three of them, in fp32."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one optimizer step by term, and the rates that follow."""

    matmul: float
    attention: float
    elementwise: float
    quantize: float
    recompute: float
    tensor_communication: float
    data_communication: float
    pipeline_bubble: float
    optimizer: float
    launch: float
    step: float
    tokens_per_step: float
    ranks: int
    model_flops_per_token: float

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens per second and GPU."""
        return self.tokens_per_step / self.step / self.ranks

    def terms(self) -> dict[str, float]:
        """Name -> seconds; they sum to the step."""
        return {
            "matrix multiplications": self.matmul,
            "attention": self.attention,
            "elementwise": self.elementwise,
            "quantization": self.quantize,
            "recomputation": self.recompute,
            "tensor communication": self.tensor_communication,
            "exposed communication": self.data_communication,
            "pipeline bubble": self.pipeline_bubble,
            "optimizer": self.optimizer,
            "launches": self.launch,
        }


def speed(c: Configuration, k: SpeedConstants, reserved_gb: float = 0.0) -> Speed:
    """Time of a step on the slowest rank.

    `k` are the fitted constants of the configuration's stack. `reserved_gb` is the predicted peak of reserved memory:
    near the limit the allocator frees and asks the device again, in every micro batch.
    """
    stack = STACKS[c.stack]
    retry = 0.0
    if k.retry_ms and reserved_gb:
        filled = reserved_gb * GB / (c.gpu.memory_gib_usable * GIB)
        waits = 1 + RETRY_PER_TENSOR_RANK * (c.layout.tensor - 1)
        retry = k.retry_ms * 1e-3 * waits / (1 + math.exp(min(50.0, (RETRY_FROM - filled) / RETRY_WIDTH)))
    return max((_stage_speed(c, k, stack, stage, retry) for stage in stages(c, stack)), key=lambda speed: speed.step)


def _stage_speed(c: Configuration, k: SpeedConstants, stack: Stack, stage: Stage, retry: float) -> Speed:
    s, gpu, layout = c.shape, c.gpu, c.layout
    tp, pp = layout.tensor, layout.pipeline
    tokens, layers = c.tokens, stage.layers
    h, a, kv, f = s.hidden_size, s.attention_width, s.key_value_width, s.intermediate_size
    ups = 2 * f if s.gated else f

    peak16 = gpu.peak_tflops[Precision.BF16] * 1e12
    share = c.quantized_layers if c.precision.quantized else 0.0
    wide = Precision.FP32 if c.precision is Precision.FP32 else Precision.BF16
    reach = k.matmul(gpu)
    rate16 = gpu.peak_tflops[wide] * 1e12 * reach
    quantized_rate = (
        gpu.peak_tflops.get(c.precision, gpu.peak_tflops[Precision.BF16])
        * 1e12
        * k.quantized_matmul(gpu, c.precision, c.recipe)
    )
    hbm = gpu.hbm_tb_per_second * 1e12 * k.bandwidth

    # One layer, one micro batch, forward: products (out, in) with the tensor ranks' share.
    products = (((a + 2 * kv) / tp, h), (h, a / tp), (ups / tp, h), (h, f / tp))
    flops = sum(2 * tokens * n * m for n, m in products)
    operands = sum(tokens * (n + m) + n * m for n, m in products)
    layer_seconds = flops * ((1 - share) / rate16 + share / quantized_rate)
    copy = COPY_BYTES.get(c.precision, 2.0)
    width = 2 * (1 - share) + copy * share
    layer_seconds += width * operands / hbm
    head_seconds = 0.0
    if stage.head and s.vocab_size:
        vocabulary = s.vocab_size / tp
        head_seconds = (
            2 * tokens * h * vocabulary / rate16 + (2 * (tokens * h + vocabulary * h) + 10 * tokens * vocabulary) / hbm
        )
    attention = tokens * 2 * c.seq_length * a / tp / (peak16 * k.attention(gpu))
    along = tp if layout.sequence_parallel else 1
    elements = tokens * (12 * h / along + 2 * (a + 2 * kv) / tp + 2 * (ups + f) / tp)
    compiled = c.compiled or stack.compiled_by_default
    passes = k.compiled_elementwise if compiled else 1.0 if stack.fused_kernels else k.eager_elementwise
    elementwise = 2 * elements / hbm * passes
    quantize = 0.0
    if share:
        passes = 2 + copy + (2 if c.recipe in ("tensorwise", "current", "rowwise") else 0)
        quantize = k.quantize * share * sum(tokens * (m + 0.5 * n) + n * m for n, m in products) * passes / hbm

    checkpointing = c.checkpointing
    if checkpointing is ActivationCheckpointing.FULL:
        again = layer_seconds + attention + elementwise + 0.5 * quantize
    elif checkpointing is ActivationCheckpointing.SELECTIVE:
        again = {
            "core_attention": attention,
            "products": elementwise,
            "everything": layer_seconds + attention + elementwise + 0.5 * quantize,
            "operators": 0.5 * layer_seconds + elementwise + 0.5 * quantize,
        }[stack.selective]
    else:
        again = 0.0
    again *= c.checkpointed_layers

    micro_matmul = layers * 3 * layer_seconds + 3 * head_seconds
    micro_attention = layers * 3.5 * attention
    micro_elementwise = layers * (1 + ELEMENTWISE_BACKWARD) * elementwise
    micro_quantize = layers * 3 * quantize
    micro_again = layers * again
    compute = micro_matmul + micro_attention + micro_elementwise + micro_quantize + micro_again

    # Tensor ranks: an all-gather and a reduce-scatter around attention and around the feed-forward network.
    recomputed = {ActivationCheckpointing.FULL: 1.0, ActivationCheckpointing.SELECTIVE: 0.5}.get(checkpointing, 0.0)
    tensor = 0.0
    if tp > 1:
        around = 4 * tokens * h * 2 * (tp - 1) / tp
        passes = 3 if checkpointing is ActivationCheckpointing.FULL else 2
        tensor = layers * around * passes / bandwidth(c, k, tp, 1) * (0.5 if c.asynchronous_tensor else 1.0)
    micro = compute + tensor

    accumulation = max(1.0, c.accumulation)
    passes = 2 + recomputed
    per_pass = k.launch_us * (1.4 if share else 1.0) + k.tensor_launch_us * (tp - 1)
    if pp > 1 and crosses_nodes(c, layout.ranks):
        per_pass += k.pipelined_tensor_launch_us * (tp - 1)
    host = per_pass * 1e-6 * layers * passes
    # The host runs ahead of the GPU: the slower of the two sets the pace, smoothly.
    paced = (micro**PACE + host**PACE) ** (1 / PACE)
    if pp > 1 and layout.zero == 0 and layout.data > 2 and crosses_nodes(c, layout.ranks):
        # Unsharded gradients are reduced between the nodes after every micro batch.
        paced += k.unsharded_node_ms * 1e-3 * layout.ranks / c.gpus_per_node
    paced += retry
    launch = accumulation * (paced - micro)
    # Data ranks.
    parameters = (layers * s.layer_parameters + (s.embedding_parameters if stage.head or stage.embedding else 0)) / tp
    exposed = 0.0
    share_exposed = min(1.0, k.exposed)
    shards = layout.shards
    if layout.zero >= 3:
        reduced = REDUCED_BYTES / (accumulation if c.accumulate_locally else 1)
        moved = (stack.compute_bytes * (2 if c.reshard else 1) + reduced) * parameters * (shards - 1) / shards
        seconds = moved / bandwidth(c, k, shards, tp)
        replicas = layout.data * layout.context / shards
        if replicas > 1:
            part = 2 * 4 * parameters / shards * (replicas - 1) / replicas
            seconds += part / bandwidth(c, k, int(replicas), tp * shards)
        exposed = accumulation * (share_exposed * seconds + max(0.0, (1 - share_exposed) * seconds - paced))
    elif layout.data > 1:
        moved = 2 * stack.compute_bytes * parameters * (layout.data - 1) / layout.data
        seconds = moved / bandwidth(c, k, layout.data * layout.context, tp)
        # Hidden behind the last backward pass and the pipeline's draining.
        hidden = 0.6 * paced + paced * (pp - 1) / layout.virtual
        exposed = share_exposed * seconds + max(0.0, (1 - share_exposed) * seconds - hidden)

    bubble = 0.0
    if pp > 1:
        bubble = paced * (pp - 1) / layout.virtual
        hop = 2 * tokens * h / (tp if layout.sequence_parallel else 1) / bandwidth(c, k, 2, layout.ranks // pp)
        exposed += 2 * hop * (accumulation + pp - 1) * layout.virtual * 0.5
    optimizer = OPTIMIZER_BYTES * parameters / (shards if layout.zero >= 1 else 1) / hbm
    fixed = k.step_ms * 1e-3
    step = accumulation * micro + exposed + launch + bubble + optimizer + fixed
    return Speed(
        matmul=accumulation * micro_matmul, attention=accumulation * micro_attention,
        elementwise=accumulation * micro_elementwise, quantize=accumulation * micro_quantize,
        recompute=accumulation * micro_again, tensor_communication=accumulation * tensor, data_communication=exposed,
        pipeline_bubble=bubble, optimizer=optimizer, launch=launch + fixed, step=step,
        tokens_per_step=c.tokens_per_step, ranks=layout.ranks, model_flops_per_token=c.shape.flops_per_token(c.seq_length),
    )  # fmt: skip


def bandwidth(c: Configuration, k: SpeedConstants, group: int, stride: int) -> float:
    """Bytes per second, one way and per GPU, of a collective over `group` ranks that lie `stride` ranks apart.

    Inside an NVLink domain it is the links' bandwidth. Across nodes a ring passes each node once, so every member of
    the group that a node holds adds its network card.
    """
    links = c.gpu.nvlink_gb_per_second * 1e9 * k.network
    if not crosses_nodes(c, group * stride):
        return links
    members = max(1, c.gpus_per_node // stride)
    return min(links, network(c) * 1e9 * members * k.network)


def crosses_nodes(c: Configuration, ranks: int) -> bool:
    """True where this many neighbouring ranks do not share one NVLink domain."""
    return ranks > max(c.gpus_per_node, c.gpu.domain)


def network(c: Configuration) -> float:
    """GB/s per GPU, one way, between nodes."""
    if c.network_gb_per_second is not None:
        return c.network_gb_per_second
    return NETWORK_GB_PER_SECOND.get(c.gpu.name.split("-")[0], 25.0)
