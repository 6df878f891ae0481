"""What ends a run badly, and what the launcher does about it in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trainer_harness import ForkServer, Place, launched, numbers

from blackwell.verdict import EXIT_CODES, Verdict

pytestmark = pytest.mark.xdist_group("trainer-failures")


def test_out_of_memory_restarts_with_less_memory_and_the_same_tokens(place: Callable[..., Place]) -> None:
    job = place(micro_batch_size=4, global_batch_size=8, in_place_restarts=3, steps=6, checkpoint__interval_steps=2)
    fault = {"kind": "out_of_memory", "step": 3, "rank": 1, "until_micro_batch": 2, "bytes": 3 * 2**30}
    with launched(job, faults=[fault]) as run:
        assert run.wait() == 0, run.output.read_text()[-3000:]
        log = run.log()
    assert [e["overrides"] for e in log.of("restart")] == [
        {"activation_checkpointing": "full", "global_batch_size": 8},
        {
            "activation_checkpointing": "full",
            "global_batch_size": 8,
            "micro_batch_size": 2,
            "parallel.accumulate": "sharded",
        },
    ]
    assert {e["remedy"] for e in log.of("restart")} == {"less_memory"}
    assert [(e["step"], e["phase"], e["bytes"]) for e in log.of("out_of_memory")] == [(3, "step", 3 * 2**30)] * 2
    starts = log.of("start")
    assert [s["resumed_from_step"] for s in starts] == [None, 2, 2]
    assert [(s["micro_batch_size"], s["accumulation_steps"]) for s in starts] == [(4, 1), (4, 1), (2, 2)]
    assert {s["tokens_per_step"] for s in starts} == {8 * 64}
    assert [s["restart"] for s in starts] == [0, 1, 2]
    assert log.steps[-1].step == 6


def test_lost_rank_restarts_in_place_and_repeats_nothing_else(forks: ForkServer, place: Callable[..., Place]) -> None:
    expected = forks.run(place("whole", steps=6)).by_step()
    job = place("job", steps=6, checkpoint__interval_steps=2, in_place_restarts=1)
    with launched(job, faults=[{"kind": "kill", "step": 5, "rank": 1}]) as run:
        assert run.wait() == 0, run.output.read_text()[-3000:]
        log = run.log()
    restart = log.of("restart")[0]
    assert (restart["verdict"], restart["remedy"], restart["overrides"]) == ("hardware", "retry_same", {})
    assert "rank 1 was killed by signal 9" in restart["cause"]
    assert {step: numbers(r) for step, r in log.by_step().items()} == {s: numbers(r) for s, r in expected.items()}
    assert (job.root / "model" / "model.safetensors.index.json").is_file()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_rank_lost_inside_a_save_is_no_error_of_the_others(place: Callable[..., Place], asynchronous: bool) -> None:
    """They see the save fail; the lost rank is the reason, and the run goes on from the checkpoint before."""
    job = place(
        "job", steps=6, checkpoint__interval_steps=2, checkpoint__asynchronous=asynchronous, in_place_restarts=1
    )
    fault = {"kind": "kill", "phase": "save", "step": 4, "rank": 1}
    with launched(job, faults=[fault]) as run:
        assert run.wait() == 0, run.output.read_text()[-3000:]
        log = run.log()
    assert [(e["verdict"], e["remedy"]) for e in log.of("restart")] == [("hardware", "retry_same")]
    assert "rank 1 was killed by signal 9" in log.of("restart")[0]["cause"]
    assert log.steps[-1].step == 6


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_save_that_fails_once_costs_a_restart_and_not_the_run(
    place: Callable[..., Place], asynchronous: bool
) -> None:
    job = place(
        "job", steps=6, checkpoint__interval_steps=2, checkpoint__asynchronous=asynchronous, in_place_restarts=1
    )
    with launched(job, faults=[{"kind": "failed_save", "step": 4, "rank": 1}]) as run:
        assert run.wait() == 0, run.output.read_text()[-3000:]
        log = run.log()
    assert [(e["verdict"], e["remedy"]) for e in log.of("restart")] == [("hardware", "retry_same")]
    assert "rank 1: [Errno 5] Input/output error" in log.of("restart")[0]["cause"]
    assert log.of("start")[1]["resumed_from_step"] == 2
    assert log.steps[-1].step == 6


def test_nan_ends_before_the_optimizer_step(forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(checkpoint__interval_steps=2)
    workers = forks.start(job, faults=[{"kind": "nan", "step": 5, "rank": 1}])
    assert workers.wait() == [EXIT_CODES[Verdict.DIVERGED]] * 2, workers.output.read_text()[-3000:]
    log = workers.log()
    assert log.steps[-1].step == 4
    assert job.complete_steps() == [2, 4]
    assert log.of("diverged")[0]["step"] == 5
    ends = {(s.verdict, s.step, s.cause) for s in workers.statuses()}
    assert ends == {(Verdict.DIVERGED, 5, "step 5: loss is nan")}, "the step whose data the workflow leaves out"


def test_loss_spike_ends_the_run_after_patience(forks: ForkServer, place: Callable[..., Place]) -> None:
    spike = [{"kind": "loss", "step": step, "value": 1e7} for step in (10, 11)]
    job = place(steps=20, loss_spike__window_steps=8, loss_spike__patience_steps=2, checkpoint__interval_steps=5)
    workers = forks.start(job, faults=spike)
    assert workers.wait() == [EXIT_CODES[Verdict.DIVERGED]] * 2
    assert workers.log().steps[-1].step == 10
    assert "in a row above" in workers.statuses()[0].cause


def test_error_in_a_rank_is_a_user_error_with_its_first_line(place: Callable[..., Place]) -> None:
    job = place(in_place_restarts=3)
    fault = {"kind": "error", "step": 2, "rank": 1, "message": "the first line\nthe second"}
    with launched(job, faults=[fault]) as run:
        assert run.wait() == EXIT_CODES[Verdict.USER_ERROR]
        assert not run.log().of("restart")
    failure = job.failure()
    assert failure is not None
    assert (failure.verdict, failure.step, failure.rank) == (Verdict.USER_ERROR, 2, 1)
    assert failure.cause == "RuntimeError: the first line"


def test_findings_stop_the_job_before_any_worker(place: Callable[..., Place]) -> None:
    job = place(learning_rate="much", no_such_key=1)
    with launched(job) as run:
        assert run.wait() == EXIT_CODES[Verdict.USER_ERROR]
        text = run.output.read_text()
    assert "BTS-005" in text
    assert "BTS-003" in text
    failure = job.failure()
    assert failure is not None
    assert failure.verdict is Verdict.USER_ERROR


@pytest.mark.slow
def test_hang_is_noticed_dumped_and_restarted(place: Callable[..., Place]) -> None:
    job = place(steps=6, checkpoint__interval_steps=2, in_place_restarts=1, hang_timeout_seconds=10)
    with launched(job, faults=[{"kind": "hang", "step": 4, "rank": 1}]) as run:
        assert run.wait() == 0, run.output.read_text()[-3000:]
        log = run.log()
    assert log.of("restart")[0]["verdict"] == "hung"
    assert "before_step" in log.text  # the stack of the rank that hangs
    assert log.steps[-1].step == 6


@pytest.mark.slow
def test_killed_launcher_leaves_no_worker(place: Callable[..., Place]) -> None:
    import os
    import signal
    import time
    from pathlib import Path

    job = place(steps=5_000)
    with launched(job) as run:
        run.wait_for(lambda log: log.steps)
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(run.process.pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < end:
            time.sleep(0.1)
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
