"""The clock that the overlay's waits and timeouts go by: real time plus an offset that only grows.

A test or a fault moves it (`advance`) instead of waiting: every wait in progress sees the jump at once.
"""

from __future__ import annotations

import threading
import time


class Clock:
    """Real time plus an offset, seconds."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._moved = threading.Condition()

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._offset

    def monotonic(self) -> float:
        """Seconds that never go back, advanced with the clock."""
        return time.monotonic() + self._offset

    def advance(self, seconds: float) -> float:
        """Move the clock forward by `seconds` (>= 0) and wake every wait; returns the whole offset."""
        if seconds < 0:
            raise ValueError(f"the clock moves forward only, got {seconds}")
        with self._moved:
            self._offset += seconds
            self._moved.notify_all()
            return self._offset

    def notify(self) -> None:
        """Wake every wait so that it looks at its condition again."""
        with self._moved:
            self._moved.notify_all()

    def wait_until(self, deadline: float, done: threading.Event) -> bool:
        """Wait until `done` is set (True) or `monotonic()` reached `deadline` (False).

        Whoever sets `done` calls `notify()` after it.
        """
        with self._moved:
            while not done.is_set():
                left = deadline - self.monotonic()
                if left <= 0:
                    return False
                self._moved.wait(min(left, threading.TIMEOUT_MAX))
        return True
