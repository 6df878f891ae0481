"""What a precision means here: compute type, Transformer Engine recipe or emulation, and the checks before all memory.

Parameters and optimizer states are FP32 and sharded; FSDP gathers them in the compute type; quantization happens
inside te.autocast, layer by layer. Embedding, final norm, head and loss are never quantized, so the vocabulary size
is free. Nothing here falls back to another precision: what cannot be done is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from blackwell.findings import Finding, FindingsError
from blackwell.hardware import ALIGNMENT
from blackwell.model import ModelShape
from blackwell.spec import Nvfp4Spec, Precision, TrainingSpec, Workload
from trainer.model.backend import Backend
from trainer.model.quantize import QuantizedMatMul, operands
from trainer.model.torch_backend import MatMul, TorchBackend

RECIPES: dict[Precision, str] = {
    Precision.FP8: "Float8CurrentScaling",
    Precision.FP8_DELAYED: "DelayedScaling",
    Precision.MXFP8: "MXFP8BlockScaling",
    Precision.NVFP4: "NVFP4BlockScaling",
}
"""Class names in transformer_engine.common.recipe."""


def compute_dtype(precision: Precision) -> torch.dtype:
    """The type that parameters are gathered in; quantized formats quantize from BF16."""
    return {Precision.FP32: torch.float32, Precision.FP16: torch.float16}.get(precision, torch.bfloat16)


def start_line(precision: Precision, emulated: bool) -> str | None:
    """The text that a person looks for in the log; None for precisions without quantization."""
    if not precision.quantized:
        return None
    how = "emulated in PyTorch (quantize, dequantize)" if emulated else "enabled"
    if precision in (Precision.MXFP8, Precision.NVFP4):
        return f"{precision.value.upper()} {how}"
    return f"Using FP8 recipe: {RECIPES[precision]}" + (f" {how}" if emulated else "")


def quantized_layers(precision: Precision, nvfp4: Nvfp4Spec, num_layers: int) -> int:
    """How many layers, from the first, are quantized; the rest stay in BF16.

    NVFP4 keeps the last 15 % of the layers in BF16 (arXiv 2509.25149, section 4.1: the last layers' gradients need
    more range than FP4 has); other formats quantize all layers.
    """
    if not precision.quantized:
        return 0
    if precision is Precision.NVFP4:
        return num_layers - math.ceil(nvfp4.high_precision_tail_fraction * num_layers)
    return num_layers


@dataclass(frozen=True, slots=True)
class Hardware:
    """What this process computes on."""

    device: torch.device
    name: str
    """The GPU's name, or `cpu`."""
    capability: tuple[int, int] = (0, 0)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


def find_hardware(local_rank: int) -> Hardware:
    """This rank's device: its own GPU where there are GPUs, else the CPU."""
    if not torch.cuda.is_available():
        return Hardware(torch.device("cpu"), "cpu")
    device = torch.device("cuda", local_rank)
    return Hardware(device, torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))


def check_precision(
    training: TrainingSpec,
    shape: ModelShape,
    micro_batch_size: int,
    seq_length: int,
    hardware: Hardware,
    unavailable: Callable[[str], str | None] | None = None,
) -> list[Finding]:
    """Every reason why this job's numbers cannot be used here. Allocates nothing.

    Args:
        unavailable: Transformer Engine's answer for a precision; asked only where its backend is used on a GPU.
    """
    precision = Precision(training.precision)
    found = _alignment(precision, shape, micro_batch_size, seq_length)
    backend = backend_name(training, hardware)
    if training.emulate_precision:
        if not precision.quantized:
            found.append(
                Finding(
                    id="BTS-422",
                    path="emulate_precision",
                    message=f"{precision} is not a quantized format; there is nothing to emulate",
                    given=True,
                    legal="false, or precision fp8, mxfp8, nvfp4",
                )
            )
        elif precision is Precision.FP8_DELAYED:
            found.append(
                Finding(
                    id="BTS-422",
                    path="precision",
                    message="the history of delayed scaling is not emulated",
                    given=precision.value,
                    legal="fp8 (current scaling), mxfp8, nvfp4",
                    nearest="fp8",
                )
            )
        elif hardware.is_gpu and _has_format(precision, hardware.capability):
            found.append(
                Finding(
                    id="BTS-422",
                    path="emulate_precision",
                    message=f"{hardware.name} has {precision} itself",
                    given=True,
                    legal="false",
                    nearest=False,
                )
            )
    elif precision.quantized:
        reason = None
        if not hardware.is_gpu:
            reason = "there is no CUDA device"
        elif backend == "te" and unavailable is not None:
            reason = unavailable(precision.value)
        if reason is not None:
            found.append(
                Finding(
                    id="BTS-103",
                    path="precision",
                    message=f"{hardware.name} cannot compute in {precision}: {reason}",
                    given=precision.value,
                    legal="a precision of this hardware, or emulate_precision",
                    nearest="bf16",
                )
            )
        elif backend != "te":
            found.append(
                Finding(
                    id="BTS-421",
                    path="backend",
                    message=f"{precision} needs Transformer Engine's layers",
                    given=backend,
                    legal="te",
                    nearest="te",
                )
            )
    if backend == "te" and not hardware.is_gpu:
        found.append(
            Finding(
                id="BTS-421",
                path="backend",
                message="Transformer Engine needs a CUDA device",
                given="te",
                legal="torch or auto",
                nearest="torch",
            )
        )
    if backend == "te" and training.compile:
        found.append(
            Finding(
                id="BTS-421",
                path="compile",
                message="Transformer Engine's layers are not compiled",
                given=True,
                legal="false, or backend torch",
                nearest=False,
            )
        )
    if training.quantized_weights and (backend != "te" or not precision.quantized):
        found.append(
            Finding(
                id="BTS-421",
                path="quantized_weights",
                message="quantized weights need Transformer Engine and a quantized precision",
                given=True,
                legal="false",
                nearest=False,
            )
        )
    return found


