"""Assess: the verdict, what follows, and that both stay the same when asked again."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from lambda_helpers import Workshop

from blackwell.runs import AttemptStatus
from blackwell.telemetry import StepRecord, format_step
from blackwell.verdict import FailureRecord, Verdict
from lambdas.common.store import RunStore
from lambdas.launch.handler import handler as launch

Launched = Callable[..., str]
Assessed = Callable[..., dict[str, Any]]


def failure(verdict: Verdict) -> dict[str, Any]:
    record = FailureRecord(verdict=verdict, cause="first line").encode()
    return {"status": "Failed", "FailureReason": f"AlgorithmError: {record}, exit code: 1"}


def test_a_completed_job_goes_to_the_report(
    workshop: Workshop, launched: Launched, assessed: Assessed, run: str
) -> None:
    name = launched()
    line = format_step(StepRecord(step=20, time=0.0, loss=1.0, learning_rate=1e-3), run)
    workshop.log(name, [line])
    workshop.put_checkpoint(run, 15)
    workshop.put_checkpoint(run, 20, whole=False)
    workshop.sagemaker.end(name)
    answer = assessed()
    assert (answer["action"], answer["verdict"]) == ("report", "completed")
    attempt = RunStore().attempt(run, 1)
    assert (attempt.status, attempt.last_step, attempt.durable_step) == (AttemptStatus.ENDED, 20, 15)


def test_out_of_memory_is_launched_again_with_less(
    workshop: Workshop, launched: Launched, assessed: Assessed, run: str
) -> None:
    workshop.sagemaker.end(launched(), **failure(Verdict.OUT_OF_MEMORY))
    answer = assessed()
    assert (answer["action"], answer["attempt"], answer["wait_seconds"]) == ("launch", 2, 0)
    launch({"run": run, "attempt": 2}, None)
    first, second = (workshop.sagemaker.jobs[name]["_request"] for name in workshop.sagemaker.created)
    changed = {k for k, v in second["HyperParameters"].items() if first["HyperParameters"].get(k) != v}
    assert changed == {"activation_checkpointing"}
    assert first["CheckpointConfig"] == second["CheckpointConfig"]


def test_asked_again_it_answers_the_same(workshop: Workshop, launched: Launched, assessed: Assessed, run: str) -> None:
    workshop.sagemaker.end(launched(), **failure(Verdict.HARDWARE))
    assert assessed() == assessed()
    assert [a.attempt for a in RunStore().attempts(run)] == [1, 2]


def test_a_death_before_the_next_attempt_is_made_good(
    workshop: Workshop, launched: Launched, assessed: Assessed, run: str
) -> None:
    workshop.sagemaker.end(launched(), **failure(Verdict.HARDWARE))
    assessed()
    key = {"run": {"S": run}, "attempt": {"N": "2"}}
    workshop.aws.client("dynamodb").delete_item(TableName=workshop.environment["RUN_TABLE"], Key=key)
    assessed()
    assert [a.attempt for a in RunStore().attempts(run)] == [1, 2]


def test_a_job_that_could_not_be_created(workshop: Workshop, planned: Callable[..., Any], assessed: Assessed) -> None:
    planned()
    cause = '{"errorMessage": "ResourceLimitExceeded: the limit is 0", "errorType": "QuotaExceeded"}'
    answer = assessed(Error="QuotaExceeded", Cause=cause)
    assert (answer["action"], answer["verdict"]) == ("report", "quota")


def test_throttling_is_waited_for(
    workshop: Workshop, planned: Callable[..., Any], assessed: Assessed, run: str
) -> None:
    planned()
    answer = assessed(Error="Throttled", Cause="")
    assert (answer["action"], answer["wait_seconds"]) == ("launch", 60)
    assert RunStore().attempt(run, 2).why == "throttled: again in 60 s"


def test_a_broken_launch_leaves_no_job_behind(workshop: Workshop, launched: Launched, assessed: Assessed) -> None:
    """Launch created the job and then died for good: its error is the workflow's, the job is stopped."""
    name = launched()
    answer = assessed(Error="Lambda.Unknown", Cause="")
    assert (answer["action"], answer["verdict"]) == ("report", "workflow_failed")
    assert workshop.sagemaker.stopped == [name]


def test_our_own_stop_has_our_reason(workshop: Workshop, launched: Launched, assessed: Assessed, run: str) -> None:
    name = launched(budget={"max_cost_usd": 50})
    RunStore().update_attempt(run, 1, stopped_for=Verdict.BUDGET_REACHED.value)
    workshop.sagemaker.end(name, "Stopped")
    assert assessed()["verdict"] == "budget_reached"


def test_diverged_data_is_left_out(workshop: Workshop, launched: Launched, assessed: Assessed, run: str) -> None:
    name = launched(remedies={"allow_data_skip": True}, training={"loss_spike": None})
    workshop.put_checkpoint(run, 5)
    workshop.put_checkpoint(run, 10)
    record = FailureRecord(verdict=Verdict.DIVERGED, cause="loss is nan", step=12).encode()
    workshop.sagemaker.end(name, "Failed", FailureReason=f"AlgorithmError: {record}")
    assert assessed()["action"] == "launch"
    launch({"run": run, "attempt": 2}, None)
    environment = workshop.sagemaker.jobs[workshop.sagemaker.created[1]]["_request"]["Environment"]
    assert json.loads(environment["BLACKWELL_SKIP_DATA"]) == {"before_step": 12, "sequences": 2 * 8}


def test_the_budget_ends_remedies(workshop: Workshop, launched: Launched, assessed: Assessed) -> None:
    """Two dollars are spent at one dollar an hour: hardware would be tried again, but the money is gone."""
    name = launched(budget={"max_cost_usd": 2.0})
    start = datetime.now(UTC) - timedelta(hours=2)
    ended = {"TrainingStartTime": start, "TrainingEndTime": start + timedelta(hours=2), "BillableTimeInSeconds": 7200}
    workshop.sagemaker.end(name, **failure(Verdict.HARDWARE), **ended)
    answer = assessed()
    assert (answer["action"], answer["verdict"]) == ("report", "budget_reached")


def test_the_next_capacity_entry_is_planned_anew(
    workshop: Workshop, launched: Launched, assessed: Assessed, run: str
) -> None:
    spot = {"kind": "spot", "instance_type": "ml.c7i.2xlarge", "max_runtime_seconds": 600, "max_wait_seconds": 900}
    two = {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "instance_count": 2}
    name = launched(capacity=[spot, two])
    workshop.sagemaker.end(name, "Stopped", "MaxWaitTimeExceeded")
    assert assessed()["action"] == "launch"
    launch({"run": run, "attempt": 2}, None)
    request = workshop.sagemaker.jobs[workshop.sagemaker.created[1]]["_request"]
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert request["EnableManagedSpotTraining"] is False
    assert request["HyperParameters"]["global_batch_size"] == "8"
