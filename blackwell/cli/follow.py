"""Live progress of a run: one line that changes in a terminal, plain lines elsewhere. Ctrl-C detaches."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from blackwell.cli.common import console, exit_code
from blackwell.report.words import duration, money

if TYPE_CHECKING:
    from blackwell.client import Client, Progress
    from blackwell.planning import Plan


_QUIET_SECONDS = 10.0
"""Seconds between two step lines where the output is no terminal: a log file needs no line per step."""


@dataclass(slots=True)
class Outlook:
    """What the plan says about a run, so that progress can be turned into time left and money spent."""

    steps: int | None = None
    usd_per_hour: float | None = None
    """All instances together."""

    @classmethod
    def of(cls, plan: Plan) -> Outlook:
        entry = plan.resolved.capacity[0]
        price = plan.cost.price_per_instance_hour
        return cls(
            steps=plan.resolved.training.steps,
            usd_per_hour=price * entry.instance_count if price is not None else None,
        )


def _checkpoint(progress: Progress) -> str:
    fields = progress.fields
    phase = {"complete": "written", "durable": "durable in S3", "pruned": "pruned"}.get(str(fields.get("phase")))
    after = f" after {duration(float(fields['seconds']))}" if fields.get("seconds") is not None else ""
    return f"checkpoint of step {fields.get('step')} {phase}{after}" if phase else progress.line()


def _start(progress: Progress) -> str:
    fields = progress.fields
    resumed = fields.get("resumed_from_step")
    begun = f", on from step {resumed}" if resumed else ""
    return f"training starts: {fields.get('world_size')} ranks, {fields.get('precision')}{begun}"


_EVENTS: dict[str, Callable[[Progress], str]] = {
    "start": _start,
    "checkpoint": _checkpoint,
    "validation": lambda p: f"validation loss {p.fields.get('validation_loss')} at step {p.fields.get('step')}",
    "finish": lambda p: f"training ends at step {p.fields.get('step')}",
}
"""Events in words; any other is shown with its fields."""


class Tracker:
    """Turns progress into what a person wants to know: how far, how fast, how long still, how much so far."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._first: tuple[int, float] | None = None
        self._trained = 0.0
        self._last_time: float | None = None
        self._attempt = 0

    def text(self, progress: Progress) -> str:
        """One line for this progress."""
        step = progress.step
        if step is None:
            return _EVENTS[progress.event](progress) if progress.event in _EVENTS else progress.line()
        if self._first is None or progress.attempt != self._attempt or step.step <= self._first[0]:
            self._first, self._attempt = (step.step, step.time), progress.attempt
        if self._last_time is not None and step.time > self._last_time:
            self._trained += step.time - self._last_time
        self._last_time = step.time
        parts = [f"step {step.step:,}" + (f" of {self._outlook.steps:,}" if self._outlook.steps else "")]
        parts.append(f"loss {step.loss:.4f}" if step.loss is not None else "loss not finite")
        parts.append(f"{step.tokens_per_second:,.0f} tokens/s")
        left = self._seconds_left(step.step, step.time)
        if left is not None:
            parts.append(f"{duration(left)} left")
        if self._outlook.usd_per_hour is not None and self._trained:
            parts.append(f"about {money(self._trained / 3600 * self._outlook.usd_per_hour)} of training time")
        return ", ".join(parts)

    def _seconds_left(self, step: int, now: float) -> float | None:
        if self._outlook.steps is None or self._first is None or step <= self._first[0]:
            return None
        per_step = (now - self._first[1]) / (step - self._first[0])
        return max(0.0, (self._outlook.steps - step) * per_step)


def follow(client: Client, run: str, outlook: Outlook, *, as_json: bool) -> None:
    """Shows the run until it ends, then exits with its exit code; Ctrl-C leaves it running and exits with 0."""
    try:
        if as_json:
            _as_json(client, run)
        else:
            _as_text(client, run, outlook)
    except KeyboardInterrupt:
        if not as_json:
            print(f"\ndetached; {run} goes on")
            print(f"  follow it: python -m blackwell logs -f {run}")
            print(f"  stop it:   python -m blackwell stop {run}")
        raise typer.Exit(0) from None
    state = client.status(run)
    raise typer.Exit(exit_code(state.final_status))


def _as_text(client: Client, run: str, outlook: Outlook) -> None:
    out = console()
    tracker = Tracker(outlook)
    if not out.is_terminal:
        shown = -math.inf
        for progress in client.follow(run):
            text = tracker.text(progress)
            if progress.kind == "step":
                if time.monotonic() - shown < _QUIET_SECONDS:
                    continue
                shown = time.monotonic()
            print(text, flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text("waiting for the workflow"), console=out, refresh_per_second=4) as live:
        for progress in client.follow(run):
            text = tracker.text(progress)
            if progress.kind == "step":
                live.update(Text(text))
            else:
                live.console.print(Text(text))


def _as_json(client: Client, run: str) -> None:
    for progress in client.follow(run):
        document: dict[str, Any] = {
            "run": run,
            "kind": progress.kind,
            "stage": progress.stage,
            "attempt": progress.attempt,
        }
        if progress.step is not None:
            document["step"] = progress.step.model_dump(exclude_none=True)
        if progress.event is not None:
            document |= {"event": progress.event, "fields": dict(progress.fields)}
        if progress.text:
            document["text"] = progress.text
        print(json.dumps(document), flush=True)
