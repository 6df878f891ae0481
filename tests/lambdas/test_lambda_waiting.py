"""AwaitJob, JobEvent, Guard and execution_ended: one answer per end, no lost end, no orphan."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lambda_helpers import Workshop

from blackwell.runs import AttemptStatus, RunStatus
from blackwell.telemetry import StepRecord, format_step
from blackwell.verdict import Verdict
from lambdas.await_job.handler import handler as await_job
from lambdas.common.store import RunStore
from lambdas.execution_ended.handler import handler as execution_ended
from lambdas.guard.handler import handler as guard
from lambdas.job_event.handler import handler as job_event

Launched = Callable[..., str]
T1, T2 = "2026-12-01T00:00:01Z", "2026-12-01T06:00:01Z"


def wait(run: str, token: str, at: str = T1) -> None:
    await_job({"run": run, "attempt": 1, "task_token": token, "entered_at": at}, None)


def event(name: str) -> dict[str, Any]:
    arn = f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"
    return {"detail": {"TrainingJobName": name, "TrainingJobArn": arn, "TrainingJobStatus": "Completed"}}


def aborted(run: str, status: str = "ABORTED") -> dict[str, Any]:
    return {"detail": {"executionArn": f"arn:aws:states:::execution:machine:{run}", "name": run, "status": status}}


def only(run: str) -> str:
    return guard({}, None)["results"][run]


def test_the_event_answers_the_token(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    wait(run, "token-1")
    assert workshop.stepfunctions.answered == []
    workshop.sagemaker.end(name)
    job_event(event(name), None)
    assert workshop.stepfunctions.answered == ["token-1"]


def test_events_that_come_twice_answer_once(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    wait(run, "token-1")
    workshop.sagemaker.end(name)
    results = [job_event(event(name), None)["result"] for _ in range(3)]
    assert workshop.stepfunctions.answered == ["token-1"]
    assert results == ["answered", "answered before", "answered before"]


def test_an_early_event_changes_nothing(workshop: Workshop, launched: Launched, run: str) -> None:
    """An event about an older state, delivered late: only what Describe says now counts."""
    name = launched()
    wait(run, "token-1")
    assert job_event(event(name), None)["result"] == "running"
    assert workshop.stepfunctions.answered == []


def test_an_end_before_the_wait_is_seen_by_the_wait(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    workshop.sagemaker.end(name)
    assert job_event(event(name), None)["result"] == "nobody waits yet"
    wait(run, "token-1")
    assert workshop.stepfunctions.answered == ["token-1"]


def test_the_newest_token_is_answered(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    wait(run, "token-1", T1)
    wait(run, "token-2", T2)
    wait(run, "token-1", T1)  # a delayed invocation of the first state
    workshop.sagemaker.end(name)
    job_event(event(name), None)
    assert workshop.stepfunctions.answered == ["token-2"]


def test_jobs_of_others_are_left_alone(workshop: Workshop) -> None:
    workshop.sagemaker.create_training_job(TrainingJobName="foreign", Tags=[], ResourceConfig={})
    assert job_event(event("foreign"), None) == {"result": "not a job of a run"}
    assert job_event(event("gone"), None) == {"result": "not a job of a run"}


def test_the_guard_makes_a_lost_event_good(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    wait(run, "token-1")
    assert only(run) == "watching"
    workshop.sagemaker.end(name)
    assert only(run) == "answered"
    assert workshop.stepfunctions.answered == ["token-1"]


def test_a_stopped_execution_stops_its_job(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    wait(run, "token-1")
    execution_ended(aborted(run), None)
    assert workshop.sagemaker.stopped == [name]
    record = RunStore().run(run)
    assert record is not None
    assert (record.status, record.verdict) == (RunStatus.STOPPED, Verdict.STOPPED)
    assert workshop.functions.invoked == []  # the report waits for the job's end

    workshop.sagemaker.end(name, "Stopped")
    job_event(event(name), None)
    attempt = RunStore().attempt(run, 1)
    assert (attempt.status, attempt.verdict) == (AttemptStatus.ENDED, Verdict.STOPPED)
    assert workshop.functions.invoked == [("report", {"run": run, "notify": True})]
    job_event(event(name), None)
    assert len(workshop.functions.invoked) == 1


def test_a_stopped_execution_without_a_job_is_reported_at_once(
    workshop: Workshop, planned: Callable[..., Any], run: str
) -> None:
    planned()
    execution_ended(aborted(run), None)
    assert workshop.functions.invoked == [("report", {"run": run, "notify": True})]
    attempt = RunStore().attempt(run, 1)
    assert (attempt.status, attempt.verdict) == (AttemptStatus.ENDED, Verdict.STOPPED)
    assert guard({}, None)["results"] == {}


@pytest.mark.parametrize("status", ["FAILED", "TIMED_OUT"])
def test_a_broken_execution_ends_its_run(workshop: Workshop, launched: Launched, run: str, status: str) -> None:
    name = launched()
    execution_ended(aborted(run, status), None)
    record = RunStore().run(run)
    assert record is not None
    assert record.verdict is Verdict.WORKFLOW_FAILED
    assert workshop.sagemaker.stopped == [name]


def test_the_end_of_a_run_stays_as_it_is(workshop: Workshop, launched: Launched, run: str) -> None:
    launched()
    store = RunStore()
    store.end_run(run, status=RunStatus.FAILED.value, verdict=Verdict.DIVERGED.value)
    store.update_attempt(run, 1, status=AttemptStatus.ENDED.value)
    execution_ended(aborted(run, "FAILED"), None)
    record = store.run(run)
    assert record is not None
    assert record.verdict is Verdict.DIVERGED
    assert workshop.sagemaker.stopped == []


def test_executions_of_others_are_left_alone(workshop: Workshop, launched: Launched, run: str) -> None:
    launched()
    foreign = {"detail": {"executionArn": f"arn:other:{run}", "name": run, "status": "ABORTED"}}
    assert execution_ended(foreign, None) == {"result": "no such run"}


def test_the_guard_finds_runs_without_an_execution(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    workshop.stepfunctions.executions.clear()
    assert only(run).startswith("execution GONE")
    assert workshop.sagemaker.stopped == [name]


def test_the_guard_stops_a_job_that_outlived_its_run(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    RunStore().end_run(run, status=RunStatus.STOPPED.value, verdict=Verdict.STOPPED.value)
    assert only(run) == "stopped a job that outlived its run"
    assert workshop.sagemaker.stopped == [name]


def test_one_runs_trouble_does_not_hide_the_others(workshop: Workshop, launched: Launched, run: str) -> None:
    launched()
    bucket = workshop.environment["ARTIFACTS_BUCKET"]
    workshop.aws.client("s3").delete_object(Bucket=bucket, Key=f"runs/{run}/spec.json")
    assert only(run).startswith("LookupError")


def step_line(run: str, step: int) -> str:
    return format_step(StepRecord(step=step, time=0.0, loss=1.0, learning_rate=1e-3), run)


def began(workshop: Workshop, name: str, ago: timedelta) -> None:
    start = datetime.now(UTC) - ago
    workshop.sagemaker.jobs[name].update(
        TrainingStartTime=start, SecondaryStatusTransitions=[{"Status": "Training", "StartTime": start}]
    )


def test_the_budget_is_asked_for_then_enforced(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched(budget={"max_cost_usd": 2.0})  # at one dollar an hour
    began(workshop, name, timedelta(hours=1))
    assert only(run) == "watching"
    began(workshop, name, timedelta(hours=1, minutes=52))
    workshop.log(name, [step_line(run, 1)])
    assert only(run) == "watching"
    began(workshop, name, timedelta(hours=1, minutes=53, seconds=30))  # the next look, and a checkpoint, come too late
    assert only(run) == "asked to stop: budget_reached"
    control = workshop.document(run, "control.json")
    assert control["action"] == "stop_after_step"
    assert only(run) == "asked; waiting for the checkpoint"
    assert workshop.sagemaker.stopped == []
    workshop.put_checkpoint(run, 10)
    assert only(run) == "stopped: the checkpoint is durable"
    assert workshop.sagemaker.stopped == [name]
    assert RunStore().attempt(run, 1).stopped_for is Verdict.BUDGET_REACHED


def test_no_checkpoint_in_time_is_stopped_all_the_same(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched(budget={"max_cost_usd": 1.0})
    began(workshop, name, timedelta(hours=2))
    only(run)
    workshop.put_checkpoint(run, 10, whole=False)
    long_ago = (datetime.now(UTC) - timedelta(minutes=21)).isoformat()
    RunStore().update_attempt(run, 1, stop_asked_at=long_ago)
    assert only(run) == "stopped: no checkpoint came in time"
    assert workshop.sagemaker.stopped == [name]


def test_the_launchers_own_watchdog_comes_before_the_guard(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    began(workshop, name, timedelta(hours=1))
    workshop.log(name, [step_line(run, 1)], at=datetime.now(UTC) - timedelta(minutes=39))
    assert only(run) == "watching"


def test_a_silent_job_is_stopped(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    began(workshop, name, timedelta(hours=1))
    workshop.log(name, [step_line(run, 1)], at=datetime.now(UTC) - timedelta(minutes=41))
    assert only(run).startswith("stopped: hung after")
    assert workshop.sagemaker.stopped == [name]


def test_start_up_has_a_limit_of_its_own(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    began(workshop, name, timedelta(minutes=60))
    assert only(run) == "watching"
    began(workshop, name, timedelta(minutes=91))
    assert only(run).startswith("stopped: hung")


def test_an_old_durable_checkpoint_is_asked_for_once(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    began(workshop, name, timedelta(hours=3))
    record = StepRecord(step=9, time=0.0, loss=1.0, learning_rate=1e-3, checkpoint_durable_lag_seconds=2 * 3600 + 1)
    workshop.log(name, [format_step(record, run)])
    workshop.put_checkpoint(run, 5)
    assert only(run).startswith("asked for a checkpoint")
    first = workshop.document(run, "control.json")
    assert first["action"] == "checkpoint_now"
    only(run)
    assert workshop.document(run, "control.json")["id"] == first["id"]  # rank 0 acts once per id
    workshop.put_checkpoint(run, 10)
    only(run)
    assert workshop.document(run, "control.json")["id"] != first["id"]
    assert workshop.sagemaker.stopped == []


def test_waiting_for_capacity_is_no_silence(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    began(workshop, name, timedelta(hours=9))
    workshop.sagemaker.jobs[name]["SecondaryStatus"] = "Interrupted"
    assert only(run) == "waiting"


def test_a_run_that_ended_and_told_nobody_is_reported_again(
    workshop: Workshop, planned: Callable[..., Any], run: str
) -> None:
    """The report died after it had written the run's end: the execution fails, and its event finds the run ended."""
    planned()
    store = RunStore()
    store.end_run(run, status=RunStatus.COMPLETED.value, verdict=Verdict.COMPLETED.value)
    store.update_attempt(run, 1, status=AttemptStatus.ENDED.value)
    execution_ended(aborted(run, "FAILED"), None)
    assert workshop.functions.invoked == [("report", {"run": run, "notify": True})]
    store.update_run(run, notified=True)
    execution_ended(aborted(run, "FAILED"), None)
    assert len(workshop.functions.invoked) == 1


def test_one_runs_trouble_hides_no_other_among_many(workshop: Workshop, planned: Callable[..., Any], run: str) -> None:
    names = [f"{run}-{number}" for number in range(20)]
    for name in names:
        assert planned(name)["accepted"]
    del workshop.stepfunctions.executions[f"arn:aws:states:::execution:machine:{names[3]}"]
    results = guard({}, None)["results"]
    assert set(results) == set(names)
    assert results[names[3]].startswith("execution GONE")
    assert {results[name] for name in names if name != names[3]} == {"no job"}
