"""Process 1 of the container, and the same command on a laptop: starts the workers, watches them, tells how it ended.

One worker per GPU (or `processes_per_instance` on a CPU), with the environment that torchrun would give them. The
launcher is the elastic agent itself: it asks workers to stop and waits for their checkpoint, where torchrun would
kill them after 30 seconds. Workers that fail for a reason with a remedy are started again on the same instance.
"""

from __future__ import annotations

from trainer.inbox import INBOX, Inbox

if __name__ == "__main__":
    INBOX.install()  # before the other imports, which take a while

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blackwell.findings import FindingsError
from blackwell.spec import ActivationCheckpointing
from blackwell.telemetry import format_event
from blackwell.trainer_config import TrainerConfig
from blackwell.verdict import EXIT_CODES, RULES, FailureRecord, Remedy, Verdict, less_memory
from trainer.hosts import (
    ENV_HOST,
    ENV_STORE_FD,
    Council,
    HostLostError,
    Hosts,
    count_gpus,
    find_hosts,
    listen,
    network_environment,
)
from trainer.judge import AGREED, first_line, judge
from trainer.settings import ENV_OVERRIDES, ENV_RESTART, Places, read_config
from trainer.signals import die_with_parent
from trainer.status import ENV_STATUS_DIR, STOP_FILE, read_statuses

STOP_GRACE_SECONDS = 112.0
"""SageMaker kills a container 120 s after SIGTERM; what is not saved by now is given up, and said."""
FAILURE_GRACE_SECONDS = 10.0
"""Time that the other ranks have to end by themselves after one failed."""
POLL_SECONDS = 0.1


@dataclass(slots=True)
class Start:
    """One start of this host's workers."""

    number: int
    folder: Path
    first_rank: int
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    signalled: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    """Ranks that the launcher itself had to kill."""

    def alive(self) -> list[int]:
        return [rank for rank, process in self.processes.items() if process.poll() is None]

    def failed(self) -> bool:
        """True when a worker ended badly, or says that it is about to."""
        if any(p.poll() not in (None, 0) for p in self.processes.values()):
            return True
        return any(s.verdict is not None and s.verdict not in AGREED for s in read_statuses(self.folder))

    def exit_codes(self) -> dict[int, int | None]:
        return {rank: None if rank in self.killed else p.poll() for rank, p in self.processes.items()}


