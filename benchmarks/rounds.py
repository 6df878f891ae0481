"""Fair comparisons: contenders alternate in short rounds of one process; ratios carry a bootstrap interval.

A goal holds when the whole 95 % interval of the median per-round ratio reaches it, so noise can only make it fail.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

ROUNDS = 9
RESULTS = Path(__file__).parent / "results"
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median over the rounds of measurement `of` divided by measurement `to`, and what it should be."""

    of: str
    to: str
    median: float
    low: float
    high: float
    goal: str
    holds: bool

    def line(self) -> str:
        verdict = "holds" if self.holds else "NOT REACHED"
        return (
            f"{self.of} / {self.to}: {self.median:.3f} [{self.low:.3f}, {self.high:.3f}]  goal {self.goal}: {verdict}"
        )


def interleave(
    contenders: Mapping[str, Callable[[], float]], rounds: int = ROUNDS, *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Measures every contender once per round, in an order that changes from round to round.

    Args:
        contenders: name -> measurement; what it returns (seconds, tokens per second) is kept.
        warm_up: rounds before those that count.
    """
    names = list(contenders)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            value = contenders[name]()
            if number >= 0:
                measured[name].append(value)
        if sys.stderr.isatty():
            print(f"\rround {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    return measured


class Stopwatch:
    """Wall and processor seconds of a block; processor seconds do not grow when the machine has other work.

    Processor seconds are those of this process, all its threads together, without child processes.
    """

    wall: float
    cpu: float

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._started[0]
        self.cpu = time.process_time() - self._started[1]


def ratio(
    measured: Mapping[str, Sequence[float]], of: str, to: str, comparison: Literal[">=", "<="], goal: float
) -> Ratio:
    """The ratio of two contenders, round by round, with a 95 % interval of its median (percentile bootstrap)."""
    per_round = [a / b for a, b in zip(measured[of], measured[to], strict=True)]
    chance = random.Random(0)  # noqa: S311
    medians = sorted(statistics.median(chance.choices(per_round, k=len(per_round))) for _ in range(_RESAMPLES))
    low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]
    holds = low >= goal if comparison == ">=" else high <= goal
    return Ratio(of, to, statistics.median(per_round), low, high, f"{comparison} {goal:g}", holds)


def hardware() -> str:
    """The machine in words, without a name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    gpus = "no GPU"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()}, {cores} CPU cores, {memory:.0f} GB memory, {gpus}"


def record(
    name: str,
    measured: Mapping[str, Sequence[float]],
    ratios: Sequence[Ratio],
    *,
    unit: str,
    packages: Sequence[str] = (),
    notes: str = "",
    facts: Mapping[str, Any] | None = None,
) -> bool:
    """Prints the ratios and keeps everything in results/<name>.json; whether all goals hold.

    Args:
        unit: of the measured values.
        packages: distributions whose versions matter.
        facts: other numbers worth keeping, such as sizes.
    """
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    document = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": hardware(),
        "load_average_at_end": round(os.getloadavg()[0], 2),
        "versions": versions,
        "unit": unit,
        "notes": notes,
        "facts": dict(facts or {}),
        "ratios": [asdict(r) for r in ratios],
        "medians": {key: statistics.median(values) for key, values in measured.items()},
        "rounds": {key: list(values) for key, values in measured.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    for key, values in measured.items():
        print(f"{key}: median {statistics.median(values):.6g} {unit}")
    for item in ratios:
        print(item.line())
    return all(item.holds for item in ratios)
