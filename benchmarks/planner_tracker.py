"""Peak memory of our own trainer by torch's FSDPMemTracker, without a GPU: an independent witness for the planner.

The trainer's model is built, sharded and stepped on fake CPU tensors in a fake process group of eight ranks, so attention
runs in FP32 as it does on CPU, and the planner is told so. What a GPU adds (allocator, workspaces, quantized copies) is not seen, so it is compared with the planner's allocated memory of the
variant with PyTorch layers. `python -m benchmarks.planner_tracker` prints the comparison and keeps it in
results/planner_tracker.json, from where docs/planner.md shows it.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from blackwell.hardware import GB, GPUS
from blackwell.model import PRESETS, ModelShape
from blackwell.planning.configuration import Configuration, Layout
from blackwell.planning.memory import memory
from blackwell.planning.stacks import constants
from blackwell.spec import ActivationCheckpointing, Precision

WORLD = 8
STACK = "blackwell-torch"
RESULT = Path(__file__).parent / "results" / "planner_tracker.json"


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration of the sample."""

    shape: ModelShape
    seq_length: int
    micro_batch: int
    checkpointing: ActivationCheckpointing

    def name(self) -> str:
        return f"{self.shape.num_parameters / 1e9:.2f} B, {self.micro_batch} x {self.seq_length}, {self.checkpointing}"

    def configuration(self) -> Configuration:
        return Configuration(
            shape=self.shape, gpu=GPUS["B200"], stack=STACK, layout=Layout(data=WORLD), precision=Precision.BF16,
            checkpointing=self.checkpointing, micro_batch=self.micro_batch, seq_length=self.seq_length, loss="chunked", attention_bytes=4,
        )  # fmt: skip


def sample() -> list[Case]:
    """Two shapes with few layers (layers are alike, so few tell as much as many), both kinds of checkpointing."""
    shapes = [replace(PRESETS["1b"], num_hidden_layers=8), replace(PRESETS["8b"], num_hidden_layers=4)]
    kinds = (ActivationCheckpointing.NONE, ActivationCheckpointing.SELECTIVE, ActivationCheckpointing.FULL)
    return [Case(shape, 4096, micro, kind) for shape, micro, kind in product(shapes, (1, 2), kinds)]


def tracked_peak_gb(case: Case) -> float:
    """Peak bytes per rank that the tracker sees in the second step, decimal GB."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh

    from blackwell.spec import ParallelSpec
    from trainer.model.torch_backend import TorchBackend
    from trainer.model.transformer import LanguageModel
    from trainer.parallel import adapt_layers, shard

    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("shard",))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = LanguageModel(case.shape, TorchBackend(), 0.0, "chunked")
        adapt_layers(model, case.checkpointing, compiled=False)
        shard(model, mesh, torch.bfloat16, ParallelSpec())
        # the tracker miscounts fused and foreach optimizers
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        tracker = FSDPMemTracker(model, optimizer)
        with tracker:
            tokens = torch.randint(0, case.shape.vocab_size, (case.micro_batch, case.seq_length))
            tracker.track_inputs((tokens, tokens))
            for step in range(2):
                model(tokens, tokens).scaled.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
        snapshot = tracker.get_tracker_snapshot("peak")
    return float(next(iter(snapshot.values()))["Total"]) / GB


def start_fake_ranks() -> None:
    """A process group of which only this rank exists."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)


def planned_peak_gb(case: Case) -> float:
    """The planner's allocated memory of the same configuration."""
    return memory(case.configuration(), constants(STACK).memory).allocated


def main() -> int:
    import torch

    start_fake_ranks()
    rows = []
    print(f"{'configuration':<36}{'planner GB':>12}{'tracker GB':>12}{'difference':>12}{'tracker s':>11}")
    for case in sample():
        started = time.perf_counter()
        tracked = tracked_peak_gb(case)
        seconds = time.perf_counter() - started
        planned = planned_peak_gb(case)
        rows.append({"configuration": case.name(), "planner_gb": planned, "tracker_gb": tracked})
        print(
            f"{case.name():<36}{planned:>12.2f}{tracked:>12.2f}{100 * (planned / tracked - 1):>11.1f}%{seconds:>11.1f}"
        )
    document = {
        "benchmark": "planner_tracker",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "torch": torch.__version__,
        "rows": rows,
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
