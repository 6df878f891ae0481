"""One running container: a supervised process, its output line by line, and the ways to end it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

SUPERVISOR = Path(__file__).with_name("supervisor.py")
_READ_SIZE = 65_536


class Container:
    """A process tree that ends as a whole; nothing of it outlives the server.

    `on_lines` gets the output's lines in order, in batches, in a thread of the container's own; `on_exit` gets the
    exit code after the last line.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        on_lines: Callable[[list[str]], None],
        on_exit: Callable[[int], None],
        spawn: Callable[..., threading.Thread],
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), *command],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.exit_code: int | None = None
        self._pump = spawn(self._read, on_lines, on_exit, name="container-output")

    def _read(self, on_lines: Callable[[list[str]], None], on_exit: Callable[[int], None]) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := os.read(self._process.stdout.fileno(), _READ_SIZE):
            *whole, rest = (rest + chunk).split(b"\n")
            if whole:
                on_lines([line.decode("utf-8", "replace").rstrip("\r") for line in whole])
        if rest:
            on_lines([rest.decode("utf-8", "replace")])
        self.exit_code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        on_exit(self.exit_code)

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended already
            self._process.stdin.write(word + b"\n")
            self._process.stdin.flush()

    def terminate(self) -> None:
        """SIGTERM to PID 1, which the kernel drops when PID 1 has no handler for it."""
        self._tell(b"term")

    def kill(self) -> None:
        """SIGKILL to every process in it."""
        self._tell(b"kill")

    def processes(self) -> list[psutil.Process]:
        """Every process in it, PID 1 first."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def wait(self, timeout: float | None = None) -> int | None:
        """Exit code after the last line was handed on; None when `timeout` seconds did not suffice."""
        self._pump.join(timeout)
        return self.exit_code
