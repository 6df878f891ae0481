"""Times and speeds of steps, for the log: tokens per second, MFU, stalls; and the run's totals with and without warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from blackwell.hardware import GPUS
from blackwell.spec import Precision
from trainer.precision import Hardware
from trainer.settings import Job

WARM_UP_STEPS = 2
"""First steps of a start, which compile, tune and allocate; left out of the steady rate."""


def peak_tflops(hardware: Hardware, precision: Precision) -> float | None:
    """Dense peak of this GPU in this precision, TFLOP/s; None where the GPU is not known.

    A precision that the GPU emulates or lacks is measured against BF16's peak.
    """
    name = hardware.name.upper()
    for gpu in sorted(GPUS.values(), key=lambda g: len(g.name), reverse=True):
        if gpu.name.split("-")[0].upper() in name.replace("-", " ").split():
            return gpu.peak_tflops.get(precision, gpu.peak_tflops.get(Precision.BF16))
    return None


@dataclass(slots=True)
class Interval:
    """What happened since the last logged step."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    data_wait: float = 0.0
    checkpoint_stall: float = 0.0


class Meter:
    """Counts steps and their seconds. A step's time runs from the end of the one before: nothing is left out."""

    def __init__(self, job: Job, peak: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._world, self._peak = clock, job.world_size, peak
        self._flops = job.shape.flops_per_token(job.seq_length)
        self._last = self._begin = clock()
        self._steady_begin: float | None = None
        self._open = Interval()
        self.steps = self.tokens = self._steady_tokens = 0
        self.first_step_seconds: float | None = None

    def start(self) -> None:
        """The first step begins now: start-up is not the step's time."""
        self._last = self._begin = self._clock()

    def step(self, tokens: int, data_wait: float, checkpoint_stall: float) -> float:
        """One step ended; returns its seconds."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        self.steps += 1
        self.tokens += tokens
        if self.first_step_seconds is None:
            self.first_step_seconds = seconds
        if self.steps == WARM_UP_STEPS:
            self._steady_begin = now
        elif self.steps > WARM_UP_STEPS:
            self._steady_tokens += tokens
        i = self._open
        i.seconds, i.steps, i.tokens = i.seconds + seconds, i.steps + 1, i.tokens + tokens
        i.data_wait, i.checkpoint_stall = i.data_wait + data_wait, i.checkpoint_stall + checkpoint_stall
        return seconds

    def take(self) -> tuple[Interval, dict[str, float]]:
        """The interval since the last call, and its speed fields for a StepRecord."""
        interval, self._open = self._open, Interval()
        rate = interval.tokens / interval.seconds if interval.seconds else 0.0
        fields = {"tokens_per_second": rate, "tokens_per_second_per_gpu": rate / self._world}
        if self._peak:
            fields["peak_tflops"] = self._peak
            fields["mfu_percent"] = 100 * self._flops * rate / self._world / (self._peak * 1e12)
        return interval, fields

    def totals(self) -> dict[str, float | int | None]:
        """Fields of the `finish` event: the rate over all steps of this start, and without the warm-up."""
        now = self._clock()
        steady = (
            self._steady_tokens / (now - self._steady_begin) if self._steady_begin and self._steady_tokens else None
        )
        return {
            "seconds": now - self._begin,
            "steps": self.steps,
            "tokens_per_second_with_warm_up": self.tokens / (now - self._begin) if self.steps else None,
            "tokens_per_second": steady,
            "warm_up_steps": min(WARM_UP_STEPS, self.steps),
            "first_step_seconds": self.first_step_seconds,
        }
