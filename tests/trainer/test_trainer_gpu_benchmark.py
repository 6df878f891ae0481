"""The GPU benchmark cannot run here; its cases can be checked as the trainer and the planner check them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import EXAMPLE, cases, hyperparameters, main, predict
from benchmarks.gpu.pieces import join, split
from blackwell.spec import Precision
from blackwell.trainer_config import from_hyperparameters
from trainer.precision import Hardware, check_precision
from trainer.settings import decide


def test_every_case_is_a_legal_job_that_the_planner_can_predict() -> None:
    b200 = Hardware(torch.device("cuda", 0), "NVIDIA B200", (10, 0))
    every = cases(list(Precision), 8)
    assert len(every) == 7 * len(Precision)
    for case in every:
        job = decide(from_hyperparameters(hyperparameters(case, "te"), {}), 8, {})
        assert check_precision(job.training, job.shape, job.micro_batch_size, job.seq_length, b200) == []
        predicted = predict(case, b200.name, 8)
        assert predicted is not None
        assert 0.5 < predicted < 180
        if case["name"] == "te-example":
            assert job.shape == EXAMPLE


def test_published_figures_are_predicted_within_a_tenth() -> None:
    """24 layers x 2048 in MXFP8 on eight GPUs: 15.5, 2.3 and 22.8 GB were published for B200."""
    found = [predict(c, "NVIDIA B200", 8) for c in cases([Precision.MXFP8], 8) if c["name"] == "te-example"]
    for predicted, published in zip(found, (15.5, 2.3, 22.8), strict=True):
        assert predicted is not None
        assert abs(predicted - published) / published < 0.1


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


def test_pieces_join_to_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "wheel.whl"
    source.write_bytes(bytes(range(256)) * 1_000)
    pieces = split(source, tmp_path / "pieces", size=100_000)
    assert [p.stat().st_size for p in pieces] == [100_000, 100_000, 56_000]
    assert join(tmp_path / "pieces", tmp_path / "joined") == [tmp_path / "joined" / "wheel.whl"]
    assert (tmp_path / "joined" / "wheel.whl").read_bytes() == source.read_bytes()
    pieces[1].write_bytes(b"x" * 100_000)
    with pytest.raises(ValueError, match=r"wheel\.whl"):
        join(tmp_path / "pieces", tmp_path / "joined")
