"""Looks at all runs of a stack again and again, and reads each time only what is new: what the dashboard shows.

Of a run that has ended, the report says everything and is read once. Of one that runs, the log is followed; what it
has spent is counted as its report will count it.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from blackwell.client import Client, LogReader, RunNotFound, RunState
from blackwell.report.cost import attempt_cost
from blackwell.report.curves import thin
from blackwell.report.jobs import moment, number, timeline
from blackwell.report.live import SPARK_POINTS, LiveRun, LiveRuns
from blackwell.report.model import Series
from blackwell.runs import AttemptItem, RunItem, RunStatus
from blackwell.spec import CapacityKind
from blackwell.telemetry import StepRecord, parse_event, parse_step
from blackwell.verdict import TERMINAL_STATUSES

PACE_STEPS = 50
"""Newest logged steps that pace and throughput are the median of."""
REPORT_EXPECTED = timedelta(minutes=15)
"""After a run's end; one that has no report by then is not asked for again."""


@dataclass(slots=True)
class _Training:
    """What the log of one running run has said so far."""

    reader: LogReader
    spec: Mapping[str, Any]
    planned_steps: int | None
    starts: int = 0
    last: StepRecord | None = None
    steps: array[int] = field(default_factory=lambda: array("q"))
    losses: array[float] = field(default_factory=lambda: array("d"))
    newest: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    jobs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Jobs that have ended: they change no more."""

    def read(self, line: str) -> None:
        """Take one line of the log; a step that is taken again replaces what came after it before."""
        parsed = parse_step(line)
        if parsed is None:
            event = parse_event(line)
            self.starts += event is not None and event[1] == "start"
            return
        record = parsed[1]
        while self.steps and self.steps[-1] >= record.step:
            self.steps.pop()
            self.losses.pop()
        self.steps.append(record.step)
        self.losses.append(math.nan if record.loss is None else record.loss)
        self.newest.append(record)
        self.last = record

    def seconds_left(self) -> float | None:
        """At the pace of the newest steps; None before the first one, or where the end is not known."""
        if self.last is None or self.planned_steps is None:
            return None
        return max(0, self.planned_steps - self.last.step) * median(record.step_seconds for record in self.newest)


class Watcher:
    """All runs of one stack. `look` may be called as often as wanted; not from two threads at once."""

    def __init__(self, client: Client, stack: str, *, limit: int = 50) -> None:
        """`limit`: the newest runs so many; older ones are only counted."""
        self._client, self._stack, self._limit = client, stack, limit
        self._ended: dict[str, LiveRun] = {}
        self._training: dict[str, _Training] = {}

    def look(self, now: datetime | None = None) -> LiveRuns:
        """How everything stands now.

        Raises:
            botocore.exceptions.ClientError, BotoCoreError: AWS refused or could not be reached.
        """
        at = now or datetime.now(UTC)
        items = self._client.runs()
        shown = items[: self._limit]
        running = {item.run for item in shown if item.status is RunStatus.RUNNING}
        self._training = {run: known for run, known in self._training.items() if run in running}
        runs = [self._running(item, at) if item.run in running else self._past(item, at) for item in shown]
        return LiveRuns(stack=self._stack, at=at, runs=runs, not_shown=len(items) - len(shown))

    def _past(self, item: RunItem, now: datetime) -> LiveRun:
        known = self._ended.get(item.run)
        if known is not None and known.started == moment(item.started_at):
            return known
        report = self._document(item.run, "report.json")
        made = ended_run(item, report or {})
        late = made.ended is not None and now - made.ended > REPORT_EXPECTED
        if report is not None or late or item.status is RunStatus.REJECTED:  # else it may still be written
            self._ended[item.run] = made
        return made

    def _running(self, item: RunItem, now: datetime) -> LiveRun:
        training = self._training.get(item.run) or self._begin(item)
        self._training[item.run] = training
        try:
            state = self._client.status(item.run)
        except RunNotFound:  # its execution is gone; the run table still knows the run
            state = None
        attempts = state.attempts if state is not None else tuple(self._client.attempts(item.run))
        for attempt in attempts:
            for _, line in training.reader.new_lines(attempt.job_name):
                training.read(line)
        return self._live(item, state, attempts, training, now)

    def _begin(self, item: RunItem) -> _Training:
        spec = self._document(item.run, "spec.json") or {}
        plan = self._document(item.run, "plan.json") or {}
        steps = (spec.get("training") or {}).get("steps") or plan.get("steps")
        return _Training(self._client.log_reader(), spec, int(steps) if steps else None)

    def _live(
        self,
        item: RunItem,
        state: RunState | None,
        attempts: tuple[AttemptItem, ...],
        training: _Training,
        now: datetime,
    ) -> LiveRun:
        last = training.last
        return LiveRun(
            run=item.run,
            status=RunStatus.RUNNING,
            stage=state.stage if state is not None else None,
            job_status=state.job_status if state is not None else None,
            started=moment(item.started_at),
            step=last.step if last is not None else None,
            planned_steps=training.planned_steps,
            loss=last.loss if last is not None else None,
            tokens_per_second=median(r.tokens_per_second for r in training.newest) if training.newest else None,
            seconds_left=training.seconds_left(),
            spent_usd=self._spent(training, attempts, now),
            budget_usd=number((training.spec.get("budget") or {}).get("max_cost_usd")),
            attempts=len(attempts),
            restarts=max(0, training.starts - 1),
            curve=thin(training.steps, training.losses, SPARK_POINTS),
        )

    def _spent(self, training: _Training, attempts: tuple[AttemptItem, ...], now: datetime) -> float | None:
        """US dollars for all jobs so far; None where a price is not known. Prepaid plans count as nothing."""
        spent = 0.0
        entries = training.spec.get("capacity") or []
        for attempt in attempts:
            entry = entries[attempt.capacity_index] if attempt.capacity_index < len(entries) else {}
            job = self._job(training, attempt)
            if job is None or entry.get("kind") == CapacityKind.TRAINING_PLAN:
                continue
            resources = job.get("ResourceConfig") or {}
            count = int(resources.get("InstanceCount") or 1)
            cost = attempt_cost(job, timeline(job, now), entry, entry.get("kind"), resources.get("InstanceType"), count)
            if cost.usd is None:
                return None
            spent += cost.usd
        return spent

    def _job(self, training: _Training, attempt: AttemptItem) -> Mapping[str, Any] | None:
        if attempt.job_arn is None:
            return None
        known = training.jobs.get(attempt.job_name)
        if known is not None:
            return known
        job = self._client.job(attempt)
        if job is not None and job.get("TrainingJobStatus") in TERMINAL_STATUSES:
            training.jobs[attempt.job_name] = job
        return job

    def _document(self, run: str, name: str) -> dict[str, Any] | None:
        """The run's document; None where there is none, or none that can be read."""
        try:
            found = json.loads(self._client.document(run, name))
        except (RunNotFound, ValueError):
            return None
        return found if isinstance(found, dict) else None


def ended_run(item: RunItem, report: Mapping[str, Any]) -> LiveRun:
    """A run that has ended, from its item and its report.json; an empty report leaves the figures unknown."""
    cost, curve = report.get("cost") or {}, report.get("loss") or {}
    steps, values = curve.get("step") or [], curve.get("value") or []
    return LiveRun(
        run=item.run,
        status=item.status,
        verdict=item.verdict,
        cause=item.cause,
        started=moment(item.started_at),
        ended=moment(item.ended_at),
        step=report.get("steps"),
        planned_steps=report.get("planned_steps"),
        loss=report.get("final_loss"),
        tokens_per_second=report.get("tokens_per_second"),
        spent_usd=cost.get("total_usd"),
        budget_usd=cost.get("budget_usd"),
        attempts=len(report.get("attempts") or ()),
        restarts=len(report.get("restarts") or ()),
        curve=thin(steps, values, SPARK_POINTS) if len(steps) == len(values) else Series(),
    )
