"""Goodput: which share of the paid time moved the training forward, and where the rest went.

Every instant with instances belongs to exactly one part. Statuses of the job give the coarse split; inside Training,
the step records give the fine one: a step's own seconds less what it waited for data and checkpoints is productive,
unless the step was lost and taken again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from blackwell.report.history import Start
from blackwell.report.jobs import WAITING, machine_seconds
from blackwell.report.model import Goodput, GoodputPart, Transition

PRODUCTIVE = "productive steps"
PARTS: dict[str, str] = {
    PRODUCTIVE: "steps of the final history, without their waits",
    "recompute after restart": "steps that were lost and taken again",
    "checkpoint stall": "training stood still for a checkpoint",
    "data wait": "training waited for data",
    "validation": "validation batches",
    "image": "pulling the training image",
    "download": "downloading data and checkpoints",
    "start-up": "from the container's start, or the launcher's restart, to the first step",
    "ending": "after the last step: last checkpoint, export, upload, stopping",
    "idle": "paid for, and nothing of the above",
}
"""Name of a part -> what it holds, in the order they are shown."""

_BY_STATUS = {
    "DownloadingTrainingImage": "image",
    "Downloading": "download",
    "PreparingTrainingStack": "start-up",
    "Uploading": "ending",
    "Stopping": "ending",
}


@dataclass(slots=True)
class Account:
    """One attempt's time, in wall-clock seconds."""

    instances: int
    billed: float
    waiting: float
    parts: dict[str, float] = field(default_factory=dict)


def account(
    job: Mapping[str, Any], stretches: list[Transition], starts: list[Start], instances: int, before: float | None
) -> Account:
    """Splits one attempt's time. `before` is the Unix time of the newest step of earlier attempts, None for none."""
    parts = dict.fromkeys(PARTS, 0.0)
    for stretch in stretches:
        name = _BY_STATUS.get(stretch.status)
        if name is not None:
            parts[name] += stretch.seconds
    for start, following in zip_longest(starts, starts[1:]):
        after = _steps(start, parts)
        if following is None or _container(start, stretches) != _container(following, stretches):
            parts["ending"] += max(0.0, _ending(start, stretches) - after)
        parts["start-up"] += _start_up(start, stretches, before)
        before = start.last_time if start.step else before
    measured = sum(parts.values())
    billed = max(machine_seconds(job, stretches), measured)
    parts["idle"] = billed - measured
    waiting = sum(t.seconds for t in stretches if t.status in WAITING)
    return Account(instances=instances, billed=billed, waiting=waiting, parts=parts)


def _steps(start: Start, parts: dict[str, float]) -> float:
    """Adds up the steps and validations of one start; returns the seconds of validation after its last step."""
    validations = _validations(start)
    productive = wait = stall = lost = 0.0
    before = -1
    for index, step in enumerate(start.step):
        seconds = start.interval_seconds(index)
        inside = validations.between(before, step, start, index, seconds)
        before = step
        if index >= start.kept:
            lost += seconds - inside
            continue
        data = min(seconds - inside, start.data_wait[index])
        save = min(seconds - inside - data, start.stall[index])
        wait += data
        stall += save
        productive += seconds - inside - data - save
    parts[PRODUCTIVE] += productive
    parts["data wait"] += wait
    parts["checkpoint stall"] += stall
    parts["recompute after restart"] += lost
    parts["validation"] += validations.total
    return validations.left


class _Validations:
    """Seconds of validation by step. The trainer's clock runs on during validation, so the step after it seems long."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._waiting = sorted(seconds.items(), reverse=True)
        self.total = sum(seconds.values())

    @property
    def left(self) -> float:
        """Seconds of those after the last step that was asked for."""
        return sum(seconds for _step, seconds in self._waiting)

    def between(self, before: int, step: int, start: Start, index: int, seconds: float) -> float:
        """Seconds of validation that are inside record `index`'s own seconds: all after step `before`, less what lies
        between the two records without being counted in either."""
        spent = 0.0
        while self._waiting and self._waiting[-1][0] < step:
            at, took = self._waiting.pop()
            spent += took if at >= before else 0.0
        if not spent or not index:
            return 0.0
        outside = max(0.0, start.end[index] - start.end[index - 1] - seconds)
        return min(max(0.0, spent - outside), seconds)


def _validations(start: Start) -> _Validations:
    found: dict[int, float] = {}
    for event in start.events:
        step, seconds = event.fields.get("step"), event.fields.get("seconds")
        if event.name == "validation" and isinstance(step, int) and isinstance(seconds, (int, float)):
            found[step] = found.get(step, 0.0) + float(seconds)
    return _Validations(found)


def _start_up(start: Start, stretches: list[Transition], before: float | None) -> float:
    """From the later of the container's start and the last step before, until this start's first step began."""
    begin = start.first_begin
    if begin is None:
        return 0.0  # it never came to a step: its time stays idle
    origins = [t.start.timestamp() for t in stretches if t.status == "Training" and t.start.timestamp() <= begin]
    if before is not None and before <= begin:
        origins.append(before)
    if not origins and start.time is not None and start.time <= begin:
        origins.append(start.time)
    return begin - max(origins) if origins else 0.0


def _container(start: Start, stretches: list[Transition]) -> float | None:
    """When the container was started that this start ran in; None where that is not known."""
    moment = start.first_begin if start.step else start.last_time
    begun = [t.start.timestamp() for t in stretches if t.status == "Training"]
    return max((b for b in begun if moment is not None and b <= moment), default=None)


def _ending(start: Start, stretches: list[Transition]) -> float:
    """From a start's last step to the end of the container's time in Training; 0 where the container went on."""
    last = start.last_time
    if not start.step or last is None:
        return 0.0
    for number, stretch in reversed(list(enumerate(stretches))):
        if stretch.status == "Training" and stretch.start.timestamp() <= last:
            open_still = number == len(stretches) - 1  # it trains; its next step is only not there yet
            return 0.0 if open_still else max(0.0, stretch.end.timestamp() - last)
    return 0.0


def total(accounts: list[Account]) -> Goodput:
    """All attempts together, each weighted by its instances."""
    billed = sum(a.billed * a.instances for a in accounts)
    parts = {name: sum(a.parts[name] * a.instances for a in accounts) for name in PARTS}
    return Goodput(
        goodput=parts[PRODUCTIVE] / billed if billed > 0 else None,
        productive_seconds=parts[PRODUCTIVE],
        billed_seconds=billed,
        waiting_seconds=sum(a.waiting for a in accounts),
        parts=[
            GoodputPart(name=name, seconds=seconds, share=seconds / billed)
            for name, seconds in parts.items()
            if billed > 0
        ],
    )
