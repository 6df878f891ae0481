"""The history of a run's steps, read from its log lines in one pass.

A run's workers are started once or more: by each attempt, again by SageMaker after an interruption, again by the
launcher in place. Each start is a `Start` here: the steps it took, as plain arrays, so that a million logged steps
stay far below 100 MB. Where a step was taken twice, the later start's record is the one that counts.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from blackwell.report.inputs import LogLine
from blackwell.telemetry import StepRecord, parse_event, parse_step

_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+")
_NAN = math.nan
_OF_A_START = ("resume", "skip_data")
"""Events that workers log before their first step; after a step they belong to the start that follows."""


def _floats() -> array[float]:
    return array("d")


def _ints() -> array[int]:
    return array("q")


def _hashes() -> array[int]:
    return array("Q")


@dataclass(slots=True)
class Event:
    """One event line: `start`, `checkpoint`, `restart`, ... with the time it was logged at, if that is known."""

    name: str
    time: float | None
    fields: dict[str, Any]


@dataclass(slots=True)
class Start:
    """One start of the workers and the steps they took. NaN stands for a figure that was not logged."""

    attempt: int
    number: int
    """How often the run's workers had been started before."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the `start` event; empty where its line is missing."""
    time: float | None = None
    """Unix time of the `start` event."""
    resumed_from: int | None = None
    """Step of the checkpoint it went on from; 0 for a fresh start."""
    cause: dict[str, Any] = field(default_factory=dict)
    """Fields of the `restart` event before it, where the launcher restarted the workers in place."""
    step: array[int] = field(default_factory=_ints)
    end: array[float] = field(default_factory=_floats)
    """Unix time at the end of the step."""
    seconds: array[float] = field(default_factory=_floats)
    loss: array[float] = field(default_factory=_floats)
    rate: array[float] = field(default_factory=_floats)
    """Tokens per second of all ranks."""
    tokens: array[int] = field(default_factory=_ints)
    data_wait: array[float] = field(default_factory=_floats)
    stall: array[float] = field(default_factory=_floats)
    order_hash: array[int] = field(default_factory=_hashes)
    hashed: bool = False
    memory: array[float] = field(default_factory=_floats)
    mfu: array[float] = field(default_factory=_floats)
    allocated_peak_gb: float = 0.0
    peak_tflops: float | None = None
    world_size: int | None = None
    micro_batch_size: int | None = None
    events: list[Event] = field(default_factory=list)
    kept: int = 0
    """Records of this start that belong to the final history; the rest was lost and taken again."""

    def add(self, record: StepRecord) -> None:
        self.step.append(record.step)
        self.end.append(record.time)
        self.seconds.append(record.step_seconds)
        self.loss.append(_NAN if record.loss is None else record.loss)
        self.rate.append(record.tokens_per_second)
        self.tokens.append(record.tokens)
        self.data_wait.append(record.data_wait_seconds)
        self.stall.append(record.checkpoint_stall_seconds)
        self.order_hash.append(_hash_number(record.data_order_hash))
        self.hashed = self.hashed or record.data_order_hash is not None
        self.memory.append(_NAN if record.memory_reserved_peak_gb is None else record.memory_reserved_peak_gb)
        self.mfu.append(_NAN if record.mfu_percent is None else record.mfu_percent)
        self.allocated_peak_gb = max(self.allocated_peak_gb, record.memory_allocated_peak_gb or 0.0)
        self.peak_tflops = record.peak_tflops or self.peak_tflops
        self.world_size = record.world_size or self.world_size
        self.micro_batch_size = record.micro_batch_size or self.micro_batch_size

    @property
    def left_out(self) -> tuple[int, int] | None:
        """(step, sequences): after this step, its first, it left data out for a divergence; None where it did not."""
        for event in self.events:
            if event.name == "skip_data":
                return self.after_step, _whole(event.fields.get("sequences")) or 0
        return None

    @property
    def last_step(self) -> int | None:
        return self.step[-1] if self.step else None

    @property
    def interval(self) -> int:
        """Steps between two logged ones."""
        return self.step[1] - self.step[0] if len(self.step) > 1 else 1

    @property
    def after_step(self) -> int:
        """The step that its first step followed: its checkpoint's, else what the first logged step implies."""
        if self.resumed_from is not None:
            return self.resumed_from
        return max(0, self.step[0] - self.interval) if self.step else 0

    @property
    def tokens_per_step(self) -> float | None:
        """Training tokens of one optimizer step, as logged at the start or as the records show it."""
        logged = self.fields.get("tokens_per_step")
        if isinstance(logged, (int, float)) and logged > 0:
            return float(logged)
        if len(self.step) > 1 and self.tokens[-1] > self.tokens[0]:
            return (self.tokens[-1] - self.tokens[0]) / (self.step[-1] - self.step[0])
        return None

    @property
    def first_begin(self) -> float | None:
        """Unix time at which its first logged stretch of steps began."""
        return self.end[0] - self.interval_seconds(0) if self.step else None

    def covered(self, index: int) -> int:
        """Optimizer steps that record `index` stands for: one, or the logging interval."""
        before = self.step[index - 1] if index else self.after_step
        return max(1, self.step[index] - before)

    def interval_seconds(self, index: int) -> float:
        """Wall-clock seconds that record `index` stands for: its step's, or those of all steps since the record before
        (tokens over tokens per second: the rate is that of the whole interval, the step's seconds are only its own)."""
        covered = self.covered(index)
        if covered == 1:
            return self.seconds[index]
        per_step = self.tokens_per_step
        rate = self.rate[index]
        return covered * per_step / rate if per_step is not None and rate > 0 else covered * self.seconds[index]

    @property
    def last_time(self) -> float | None:
        """The last time at which it is known to have lived."""
        if self.step:
            return self.end[-1]
        times = [event.time for event in self.events if event.time is not None]
        return max(times) if times else self.time


