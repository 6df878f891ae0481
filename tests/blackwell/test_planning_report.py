"""The planner's page is what the code says, and our trainer's terms agree with torch's memory tracker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page_and_its_plots_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planner_report", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run `make planner-report`: {done.stdout}{done.stderr[-2000:]}"


def test_peers_answer_on_the_rows_they_model() -> None:
    from benchmarks.planner_peers import MEMORY_PEERS
    from blackwell.hardware import GPUS
    from blackwell.model import PRESETS
    from blackwell.planning.configuration import Configuration, Layout

    c = Configuration(
        shape=PRESETS["8b"], gpu=GPUS["H100-80GB"], stack="torchtitan", layout=Layout(data=8), seq_length=8192
    )
    n = PRESETS["8b"].num_parameters
    answers = {name: peer(c) for name, peer in MEMORY_PEERS.items()}
    assert answers["DeepSpeed model-states estimator"] == pytest.approx(
        (4 * PRESETS["8b"].embedding_parameters + 18 * n / 8) / 1e9
    )
    assert answers["accelerate estimate-memory"] == pytest.approx(2 * n / 1e9)
    parallel = Configuration(shape=PRESETS["8b"], gpu=GPUS["H100-80GB"], stack="nemo", layout=Layout(tensor=8, zero=1))
    assert MEMORY_PEERS["DeepSpeed model-states estimator"](parallel) is None
    assert MEMORY_PEERS["Megatron-LM theoretical memory"](parallel) is not None


TRACKED = """
from dataclasses import replace
from benchmarks.planner_tracker import Case, planned_peak_gb, start_fake_ranks, tracked_peak_gb
from blackwell.model import PRESETS
from blackwell.spec import ActivationCheckpointing
start_fake_ranks()
for kind in {kinds}:
    case = Case(replace(PRESETS["1b"], num_hidden_layers={layers}), {length}, 1, ActivationCheckpointing(kind))
    print(kind, planned_peak_gb(case), tracked_peak_gb(case))
"""


@pytest.mark.slow
def test_the_trainers_memory_agrees_with_torchs_tracker() -> None:
    for line in run(TRACKED.format(kinds=["none", "selective", "full"], layers=4, length=4096)).splitlines():
        kind, planned, tracked = line.split()
        assert float(planned) == pytest.approx(float(tracked), rel=0.10), kind
