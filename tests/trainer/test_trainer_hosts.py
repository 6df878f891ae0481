"""Several hosts, played on loopback by several launchers: they meet, agree on every end, and restart together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from trainer_harness import Launched, Place, launched, numbers

from blackwell.verdict import EXIT_CODES, Verdict

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trainer-hosts")]
SAVING: dict[str, Any] = {"checkpoint__interval_steps": 2, "checkpoint__asynchronous": False}


def two_free_ports() -> int:
    """A free port whose lower neighbour is free, too: rank 0's store and the hosts' own."""
    while True:
        with socket.socket() as upper, socket.socket() as lower, contextlib.suppress(OSError):
            upper.bind(("127.0.0.1", 0))
            port = int(upper.getsockname()[1])
            lower.bind(("127.0.0.1", port - 1))
            return port


@contextlib.contextmanager
def two_hosts(place: Callable[..., Place], faults: list[dict[str, Any]], **changes: Any) -> Iterator[list[Launched]]:
    extra = {"BLACKWELL_RENDEZVOUS": f"127.0.0.1:{two_free_ports()}"}
    with contextlib.ExitStack() as stack:
        runs = []
        for name in ("algo-1", "algo-2"):
            job = place(name, processes_per_instance=1, **changes)
            document = {"current_host": name, "hosts": ["algo-1", "algo-2"], "network_interface_name": "lo"}
            (job.root / "input" / "config" / "resourceconfig.json").write_text(json.dumps(document))
            runs.append(stack.enter_context(launched(job, faults=faults, extra=extra)))
        yield runs


def test_two_hosts_train_as_two_ranks_of_one_do(place: Callable[..., Place]) -> None:
    with launched(place("one", steps=4)) as run:
        assert run.wait() == 0
        expected = [numbers(r) for r in run.log().steps]
    with two_hosts(place, [], steps=4) as runs:
        assert [run.wait() for run in runs] == [0, 0]
        assert [numbers(r) for r in runs[0].log().steps] == expected
        assert not runs[1].log().steps
        assert runs[0].log().of("start")[0]["world_size"] == 2


def test_a_lost_rank_on_one_host_restarts_both(place: Callable[..., Place]) -> None:
    faults = [{"kind": "kill", "step": 4, "rank": 1}]
    with two_hosts(place, faults, steps=6, in_place_restarts=2, **SAVING) as runs:
        assert [run.wait() for run in runs] == [0, 0], runs[0].output.read_text()[-3000:]
        logs = [run.log() for run in runs]
    assert [log.of("restart")[0]["remedy"] for log in logs] == ["retry_same"] * 2
    assert logs[0].steps[-1].step == 6
    assert logs[0].of("start")[1]["resumed_from_step"] == 2


def test_out_of_memory_on_one_host_changes_both(place: Callable[..., Place]) -> None:
    faults = [{"kind": "out_of_memory", "step": 2, "rank": 1, "until_micro_batch": 1}]
    with two_hosts(place, faults, steps=3, activation_checkpointing="full", in_place_restarts=2) as runs:
        assert [run.wait() for run in runs] == [0, 0], runs[0].output.read_text()[-3000:]
        logs = [run.log() for run in runs]
    assert [log.of("restart")[0]["overrides"] for log in logs] == [
        {"micro_batch_size": 1, "global_batch_size": 8, "parallel.accumulate": "sharded"}
    ] * 2


def test_sigterm_on_one_host_stops_both(place: Callable[..., Place]) -> None:
    with two_hosts(place, [], steps=5_000) as runs:
        runs[0].wait_for(lambda log: len(log.steps) > 2)
        runs[1].process.send_signal(signal.SIGTERM)
        assert [run.wait() for run in runs] == [EXIT_CODES[Verdict.STOPPED]] * 2
        saved = runs[0].place.complete_steps()  # an ordinary one, too, where the signal came after its step
        assert saved == runs[1].place.complete_steps()
        assert saved[-1] == runs[0].log().steps[-1].step


def test_the_loss_of_the_first_host_ends_the_other_with_a_record(place: Callable[..., Place]) -> None:
    """It cannot go on alone, and the workflow must learn that it was the hardware."""
    with two_hosts(place, [], steps=5_000, in_place_restarts=2, **SAVING) as runs:
        runs[0].wait_for(lambda log: len(log.steps) > 2)
        os.killpg(runs[0].process.pid, signal.SIGKILL)
        assert runs[1].wait(90) == EXIT_CODES[Verdict.HARDWARE], runs[1].output.read_text()[-3000:]
        failure = runs[1].place.failure()
        assert not runs[1].log().of("restart")
    assert failure is not None
    assert failure.verdict is Verdict.HARDWARE
    assert failure.detail["host_lost"]
