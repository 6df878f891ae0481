"""A watchdog thread: when a rank makes no progress for too long, it prints all stacks and ends the process."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blackwell.verdict import EXIT_CODES, Verdict

SLOW_PHASE_SECONDS = 1_800.0
"""Start-up, compilation, saving and exporting may take this long even where hang_timeout_seconds is shorter."""


class Watchdog:
    """Ends the process when `beat` has not been called for too long.

    Args:
        timeout: seconds without progress between two steps.
        on_hang: gets (phase, seconds) before the process ends; writes the status file.
        end: ends the process; replaced in tests.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        timeout: float,
        on_hang: Callable[[str, float], None],
        end: Callable[[int], None] = os._exit,
        clock: Callable[[], float] = time.monotonic,
        slow: float = SLOW_PHASE_SECONDS,
    ) -> None:
        self._timeout, self._slow = timeout, max(slow, timeout)
        self._on_hang, self._end, self._clock = on_hang, end, clock
        self._phase, self._limit, self._last = "start", self._slow, clock()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def beat(self, phase: str, slow: bool = False) -> None:
        """Progress: the rank enters `phase`; `slow` phases have the longer limit."""
        with self._lock:
            self._phase, self._limit, self._last = phase, self._slow if slow else self._timeout, self._clock()

    @contextmanager
    def slow(self, phase: str) -> Iterator[None]:
        """Around something that may take long without a sign of life, such as a save."""
        before = self._phase
        self.beat(phase, slow=True)
        try:
            yield
        finally:
            self.beat(before)

    def check(self) -> bool:
        """True, after ending the process, when the limit has passed."""
        with self._lock:
            phase, waited, limit = self._phase, self._clock() - self._last, self._limit
        if waited <= limit:
            return False
        print(
            f"no progress for {waited:.0f} s in phase {phase}; stacks of all threads follow",
            file=sys.stderr,
            flush=True,
        )
        dump_stacks()
        self._on_hang(phase, waited)
        self._end(EXIT_CODES[Verdict.HUNG])
        return True

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._timeout / 4)):
            if self.check():
                return


def dump_stacks() -> None:
    """Stacks of all Python threads of this process to stderr."""
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.flush()
