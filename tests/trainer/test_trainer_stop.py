"""Being told to stop: a complete checkpoint and the exit code that says so, wherever the run is at that moment."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from trainer_harness import ForkServer, Log, Place, launched

from blackwell.verdict import EXIT_CODES, Verdict

LONG: dict[str, Any] = {"steps": 5_000, "checkpoint__interval_steps": 5_000}
pytestmark = pytest.mark.xdist_group("trainer-stop")


def trained(log: Log, steps: int = 2) -> bool:
    return len(log.steps) >= steps


def test_sigterm_to_process_1_saves_and_tells(place: Callable[..., Place]) -> None:
    job = place(**LONG)
    with launched(job) as run:
        run.wait_for(trained)
        started = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == EXIT_CODES[Verdict.STOPPED]
        assert time.monotonic() - started < 30
        last = run.log().steps[-1].step
    assert job.complete_steps() == [last]
    failure = job.failure()
    assert failure is not None
    assert (failure.verdict, failure.step) == (Verdict.STOPPED, last)
    assert run.log().of("stop") == [{"reason": "SIGTERM", "step": last}]


def test_sigterm_in_a_slow_save_waits_for_it(place: Callable[..., Place]) -> None:
    """No rank is killed because a save takes long: the launcher's patience is SageMaker's, not torchrun's."""
    _stop_in_slow_save(place, seconds=3)


@pytest.mark.slow
def test_sigterm_survives_a_40_second_save(place: Callable[..., Place]) -> None:
    _stop_in_slow_save(place, seconds=40)


def _stop_in_slow_save(place: Callable[..., Place], seconds: float) -> None:
    job = place(**{**LONG, "checkpoint__asynchronous": False})
    faults = [{"kind": "slow_save", "step": 0, "seconds": seconds, "rank": rank} for rank in (0, 1)]
    with launched(job, faults=faults) as run:
        run.wait_for(trained)
        started = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == EXIT_CODES[Verdict.STOPPED]
        assert seconds <= time.monotonic() - started < seconds + 40
        assert job.complete_steps() == [run.log().steps[-1].step]


def test_sigterm_before_the_first_step_ends_without_a_checkpoint(place: Callable[..., Place]) -> None:
    job = place(**LONG)
    with launched(job) as run:
        time.sleep(0.7)  # the launcher listens, the workers are still importing
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == EXIT_CODES[Verdict.STOPPED]
        assert not run.log().steps
    assert job.complete_steps() == []


@pytest.mark.parametrize("where", ["one worker", "validation", "data wait", "save"])
def test_sigterm_to_workers(where: str, forks: ForkServer, place: Callable[..., Place]) -> None:
    changes: dict[str, Any] = dict(LONG)
    faults: list[dict[str, Any]] = []
    seen: Callable[[Log], Any] = trained
    if where == "validation":
        changes |= {"validation_interval_steps": 3, "validation_steps": 4}
        faults = [{"kind": "slow_validation", "step": 0, "seconds": 60, "rank": r} for r in (0, 1)]
        seen = lambda log: trained(log, 3)  # noqa: E731
    elif where == "data wait":
        faults = [{"kind": "slow_data", "step": 4, "seconds": 60, "rank": 1}]
        seen = lambda log: trained(log, 2)  # noqa: E731
    elif where == "save":
        changes |= {"checkpoint__interval_steps": 3}
        faults = [{"kind": "slow_save", "step": 0, "seconds": 1, "rank": r} for r in (0, 1)]
        seen = lambda log: trained(log, 3)  # noqa: E731
    job = place(**changes)
    workers = forks.start(job, faults=faults)
    workers.wait_for(seen)
    time.sleep(0.2)
    workers.signal(signal.SIGTERM, [1] if where == "one worker" else None)
    assert workers.wait() == [0, 0], workers.output.read_text()[-3000:]
    assert [s.verdict for s in workers.statuses()] == [Verdict.STOPPED] * 2
    assert job.complete_steps()[-1] == workers.log().steps[-1].step


def test_control_file_saves_and_stops(forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(**LONG)
    control = job.root / "control.json"
    control.write_text(json.dumps({"id": "old", "action": "stop_after_step", "step": 1}))
    extra = {"BLACKWELL_CONTROL_S3_URI": f"file://{control}", "BLACKWELL_CONTROL_POLL_SECONDS": "0.1"}
    workers = forks.start(job, extra=extra)
    workers.wait_for(trained)  # the old request stopped nothing
    control.write_text(json.dumps({"id": "a", "action": "checkpoint_now"}))
    log = workers.wait_for(lambda log: log.of("checkpoint"))
    control.write_text(json.dumps({"id": "b", "action": "profile"}))
    log = workers.wait_for(lambda log: log.of("profile"))
    assert log.of("profile")[0]["gemm_seconds"] > 0
    control.write_text(json.dumps({"id": "c", "action": "stop_after_step", "step": log.steps[-1].step + 20}))
    assert workers.wait() == [0, 0], workers.output.read_text()[-3000:]
    assert {s.verdict for s in workers.statuses()} == {Verdict.STOPPED}
    assert workers.log().steps[-1].step >= log.steps[-1].step
    assert job.complete_steps()[-1] == workers.log().steps[-1].step


@pytest.mark.parametrize("continues", [False, True])
def test_plan_end(continues: bool, forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(**{**LONG, "steps": 12})
    soon = str(int((time.time() + 1_700) * 1_000))  # under 30 minutes: the instances may go at any moment
    extra = {"SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP": soon}
    if continues:
        extra["BLACKWELL_PLAN_HAS_LATER_RESERVATION"] = "1"
    workers = forks.start(job, extra=extra)
    assert workers.wait() == [0, 0], workers.output.read_text()[-3000:]
    verdict = Verdict.COMPLETED if continues else Verdict.PLAN_ENDED
    assert {s.verdict for s in workers.statuses()} == {verdict}
    assert job.complete_steps()[0] == 1
    assert len(workers.log().steps) == (12 if continues else 1)
