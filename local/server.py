"""Starts and stops the embedded AWS: `with LocalAws(folder) as aws:` for demo and tests, detached for the command line.

The server is a child process on 127.0.0.1 and a free port. `stop` ends it and every process that carries its marker
(functions' workers, training jobs, builds), also when the server itself was killed. When the process that started it
ends, by whatever cause, the server ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from local.identity import ACCESS_KEY, ACCOUNT, MARKER_ENV, REGION, SECRET_KEY, sdk_environment

PROJECT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 10.0

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens without a proxy: the server is on the loopback interface."""


class LocalAwsError(RuntimeError):
    """The embedded AWS did not start; the message names the log and its last lines."""


class LocalAws:
    """One embedded AWS.

    `work_dir` holds its log, jobs, builds and temporary files, and must be its own; `port` 0 takes a free one;
    `overlay=False` starts ministack as it is (to compare); `environment` is added to the server's, for faults.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        port: int = 0,
        overlay: bool = True,
        environment: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        self.work_dir = work_dir.resolve()
        self.log_path = self.work_dir / "server.log"
        self.marker = secrets.token_hex(8)
        self.endpoint = ""
        self.port = port
        self.pid = 0
        self._overlay = overlay
        self._extra = dict(environment or {})
        self._detached = detached
        self._watch = -1
        self._clients: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalAws:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> LocalAws:
        """Start the server and wait until it answers. Raises `LocalAwsError` when it does not within a minute."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        state_path = self.work_dir / "server.json"
        state_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "local.serve", "--work-dir", str(self.work_dir), "--port", str(self.port)]
        command += [] if self._overlay else ["--stock"]
        inherited: tuple[int, ...] = ()
        if not self._detached:
            read_end, self._watch = os.pipe()
            inherited = (read_end,)
            command += ["--watch", str(read_end)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**clean_environment(), **self._extra, MARKER_ENV: self.marker},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal is for the caller, who then stops us in order
                pass_fds=inherited,
            )
        for descriptor in inherited:
            os.close(descriptor)
        try:
            self._await_ready(state_path)
        except BaseException:
            self.stop()
            raise
        return self

    def _await_ready(self, state_path: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise LocalAwsError(f"the embedded AWS ended with exit code {self._process.returncode}\n{self._tail()}")
            if state_path.exists():
                state = json.loads(state_path.read_text())
                self.pid, self.port, self.endpoint = state["pid"], state["port"], state["endpoint"]
                if healthy(self.endpoint):
                    return
            time.sleep(0.05)
        raise LocalAwsError(f"the embedded AWS did not answer within {START_SECONDS:.0f} s\n{self._tail()}")

    def _tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:] if self.log_path.exists() else []
        return "\n".join([f"log: {self.log_path}", *lines])

    def stop(self) -> None:
        """End the server and all that it started; safe to call twice. The work folder's log stays."""
        if self._process is not None:
            end_process(self._process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._process = None
        if self._watch >= 0:
            os.close(self._watch)
            self._watch = -1
        end_marked(self.marker)
        shutil.rmtree(self.work_dir / "tmp", ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to talk to this AWS: SDKs, the CDK command line, the aws CLI."""
        return client_environment(self.endpoint)

    def child_environment(self) -> dict[str, str]:
        """The caller's environment without its own AWS settings, plus `environment`."""
        return {**clean_environment(), **self.environment}

    def client(self, service: str) -> Any:
        """A boto3 client of `service` on this AWS that never retries (made once: loading a model is slow)."""
        if service not in self._clients:
            self._clients[service] = client(self.endpoint, service)
        return self._clients[service]

    def session(self) -> Any:
        """A boto3 session all of whose clients talk to this AWS."""
        return session(self.endpoint)

    def set_faults(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Put these faults in force, in place of the former ones (`local.faults`)."""
        self.control("faults", {"faults": list(faults)})

    def control(self, path: str, body: Mapping[str, Any] | None = None, method: str = "POST") -> Any:
        """Call the server's own control interface `/_local/<path>` (clock, faults); returns its JSON."""
        request = urllib.request.Request(  # noqa: S310 - our own loopback server
            f"{self.endpoint}/_local/{path}", data=json.dumps(body or {}).encode(), method=method
        )
        try:
            with _direct.open(request, timeout=60) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from None

    def advance_clock(self, seconds: float) -> None:
        """Let the server's waits, timeouts and heartbeats see `seconds` pass at once."""
        self.control("clock", {"advance": seconds})

    def memory_mib(self) -> float:
        """Resident memory of the server and everything it started, MiB."""
        return sum(_resident(process) for process in marked(self.marker)) / 2**20


def session(endpoint: str) -> Any:
    """A boto3 session whose clients talk to `endpoint` without a proxy; retries are the caller's choice."""
    import boto3
    import botocore.session
    from botocore.config import Config

    # No profile and no file of a person: they may name what is not there, or another account.
    unset = dict.fromkeys(("profile", "config_file", "credentials_file"), (None, None, None, None))
    plain = botocore.session.Session(session_vars=unset)

    class LocalSession(boto3.Session):
        def client(self, service_name: str, **options: Any) -> Any:  # type: ignore[override]
            direct = Config(proxies={}, read_timeout=60, connect_timeout=5)
            config = options.pop("config", None)
            options["config"] = direct.merge(config) if config is not None else direct
            options.setdefault("endpoint_url", endpoint)
            return super().client(service_name, **options)  # type: ignore[call-overload]

    return LocalSession(ACCESS_KEY, SECRET_KEY, region_name=REGION, botocore_session=plain)


def client(endpoint: str, service: str) -> Any:
    """A boto3 client of `service` at `endpoint` that never retries: a test sees every error."""
    from botocore.config import Config

    return session(endpoint).client(service, config=Config(retries={"total_max_attempts": 1}))


def client_environment(endpoint: str) -> dict[str, str]:
    """Environment variables that point every AWS tool at `endpoint`."""
    return {
        **sdk_environment(endpoint),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "CDK_DEFAULT_ACCOUNT": ACCOUNT,
        "CDK_DEFAULT_REGION": REGION,
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1"))),
    }


def clean_environment() -> dict[str, str]:
    """The caller's environment without any AWS setting: no profile or endpoint of a person may leak in."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}


def healthy(endpoint: str) -> bool:
    """Whether a server answers at `endpoint`."""
    try:
        with _direct.open(f"{endpoint}/_ministack/health", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def end_process(pid: int) -> None:
    """SIGTERM, and SIGKILL when the process is still there after `STOP_SECONDS`."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            process.wait(5)


def marked(marker: str) -> list[psutil.Process]:
    """Every process, this one excepted, whose environment carries the server's marker."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARKER_ENV) == marker:
                found.append(process)
    return found


def end_marked(marker: str) -> None:
    """Kill what the server left: only processes that carry its marker."""
    for _ in range(3):  # a dying parent may have started one more
        left = marked(marker)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=3)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
