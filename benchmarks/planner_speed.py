"""How fast the planner is: against torch's FSDPMemTracker on the same model, and over a grid of configurations.

Goals: one plan at least 1,000 times faster than the tracker's estimate, 10,000 configurations in about a second on one
core. `python -m benchmarks.planner_speed` prints the ratios and keeps results/planner_speed.json.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

from benchmarks.planner_tracker import Case, start_fake_ranks, tracked_peak_gb
from benchmarks.rounds import interleave, ratio, record
from blackwell.hardware import instance
from blackwell.model import PRESETS
from blackwell.planning import plan_job
from blackwell.planning.resolve import base_configuration, evaluate, place_of
from blackwell.spec import ActivationCheckpointing, JobSpec, parse_job_spec

ROUNDS = 5
CONFIGURATIONS = 10_000
COLD = (
    "import time; start = time.process_time()\n"
    "import blackwell.spec, json\n"
    "from blackwell.planning import plan_job\n"
    "plan_job(blackwell.spec.parse_job_spec(json.loads({document!r})))\n"
    "print(time.process_time() - start)"
)
DOCUMENT = (
    '{"model": "1b", "data": {"train": "s3://bucket/data/"}, "training": {"steps": 1000, "seq_length": 4096, "micro_batch_size": 1,'
    ' "activation_checkpointing": "full"}, "capacity": [{"kind": "on-demand"}]}'
)


def job() -> JobSpec:
    """The 1B model on one node."""
    import json

    return parse_job_spec(json.loads(DOCUMENT))


def main() -> int:
    start_fake_ranks()
    spec = job()
    case = Case(PRESETS["1b"], 4096, 1, ActivationCheckpointing.FULL)
    place = place_of(spec, spec.capacity[0], instance(spec.capacity[0].instance_type))
    base = base_configuration(spec, place)

    def plan() -> float:
        repeats = 20
        start = time.process_time()
        for _ in range(repeats):
            plan_job(spec)
        return (time.process_time() - start) / repeats

    def one() -> float:
        repeats = 2_000
        start = time.process_time()
        for i in range(repeats):
            evaluate(replace(base, micro_batch=1 + i % 8), place.limit_gb)
        return (time.process_time() - start) / repeats

    def tracker() -> float:
        start = time.process_time()
        tracked_peak_gb(case)
        return time.process_time() - start

    def grid() -> float:
        start = time.process_time()
        for i in range(CONFIGURATIONS):
            evaluate(replace(base, micro_batch=1 + i % 16, seq_length=1024 * (1 + i % 32)), place.limit_gb)
        return time.process_time() - start

    def cold() -> float:
        done = subprocess.run(
            [sys.executable, "-c", COLD.format(document=DOCUMENT)], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    def second() -> float:
        return 1.0

    measured = interleave(
        {
            "torch FSDPMemTracker estimate of 1B": tracker, "one configuration, memory and speed": one, "whole plan of 1B": plan,
            "10,000 configurations": grid, "import blackwell.spec and one plan, cold": cold, "one second": second,
        },
        ROUNDS,
    )  # fmt: skip
    ratios = [
        ratio(measured, "torch FSDPMemTracker estimate of 1B", "one configuration, memory and speed", ">=", 1_000),
        ratio(measured, "torch FSDPMemTracker estimate of 1B", "whole plan of 1B", ">=", 1_000),
        ratio(measured, "10,000 configurations", "one second", "<=", 1.0),
        ratio(measured, "import blackwell.spec and one plan, cold", "one second", "<=", 0.3),
    ]
    notes = "CPU seconds of one process; the whole plan searches micro batches and writes advice (about a hundred configurations)"
    return 0 if record("planner_speed", measured, ratios, unit="s", packages=("torch", "pydantic"), notes=notes) else 1


if __name__ == "__main__":
    sys.exit(main())
