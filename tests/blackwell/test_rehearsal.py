"""Rehearsals: the same job in small, and what its figures mean for the whole run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blackwell import cli
from blackwell.client import Progress, RunHandle, RunState
from blackwell.names import RUN_ID
from blackwell.planning import plan_job
from blackwell.rehearsal import MAX_SECONDS, MIN_STEPS, STEPS, rehearsal_name, rehearsal_spec, revise
from blackwell.runs import RunStatus
from blackwell.spec import JobSpec, load_job_spec

JOBS = sorted((Path(__file__).parents[2] / "examples" / "jobs").glob("*.json"))
TINY = Path(__file__).parents[2] / "examples" / "jobs" / "tiny-cpu.json"


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_example_can_be_rehearsed(path: Path) -> None:
    plan = plan_job(load_job_spec(path))
    small, whole = rehearsal_spec(plan), plan.resolved
    assert plan_job(small).ok
    entry = small.capacity[0]
    assert (entry.instance_count, entry.max_runtime_seconds) == (1, MAX_SECONDS)
    assert small.training.steps is not None
    long = plan.throughput is not None and STEPS * plan.throughput.step_seconds > MAX_SECONDS / 2
    assert MIN_STEPS <= small.training.steps < STEPS if long else small.training.steps == STEPS
    assert small.remedies.max_attempts == 1
    for name in ("precision", "micro_batch_size", "seq_length", "activation_checkpointing", "seed", "backend"):
        assert getattr(small.training, name) == getattr(whole.training, name)
    assert (small.model, small.data) == (whole.model, whole.data)
    if plan.cost.price_per_instance_hour and small.budget:
        assert small.budget.max_cost_usd <= plan.cost.price_per_instance_hour + 0.001


def test_half_the_speed_is_twice_the_time() -> None:
    path = next(p for p in JOBS if plan_job(load_job_spec(p)).throughput is not None)
    plan = plan_job(load_job_spec(path))
    rehearsed = plan_job(rehearsal_spec(plan))
    assert plan.throughput is not None
    assert rehearsed.throughput is not None
    speed = rehearsed.throughput.tokens_per_second
    as_predicted, half = (revise(plan, rehearsed, {"tokens_per_second": s}) for s in (speed, speed / 2))
    assert as_predicted.tokens_per_second == pytest.approx(plan.throughput.tokens_per_second)
    assert plan.tokens is not None
    assert as_predicted.expected_seconds is not None
    assert half.expected_seconds is not None
    added = half.expected_seconds - as_predicted.expected_seconds
    assert added == pytest.approx(plan.tokens / plan.throughput.tokens_per_second)
    nothing = revise(plan, rehearsed, {})
    assert (nothing.expected_seconds, nothing.expected_usd) == (None, None)


def test_names_of_rehearsals_are_legal() -> None:
    assert RUN_ID.match(rehearsal_name("x" * 80))
    assert rehearsal_name("mine") == "mine-rehearsal"


class PlayedClient:
    """Runs that end at once, the rehearsal as it was told to."""

    def __init__(self, rehearsal_ends: RunStatus, speed: float) -> None:
        self.submitted: list[tuple[str, JobSpec]] = []
        self._end, self._speed = rehearsal_ends, speed

    def submit(self, spec: JobSpec, run: str) -> RunHandle:
        self.submitted.append((run, spec))
        return RunHandle(run, "arn")

    def follow(self, run: str) -> Iterator[Progress]:
        yield Progress(run, "end", None, text="completed")

    def status(self, run: str) -> RunState:
        status = self._end if run.endswith("-rehearsal") else RunStatus.COMPLETED
        return RunState(run, status, "SUCCEEDED", None, None, (), cause="out of memory")

    def document(self, run: str, name: str) -> bytes:
        assert (run, name) == ("mine-rehearsal", "report.json")
        report = {"tokens_per_second": self._speed, "memory_peak_gb": 1.5, "first_loss": 8.0, "final_loss": 7.5}
        return json.dumps(report).encode()


def submit(played: PlayedClient, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    module: Any = sys.modules.get("blackwell.cli.submit") or __import__("blackwell.cli.submit", fromlist=["submit"])
    monkeypatch.setattr(module, "connect", lambda stage, profile, region: played)
    with pytest.raises(SystemExit) as ended:
        cli.main(["submit", str(TINY), "--rehearse", "--yes", "--run", "mine", *more])
    return int(ended.value.code or 0)


def test_the_whole_run_follows_a_good_rehearsal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = PlayedClient(RunStatus.COMPLETED, speed=2_000.0)
    assert submit(played, monkeypatch) == 0
    assert [name for name, _ in played.submitted] == ["mine-rehearsal", "mine"]
    assert [spec.training.steps for _, spec in played.submitted] == [STEPS, 200]
    out = capsys.readouterr().out
    assert "peak memory   1.5 GB" in out
    assert "2,000 tokens/s" in out


def test_nothing_follows_a_bad_rehearsal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    played = PlayedClient(RunStatus.FAILED, speed=0.0)
    assert submit(played, monkeypatch) == 3
    assert len(played.submitted) == 1
    assert "nothing else was started" in capsys.readouterr().err


def test_nothing_follows_a_rehearsal_that_breaks_the_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = PlayedClient(RunStatus.COMPLETED, speed=5.0)
    assert submit(played, monkeypatch) == 2
    assert len(played.submitted) == 1
    assert "over the budget" in capsys.readouterr().err
