"""Software stacks: what each framework keeps in memory and does in a step, and the constants fitted for it.

The facts (bytes per parameter, what is sharded, how a pipeline is cut) come from the frameworks' sources. The fitted
constants stand in `data/constants.json`, written by `python -m blackwell calibrate` and by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from blackwell.hardware import Gpu
from blackwell.spec import Precision

CONSTANTS_FILE = "constants.json"
FOLDS_FILE = "folds.json"


@dataclass(frozen=True, slots=True)
class Stack:
    """Facts about one framework. Bytes are per parameter."""

    name: str
    weight_bytes: float
    """Of the weights that persist on a rank."""
    gradient_bytes: float
    """Of the gradients that persist until the optimizer step."""
    optimizer_bytes: float
    """Master weights and moments."""
    compute_bytes: float = 2
    """Of a gathered weight."""
    reduce_bytes: float = 4
    """Of a gradient while it is reduced."""
    fused_kernels: bool = True
    """Norms and activations are fused kernels that keep no copies; plain PyTorch fuses them only when compiled."""
    gradient_buffers: bool = False
    """Gradients are buffers that live through the whole step (Megatron's main gradients)."""
    reduction_stream: bool = True
    """Gradients are reduced, and stay, in memory of their own stream; not where one compiled graph plans it all."""
    bucket_bytes: float = 0
    """Of the gradients' copies in the buckets of a data-parallel wrapper (`Configuration.gradient_buckets`)."""
    keeps_gate: bool = False
    """SwiGLU is computed step by step, so silu(gate) is saved too."""
    mlp_keeps_both_copies: bool = True
    """A quantized feed-forward input is saved in both orientations (Transformer Engine's LayerNormMLP); its Linear and
    LayerNormLinear, of which Megatron-Core builds the layer, save one."""
    waiting_outputs: bool = False
    """Whole tensors around tensor-parallel layers are freed by the host long before the collective that used them has
    run, and the allocator cannot reuse their blocks until then."""
    pipeline_split: Literal["even", "by_cost"] = "even"
    saves_quantized: tuple[Precision, ...] = ()
    """Precisions whose layers save their inputs quantized (Transformer Engine: all), not in 16 bit."""
    keeps_quantized_weights: bool = False
    """Quantized weight copies live from the forward pass to the backward pass."""
    selective: Literal["operators", "products", "core_attention", "everything"] = "operators"
    """What selective checkpointing recomputes: all but attention and every second matrix product (torchtitan's list),
    all but attention and products, Megatron's core attention only, or everything (Transformer Engine's checkpoint knows
    no list)."""
    chunk_logits: int = 0
    """Logits of one chunk of a chunked cross-entropy; 0 where the tokens are cut into eight."""
    logit_bytes: float = 12
    """Per logit of a full cross-entropy: bf16 logits, fp32 copy, fp32 and bf16 gradient; 5 where it works in place."""
    parallel_logit_bytes: float = 0
    """The same where tensor ranks divide the vocabulary, in a loss written out in steps; 0 where there is no other."""
    sums_head_gradient: bool = False
    """A chunked cross-entropy adds up the head's whole gradient over its chunks and reduces it once."""
    whole_chunk_bytes: float = 0
    """Per logit that a chunked cross-entropy keeps of all chunks, where it cuts the logits and not their making."""
    compiled_by_default: bool = False
    gib_column: bool = False
    """The published tables of this stack print GiB."""
    evidence: str = ""
    """Where the facts are from."""


QUANTIZED = (Precision.FP8, Precision.FP8_DELAYED, Precision.MXFP8, Precision.NVFP4)

STACKS: Mapping[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack(
            "blackwell",
            4,
            4,
            8,
            saves_quantized=QUANTIZED,
            keeps_quantized_weights=True,
            selective="everything",
            chunk_logits=2**25,
            evidence="our trainer: FSDP2, fp32 sharded parameters and AdamW, bf16 gathered weights, fp32 reduction, chunked loss",
        ),
        Stack(
            "torchtitan",
            4,
            4,
            8,
            fused_kernels=False,
            saves_quantized=(Precision.NVFP4,),
            parallel_logit_bytes=16,
            sums_head_gradient=True,
            evidence="FSDP2 mixed precision, fp32 parameters, fp32 reduction; its FP8 and MXFP8 layers save bf16; the loss of "
            "tensor ranks holds log-probabilities, their exponential and two gradients in fp32 (torch's tensor/parallel/loss.py); its chunked loss turns the head's gradient synchronization off until the last chunk",
        ),
        Stack(
            "torchtitan-graph",
            4,
            4,
            8,
            compiled_by_default=True,
            reduction_stream=False,
            parallel_logit_bytes=16,
            evidence="torchtitan's graph trainer and SimpleFSDP: one compiled graph",
        ),
        Stack(
            "torchtune",
            2,
            2,
            4,
            fused_kernels=False,
            whole_chunk_bytes=2,
            evidence="bf16 parameters and bf16 AdamW on one GPU; its chunked loss cuts the bf16 logits and widens one chunk at a time",
        ),
        Stack(
            "blackwell-torch",
            4,
            4,
            8,
            fused_kernels=False,
            selective="products",
            chunk_logits=2**25,
            evidence="our trainer with PyTorch's own layers, which emulate quantized formats in 16 bit",
        ),
        Stack(
            "te-fsdp",
            2,
            2,
            4,
            selective="everything",
            saves_quantized=QUANTIZED,
            keeps_quantized_weights=True,
            evidence="TransformerEngine examples/pytorch/fsdp: bf16 parameters and Adam without master weights, fp32 reduction",
        ),
        Stack(
            "fsdp1",
            4,
            4,
            8,
            fused_kernels=False,
            evidence="PyTorch FSDP1 mixed precision: llm-foundry, fms-fsdp, Accelerate",
        ),
        Stack(
            "megatron",
            2,
            4,
            12,
            logit_bytes=5,
            gradient_buffers=True,
            saves_quantized=QUANTIZED,
            keeps_quantized_weights=True,
            mlp_keeps_both_copies=False,
            selective="core_attention",
            evidence="Megatron-LM distributed optimizer: bf16 weights, fp32 main gradients, fp32 master and Adam; theoretical_memory_usage.py",
        ),
        Stack(
            "nemo",
            2,
            2,
            12,
            gradient_buffers=True,
            logit_bytes=5,
            saves_quantized=QUANTIZED,
            keeps_quantized_weights=True,
            mlp_keeps_both_copies=False,
            selective="core_attention",
            evidence="Megatron-Core under NeMo and Megatron-Bridge: their performance recipes keep gradients in bf16 (grad_reduce_in_fp32=False)",
        ),
        Stack(
            "megatron-deepspeed",
            2,
            4,
            12,
            gradient_buffers=True,
            selective="core_attention",
            evidence="Megatron-DeepSpeed, ZeRO-1, fp16",
        ),
        Stack(
            "nanotron",
            2,
            4,
            12,
            bucket_bytes=2,
            keeps_gate=True,
            waiting_outputs=True,
            logit_bytes=10,
            parallel_logit_bytes=14,
            gradient_buffers=True,
            pipeline_split="by_cost",
            gib_column=True,
            evidence="bf16 weights, fp32 accumulated gradients, fp32 master and Adam, bf16 gradients in DDP buckets where there are "
            "data ranks; column-parallel inputs gathered into one shared buffer, row-parallel outputs whole until they are scattered; "
            "a sharded cross-entropy in steps; pipeline blocks cut by compute cost",
        ),
        Stack(
            "transformer-engine",
            2,
            2,
            12,
            saves_quantized=QUANTIZED,
            keeps_quantized_weights=True,
            evidence="bare te.TransformerLayer benchmarks",
        ),
    )
}

