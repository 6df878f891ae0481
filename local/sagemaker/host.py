"""Runs training jobs: instances, disks, containers, sync, and how each of them ends."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from blackwell.names import RUN_TAG
from blackwell.telemetry import TRAINING_LOG_GROUP, parse_step
from blackwell.trainer_config import ENV_ML_ROOT
from local.docker_shim.store import Image
from local.faults.engine import FaultEngine
from local.faults.model import TIMED, WITHOUT_CONTAINER, Fault, HostLost, Interruption, Kill, MoveClock, Stop
from local.overlay.context import OverlayContext
from local.sagemaker import sync
from local.sagemaker.container import Container
from local.sagemaker.disk import Disk, shares
from local.sagemaker.jobs import Job, Status
from local.sagemaker.plans import Plan, PlanStore

log = logging.getLogger("local.sagemaker")

STOP_SECONDS = 120.0
"""Between SIGTERM and SIGKILL, as StopTrainingJob, MaxRuntime and the spot notice have it."""
PHASE_SECONDS = 0.15
"""Start-up of an instance here; on AWS minutes."""
CAPACITY_RETRY_SECONDS = 1.0
PEER_GRACE_SECONDS = 5.0
"""After one host failed the others get this long to say why they failed as well."""
_POLL_SECONDS = 0.1

CAPACITY_ERROR = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
SPOT_RETRYING = "Insufficient capacity error from EC2 while launching instances, retrying!"
INTERNAL_ERROR = "InternalServerError: We encountered an internal error. Please try again."
ENV_RENDEZVOUS = "BLACKWELL_RENDEZVOUS"
"""Where hosts that share one machine meet (trainer/hosts.py): outside SageMaker nothing resolves `algo-1`."""
ENV_PLAN_END = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"


@dataclass(frozen=True)
class Exited:
    """A container's end, told to its job's thread."""

    start: int
    host: int
    code: int


@dataclass(frozen=True)
class End:
    """How one start of a job ended. `again`: the secondary status through which the same job starts once more."""

    status: Status = Status.FAILED
    secondary: str = "Failed"
    failure: str | None = None
    message: str | None = None
    again: str | None = None
    back_after: float | None = 0.0


@dataclass
class Ending:
    """Why a running container is being ended, and until when it may take."""

    secondary: str
    deadline: float
    back_after: float | None = 0.0
    lost: bool = False


class Host:
    """The machinery that every job shares."""

    def __init__(self, context: OverlayContext, faults: FaultEngine, plans: PlanStore) -> None:
        self.context, self.faults, self.plans = context, faults, plans
        self._s3: Any = None
        self._lock = threading.Lock()
        self._containers: set[Container] = set()

    @property
    def s3(self) -> Any:
        """One client for all threads: making one costs a quarter of a second."""
        with self._lock:
            if self._s3 is None:
                self._s3 = self.context.client("s3")
            return self._s3

    def start(self, job: Job, image: Image) -> None:
        """Run the job in a thread of its own, to its end."""
        self.context.spawn(JobRun(self, job, image).run, name=f"job-{job.name}")

    def track(self, container: Container) -> None:
        with self._lock:
            self._containers.add(container)

    def forget(self, container: Container) -> None:
        with self._lock:
            self._containers.discard(container)

    def kill_everything(self) -> None:
        """The server stops: no container outlives it."""
        with self._lock:
            running = list(self._containers)
        for container in running:
            container.kill()
        for container in running:
            container.wait(2.0)


class JobRun:
    """One job from its first start to its end."""

    def __init__(self, host: Host, job: Job, image: Image) -> None:
        self.host, self.job, self.image = host, job, image
        self.clock = host.context.clock
        self.folder = host.context.work_dir / "jobs" / job.name
        self.step: int | None = None
        self.created = time.monotonic()
        self.happened: set[int] = set()
        """Faults that this start of the job has had."""
        self.starts = 0
        self.plan = self._plan()
        self._log_epoch = 0
        self._rendezvous = ""
        self._log_gate = threading.Lock()

    def run(self) -> None:
        """Never raises: whatever goes wrong in here is what SageMaker calls an internal error."""
        try:
            self._run()
        except Exception:
            log.exception("training job %s", self.job.name)
            self.job.transition(Status.FAILED, "Failed", failure=INTERNAL_ERROR)

    def _run(self) -> None:
        retries = self.job.record.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0)
        back_after: float | None = 0.0
        while True:
            end = self._instances(back_after) or self._one_start()
            if end.again == "Restarting":
                if retries <= 0:
                    end = End(failure=INTERNAL_ERROR)
                retries -= 1
            if end.again is None:
                self.job.transition(end.status, end.secondary, message=end.message, failure=end.failure)
                return
            self.job.transition(Status.IN_PROGRESS, end.again)
            back_after = end.back_after
            if end.again == "Interrupted" and self.plan is None and back_after is not None:
                self._sleep(back_after)
            if end.again == "Interrupted" and back_after is not None:
                self.job.transition(Status.IN_PROGRESS, "Starting")

    # ---- instances

    def _plan(self) -> Plan | None:
        arn = self.job.record["ResourceConfig"].get("TrainingPlanArn")
        return self.host.plans.of_arn(arn) if arn else None

    def _instances(self, back_after: float | None) -> End | None:
        """Wait until the job has instances; the end of the job when it gets none."""
        pending_since: float | None = None
        pending_limit = self.job.record["StoppingCondition"].get("MaxPendingTimeInSeconds")
        self._sleep(PHASE_SECONDS)
        while True:
            for fault in self._due(WITHOUT_CONTAINER):
                self._do(fault, [])
            if end := self._stopped_while_waiting():
                return end
            if self.plan is not None:
                now = self.clock.now()
                if self.plan.status(now) in ("Expired", "Failed"):
                    return End(Status.STOPPED, "Stopped", message="The training plan has no capacity left")
                if self.plan.window(now) and self.host.plans.take(self.plan, self.job.name, self.job.instance_count):
                    return None
                if not self.plan.window(now):
                    pending_since = None  # before a reservation and between two the limit does not run
                elif pending_since is None:
                    pending_since = now
                if pending_limit and pending_since is not None and now - pending_since > pending_limit:
                    return End(Status.STOPPED, "Stopped", message="Training job pending time exceeded")
                if self._secondary() != "Pending":
                    self.job.transition(Status.IN_PROGRESS, "Pending")
            elif back_after is not None and self.host.faults.has_capacity(
                self.job.name, self.job.instance_type, self.job.spot
            ):
                return None
            elif not self.job.spot:
                return End(failure=CAPACITY_ERROR)
            elif self._secondary() == "Starting":
                self.job.transition(Status.IN_PROGRESS, "Starting", message=SPOT_RETRYING)
            self._sleep(CAPACITY_RETRY_SECONDS)

    def _secondary(self) -> str:
        return str(self.job.record["SecondaryStatus"])

    def _stopped_while_waiting(self) -> End | None:
        if self.job.stop_requested.is_set():
            return End(Status.STOPPED, "Stopped")
        if self._wait_exceeded():
            return End(Status.STOPPED, "MaxWaitTimeExceeded")
        return None

    def _wait_exceeded(self) -> bool:
        limit = self.job.record["StoppingCondition"].get("MaxWaitTimeInSeconds")
        return limit is not None and self.clock.now() - self.job.record["CreationTime"] > limit

    def _sleep(self, seconds: float) -> None:
        """On the server's clock; a stop ends it early."""
        self.clock.wait_until(self.clock.monotonic() + seconds, self.job.stop_requested)

    # ---- one start

    def _one_start(self) -> End:
        self.starts += 1
        start, self.step = self.starts, None
        self.happened.clear()
        self.job.start_billing()
        disks = [Disk(self.folder / f"start-{start}" / f"algo-{n}") for n in range(1, self.job.instance_count + 1)]
        syncs: list[sync.CheckpointSync] = []
        containers: list[Container] = []
        try:
            self.job.transition(Status.IN_PROGRESS, "Downloading")
            try:
                self._download(disks)
            except Exception as error:
                return End(failure=f"ClientError: Data download failed:{error}")
            syncs = self._sync(disks)
            if end := self._stopped_while_waiting():
                return end
            self.job.transition(Status.IN_PROGRESS, "Training")
            self._rendezvous = f"127.0.0.1:{_free_port()}"
            containers = [self._container(start, index, disk) for index, disk in enumerate(disks)]
            codes, ending = self._attend(start, containers, syncs)
            return self._wind_up(disks, syncs, codes, ending)
        finally:
            for container in containers:
                container.kill()
                container.wait(10)
                self.host.forget(container)
            for one in syncs:
                one.stop(final=False)
            if self.plan is not None:
                self.host.plans.release(self.plan, self.job.name)
            self.job.stop_billing()
            for disk in disks:
                disk.discard()

    def _download(self, disks: list[Disk]) -> None:
        for index, disk in enumerate(disks):
            disk.prepare(self.job, index)
            for channel in self.job.record.get("InputDataConfig", []):
                share, parts = shares(channel, index, len(disks))
                folder = disk.root / "input" / "data" / channel["ChannelName"]
                folder.mkdir()
                sync.download(
                    self.host.s3, channel["DataSource"]["S3DataSource"]["S3Uri"], folder, share=share, shares=parts
                )

    def _sync(self, disks: list[Disk]) -> list[sync.CheckpointSync]:
        config = self.job.record.get("CheckpointConfig")
        if not config:
            return []
        made = [
            sync.CheckpointSync(
                self.host.s3,
                config["S3Uri"],
                disk.path(config["LocalPath"]),
                faults=self.host.faults,
                job=self.job.name,
                host=number,
            )
            for number, disk in enumerate(disks, 1)
        ]
        for one in made:
            one.start(self.host.context.spawn)
        return made

    def _container(self, start: int, index: int, disk: Disk) -> Container:
        algorithm = self.job.record["AlgorithmSpecification"]
        command = self.image.command(algorithm.get("ContainerEntrypoint"), algorithm.get("ContainerArguments"))
        stream = f"{self.job.name}/algo-{index + 1}-{self._next_epoch(index)}"
        container = Container(
            command,
            cwd=self.image.working_directory,
            environment=self._environment(disk),
            on_lines=lambda lines: self._take_lines(stream, lines),
            on_exit=lambda code: self.job.commands.put(Exited(start, index, code)),
            spawn=self.host.context.spawn,
        )
        self.host.track(container)
        return container

    def _next_epoch(self, index: int) -> int:
        """The number at the end of a stream's name; every start of the job has its own."""
        if index == 0:
            self._log_epoch = max(int(time.time()), self._log_epoch + 1)
        return self._log_epoch

    def _environment(self, disk: Disk) -> dict[str, str]:
        """What SageMaker sets, what the image and the request set, and the way to this server."""
        for folder in ("home", "tmp"):
            (disk.root / folder).mkdir(exist_ok=True)
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": str(disk.root / "home"),
            "TMPDIR": str(disk.root / "tmp"),
            "LANG": "C.UTF-8",
            "OMP_WAIT_POLICY": "PASSIVE",  # jobs share this machine's cores: a thread that waits gives its core away
            **self.image.environment(),
            **self.job.record.get("Environment", {}),
            "TRAINING_JOB_NAME": self.job.name,
            "TRAINING_JOB_ARN": self.job.arn,
            **self.host.context.credentials(),
            ENV_ML_ROOT: str(disk.root),
            **self.host.faults.trainer_environment(self.job.name),
        }
        if self.job.instance_count > 1:
            environment[ENV_RENDEZVOUS] = self._rendezvous
        if self.plan is not None and (window := self.plan.window(self.clock.now())):
            environment[ENV_PLAN_END] = str(int(window[1] * 1000))
        return environment

    def _take_lines(self, stream: str, lines: list[str]) -> None:
        with self._log_gate:
            self.host.context.put_log(TRAINING_LOG_GROUP, stream, lines)
            self.job.metrics.take(lines)
        for line in lines:
            if parsed := parse_step(line):
                self.step = parsed[1].step
                self.job.commands.put(None)  # a fault may wait for this step

    # ---- while it runs

    def _attend(
        self, start: int, containers: list[Container], syncs: list[sync.CheckpointSync]
    ) -> tuple[dict[int, int], Ending | None]:
        """Watch the containers until all have exited. Returns exit codes by host, and why they were ended if so."""
        codes: dict[int, int] = {}
        ending: Ending | None = None
        give_up: float | None = None
        while len(codes) < len(containers):
            with contextlib.suppress(queue.Empty):
                message = self.job.commands.get(timeout=_POLL_SECONDS)
                if isinstance(message, Exited) and message.start == start:
                    codes[message.host] = message.code
                    if message.code and give_up is None:
                        give_up = time.monotonic() + PEER_GRACE_SECONDS
            asked = self._ending(ending, containers, syncs)
            if asked is not None and asked is not ending:
                ending = asked
                for container in containers:
                    container.kill() if ending.lost else container.terminate()
            late = ending is not None and self.clock.monotonic() >= ending.deadline
            if late or (give_up is not None and time.monotonic() >= give_up):
                for container in containers:
                    container.kill()
        return codes, ending

    def _ending(
        self, current: Ending | None, containers: list[Container], syncs: list[sync.CheckpointSync]
    ) -> Ending | None:
        """Why the containers have to end now; `current` where nothing new has come up."""
        deadline = self.clock.monotonic() + STOP_SECONDS
        if any(one.died.is_set() for one in syncs) and not (current and current.lost):
            return Ending("Interrupted", deadline, lost=True)
        if self.job.stop_requested.is_set() and (current is None or current.secondary == "Interrupted"):
            return Ending("Stopped", deadline)
        if current is None:
            if self.job.seconds_run() > self.job.record["StoppingCondition"]["MaxRuntimeInSeconds"]:
                return Ending("MaxRuntimeExceeded", deadline)
            if self._wait_exceeded():
                return Ending("MaxWaitTimeExceeded", deadline)
            if self.plan is not None and not self.plan.window(self.clock.now()):
                return Ending("Interrupted", deadline)
        for fault in self._due():
            if isinstance(fault, Interruption):
                current = Ending(
                    "Interrupted",
                    self.clock.monotonic() + fault.notice_seconds,
                    fault.back_after_seconds,
                    lost=fault.notice_seconds == 0,
                )
            elif isinstance(fault, HostLost):
                current = Ending("Interrupted", deadline, lost=True)
            else:
                self._do(fault, containers)
        return current

    def _due(self, kinds: tuple[type, ...] = TIMED) -> list[Fault]:
        return self.host.faults.due(
            self.job.name, self.step, time.monotonic() - self.created, self.happened, self._secondary(), kinds
        )

    def _do(self, fault: Fault, containers: list[Container]) -> None:
        if isinstance(fault, Kill):
            processes = [p for container in containers for p in container.processes()]
            if fault.target == "worker":
                processes = [p for p in processes if _variable(p, "RANK") == str(fault.rank)]
            for process in processes[:1]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        elif isinstance(fault, MoveClock):
            self.clock.advance(fault.by_seconds)
        elif isinstance(fault, Stop) and fault.what == "job":
            request_stop(self.job)
        elif isinstance(fault, Stop):
            self.host.context.spawn(self._stop_execution, name="stop-execution")

    def _stop_execution(self) -> None:
        run = self.job.tags.get(RUN_TAG)
        states = self.host.context.client("stepfunctions")
        for machine in states.list_state_machines()["stateMachines"]:
            running = states.list_executions(stateMachineArn=machine["stateMachineArn"], statusFilter="RUNNING")
            for execution in running["executions"]:
                if execution["name"] == run:
                    states.stop_execution(executionArn=execution["executionArn"], error="Stopped", cause="injected")

    # ---- after it ran

    def _wind_up(
        self, disks: list[Disk], syncs: list[sync.CheckpointSync], codes: Mapping[int, int], ending: Ending | None
    ) -> End:
        lost = ending is not None and ending.lost
        interrupted = ending is not None and ending.secondary == "Interrupted"
        finished = not lost and all(code == 0 for code in codes.values())
        if lost:
            for one in syncs:
                one.stop(final=False)
        else:
            left = max(0.0, ending.deadline - self.clock.monotonic()) if interrupted and ending else None
            if ending is None:
                self.job.transition(Status.IN_PROGRESS, "Uploading")
            for one in syncs:
                one.stop(final=True, seconds=left)
            if any(one.died.is_set() for one in syncs):
                lost = interrupted = True
                finished = False
        if interrupted and not finished:
            return self._start_again(ending)
        self._upload(disks)
        if ending is not None and not interrupted:
            return End(Status.STOPPED, ending.secondary)
        if finished:
            return End(Status.COMPLETED, "Completed")
        return End(failure=_failure_reason(disks, codes))

    def _start_again(self, ending: Ending | None) -> End:
        back_after = ending.back_after if ending else 0.0
        if self.plan is not None and not (ending and ending.lost):
            now = self.clock.now()
            if self.plan.window(now) or self.plan.has_later(now):
                return End(again="Interrupted")
            return End(Status.STOPPED, "Stopped", message="The training plan's last reservation ended")
        if self.job.spot or (ending is not None and not ending.lost):
            return End(again="Interrupted", back_after=back_after)
        return End(again="Restarting")

    def _upload(self, disks: list[Disk]) -> None:
        """Model and output of every host to OutputDataConfig."""
        output = self.job.record["OutputDataConfig"]
        target = f"{output['S3OutputPath'].rstrip('/')}/{self.job.name}/output"
        packed = output["CompressionType"] == "GZIP"
        for disk in disks:
            if any((disk.root / "model").iterdir()):
                uri = f"{target}/model.tar.gz" if packed else f"{target}/model/"
                (sync.upload_archive if packed else sync.upload_tree)(self.host.s3, disk.root / "model", uri)
                with self.job.lock:
                    self.job.record["ModelArtifacts"] = {"S3ModelArtifacts": uri}
            if any((disk.root / "output" / "data").iterdir()):
                uri = f"{target}/output.tar.gz" if packed else f"{target}/data/"
                (sync.upload_archive if packed else sync.upload_tree)(self.host.s3, disk.root / "output" / "data", uri)


def request_stop(job: Job) -> None:
    """What StopTrainingJob does to a job that is not at its end."""
    with job.lock:
        if job.terminal or job.record["TrainingJobStatus"] == Status.STOPPING:
            return
        job.transition(Status.STOPPING, "Stopping")
    job.stop_requested.set()
    job._context.clock.notify()
    job.commands.put(None)


def _free_port() -> int:
    """A port that is free now, and the one below it too: the hosts' store and rank 0 listen there."""
    while True:
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            second.bind(("127.0.0.1", port - 1))
            return port


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:
        return None


def _failure_reason(disks: list[Disk], codes: Mapping[int, int]) -> str:
    """FailureReason: the failure file of the first host that has one, as far as SageMaker shows it."""
    first = min((host for host, code in codes.items() if code), default=0)
    order = [disks[first], *(disk for number, disk in enumerate(disks) if number != first)]
    for disk in order:
        if disk.failure.is_file():
            text = disk.failure.read_text(encoding="utf-8", errors="replace").strip()
            return f"AlgorithmError: {text}, exit code: {codes.get(first, 1)}"
    return f"AlgorithmError: , exit code: {codes.get(first, 1)}"
