"""What the dashboard knows of each run, against a stack that is played."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from synthetic_run import BEGIN, SPEC, STEP_SECONDS, JobLog, eventful_run

from blackwell.client import Client, RunNotFound, RunState
from blackwell.live import PACE_STEPS, Watcher
from blackwell.report import build_run_report
from blackwell.report.live import SPARK_POINTS, LiveRuns
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.verdict import Verdict

LONG = {**SPEC, "training": {**SPEC["training"], "steps": 1_000}}


class PlayedStack:
    """A run that goes on, one that has ended with a report, one that was rejected."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.items = [
            self._item("going", RunStatus.RUNNING, 3),
            self._item("done", RunStatus.COMPLETED, 2, verdict=Verdict.COMPLETED),
            self._item("refused", RunStatus.REJECTED, 1, verdict=Verdict.REJECTED, cause="BTS-003"),
        ]
        self.log = JobLog("going", 1, BEGIN + timedelta(seconds=600))
        self.spec: dict[str, Any] = LONG
        self.gone = False

    def _item(self, run: str, status: RunStatus, hour: int, **more: Any) -> RunItem:
        started = BEGIN.replace(hour=hour).isoformat()
        return RunItem(run=run, status=status, execution_arn=f"arn:{run}", started_at=started, **more)

    def runs(self) -> list[RunItem]:
        self.asked["runs"] += 1
        return list(self.items)

    def attempts(self, run: str) -> list[AttemptItem]:
        name = f"blackwell-dev-{run}-a1"
        return [AttemptItem(run=run, attempt=1, status=AttemptStatus.LAUNCHED, job_name=name, job_arn="arn:job")]

    def status(self, run: str) -> RunState:
        if self.gone:
            raise RunNotFound(run)
        return RunState(
            run=run, status=RunStatus.RUNNING, execution_status="RUNNING", stage="AwaitJob", item=None,
            attempts=tuple(self.attempts(run)), job_status="Training",
        )  # fmt: skip

    def job(self, attempt: AttemptItem) -> dict[str, Any]:
        self.asked["job"] += 1
        return {
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Training",
            "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": BEGIN}],
            "ResourceConfig": {"InstanceType": "ml.p6-b200.48xlarge", "InstanceCount": 1},
        }

    def document(self, run: str, name: str) -> bytes:
        self.asked[f"{run}/{name}"] += 1
        if (run, name) == ("going", "spec.json"):
            return json.dumps(self.spec).encode()
        if (run, name) == ("done", "report.json"):
            return build_run_report(eventful_run("done")).model_dump_json().encode()
        raise RunNotFound(f"run {run!r} has no {name}")

    def log_reader(self) -> PlayedStack:
        return self

    def new_lines(self, job_name: str) -> Iterator[tuple[float, str]]:
        new, self.log.lines = self.log.lines, []
        yield from new


@pytest.fixture
def stack() -> PlayedStack:
    return PlayedStack()


@pytest.fixture
def watcher(stack: PlayedStack) -> Watcher:
    return Watcher(cast(Client, stack), "TheStack")


def look(watcher: Watcher, hours: float = 2.0) -> LiveRuns:
    return watcher.look(BEGIN + timedelta(hours=hours))


def test_a_running_run_before_its_first_step(watcher: Watcher) -> None:
    run = look(watcher).runs[0]
    assert (run.run, run.status, run.stage, run.job_status) == ("going", RunStatus.RUNNING, "AwaitJob", "Training")
    assert (run.step, run.loss, run.tokens_per_second, run.seconds_left) == (None,) * 4
    assert run.planned_steps == 1_000
    assert run.restarts == 0


def test_a_running_run_in_figures(watcher: Watcher, stack: PlayedStack) -> None:
    stack.log.start(None)
    stack.log.steps(1, 400)
    run = look(watcher).runs[0]
    assert run.step == 400
    assert run.seconds_left == pytest.approx(600 * (STEP_SECONDS + 0.02))
    assert run.tokens_per_second == pytest.approx(8 * 16 * 4096 / (STEP_SECONDS + 0.02))
    assert run.budget_usd == 250.0
    assert run.attempts == 1
    assert len(run.curve.step) <= SPARK_POINTS
    assert (run.curve.step[0], run.curve.step[-1]) == (1, 400)
    first = run.spent_usd
    assert first is not None
    assert first > 0
    later = look(watcher, 4.0).runs[0].spent_usd
    assert later == pytest.approx(2 * first)


def test_each_look_reads_only_what_is_new(watcher: Watcher, stack: PlayedStack) -> None:
    stack.log.start(None)
    stack.log.steps(1, 10)
    look(watcher)
    stack.log.steps(11, 20)
    found = look(watcher)
    assert found.runs[0].step == 20
    assert found.runs[0].curve.step == list(range(1, 21))
    assert stack.asked["done/report.json"] == 1
    assert stack.asked["going/spec.json"] == 1


def test_steps_that_are_taken_again_replace_the_first_ones(watcher: Watcher, stack: PlayedStack) -> None:
    stack.log.start(None)
    stack.log.steps(1, 137)
    stack.log.start(100)
    stack.log.steps(101, 120)
    run = look(watcher).runs[0]
    assert (run.step, run.restarts) == (120, 1)
    assert run.curve.step == list(range(1, 121))
    assert PACE_STEPS > 20  # the pace spans the restart


def test_a_run_that_ends_while_it_is_watched(watcher: Watcher, stack: PlayedStack) -> None:
    stack.log.start(None)
    stack.log.steps(1, 10)
    look(watcher)
    stack.items[0] = stack._item("going", RunStatus.FAILED, 3, verdict=Verdict.HUNG, cause="silent")
    run = look(watcher).runs[0]
    assert (run.status, run.verdict, run.cause, run.step) == (RunStatus.FAILED, Verdict.HUNG, "silent", None)
    look(watcher)
    assert stack.asked["going/report.json"] == 2  # it may still be written


def test_ended_runs_show_their_report(watcher: Watcher) -> None:
    report = build_run_report(eventful_run("done"))
    done = look(watcher).runs[1]
    assert (done.step, done.loss, done.spent_usd) == (report.steps, report.final_loss, report.cost.total_usd)
    assert (done.attempts, done.restarts) == (len(report.attempts), len(report.restarts))
    assert done.curve.step


def test_a_run_without_price_or_execution(watcher: Watcher, stack: PlayedStack) -> None:
    stack.gone = True
    stack.spec = {**LONG, "budget": None}
    stack.job = lambda attempt: {"ResourceConfig": {"InstanceType": "ml.none.48xlarge"}}  # type: ignore[method-assign]
    run = look(watcher).runs[0]
    assert (run.spent_usd, run.budget_usd, run.stage) == (None, None, None)


def test_older_runs_are_counted(stack: PlayedStack) -> None:
    found = Watcher(cast(Client, stack), "TheStack", limit=1).look(datetime.now(BEGIN.tzinfo))
    assert ([run.run for run in found.runs], found.not_shown) == (["going"], 2)


def test_a_report_that_never_came_is_not_asked_for_for_ever(watcher: Watcher, stack: PlayedStack) -> None:
    over = (BEGIN + timedelta(hours=1)).isoformat()
    stack.items[0] = stack._item("going", RunStatus.FAILED, 3, verdict=Verdict.WORKFLOW_FAILED, ended_at=over)
    for _ in range(3):
        look(watcher, 2.0)
    assert stack.asked["going/report.json"] == 1