class Launcher:
    """Runs one job on this host to its end."""

    def __init__(
        self, places: Places, config: TrainerConfig, hosts: Hosts, environment: Mapping[str, str], inbox: Inbox
    ) -> None:
        self.places, self.config, self.hosts = places, config, hosts
        self.environment = dict(environment)
        gpus = count_gpus(environment)
        self.workers = config.training.processes_per_instance or gpus or 1
        self.on_gpu = gpus > 0
        self.overrides: dict[str, Any] = {}
        self._inbox = inbox

    def run(self) -> FailureRecord:
        """Starts workers until they finish, are stopped, or fail beyond remedy."""
        council = Council(self.hosts)
        restarts = 0
        while True:
            record = council.agree(restarts, self._start_and_watch(restarts, council))
            remedy = self._remedy(record, restarts)
            if remedy is None or self._inbox.stop_at is not None:
                council.leave(restarts)
                return self._final(record)
            restarts += 1
            self.overrides |= remedy
            self._event(
                "restart",
                verdict=record.verdict.value,
                remedy=(Remedy.LESS_MEMORY if remedy else Remedy.RETRY_SAME).value,
                restart=restarts,
                overrides=self.overrides,
                cause=record.cause,
                step=record.step,
            )

    def _start_and_watch(self, restarts: int, council: Council) -> FailureRecord:
        with tempfile.TemporaryDirectory(prefix="blackwell-status-") as folder:
            start = self._start(restarts, Path(folder))
            try:
                self._watch(start, council)
            finally:
                self._kill(start)
            council.tell_end(restarts)
            return judge(read_statuses(start.folder), start.processes, start.exit_codes())

    def _start(self, restarts: int, folder: Path) -> Start:
        start = Start(restarts, folder, self.hosts.index * self.workers)
        server, port = None, self.hosts.port + restarts
        if self.hosts.count == 1:
            server = listen(0)
            port = server.getsockname()[1]
        elif self.hosts.index == 0:
            server = listen(port)
        environment = self.environment | network_environment(self.hosts)
        environment |= {
            "MASTER_ADDR": self.hosts.address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self.hosts.count * self.workers),
            "LOCAL_WORLD_SIZE": str(self.workers),
            "PYTHONUNBUFFERED": "1",
            ENV_HOST: self.hosts.names[self.hosts.index],
            ENV_STATUS_DIR: str(folder),
            ENV_RESTART: str(self._count_start()),
            ENV_OVERRIDES: json.dumps(self.overrides),
        }
        if not self.on_gpu:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.workers)))
        environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        for local in range(self.workers):
            rank = start.first_rank + local
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(local), ENV_STORE_FD: ""}
            inherited: tuple[int, ...] = ()
            if rank == 0 and server is not None:
                own[ENV_STORE_FD] = str(server.fileno())
                inherited = (server.fileno(),)
            start.processes[rank] = subprocess.Popen(
                [sys.executable, "-m", "trainer.train"],
                env=own,
                pass_fds=inherited,
                start_new_session=True,  # a signal to the launcher's group is the launcher's to pass on
                preexec_fn=die_with_parent,
            )
        if server is not None:
            server.close()
        return start

    def _count_start(self) -> int:
        """How often workers of this run were started before; kept beside the checkpoints, so that it survives a host."""
        path = self.places.checkpoints / ".starts"
        self.places.checkpoints.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError):
            before = int(path.read_text()) if path.exists() else 0
            if self.hosts.index == 0:
                path.write_text(str(before + 1))
            return before
        return 0

    def _watch(self, start: Start, council: Council) -> None:
        failed_at: float | None = None
        checked = 0.0
        while start.alive():
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if self._inbox.stop_at is not None:
                self._ask_to_stop(start)
                if self._inbox.impatient or now > self._inbox.stop_at + STOP_GRACE_SECONDS:
                    return
            if failed_at is None and (start.failed() or (now > checked + 2 and council.somewhere_ended(start.number))):
                failed_at = now
            if now > checked + 2:
                checked = now
            if failed_at is not None and now > failed_at + FAILURE_GRACE_SECONDS:
                return

    def _ask_to_stop(self, start: Start) -> None:
        """Signals each worker once, as soon as it says that it listens; the file is for those that do not yet."""
        (start.folder / STOP_FILE).touch()
        for status in read_statuses(start.folder):
            process = start.processes.get(status.rank)
            if process is not None and status.rank not in start.signalled and process.poll() is None:
                start.signalled.add(status.rank)
                process.send_signal(signal.SIGTERM)

    def _kill(self, start: Start) -> None:
        for rank in start.alive():
            start.killed.add(rank)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(start.processes[rank].pid, signal.SIGKILL)
        for process in start.processes.values():
            process.wait()

    def _remedy(self, record: FailureRecord, restarts: int) -> dict[str, Any] | None:
        """Training settings to change before another start; empty for the same again, None for no other start."""
        if restarts >= self.config.training.in_place_restarts or record.detail.get("host_lost"):
            return None
        remedies = RULES[record.verdict].remedies
        if Remedy.RETRY_SAME in remedies:
            return {}
        if Remedy.LESS_MEMORY not in remedies:
            return None
        detail = record.detail
        change = less_memory(
            str(detail.get("activation_checkpointing", ActivationCheckpointing.NONE.value)),
            int(detail.get("micro_batch_size", 1)),
        )
        if change is None:
            return None
        if "micro_batch_size" in change:  # more accumulation must not bring whole gradients with it
            change["parallel.accumulate"] = "sharded"
        # The global batch is pinned, also where the job left it to follow from the micro batch.
        return {**change, "global_batch_size": detail["global_batch_size"]}

    def _final(self, record: FailureRecord) -> FailureRecord:
        """Told to stop, the launcher never answers `completed` for less than all steps, nor blames the hardware."""
        if self._inbox.stop_at is None or record.verdict in (*AGREED, Verdict.DIVERGED, Verdict.OUT_OF_MEMORY):
            return record
        if record.verdict is Verdict.HARDWARE:
            cause = f"stopped before the checkpoint was complete ({record.cause})"
            return record.model_copy(update={"verdict": Verdict.STOPPED, "cause": cause})
        return record

    def _event(self, name: str, **fields: Any) -> None:
        print(format_event(name, self.config.run, 0, **fields), flush=True)


def write_failure(places: Places, record: FailureRecord) -> None:
    """Leaves the record where SageMaker reads a job's FailureReason from."""
    places.failure.parent.mkdir(parents=True, exist_ok=True)
    places.failure.write_text(record.encode())


def hold(root: Path) -> bool:
    """Keeps other launchers out of the folder until this process ends, however it ends; False where one is in it.

    Two would overwrite each other's checkpoints. A folder that cannot be held (none there, no locks) stops nobody.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY)  # closed by the end of the process; workers do not inherit it
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Runs the job of this container; returns the exit code that names the verdict."""
    INBOX.install()
    places = Places.from_environment(environment)
    if not hold(places.root):
        print(f"user_error: another launcher is at work in {places.root}", file=sys.stderr, flush=True)
        return EXIT_CODES[Verdict.USER_ERROR]
    places.failure.unlink(missing_ok=True)
    record = run(places, environment)
    if record.verdict is not Verdict.COMPLETED:
        write_failure(places, record)
        print(f"{record.verdict.value}: {record.cause}", file=sys.stderr, flush=True)
    return EXIT_CODES.get(record.verdict, EXIT_CODES[Verdict.USER_ERROR])


def run(places: Places, environment: Mapping[str, str]) -> FailureRecord:
    """Reads the settings and runs the job; whatever goes wrong in the launcher itself becomes a record, too."""
    try:
        config = read_config(places, environment)
        hosts = find_hosts(places, environment)
        return Launcher(places, config, hosts, environment, INBOX).run()
    except FindingsError as error:
        for finding in error.findings:
            print(finding.line(), file=sys.stderr, flush=True)
        return FailureRecord(verdict=Verdict.USER_ERROR, cause=error.findings[0].line())
    except HostLostError as error:
        return error.record()
    except Exception as error:
        traceback.print_exception(error)
        return FailureRecord(verdict=Verdict.USER_ERROR, cause=f"launcher: {first_line(error)}")


if __name__ == "__main__":
    sys.exit(main())