FALLBACK = "torchtitan"


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Fitted for a stack."""

    saved: float = 1.0
    """Times the counted bytes of saved activations."""
    selective: float = 1.0
    """The same with selective checkpointing."""
    waiting: float = 0.0
    """Pairs of whole tensors around a layer's tensor-parallel products whose blocks still wait for their collectives when
    the forward pass is issued, per layer and micro batch (`Stack.waiting_outputs`)."""
    ahead_tflop: float = 1.6
    """Work of one layer's forward pass on a rank, TFLOP, above which the host of a two-stage pipeline runs ahead of the GPU,
    so that tensors wait; with s stages the work of (s - 1)**2 layers counts."""
    live: float = 1.0
    """Layers' worth of activations and their gradients alive while one layer runs backward."""
    gradients: float = 0.8
    """Share of sharded gradients and reduction buffers that lie in blocks of their own stream, so add to the peak."""
    allocator: float = 1.08
    """Reserved over allocated memory: rounding and fragmentation."""
    logits: float = 1.0
    """Times the counted bytes per logit."""
    fixed_gb: float = 0.15
    """Workspaces that no size changes, GB."""


@dataclass(frozen=True, slots=True)
class SpeedConstants:
    """Fitted for a stack."""

    ampere_matmul: float = 0.8
    """Share of the dense 16-bit peak that large matrix multiplications reach, before operands and all else are added."""
    hopper_matmul: float = 0.7
    blackwell_matmul: float = 0.7
    hopper_fp8_matmul: float = 0.6
    """The same of the FP8 peak, per-tensor scales."""
    blackwell_fp8_matmul: float = 0.6
    rowwise: float = 0.8
    """Speed of FP8 with a scale per row, relative to a scale per tensor."""
    mxfp8_matmul: float = 0.55
    nvfp4_matmul: float = 0.4
    ampere_attention: float = 0.5
    """Share of the 16-bit peak that attention reaches, causal operations counted half."""
    hopper_attention: float = 0.3
    blackwell_attention: float = 0.3
    bandwidth: float = 0.8
    """Share of the memory bandwidth that elementwise kernels and operands reach."""
    eager_elementwise: float = 1.5
    """Times the elementwise bytes where plain PyTorch runs norms, rotations and activations in many passes."""
    compiled_elementwise: float = 0.5
    """Times the elementwise bytes where a compiler fuses kernels."""
    quantize: float = 1.0
    """Times the counted bytes of quantizing operands."""
    network: float = 0.7
    """Share of the links' one-way bandwidth that collectives reach."""
    exposed: float = 0.2
    """Share of the data-parallel communication that is not hidden by computation."""
    launch_us: float = 400.0
    """Microseconds of host time per layer and pass."""
    tensor_launch_us: float = 50.0
    """The same for every further tensor rank."""
    pipelined_tensor_launch_us: float = 1.0
    """The same again where a pipeline crosses nodes."""
    unsharded_node_ms: float = 1.0
    """Milliseconds per micro batch and node of a pipeline whose gradients are not sharded."""
    retry_ms: float = 0.0
    """Milliseconds per micro batch that an allocator at its limit costs."""
    step_ms: float = 5.0
    """Milliseconds per step that no size changes."""

    def matmul(self, gpu: Gpu) -> float:
        """Share of the 16-bit peak."""
        return (self.ampere_matmul, self.hopper_matmul, self.blackwell_matmul)[generation(gpu)] * gpu.sustained

    def quantized_matmul(self, gpu: Gpu, precision: Precision, recipe: str = "") -> float:
        """Share of the precision's own peak."""
        if precision is Precision.MXFP8:
            share = self.mxfp8_matmul
        elif precision is Precision.NVFP4:
            share = self.nvfp4_matmul
        else:
            share = self.blackwell_fp8_matmul if generation(gpu) == 2 else self.hopper_fp8_matmul
        return share * gpu.sustained * (self.rowwise if recipe == "rowwise" else 1.0)

    def attention(self, gpu: Gpu) -> float:
        """Share of the 16-bit peak."""
        return (self.ampere_attention, self.hopper_attention, self.blackwell_attention)[generation(gpu)] * gpu.sustained