def _has_format(precision: Precision, capability: tuple[int, int]) -> bool:
    """FP8 from compute capability 8.9 on; MXFP8 and NVFP4 on 10.x (Transformer Engine's check_*_support)."""
    if precision in (Precision.MXFP8, Precision.NVFP4):
        return capability[0] == 10
    return capability >= (8, 9)


def _alignment(precision: Precision, shape: ModelShape, micro_batch_size: int, seq_length: int) -> list[Finding]:
    rule = ALIGNMENT[precision]
    found = []
    dimensions = {
        "model.hidden_size": shape.hidden_size,
        "model.intermediate_size": shape.intermediate_size,
        "model.head_dim": shape.attention_width,
        "model.num_key_value_heads": shape.attention_width + 2 * shape.key_value_width,
    }
    what = {
        "model.hidden_size": "hidden size",
        "model.intermediate_size": "feed-forward width",
        "model.head_dim": "attention width (heads x head_dim)",
        "model.num_key_value_heads": "width of the fused query-key-value projection",
    }
    for path, size in dimensions.items():
        if size % rule.weight:
            found.append(
                Finding(
                    id="BTS-102",
                    path=path,
                    message=f"{what[path]} is no multiple of {rule.weight}, which {precision} needs",
                    given=size,
                    legal=f"a multiple of {rule.weight}",
                    nearest=_nearest(size, rule.weight),
                )
            )
    tokens = micro_batch_size * seq_length
    if tokens % rule.tokens:
        step = rule.tokens // math.gcd(micro_batch_size, rule.tokens)
        found.append(
            Finding(
                id="BTS-102",
                path="seq_length",
                message=f"micro_batch_size x seq_length = {tokens} is no multiple of {rule.tokens}, which {precision} needs",
                given=seq_length,
                legal=f"a multiple of {step} with micro_batch_size {micro_batch_size}",
                nearest=_nearest(seq_length, step),
            )
        )
    return found


def _nearest(value: int, multiple: int) -> int:
    return max(multiple, round(value / multiple) * multiple)


def backend_name(training: TrainingSpec, hardware: Hardware) -> str:
    """`te` or `torch`; `auto` takes Transformer Engine on a GPU, PyTorch on a CPU and for emulation."""
    if training.backend != "auto":
        return training.backend
    return "te" if hardware.is_gpu and not training.emulate_precision else "torch"


def make_recipe(precision: Precision, nvfp4: Nvfp4Spec) -> Any | None:
    """The Transformer Engine recipe of a precision; None for the ones without quantization."""
    if not precision.quantized:
        return None
    from transformer_engine.common import recipe

    if precision is Precision.FP8:
        return recipe.Float8CurrentScaling(fp8_format=recipe.Format.HYBRID)
    if precision is Precision.FP8_DELAYED:
        return recipe.DelayedScaling(fp8_format=recipe.Format.HYBRID)
    if precision is Precision.MXFP8:
        return recipe.MXFP8BlockScaling(fp8_format=recipe.Format.E4M3)
    return recipe.NVFP4BlockScaling(
        disable_rht=not nvfp4.random_hadamard_transform,
        disable_stochastic_rounding=not nvfp4.stochastic_rounding,
        disable_2d_quantization=not nvfp4.two_dimensional_weight_scaling,
    )


def make_backend(
    training: TrainingSpec, shape: ModelShape, name: str, packed: bool, amax_group: Callable[[], Any]
) -> Backend:
    """The layer backend of a job that `check_precision` found nothing against.

    Args:
        packed: attention goes by document.
        amax_group: gives the process group over which delayed scaling's maxima are taken.

    Raises:
        FindingsError: BTS-421 where Transformer Engine is not installed for this machine.
    """
    precision = Precision(training.precision)
    quantized = quantized_layers(precision, training.nvfp4, shape.num_hidden_layers)
    if name == "te":
        try:
            from trainer.model.te_backend import TransformerEngineBackend
        except (ImportError, RuntimeError, OSError) as error:
            raise FindingsError(
                [
                    Finding(
                        id="BTS-421",
                        path="backend",
                        message=f"Transformer Engine cannot be imported: {str(error).splitlines()[0]}",
                        given="te",
                        legal="torch",
                    )
                ]
            ) from error
        return TransformerEngineBackend(
            make_recipe(precision, training.nvfp4),
            high_precision_from=quantized if precision.quantized else shape.num_hidden_layers,
            packed=packed,
            quantized_weights=training.quantized_weights,
            amax_group=amax_group if precision is Precision.FP8_DELAYED else None,
        )
    if not training.emulate_precision:
        return TorchBackend()
    emulated = QuantizedMatMul(
        operands(
            precision.value,
            hadamard=training.nvfp4.random_hadamard_transform,
            stochastic=training.nvfp4.stochastic_rounding,
            two_dimensional=training.nvfp4.two_dimensional_weight_scaling,
        )
    )

    def matmul(index: int) -> MatMul:
        return emulated if index < quantized else torch.nn.functional.linear

    return TorchBackend(matmul)


def parameters_dtype(training: TrainingSpec) -> torch.dtype:
    """FP32, but for workload `layers`, which keeps BF16 parameters as Transformer Engine's example does."""
    if training.workload is Workload.LAYERS:
        return compute_dtype(Precision(training.precision))
    return torch.float32
