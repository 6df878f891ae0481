"""Runs the trainer for tests: whole (`launch`, the real process 1) or as bare workers forked from a warm process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blackwell.telemetry import StepRecord, parse_event, parse_step
from blackwell.verdict import FailureRecord
from trainer.hosts import ENV_STORE_FD
from trainer.settings import ENV_OVERRIDES, ENV_RESTART
from trainer.status import ENV_STATUS_DIR, RankStatus, read_statuses

REPOSITORY = Path(__file__).parents[2]

TINY: dict[str, Any] = {
    "model.hidden_size": 64,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 2,
    "model.intermediate_size": 160,
    "model.vocab_size": 272,
    "precision": "fp32",
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "seq_length": 64,
    "steps": 12,
    "learning_rate": 0.003,
    "warmup_steps": 2,
    "processes_per_instance": 2,
    "checkpoint.interval_steps": 4,
    "in_place_restarts": 0,
}
"""About 0.13 million parameters, two ranks, two micro batches a step."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Log:
    """What a run printed."""

    text: str
    steps: list[StepRecord] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Log:
        log = cls(text)
        for line in text.splitlines():
            if (step := parse_step(line)) is not None:
                log.steps.append(step[1])
            elif (event := parse_event(line)) is not None:
                log.events.append((event[1], event[2]))
        return log

    def of(self, name: str) -> list[dict[str, Any]]:
        """Fields of every event of one name."""
        return [fields for event, fields in self.events if event == name]

    def by_step(self) -> dict[int, StepRecord]:
        """The last record of every step."""
        return {record.step: record for record in self.steps}


def numbers(record: StepRecord) -> tuple[Any, ...]:
    """All of a step that must not depend on interruptions, bit for bit."""
    assert record.loss is not None
    assert record.grad_norm is not None
    return (
        record.loss.hex(),
        record.grad_norm.hex(),
        record.learning_rate.hex(),
        record.tokens,
        record.data_order_hash,
    )


class Place:
    """One /opt/ml folder."""

    def __init__(self, root: Path, dataset: Path | None, hyperparameters: dict[str, Any]) -> None:
        self.root = root
        (root / "input" / "config").mkdir(parents=True, exist_ok=True)
        (root / "input" / "data").mkdir(parents=True, exist_ok=True)
        if dataset is not None and not (root / "input" / "data" / "train").exists():
            (root / "input" / "data" / "train").symlink_to(dataset)
        self.configure(hyperparameters)

    def configure(self, hyperparameters: dict[str, Any]) -> None:
        self.hyperparameters = hyperparameters
        encoded = {k: v if isinstance(v, str) else json.dumps(v) for k, v in hyperparameters.items()}
        (self.root / "input" / "config" / "hyperparameters.json").write_text(json.dumps(encoded))

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def complete_steps(self) -> list[int]:
        return sorted(int(p.parent.name[5:]) for p in self.checkpoints.glob("step-*/MANIFEST.json"))

    def failure(self) -> FailureRecord | None:
        path = self.root / "output" / "failure"
        return FailureRecord.decode(path.read_text()) if path.exists() else None

    def environment(self, faults: list[dict[str, Any]] | None, extra: dict[str, str] | None) -> dict[str, str]:
        variables = {"BLACKWELL_ML_ROOT": str(self.root), "BLACKWELL_TEST_FAULTS": json.dumps(faults or [])}
        return {**variables, "OMP_NUM_THREADS": "1", **(extra or {})}


