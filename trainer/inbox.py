"""Signals to the launcher, remembered from the first moment on: process 1 loses what comes before a handler stands.

Imports nothing heavy on purpose; trainer.launch installs it before its other imports.
"""

from __future__ import annotations

import signal
import time
from types import FrameType


class Inbox:
    """When the launcher was told to stop, and whether a person insists."""

    def __init__(self) -> None:
        self.stop_at: float | None = None
        """time.monotonic() of the first SIGTERM or SIGINT."""
        self.impatient = False
        """Ctrl-C came again."""

    def install(self) -> None:
        """Takes over SIGTERM and SIGINT; must be called in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stop_at is None:
            self.stop_at = time.monotonic()
        elif number == signal.SIGINT:
            self.impatient = True


INBOX = Inbox()
