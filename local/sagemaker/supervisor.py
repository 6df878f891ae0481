"""The container's stand-in: runs one command as if it were PID 1 of a container, and ends everything with it.

Run as a file, with the standard library alone: `python -I -S supervisor.py COMMAND ARG...`. Standard input is the
leash: a line `term` asks PID 1 to stop, `kill` ends everything, and end of file (the server is gone, however it
went) ends everything too. Every descendant is found again, also those in sessions of their own, because this
process is their subreaper. Exit code: the command's, 128 + n where signal n ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NICENESS = 5  # the server answers first, training takes the rest


def descendants() -> list[int]:
    """Process ids below this process."""
    children: dict[int, list[int]] = {}
    for entry in (item.name for item in os.scandir("/proc")):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_all() -> None:
    """SIGKILL every descendant until none is left: one may fork while the others are being killed."""
    while below := descendants():
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def reap() -> dict[int, int]:
    """Wait status of every child that has ended."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def handles_sigterm(pid: int) -> bool:
    """Whether the process has a handler: the kernel gives PID 1 of a container no signal that it has none for."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def start(command: list[str]) -> int:
    """Fork and exec `command` in a session of its own; 127 where it cannot be executed, as a shell says."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"exec {command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def main() -> int:
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT):  # the leash decides, not a signal to the server's group
        signal.signal(number, signal.SIG_IGN)
    first = start(sys.argv[1:])
    status: int | None = None
    leash = [0]
    while status is None:
        ready, _, _ = select.select([*leash, wake_read], [], [])
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                leash = []
            if not data or b"kill" in data:
                kill_all()
            elif b"term" in data and handles_sigterm(first):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGTERM)
        if wake_read in ready:
            os.read(wake_read, 4096)
        status = reap().get(first)
    kill_all()
    reap()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