def generation(gpu: Gpu) -> int:
    """0 up to Ampere and Ada, 1 Hopper and what is built like it, 2 Blackwell."""
    major = gpu.compute_capability[0]
    return 2 if major >= 10 else 0 if major == 8 else 1


@dataclass(frozen=True, slots=True)
class Constants:
    """All fitted constants of one stack."""

    memory: MemoryConstants = field(default_factory=MemoryConstants)
    speed: SpeedConstants = field(default_factory=SpeedConstants)
    memory_margin: float = 0.10
    """Distance that a prediction keeps from the limit to count as fitting."""
    memory_band: float = 0.20
    """Relative error that nine in ten unseen rows stay under."""
    speed_band: float = 0.25
    memory_runs: int = 0
    """Measured configurations behind the constants."""
    speed_runs: int = 0


def _merge(base: Any, values: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(base)}
    return replace(base, **{name: value for name, value in values.items() if name in known})


@cache
def all_constants() -> Mapping[str, Constants]:
    """Stack -> constants, as the last calibration left them; defaults for stacks that it had no runs of."""
    text = resources.files("blackwell.planning.data").joinpath(CONSTANTS_FILE).read_text(encoding="utf-8")
    return constants_from(json.loads(text))


def constants_from(document: Mapping[str, Any]) -> Mapping[str, Constants]:
    """The same from a decoded document."""
    known: dict[str, Constants] = {}
    for name in STACKS:
        values = document.get("stacks", {}).get(name, {})
        known[name] = _merge(
            Constants(
                memory=_merge(MemoryConstants(), values.get("memory", {})),
                speed=_merge(SpeedConstants(), values.get("speed", {})),
            ),
            {key: value for key, value in values.items() if not isinstance(value, dict)},
        )
    return known


def constants(stack: str) -> Constants:
    """The fitted constants of a stack."""
    return all_constants()[stack]
