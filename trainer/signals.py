"""Being told to stop: a flag that is set by SIGTERM or SIGINT and polled wherever the worker waits."""

from __future__ import annotations

import ctypes
import signal
import time
from pathlib import Path
from types import FrameType

from trainer.status import STOP_FILE

_PR_SET_PDEATHSIG = 1


class StopFlag:
    """True once this rank was told to stop. Signal handlers only set it: nothing is done inside a handler."""

    def __init__(self, status_folder: Path | None) -> None:
        self._file = status_folder / STOP_FILE if status_folder else None
        self._signal: str | None = None
        self.since: float | None = None
        """Unix time of the first signal."""

    def install(self) -> None:
        """Takes over SIGTERM and SIGINT; must be called in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.check_file()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._set(signal.Signals(number).name)

    def _set(self, reason: str) -> None:
        if self._signal is None:
            self._signal, self.since = reason, time.time()

    def check_file(self) -> None:
        """Also heeds the launcher's stop file, for a signal that came before this process listened."""
        if self._signal is None and self._file is not None and self._file.exists():
            self._set("SIGTERM")

    def __call__(self) -> bool:
        return self._signal is not None

    @property
    def reason(self) -> str:
        return self._signal or ""


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent dies, so that nothing is left running behind a killed launcher."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
