"""One command for a GPU machine: `python -m benchmarks.gpu [--out results/gpu-<name>.json] [--te-example fsdp.py]`.

Runs the real launcher on all GPUs of this machine, in BF16 and in every quantized precision that the hardware and the
installed Transformer Engine have, on the layers of the 1b and 8b presets and on the case that NVIDIA's example times;
compares the peak memory with the planner's prediction and the logits of both backends; runs Transformer Engine's own
example beside it where its path is given. Needs no network and no data. Without Transformer Engine it runs PyTorch's
layers and says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import hardware
from blackwell.hardware import GPUS
from blackwell.model import PRESETS, ModelShape
from blackwell.planning.configuration import Configuration, Layout
from blackwell.planning.memory import memory
from blackwell.planning.stacks import constants
from blackwell.spec import ActivationCheckpointing, Precision
from blackwell.telemetry import parse_event, parse_step
from trainer.precision import Hardware, find_hardware

STEPS = 12
LAYERS = {"1b": 16, "8b": 8}
"""Layers of each preset that are run; a layer is like the next, and eight of the 8b fit on one GPU with their states."""
EXAMPLE = ModelShape(2_048, 24, 16, 16, 6_144, 0, head_dim=128).layers_workload()
"""Transformer Engine's FSDP example at `--num-layers 24`: 16 heads of 128, ffn 3 x hidden."""
STACK = "te-fsdp"
PARITY_LIMIT = 0.02
"""Relative difference of the logits of both backends in BF16 that rounding in another order explains."""


def cases(precisions: list[Precision], gpus: int) -> list[dict[str, Any]]:
    """Hyperparameters of every run."""
    found = []
    for precision in precisions:
        common = {"precision": precision.value, "steps": STEPS, "processes_per_instance": gpus}
        for preset, layers in LAYERS.items():
            for recompute in ("none", "full"):
                found.append(
                    {**common, "name": f"{preset}-layers", "model.preset": preset, "model.num_hidden_layers": layers,
                     "workload": "layers", "seq_length": 4_096, "micro_batch_size": 2, "activation_checkpointing": recompute}
                )  # fmt: skip
        for micro, recompute in ((1, "none"), (1, "full"), (16, "full")):
            found.append(
                {**common, "name": "te-example", "model.hidden_size": 2_048, "model.num_hidden_layers": 24,
                 "model.num_attention_heads": 16, "model.head_dim": 128, "model.intermediate_size": 6_144,
                 "workload": "layers", "seq_length": 8_192, "micro_batch_size": micro, "dropout": 0.1,
                 "activation_checkpointing": recompute}
            )  # fmt: skip
    return found


def hyperparameters(case: dict[str, Any], backend: str) -> dict[str, str]:
    """What the launcher reads for a case."""
    settings = {k: v for k, v in case.items() if k != "name"} | {
        "backend": backend, "loss_spike": None, "profile_steps": [8, 10], "checkpoint.interval_steps": 10_000,
        "in_place_restarts": 0, "hang_timeout_seconds": 600,
    }  # fmt: skip
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}


def run(case: dict[str, Any], backend: str) -> dict[str, Any]:
    """One run of the real launcher; speed, peak memory, the planner's prediction."""
    settings = hyperparameters(case, backend)
    with tempfile.TemporaryDirectory(prefix="gpu-benchmark-") as folder:
        config = Path(folder) / "input" / "config"
        config.mkdir(parents=True)
        (config / "hyperparameters.json").write_text(json.dumps(settings))
        started = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "trainer.launch"],
            env={**os.environ, "BLACKWELL_ML_ROOT": folder},
            capture_output=True,
            text=True,
            timeout=900,
        )
    steps = [s[1] for line in result.stdout.splitlines() if (s := parse_step(line)) is not None]
    events = {e[1]: e[2] for line in result.stdout.splitlines() if (e := parse_event(line)) is not None}
    measured: dict[str, Any] = {"case": case, "backend": backend, "exit_code": result.returncode,
                                "wall_seconds": round(time.perf_counter() - started, 1)}  # fmt: skip
    if result.returncode or not steps:
        return {**measured, "error": result.stderr[-2_000:]}
    peak = max(s.memory_allocated_peak_gb or 0.0 for s in steps)
    predicted = predict(case, torch.cuda.get_device_name(0), torch.cuda.device_count())
    return {
        **measured,
        "tokens_per_second": events["finish"]["tokens_per_second"],
        "tokens_per_second_with_warm_up": events["finish"]["tokens_per_second_with_warm_up"],
        "first_step_seconds": events["finish"]["first_step_seconds"],
        "mfu_percent": steps[-1].mfu_percent,
        "memory_allocated_peak_gb": peak,
        "memory_reserved_peak_gb": max(s.memory_reserved_peak_gb or 0.0 for s in steps),
        "planner_allocated_gb": predicted,
        "planner_error_percent": 100 * (predicted - peak) / peak if predicted and peak else None,
        "profile": events.get("profile"),
    }