def _hash_number(text: str | None) -> int:
    try:
        return int(text, 16) & 0xFFFF_FFFF_FFFF_FFFF if text else 0
    except ValueError:
        return 0


class History:
    """Every start of a run's workers in order, and which of their steps count."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.lines = 0
        self._last_time: float | None = None
        self._cause: dict[str, Any] = {}
        self._pending: list[Event] = []
        """What was said before the start line of the workers that it is about."""

    def read(self, attempt: int, lines: Iterable[LogLine]) -> None:
        """Reads one attempt's lines; other processes' output in between is passed over."""
        self._pending, self._cause = [], {}
        fresh = True
        for line in lines:
            self.lines += 1
            stamp, text = (None, line) if isinstance(line, str) else (line[0] / 1000, line[1])
            if not text.startswith("[rank "):
                match = _STAMP.match(text)
                if match is None:
                    continue
                stamp = stamp if stamp is not None else _unix(match[1])
                text = text[match.end() :]
                if not text.startswith("[rank "):
                    continue
            rank_zero = text.startswith("[rank 0]")
            step = parse_step(text) if rank_zero and text.startswith("[rank 0] loss ") else None
            if step is not None:
                self._step(attempt, fresh, step[1])
                fresh = False
                continue
            parsed = parse_event(text)
            if parsed is not None:
                event = self._timed(parsed[1], parsed[2], stamp)
                if event.name == "start" and rank_zero:
                    self._start(attempt, event)
                    fresh = False
                else:
                    self._event(fresh, event, rank_zero)
        if self._pending and fresh:
            self._begin(attempt)  # it was started and spoke, but never came to its start line

    def _begin(self, attempt: int) -> Start:
        start = Start(attempt=attempt, number=len(self.starts), cause=self._cause, events=self._pending)
        for event in self._pending:
            if event.name == "resume":
                start.resumed_from = _whole(event.fields.get("step"))
        self._cause, self._pending = {}, []
        self.starts.append(start)
        return start

    def _start(self, attempt: int, event: Event) -> None:
        current = self._begin(attempt)
        current.fields, current.time = event.fields, event.time
        current.world_size = _whole(event.fields.get("world_size"))
        current.micro_batch_size = _whole(event.fields.get("micro_batch_size"))
        resumed = _whole(event.fields.get("resumed_from_step"))
        if resumed is not None or current.resumed_from is None:
            current.resumed_from = resumed or 0

    def _step(self, attempt: int, fresh: bool, record: StepRecord) -> None:
        current = None if fresh or not self.starts else self.starts[-1]
        if current is not None and current.step:
            if record.step == current.step[-1] and record.time == current.end[-1]:
                return  # CloudWatch may deliver a line twice
            if record.step <= current.step[-1]:
                current = None  # the start line is missing
        if current is None:
            current = self._begin(attempt)
        current.add(record)
        self._last_time = record.time

    def _timed(self, name: str, fields: dict[str, Any], stamp: float | None) -> Event:
        time = fields.get("time")
        if not isinstance(time, (int, float)) or isinstance(time, bool):
            time = stamp if stamp is not None else self._last_time
        if time is not None:
            self._last_time = float(time)
        return Event(name, None if time is None else float(time), fields)

    def _event(self, fresh: bool, event: Event, rank_zero: bool) -> None:
        if event.name == "restart":
            self._cause = event.fields
        about_next = fresh or (event.name in _OF_A_START and bool(self.starts[-1].step))
        if about_next:
            self._pending.append(event)
            return
        current = self.starts[-1]
        if event.name == "resume" and rank_zero:
            current.resumed_from = _whole(event.fields.get("step"))
        current.events.append(event)

    def settle(self) -> None:
        """Decides which records count: a later start that took steps takes the place of all that came after its
        checkpoint."""
        border = math.inf
        for start in reversed(self.starts):
            count = len(start.step)
            while count and start.step[count - 1] > border:
                count -= 1
            start.kept = count
            if start.step:
                border = min(border, start.after_step)

    def kept(self) -> Iterator[tuple[Start, int]]:
        """(start, index) of every record of the final history, in order of the steps."""
        for start in self.starts:
            for index in range(start.kept):
                yield start, index

    @property
    def with_steps(self) -> list[Start]:
        return [start for start in self.starts if start.step]

    def events(self, name: str) -> Iterator[tuple[Start, Event]]:
        for start in self.starts:
            for event in start.events:
                if event.name == name:
                    yield start, event


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _unix(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return moment.timestamp()
