"""How an attempt ended: from what SageMaker says, and from why a job could not be created."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackwell.verdict import (
    EXIT_CODES,
    FAILURE_REASON_MAX,
    FAILURE_RECORD_MAX,
    LAUNCH_ERRORS,
    RULES,
    FailureRecord,
    Verdict,
    classify_job,
    classify_launch_error,
    launch_error_name,
)


def job(status: str, secondary: str, *, reason: str = "", passed: tuple[str, ...] = ("Starting", "Training")) -> dict:
    return {
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "FailureReason": reason,
        "SecondaryStatusTransitions": [{"Status": name} for name in (*passed, secondary)],
    }


RECORD = FailureRecord(verdict=Verdict.OUT_OF_MEMORY, cause="CUDA out of memory", step=7, rank=1)

JOBS = [
    (job("Completed", "Completed"), Verdict.COMPLETED),
    (job("Failed", "Failed", reason=f"AlgorithmError: {RECORD.encode()}, exit code: 68"), Verdict.OUT_OF_MEMORY),
    (job("Failed", "Failed", reason="AlgorithmError: , exit code: 68"), Verdict.OUT_OF_MEMORY),
    (job("Failed", "Failed", reason="AlgorithmError: , exit code: 65"), Verdict.DIVERGED),
    (job("Failed", "Failed", reason="AlgorithmError: , exit code: 66"), Verdict.HUNG),
    (job("Failed", "Failed", reason="AlgorithmError: , exit code: 137"), Verdict.HARDWARE),
    (job("Failed", "Failed", reason="AlgorithmError: , exit code: 1"), Verdict.USER_ERROR),
    (
        job("Failed", "Failed", reason="AlgorithmError: torch.OutOfMemoryError: CUDA out of memory"),
        Verdict.OUT_OF_MEMORY,
    ),
    (job("Failed", "Failed", reason="AlgorithmError: NCCL WARN timeout after 600 s"), Verdict.HARDWARE),
    (job("Failed", "Failed", reason="AlgorithmError: Xid 79: GPU has fallen off the bus"), Verdict.HARDWARE),
    (
        job(
            "Failed",
            "Failed",
            reason="CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML "
            "instance type.",
        ),
        Verdict.CAPACITY,
    ),
    (
        job("Failed", "Failed", reason="InsufficientCapacityError: the plan had no capacity for two days"),
        Verdict.CAPACITY,
    ),
    (job("Failed", "Failed", reason="InternalServerError: We encountered an internal error."), Verdict.HARDWARE),
    (job("Failed", "Failed", reason="ClientError: Data download failed: NoSuchKey"), Verdict.USER_ERROR),
    (job("Failed", "Failed"), Verdict.USER_ERROR),
    (job("Stopped", "MaxRuntimeExceeded"), Verdict.RUNTIME_EXCEEDED),
    (job("Stopped", "MaxWaitTimeExceeded", passed=("Starting",)), Verdict.WAIT_EXCEEDED),
    (job("Stopped", "MaxWaitTimeExceeded", passed=("Training", "Interrupted", "Starting")), Verdict.INTERRUPTED),
    (job("Stopped", "Stopped"), Verdict.STOPPED),
    (job("Stopped", "Stopped", passed=("Pending",)) | {"SecondaryStatus": "Pending"}, Verdict.CAPACITY),
    (
        job("Stopped", "Stopped", reason=f"{FailureRecord(verdict=Verdict.PLAN_ENDED, cause='ends').encode()}"),
        Verdict.PLAN_ENDED,
    ),
]


@pytest.mark.parametrize(("described", "verdict"), JOBS, ids=lambda value: str(value)[:60])
def test_verdict_of_a_job(described: dict, verdict: Verdict) -> None:
    ending = classify_job(described)
    assert ending.verdict is verdict
    assert ending.cause


def test_a_person_who_stops_a_waiting_job_gets_no_new_one() -> None:
    """A job that waits has been Pending; only the limit that was asked for, and reached, makes that missing capacity."""
    begun = datetime(2026, 12, 1, tzinfo=UTC)
    waited = job("Stopped", "Stopped", passed=("Starting", "Pending", "Stopping"))
    waited["SecondaryStatusTransitions"][1]["StatusMessage"] = "Pending capacity"
    waited |= {"CreationTime": begun, "TrainingEndTime": begun + timedelta(seconds=7_200)}
    assert classify_job(waited).verdict is Verdict.STOPPED
    assert classify_job(waited | {"StoppingCondition": {"MaxPendingTimeInSeconds": 7_201}}).verdict is Verdict.STOPPED
    assert classify_job(waited | {"StoppingCondition": {"MaxPendingTimeInSeconds": 7_200}}).verdict is Verdict.CAPACITY


def test_a_stop_of_ours_has_our_reason() -> None:
    ending = classify_job(job("Stopped", "Stopped"), stopped_for=Verdict.BUDGET_REACHED)
    assert ending.verdict is Verdict.BUDGET_REACHED


def test_a_stop_asked_for_through_the_control_file_has_our_reason() -> None:
    """The launcher then ends by itself, with its code for `stopped`: SageMaker calls that Failed."""
    record = FailureRecord(verdict=Verdict.STOPPED, cause="asked for through the control file").encode()
    failed = job("Failed", "Failed", reason=f"AlgorithmError: {record}, exit code: 75")
    assert classify_job(failed, stopped_for=Verdict.BUDGET_REACHED).verdict is Verdict.BUDGET_REACHED
    assert classify_job(failed).verdict is Verdict.STOPPED
    oom = job("Failed", "Failed", reason=f"AlgorithmError: {RECORD.encode()}")
    assert classify_job(oom, stopped_for=Verdict.BUDGET_REACHED).verdict is Verdict.OUT_OF_MEMORY


def test_a_completed_job_stays_completed_whatever_we_wanted() -> None:
    assert classify_job(job("Completed", "Completed"), stopped_for=Verdict.HUNG).verdict is Verdict.COMPLETED


def test_a_running_job_has_no_verdict() -> None:
    with pytest.raises(ValueError, match="InProgress"):
        classify_job(job("InProgress", "Training"))


def test_a_stopped_job_is_never_completed() -> None:
    record = FailureRecord(verdict=Verdict.COMPLETED, cause="all steps done").encode()
    for secondary in ("Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"):
        assert classify_job(job("Stopped", secondary, reason=record)).verdict is not Verdict.COMPLETED
    assert classify_job(job("Failed", "Failed", reason=record)).verdict is Verdict.USER_ERROR


def test_every_exit_code_comes_back_as_its_verdict() -> None:
    for verdict, code in EXIT_CODES.items():
        if code:
            described = job("Failed", "Failed", reason=f"AlgorithmError: , exit code: {code}")
            assert classify_job(described).verdict is verdict


@pytest.mark.parametrize(
    ("code", "message", "name"),
    [
        ("ResourceLimitExceeded", "The account-level service limit is 0", "QuotaExceeded"),
        ("ThrottlingException", "Rate exceeded", "Throttled"),
        ("ValidationException", "Could not assume role arn:aws:iam::1:role/x", "NotReadyYet"),
        ("ValidationException", "Access denied to OutputDataConfig S3 bucket", "NotReadyYet"),
        ("ValidationException", "Access denied for repository: x", "NotReadyYet"),
        ("ValidationException", "no identity-based policy allows the s3:ListBucket action", "NotReadyYet"),
        ("ValidationException", "Training plan has no free instances", "PlanUnavailable"),
        ("ValidationException", "Invalid MaxWaitTimeInSeconds", "LaunchRefused"),
        ("InsufficientCapacityException", "none", "CapacityUnavailable"),
        ("AccessDeniedException", "not authorized to perform sagemaker:CreateTrainingJob", "LaunchRefused"),
    ],
)
def test_typed_errors_of_launch(code: str, message: str, name: str) -> None:
    assert launch_error_name(code, message) == name
    assert classify_launch_error(name, message).verdict is LAUNCH_ERRORS[name]


def test_an_unknown_error_of_launch_is_the_workflows() -> None:
    assert classify_launch_error("KeyError", "'x'").verdict is Verdict.WORKFLOW_FAILED


def test_every_verdict_has_a_rule_with_words() -> None:
    assert RULES.keys() == set(Verdict)
    for rule in RULES.values():
        assert rule.meaning
        assert rule.advice


@given(
    cause=st.text(max_size=3_000),
    detail=st.dictionaries(st.text(max_size=20), st.integers() | st.text(max_size=900), max_size=4),
    verdict=st.sampled_from(Verdict),
)
def test_failure_records_survive_the_way_through_sagemaker(cause: str, detail: dict, verdict: Verdict) -> None:
    text = FailureRecord(verdict=verdict, cause=cause, step=3, detail=detail).encode()
    assert len(text) <= FAILURE_RECORD_MAX
    shown = f"AlgorithmError: {text}, exit code: -2147483648"[:FAILURE_REASON_MAX]
    assert shown.endswith("-2147483648")
    found = FailureRecord.decode(shown)
    assert found is not None
    assert found.verdict is verdict