def predict(case: dict[str, Any], gpu_name: str, gpus: int) -> float | None:
    """The planner's allocated peak in GB of 10^9 bytes; None for a GPU that it does not know.

    Its stack is that of Transformer Engine's example, whose case workload `layers` is: BF16 parameters and states.
    """
    gpu = next((g for g in GPUS.values() if g.name.split("-")[0] in gpu_name.split()), None)
    if gpu is None:
        return None
    preset = case.get("model.preset")
    shape = EXAMPLE
    if preset is not None:
        shape = replace(PRESETS[preset], num_hidden_layers=case["model.num_hidden_layers"]).layers_workload()
    configuration = Configuration(
        shape=shape,
        gpu=gpu,
        stack=STACK,
        layout=Layout(data=gpus),
        precision=Precision(case["precision"]),
        checkpointing=ActivationCheckpointing(case["activation_checkpointing"]),
        micro_batch=case["micro_batch_size"],
        seq_length=case["seq_length"],
        dropout=bool(case.get("dropout")),
    )
    return memory(configuration, constants(STACK).memory).allocated


def parity() -> dict[str, Any]:
    """Relative difference of the logits of both backends with the same weights, in BF16, quantization off."""
    from blackwell.spec import ActivationCheckpointing as Recompute
    from trainer.model.initialize import initialize
    from trainer.model.te_backend import TransformerEngineBackend
    from trainer.model.torch_backend import TorchBackend
    from trainer.model.transformer import LanguageModel
    from trainer.parallel import adapt_layers

    shape = replace(PRESETS["1b"], num_hidden_layers=4)
    tokens = torch.randint(0, shape.vocab_size, (2, 1_024), device="cuda")
    logits = []
    for backend in (TorchBackend(), TransformerEngineBackend(None, high_precision_from=shape.num_hidden_layers)):
        with torch.device("cuda"):
            model = LanguageModel(shape, backend, 0.0, "chunked")
        adapt_layers(model, Recompute.NONE, compiled=False)
        initialize(model, 1, shape.num_hidden_layers)
        model.to(torch.bfloat16).eval()
        with torch.no_grad():
            logits.append(model(tokens, None).float())
    difference = ((logits[0] - logits[1]).norm() / logits[0].norm()).item()
    return {"relative_difference": difference, "limit": PARITY_LIMIT, "holds": difference <= PARITY_LIMIT}


def example(path: Path, precision: Precision) -> dict[str, Any]:
    """Transformer Engine's own script on its own case: mean step time over its iterations, first one included."""
    options = ["--num-layers", "24", "--batch-size", "1", "--seq-length", "8192", "--num-iters", str(STEPS)]
    options += ["--no-fp8", "--dtype", "bf16"] if precision is Precision.BF16 else ["--precision", precision.value]
    command = ["torchrun", "--standalone", f"--nproc-per-node={torch.cuda.device_count()}", str(path), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    times = re.findall(r"([0-9.]+)\s*(?:s|sec)", result.stdout)
    return {
        "command": " ".join(command[2:]),
        "exit_code": result.returncode,
        "output": result.stdout[-1_500:],
        "times": times,
    }


def supported(found: Hardware) -> tuple[str, list[Precision]]:
    """The backend and the precisions that this machine runs."""
    try:
        from trainer.model.te_backend import unavailable_reason
    except (ImportError, RuntimeError, OSError) as error:
        print(f"without Transformer Engine: {str(error).splitlines()[0]}", file=sys.stderr)
        return "torch", [Precision.BF16]
    quantized = [
        p
        for p in (Precision.FP8, Precision.FP8_DELAYED, Precision.MXFP8, Precision.NVFP4)
        if unavailable_reason(p) is None
    ]
    return "te", [Precision.BF16, *quantized]


def main(arguments_given: list[str] | None = None) -> int:
    """Runs everything and writes one JSON document; not zero when a run failed or the backends disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "gpu.json")
    parser.add_argument(
        "--te-example", type=Path, help="examples/pytorch/fsdp/fsdp.py of Transformer Engine, from 2.14 on"
    )
    arguments = parser.parse_args(arguments_given)
    if not torch.cuda.is_available():
        print("benchmarks.gpu needs a CUDA device; there is none here", file=sys.stderr)
        return 2
    backend, precisions = supported(find_hardware(0))
    document: dict[str, Any] = {
        "benchmark": "gpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "backend": backend,
        "runs": [run(case, backend) for case in cases(precisions, torch.cuda.device_count())],
    }
    if backend == "te":
        import transformer_engine

        document["versions"]["transformer_engine"] = transformer_engine.__version__
        document["parity"] = parity()
        document["torch_layers"] = [run(case, "torch") for case in cases([Precision.BF16], torch.cuda.device_count())]
    if arguments.te_example:
        document["te_example"] = [
            example(arguments.te_example, p) for p in precisions if p is not Precision.FP8_DELAYED
        ]
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    failed = [r for r in document["runs"] if r["exit_code"]]
    print(f"{len(document['runs'])} runs, {len(failed)} failed; results in {arguments.out}")
    return 1 if failed or not document.get("parity", {}).get("holds", True) else 0


if __name__ == "__main__":
    sys.exit(main())
