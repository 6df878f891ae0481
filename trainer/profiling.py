"""A profile window: where the seconds of a step go, as one JSON line (trace and memory snapshot on request).

On a GPU the kernels' own times are summed by kind, communication counts where no computation hides it, and what no
kernel covers is idle. On a CPU the operators' self times are summed by the same kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("communication", re.compile(r"nccl|gloo|c10d|all_?reduce|all_?gather|reduce_?scatter", re.I)),
    ("attention", re.compile(r"attention|flash|fmha|softmax|sdpa", re.I)),
    ("quantize", re.compile(r"quantiz|cast_transpose|mxfp8|nvfp4|fp8_cast|amax|hadamard", re.I)),
    ("gemm", re.compile(r"gemm|cutlass|nvjet|matmul|cublas|aten::(mm|addmm|bmm|linear|_scaled_mm)\b|mma", re.I)),
    ("copy", re.compile(r"memcpy|memset|copy_", re.I)),
)
"""First match wins; anything else is `other`."""


def kind_of(name: str) -> str:
    """The kind of a kernel or operator by its name."""
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


MEMORY_ENTRIES = 100_000
"""Allocator events kept for the memory snapshot of a window (pytorch.org/memory_viz shows it)."""
Span = tuple[float, float]


def merge(spans: Iterable[Span]) -> list[Span]:
    """Overlapping spans joined, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def exposed(spans: list[Span], cover: list[Span]) -> float:
    """Length of `spans` that `cover` does not cover; both merged."""
    return length(merge([*spans, *cover])) - length(cover)


def summarize(kernels: list[tuple[str, float, float]], window: float, steps: int) -> dict[str, float]:
    """Seconds per step by kind.

    Args:
        kernels: (name, start, end) in seconds of everything that ran on the device.
        window: seconds from the first to the last step of the window.
    """
    by_kind: dict[str, list[Span]] = {}
    for name, start, end in kernels:
        by_kind.setdefault(kind_of(name), []).append((start, end))
    busy = {kind: merge(spans) for kind, spans in by_kind.items()}
    computing = merge(span for kind, spans in busy.items() if kind != "communication" for span in spans)
    communicating = busy.get("communication", [])
    result = {
        f"{kind}_seconds": length(busy.get(kind, [])) / steps
        for kind in ("gemm", "attention", "quantize", "copy", "other")
    }
    result["exposed_communication_seconds"] = exposed(communicating, computing) / steps
    result["idle_seconds"] = max(0.0, window - length(merge([*computing, *communicating]))) / steps
    result["step_seconds"] = window / steps
    return result


class ProfileWindow:
    """Profiles steps `first` to `last` once; `request` opens another window from the next step on."""

    LENGTH = 3

    def __init__(
        self, steps: tuple[int, int] | None, device: torch.device, trace_folder: Path, *, writes: bool = True
    ) -> None:
        """`writes`: this rank leaves the trace in `trace_folder`."""
        self._steps, self._device, self._folder, self._writes = steps, device, trace_folder, writes
        self._profile: profile | None = None
        self._first = 0

    def request(self, next_step: int) -> None:
        """A window of three steps from `next_step` on, unless one is open."""
        if self._profile is None:
            self._steps = (next_step, next_step + self.LENGTH - 1)

    def before_step(self, step: int) -> None:
        if self._steps is None or self._profile is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._first, self._profile = step, profile(activities=activities)
        self._profile.start()
        if self._device.type == "cuda" and self._writes:
            torch.cuda.memory._record_memory_history(max_entries=MEMORY_ENTRIES)

    def after_step(self, step: int, last_step: int) -> dict[str, Any] | None:
        """Fields of the `profile` event when the window has just closed."""
        if self._profile is None or self._steps is None or step < min(self._steps[1], last_step):
            return None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        current, self._profile, self._steps = self._profile, None, None
        current.stop()
        steps = step - self._first + 1
        trace = self._folder / f"trace-{step:08d}.json.gz"
        if self._writes and self._device.type == "cuda":
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.cuda.memory._dump_snapshot(str(self._folder / f"memory-{step:08d}.pickle"))  # type: ignore[no-untyped-call]
            torch.cuda.memory._record_memory_history(enabled=None)
        if self._writes:
            self._folder.mkdir(parents=True, exist_ok=True)
            current.export_chrome_trace(str(trace))
        return {
            "first_step": self._first,
            "last_step": step,
            "device": self._device.type,
            **self._summary(current, steps),
            "trace": trace.name,
        }

    def _summary(self, finished: profile, steps: int) -> dict[str, float]:
        events = finished.events() or []  # type: ignore[no-untyped-call]
        if not events:
            return {}
        begin = min(e.time_range.start for e in events)
        window = (max(e.time_range.end for e in events) - begin) * 1e-6
        if self._device.type == "cuda":
            kernels = [
                (e.name, (e.time_range.start - begin) * 1e-6, (e.time_range.end - begin) * 1e-6)
                for e in events
                if e.device_type == DeviceType.CUDA
            ]
            return summarize(kernels, window, steps)
        # Self times on one timeline do not overlap, so nothing is hidden and nothing is idle but waiting.
        sums = dict.fromkeys(("gemm", "attention", "quantize", "copy", "other", "communication"), 0.0)
        for event in events:
            sums[kind_of(event.name)] += event.self_cpu_time_total * 1e-6
        communication = sums.pop("communication")
        result = {f"{kind}_seconds": seconds / steps for kind, seconds in sums.items()}
        result["exposed_communication_seconds"] = communication / steps
        result["step_seconds"] = window / steps
        return result
