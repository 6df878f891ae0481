"""What the trainer asks of Transformer Engine, found by running its TE code against NVIDIA's Python sources.

A script: prints one JSON object with the signatures of every API that is used, every call that was made to it, and
the layers' parameters in both backends. Run in a process of its own (see te_stub).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import te_stub
import torch

from blackwell.model import PRESETS, ModelShape
from blackwell.spec import Nvfp4Spec, Precision

SHAPES = {
    "grouped": ModelShape(64, 2, 4, 2, 160, 96, head_dim=32),
    "one group": ModelShape(64, 2, 4, 4, 160, 96, head_dim=16),
    "layers": ModelShape(64, 2, 4, 4, 192, 96, head_dim=16).layers_workload(),
    "8b": PRESETS["8b"],
}


def describe(target: Any) -> dict[str, Any]:
    """Parameters of a callable, or the fields of a recipe."""
    if dataclasses.is_dataclass(target):
        return {
            f.name: {"kind": "KEYWORD_ONLY", "default": f.default is not dataclasses.MISSING}
            for f in dataclasses.fields(target)
            if f.init
        }
    function = target.__init__ if inspect.isclass(target) else target
    return {
        p.name: {"kind": p.kind.name, "default": p.default is not p.empty}
        for p in inspect.signature(function).parameters.values()
        if p.name != "self"
    }


class Recorder:
    """Stands in for one API: notes each call, then does it, or gives a dummy where it cannot run without a GPU."""

    calls: list[tuple[str, int, list[str]]] = []

    def __init__(self, name: str, real: Any, result: Any = None) -> None:
        self.name, self.real, self.result = name, real, result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        Recorder.calls.append((self.name, len(args), sorted(kwargs)))
        inspect.signature(self.real).bind(*args, **kwargs)
        return self.result(*args, **kwargs) if self.result else self.real(*args, **kwargs)


class Dummy(torch.nn.Module):
    """The rotary embedding: its own forward needs a GPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, length: int) -> torch.Tensor:
        Recorder.calls.append(("RotaryPositionEmbedding.forward", 1, []))
        return torch.zeros(length)


def layer_parameters(layer: torch.nn.Module) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in layer.named_parameters()}


def main(folder: Path | None) -> dict[str, Any]:
    te_stub.fake_gpu()
    te = te_stub.load(folder)
    from transformer_engine.common import recipe as recipes
    from transformer_engine.pytorch.optimizers import FusedAdam

    import trainer.model.te_backend as backend_module
    from trainer.model.backend import Documents
    from trainer.model.te_backend import TransformerEngineBackend
    from trainer.model.torch_backend import TorchBackend
    from trainer.precision import RECIPES, make_recipe

    base = te.module.base.TransformerEngineBaseModule
    apis: dict[str, Any] = {
        "TransformerLayer": te.TransformerLayer,
        "TransformerLayer.forward": te.TransformerLayer.forward,
        "RotaryPositionEmbedding": te.RotaryPositionEmbedding,
        "RotaryPositionEmbedding.forward": te.RotaryPositionEmbedding.forward,
        "autocast": te.autocast,
        "quantized_model_init": te.quantized_model_init,
        "checkpoint": te.checkpoint,
        "is_fp8_available": te.is_fp8_available,
        "is_mxfp8_available": te.is_mxfp8_available,
        "is_nvfp4_available": te.is_nvfp4_available,
        "reset_parameters": base.reset_parameters,
        "FusedAdam": FusedAdam,
        **{name: getattr(recipes, name) for name in RECIPES.values()},
    }
    signatures = {name: describe(api) for name, api in apis.items()}

    for name in ("TransformerLayer", "autocast", "quantized_model_init"):
        setattr(te, name, Recorder(name, apis[name]))
    te.RotaryPositionEmbedding = Recorder("RotaryPositionEmbedding", apis["RotaryPositionEmbedding"], Dummy)
    te.checkpoint = Recorder("checkpoint", apis["checkpoint"], lambda function, hidden, **kwargs: function(hidden))
    for name in ("is_fp8_available", "is_mxfp8_available", "is_nvfp4_available"):
        setattr(te, name, Recorder(name, apis[name], lambda **kwargs: (False, "no GPU")))

    layers: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        with torch.device("meta"):
            plain = TransformerEngineBackend(None, high_precision_from=99)
            ours = TorchBackend().make_layer(shape, 0, 0.1, torch.float32)
            theirs = plain.make_layer(shape, 0, 0.1, torch.float32)
        layers[name] = {
            "te": layer_parameters(theirs),
            "torch": layer_parameters(ours),
            "interleaved": theirs.self_attention.qkv_weight_interleaved,
            "rotary_interleaved": theirs.self_attention.rotary_pos_interleaved,
            "extra_state": [k for k in theirs.state_dict() if k.endswith("_extra_state")],
        }

    shape = SHAPES["grouped"]
    hidden = torch.zeros(2, 8, shape.hidden_size)
    documents = Documents(torch.zeros(2, 8), torch.zeros(2, 8), torch.tensor([0, 8, 16], dtype=torch.int32), 8)
    forward = Recorder("TransformerLayer.forward", lambda *args, **kwargs: None, lambda states, **kwargs: states)
    bound = inspect.signature(apis["TransformerLayer.forward"])
    for precision in Precision:
        recipe = make_recipe(precision, Nvfp4Spec())
        if recipe is not None:
            Recorder.calls.append((RECIPES[precision], 0, _recipe_arguments(precision)))
        # The stub's enums are too poor for the constructors of other recipes' quantized weights; the calls are the same.
        for quantized in (False, True) if precision is Precision.MXFP8 else (False,):
            for packed in (False, True):
                backend = TransformerEngineBackend(
                    recipe, high_precision_from=1, packed=packed, quantized_weights=quantized
                )
                with torch.device("meta"):
                    layer = backend.make_layer(shape, 0, 0.0, torch.float32)
                with backend.step_context():
                    inputs = backend.layer_inputs(shape, hidden, documents if packed else None)
                    for index in (0, 1):  # quantized, and in the high-precision tail
                        result = backend.run_layer(layer, forward, index, hidden, inputs)
                        assert result.shape == hidden.shape
                    backend.recompute(lambda x: x, hidden, "full")
        if recipe is not None:
            assert backend_module.unavailable_reason(precision.value) == "no GPU"
    for name, count, keywords in Recorder.calls:
        if name == "TransformerLayer.forward":
            bound.bind(None, *range(count), **dict.fromkeys(keywords))

    modules = [m for m in theirs.modules() if isinstance(m, base)]
    Recorder.calls.append(("reset_parameters", 0, ["defer_init"]))
    Recorder.calls.append(("FusedAdam", 1, ["betas", "eps", "lr", "master_weights"]))
    import transformer_engine

    calls = sorted({(n, c, tuple(k)) for n, c, k in Recorder.calls})
    return {
        "version": transformer_engine.__version__,
        "signatures": signatures,
        "calls": calls,
        "layers": layers,
        "base_modules_per_layer": len(modules),
    }


def _recipe_arguments(precision: Precision) -> list[str]:
    if precision is Precision.NVFP4:
        return ["disable_2d_quantization", "disable_rht", "disable_stochastic_rounding"]
    return ["fp8_format"]


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)))
