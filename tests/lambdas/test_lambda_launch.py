"""Launch: one job per attempt, whatever happens around the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lambda_helpers import Workshop, client_error

from blackwell.names import job_name
from blackwell.runs import AttemptStatus, RunStatus
from blackwell.verdict import Verdict
from lambdas.common import errors
from lambdas.common.store import RunStore
from lambdas.execution_ended.handler import handler as execution_ended
from lambdas.job_event.handler import handler as job_event
from lambdas.launch.handler import handler

Planned = Callable[..., dict[str, Any]]


def test_the_job_is_created_and_recorded(workshop: Workshop, launched: Callable[..., str], run: str) -> None:
    name = launched()
    assert workshop.sagemaker.created == [name]
    attempt = RunStore().attempt(run, 1)
    assert attempt.status is AttemptStatus.LAUNCHED
    assert attempt.job_arn == workshop.sagemaker.jobs[name]["TrainingJobArn"]
    assert attempt.request["instance_type"] == "ml.c7i.2xlarge"


def test_a_repeated_call_makes_no_second_job(workshop: Workshop, launched: Callable[..., str], run: str) -> None:
    name = launched()
    assert handler({"run": run, "attempt": 1}, None) == {"job_name": name}
    assert workshop.sagemaker.created == [name]


def test_a_death_after_creation_is_made_good(workshop: Workshop, planned: Planned, run: str) -> None:
    """The function died between CreateTrainingJob and the run table."""
    planned()

    def die() -> None:
        raise SystemExit

    workshop.sagemaker.after_create = die
    with pytest.raises(SystemExit):
        handler({"run": run, "attempt": 1}, None)
    workshop.sagemaker.after_create = None
    assert RunStore().attempt(run, 1).job_arn is None
    handler({"run": run, "attempt": 1}, None)
    assert RunStore().attempt(run, 1).job_arn is not None
    assert len(workshop.sagemaker.created) == 1


def test_a_foreign_job_of_the_same_name_is_not_taken(workshop: Workshop, planned: Planned, run: str) -> None:
    planned()
    name = job_name("blackwell-dev", run, 1)
    workshop.sagemaker.create_training_job(TrainingJobName=name, Tags=[], ResourceConfig={})
    with pytest.raises(errors.LaunchRefused, match="does not belong"):
        handler({"run": run, "attempt": 1}, None)


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        ("ThrottlingException", "Rate exceeded", errors.Throttled),
        ("ResourceLimitExceeded", "limit is 0 Instances", errors.QuotaExceeded),
        ("ValidationException", "Could not assume role x", errors.NotReadyYet),
        ("ValidationException", "Invalid thing", errors.LaunchRefused),
    ],
)
def test_errors_are_typed(
    workshop: Workshop, planned: Planned, run: str, code: str, message: str, error: type[Exception]
) -> None:
    planned()
    workshop.sagemaker.errors = [client_error(code, message)]
    with pytest.raises(error, match=message):
        handler({"run": run, "attempt": 1}, None)
    handler({"run": run, "attempt": 1}, None)
    assert len(workshop.sagemaker.created) == 1


def test_nothing_is_started_for_a_run_that_has_ended(workshop: Workshop, planned: Planned, run: str) -> None:
    planned()
    RunStore().end_run(run, status=RunStatus.STOPPED.value)
    with pytest.raises(errors.RunEnded):
        handler({"run": run, "attempt": 1}, None)
    assert workshop.sagemaker.created == []


def test_a_stop_during_creation_leaves_no_orphan(workshop: Workshop, planned: Planned, run: str) -> None:
    planned()
    workshop.sagemaker.after_create = lambda: RunStore().end_run(run, status=RunStatus.STOPPED.value)
    with pytest.raises(errors.RunEnded):
        handler({"run": run, "attempt": 1}, None)
    assert workshop.sagemaker.stopped == workshop.sagemaker.created
    assert RunStore().attempt(run, 1).stopped_for is Verdict.STOPPED


def test_an_orphan_that_the_stop_did_not_see_is_closed_by_its_event(
    workshop: Workshop, planned: Planned, run: str
) -> None:
    """The stop came between Launch's look at the run and the job: it found no job and closed the attempt."""
    planned()
    stop = {"detail": {"executionArn": f"arn:aws:states:::execution:machine:{run}", "name": run, "status": "ABORTED"}}
    create = workshop.sagemaker.create_training_job

    def create_late(**request: Any) -> Any:
        execution_ended(stop, None)
        return create(**request)

    workshop.sagemaker.create_training_job = create_late  # type: ignore[method-assign]
    with pytest.raises(errors.RunEnded):
        handler({"run": run, "attempt": 1}, None)
    (name,) = workshop.sagemaker.created
    assert workshop.sagemaker.stopped == [name]
    job = workshop.sagemaker.end(name, "Stopped")
    job_event({"detail": {"TrainingJobName": name, "TrainingJobArn": job["TrainingJobArn"]}}, None)
    attempt = RunStore().attempt(run, 1)
    assert (attempt.status, attempt.job_arn) == (AttemptStatus.ENDED, job["TrainingJobArn"])


def test_launch_itself_keeps_the_number_of_instances(
    workshop: Workshop, planned: Planned, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IAM has no condition key for it, so a spec that was planned before the setting shrank is refused here too."""
    entry = {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "instance_count": 2}
    planned(capacity=[entry])
    monkeypatch.setenv("MAX_INSTANCES", "1")
    from lambdas.common.environment import environment

    environment.cache_clear()
    with pytest.raises(errors.LaunchRefused, match="2 instances"):
        handler({"run": run, "attempt": 1}, None)
    assert workshop.sagemaker.created == []


def test_a_plan_that_takes_no_jobs_is_waited_for(workshop: Workshop, planned: Planned, run: str) -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/a-plan-of-some-name"
    workshop.sagemaker.plans["a-plan-of-some-name"] = {"Status": "Pending"}
    entry = {"kind": "training-plan", "training_plan_arn": arn, "instance_type": "ml.p6-b200.48xlarge"}
    planned(capacity=[entry], training={"processes_per_instance": 8, "micro_batch_size": 1})
    with pytest.raises(errors.PlanUnavailable):
        handler({"run": run, "attempt": 1}, None)
    workshop.sagemaker.plans["a-plan-of-some-name"]["Status"] = "Active"
    handler({"run": run, "attempt": 1}, None)
    created = workshop.sagemaker.jobs[workshop.sagemaker.created[0]]["_request"]
    assert created["ResourceConfig"]["TrainingPlanArn"] == arn