class Forked:
    """Workers of one start, without a launcher."""

    def __init__(self, server: ForkServer, place: Place, world: int, faults: Any, extra: Any) -> None:
        self._server, self.place, self.world = server, place, world
        self.output = place.root / f"output-{time.monotonic_ns()}.log"
        self.status_folder = place.root / "status"
        self.status_folder.mkdir(exist_ok=True)
        for old in self.status_folder.iterdir():
            old.unlink()
        environment = {
            ENV_STATUS_DIR: str(self.status_folder),
            ENV_OVERRIDES: "{}",
            ENV_RESTART: "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            **place.environment(faults, extra),
        }
        self.output.touch()
        self.pids = [
            server.fork({**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, self.output)
            for rank in range(world)
        ]
        self._codes: list[int] | None = None

    def log(self) -> Log:
        return Log.parse(self.output.read_text(errors="replace"))

    def wait_for(self, condition: Callable[[Log], Any], seconds: float = 60) -> Log:
        """Waits until the log shows something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            log = self.log()
            if condition(log):
                return log
            time.sleep(0.03)
        raise AssertionError(f"not seen in {seconds} s:\n{self.output.read_text()[-3000:]}")

    def signal(self, number: int, ranks: list[int] | None = None) -> None:
        for rank in range(self.world) if ranks is None else ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def wait(self) -> list[int]:
        """Exit codes by rank. When one was killed, the others are killed too, as a launcher would."""
        if self._codes is None:
            codes: dict[int, int] = {}
            codes[0] = self._server.wait([self.pids[0]])[0] if self.world == 1 else self._first_end(codes)
            self._codes = [codes[rank] for rank in range(self.world)]
        return self._codes

    def _first_end(self, codes: dict[int, int]) -> int:
        while all(_running(pid) for pid in self.pids):
            time.sleep(0.02)
        end = time.monotonic() + 60
        while any(_running(pid) for pid in self.pids) and time.monotonic() < end:
            if any(not _running(p) for p in self.pids) and self._one_was_killed():
                self.signal(signal.SIGKILL)
            time.sleep(0.02)
        self.signal(signal.SIGKILL)
        for rank, code in enumerate(self._server.wait(self.pids)):
            codes[rank] = code
        return codes[0]

    def _one_was_killed(self) -> bool:
        ended = {s.rank for s in self.statuses() if s.verdict is not None}
        return any(not _running(pid) and rank not in ended for rank, pid in enumerate(self.pids))

    def statuses(self) -> list[RankStatus]:
        return read_statuses(self.status_folder)


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class ForkServer:
    """A warm process that workers are forked from; one per test process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "trainer_forkserver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        )

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def fork(self, environment: dict[str, str], output: Path) -> int:
        return int(self._ask({"environment": environment, "output": str(output)})["pid"])

    def wait(self, pids: list[int]) -> list[int]:
        codes: list[int] = self._ask({"wait": pids})["codes"]
        return codes

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()  # its children are gone; an interpreter full of torch takes seconds to leave by itself
        self._process.wait()

    def start(
        self,
        place: Place,
        *,
        world: int = 2,
        faults: list[dict[str, Any]] | None = None,
        extra: dict[str, str] | None = None,
    ) -> Forked:
        return Forked(self, place, world, faults, extra)

    def run(self, place: Place, **settings: Any) -> Log:
        """A start that must reach its end."""
        workers = self.start(place, **settings)
        codes = workers.wait()
        assert codes == [0] * workers.world, workers.output.read_text()[-4000:]
        return workers.log()


@dataclass
class Launched:
    """The real launcher on a folder."""

    place: Place
    process: subprocess.Popen[bytes]
    output: Path

    def log(self) -> Log:
        return Log.parse(self.output.read_text(errors="replace"))

    def wait_for(self, condition: Callable[[Log], Any], seconds: float = 90) -> Log:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            log = self.log()
            if condition(log):
                return log
            assert self.process.poll() is None, self.output.read_text()[-3000:]
            time.sleep(0.05)
        raise AssertionError(f"not seen in {seconds} s:\n{self.output.read_text()[-3000:]}")

    def wait(self, seconds: float = 120) -> int:
        return self.process.wait(timeout=seconds)


@contextlib.contextmanager
def launched(
    place: Place, *, faults: list[dict[str, Any]] | None = None, extra: dict[str, str] | None = None
) -> Iterator[Launched]:
    """Starts `python -m trainer.launch`; kills whatever is left of it at the end."""
    output = place.root / "launch.log"
    environment = {k: v for k, v in os.environ.items() if k not in (ENV_STORE_FD, ENV_STATUS_DIR)}
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.launch"],
            cwd=REPOSITORY,
            env={**environment, **place.environment(faults, extra)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Launched(place, process, output)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
