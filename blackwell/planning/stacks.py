"""Software stacks: what each framework keeps in memory and does in a step, and the constants fitted for it.

The facts (bytes per parameter, what is sharded, how a pipeline is cut) come from the frameworks' sources. The fitted
constants stand in `data/constants.json`, written by `python -m blackwell calibrate` and by nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, Mapping

from blackwell.spec import Precision

CONSTANTS_FILE = "constants.json"


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
    gathers_root: bool = True
    """Embedding and head are gathered whole."""
    pipeline_split: Literal["even", "by_cost"] = "even"
    keeps_gathered_input: bool = False
    """Tensor parallel: the gathered input of a column-parallel layer is saved whole for the backward pass."""
    saves_quantized: bool = False
    """Inputs of quantized layers are saved quantized (Transformer Engine), not in 16 bit."""
    keeps_quantized_weights: bool = False
    """Quantized weight copies live from the forward pass to the backward pass."""
    selective: Literal["operators", "core_attention"] = "operators"
    """What selective checkpointing means: PyTorch's list of saved operators, or Megatron's core attention only."""
    compiled_by_default: bool = False
    gib_column: bool = False
    """The published tables of this stack print GiB."""
    evidence: str = ""
    """Where the facts are from."""


STACKS: Mapping[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack(
            "blackwell",
            4,
            4,
            8,
            saves_quantized=True,
            keeps_quantized_weights=True,
            evidence="our trainer: FSDP2, fp32 sharded parameters and AdamW, bf16 gathered weights, fp32 reduction, chunked loss",
        ),
        Stack("torchtitan", 4, 4, 8, evidence="FSDP2 mixed precision, fp32 parameters, fp32 reduction"),
        Stack(
            "torchtitan-graph",
            4,
            4,
            8,
            compiled_by_default=True,
            evidence="torchtitan's graph trainer and SimpleFSDP: one compiled graph",
        ),
        Stack("torchtune", 2, 2, 4, evidence="bf16 parameters and bf16 AdamW on one GPU"),
        Stack(
            "te-fsdp",
            2,
            2,
            4,
            saves_quantized=True,
            keeps_quantized_weights=True,
            evidence="TransformerEngine examples/pytorch/fsdp: bf16 parameters and Adam without master weights, fp32 reduction",
        ),
        Stack("fsdp1", 4, 4, 8, evidence="PyTorch FSDP1 mixed precision: llm-foundry, fms-fsdp, Accelerate"),
        Stack(
            "megatron",
            2,
            4,
            12,
            saves_quantized=True,
            keeps_quantized_weights=True,
            selective="core_attention",
            evidence="Megatron-LM distributed optimizer: bf16 weights, fp32 main gradients, fp32 master and Adam; theoretical_memory_usage.py",
        ),
        Stack("megatron-deepspeed", 2, 4, 12, selective="core_attention", evidence="Megatron-DeepSpeed, ZeRO-1, fp16"),
        Stack(
            "nanotron",
            2,
            6,
            12,
            pipeline_split="by_cost",
            keeps_gathered_input=True,
            gib_column=True,
            evidence="bf16 weights and gradients, fp32 accumulated gradients, fp32 master and Adam; pipeline blocks cut by compute cost",
        ),
        Stack(
            "transformer-engine",
            2,
            2,
            12,
            saves_quantized=True,
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
    live: float = 1.0
    """Layers' worth of activations and their gradients alive while one layer runs backward."""
    gradients: float = 1.0
    """Share of the persistent gradients alive at the peak of the activations."""
    allocator: float = 1.08
    """Reserved over allocated memory: rounding and fragmentation."""
    logits: float = 10.0
    """Bytes per logit of an unfused cross-entropy (bf16 logits, fp32 copy, fp32 gradient)."""
    fixed_gb: float = 0.3
    """Workspaces that no size changes, GB."""


@dataclass(frozen=True, slots=True)
class SpeedConstants:
    """Fitted for a stack."""

    matmul: float = 0.75
    """Share of the dense 16-bit peak that large matrix multiplications reach, before everything else is added."""
    fp8_matmul: float = 0.65
    """The same of the FP8 peak, per-tensor scales."""
    mxfp8_matmul: float = 0.6
    nvfp4_matmul: float = 0.5
    attention: float = 0.4
    """Share of the 16-bit peak that attention reaches, causal operations counted half."""
    bandwidth: float = 0.8
    """Share of the memory bandwidth that elementwise kernels and operands reach."""
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
    step_ms: float = 5.0
    """Milliseconds per step that no size changes."""

    def quantized_matmul(self, precision: Precision) -> float:
        """Share of the precision's own peak."""
        if precision is Precision.MXFP8:
            return self.mxfp8_matmul
        if precision is Precision.NVFP4:
            return self.nvfp4_matmul
        return self.fp8_matmul


@dataclass(frozen=True, slots=True)
class Constants:
    """All fitted constants of one stack."""

    memory: MemoryConstants = field(default_factory=MemoryConstants)
    speed: SpeedConstants = field(default_factory=SpeedConstants)
    memory_band: float = 0.15
    """Relative error that nine in ten unseen rows stay under; the planner's band and margin."""
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
