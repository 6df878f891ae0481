"""Calculon (calculon-ai/calculon, SC23) on the rows that it models, beside the planner.

It is no package of an index, so the caller names a checkout: `python -m benchmarks.planner_calculon --calculon DIR --commit ID`. What it
answered is kept in results/planner_calculon.json, from where docs/planner.md shows it. It knows Megatron's execution
(tensor, pipeline and data ranks, full or no recomputation, optimizer sharding) in 16 bit on the A100 and H100 that it ships.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

from blackwell.evaluate import predict
from blackwell.planning.configuration import Configuration
from blackwell.planning.folds import stored_folds, unseen_constants
from blackwell.planning.table import Row, read_table, scored
from blackwell.spec import ActivationCheckpointing, Precision

TABLE = Path(__file__).parents[1] / "blackwell/planning/data/measured.csv"
RESULT = Path(__file__).parent / "results" / "planner_calculon.json"
SYSTEMS = {"A100-80GB": "a100_80g.json", "H100-80GB": "h100_80g_nvl8.json"}
STACKS = ("megatron", "megatron-deepspeed", "nemo", "nanotron")


def modelled(row: Row) -> bool:
    """True for rows that Calculon can describe."""
    c = row.configuration
    return (
        c is not None
        and c.stack in STACKS
        and c.gpu.name in SYSTEMS
        and c.precision in (Precision.BF16, Precision.FP16)
        and c.layout.zero <= 1
        and c.layout.context == 1
        and c.shape.num_hidden_layers % c.layout.pipeline == 0
        and float(c.accumulation).is_integer()
    )


def execution(c: Configuration) -> dict[str, Any]:
    """Calculon's execution file for a configuration."""
    node = 8
    tensor_net = 0 if c.layout.tensor <= node else 1
    return {
        "num_procs": c.layout.ranks, "tensor_par": c.layout.tensor, "pipeline_par": c.layout.pipeline, "data_par": c.layout.data,
        "tensor_par_net": tensor_net, "pipeline_par_net": 0 if c.layout.ranks <= node else 1,
        "data_par_net": 0 if c.layout.tensor * c.layout.data <= node else 1,
        "batch_size": int(c.micro_batch * c.accumulation) * c.layout.data, "microbatch_size": int(c.micro_batch),
        "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": "full" if c.checkpointing is ActivationCheckpointing.FULL else "none",
        "pipeline_interleaving": c.layout.virtual, "optimizer_sharding": c.layout.zero >= 1 and c.layout.data > 1,
        "tensor_par_comm_type": "rs_ag" if c.layout.sequence_parallel else "ar", "tensor_par_overlap": "none",
        "seq_par_ag_redo": False, "data_par_overlap": False, "weight_offload": False, "activations_offload": False,
        "optimizer_offload": False, "training": True,
    }  # fmt: skip


def application(c: Configuration) -> dict[str, Any]:
    """Calculon's model file; its feed-forward network has two matrices, so a gated one gets half as wide again."""
    s = c.shape
    width = int(s.intermediate_size * (1.5 if s.gated else 1))
    return {
        "hidden": s.hidden_size, "feedforward": width, "seq_size": c.seq_length, "attn_heads": s.num_attention_heads,
        "attn_size": s.head_dim, "num_blocks": s.num_hidden_layers,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calculon", type=Path, required=True, help="checkout of calculon-ai/calculon")
    parser.add_argument("--commit", required=True, help="its commit")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.calculon))
    sys.modules.setdefault("pandas", types.ModuleType("pandas"))  # only its search imports it
    from calculon.llm.llm import Llm  # type: ignore[import-not-found]
    from calculon.system import System  # type: ignore[import-not-found]

    systems = {
        gpu: System(json.loads((arguments.calculon / "systems" / name).read_text())) for gpu, name in SYSTEMS.items()
    }
    table = read_table(TABLE)
    constants = unseen_constants(table, stored_folds())
    rows: list[dict[str, Any]] = []
    refused = 0
    for row in scored(table):
        c = row.configuration
        if c is None or not modelled(row):
            continue
        try:
            model = Llm(Llm.Application(application(c)), logging.getLogger("calculon"))
            model.compile(systems[c.gpu.name], Llm.Execution.from_json(execution(c)))
            model.run(systems[c.gpu.name])
            seconds, gb = float(model.get_total_time()), float(model.get_mem_tier1_cap_req()) / 1e9
        except (Llm.Error, AssertionError, ZeroDivisionError):
            refused += 1
            continue
        ours = predict(row, constants[row.number])
        rows.append(
            {
                "line": row.number, "source": row.source,
                "memory": [gb * row.memory_unit, ours.memory, row.memory_gb] if row.memory_gb and row.uses & {"mem"} else None,
                "speed": [c.tokens_per_step / seconds / c.layout.ranks, ours.tokens_per_second, row.tokens_per_second]
                if row.tokens_per_second and "tps" in row.uses
                else None,
            }
        )  # fmt: skip
    document = {
        "benchmark": "planner_calculon",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "commit": arguments.commit,
        "refused": refused,
        "rows": rows,
    }
    RESULT.write_text(json.dumps(document, indent=0) + "\n", encoding="utf-8")
    for kind in ("memory", "speed"):
        known = [r[kind] for r in rows if r[kind]]
        for name, i in (("calculon", 0), ("planner", 1)):
            errors = sorted(abs(x[i] / x[2] - 1) for x in known)
            print(
                f"{kind} {name}: {len(errors)} rows, MAPE {100 * sum(errors) / len(errors):.1f} %, median {100 * errors[len(errors) // 2]:.1f} %"
            )
    print(f"refused {refused}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
