"""Report: every run gets its end, its documents and its message, whatever happened before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from lambda_helpers import Workshop

import blackwell.report
from blackwell.runs import RunStatus
from blackwell.telemetry import StepRecord, format_step
from blackwell.verdict import Verdict
from lambdas.common.store import RunStore
from lambdas.report.handler import handler

Launched = Callable[..., str]


def lines(run: str, steps: int) -> list[str]:
    return [
        format_step(
            StepRecord(step=n, time=float(n), loss=5 - n / 10, learning_rate=1e-3, tokens=n * 512, step_seconds=1.0,
                       tokens_per_second=512.0), run,
        )
        for n in range(1, steps + 1)
    ]  # fmt: skip


def test_a_completed_run(
    workshop: Workshop, launched: Launched, assessed: Callable[..., dict[str, Any]], run: str
) -> None:
    name = launched()
    workshop.log(name, lines(run, 20))
    workshop.put_checkpoint(run, 20)
    workshop.sagemaker.end(name, BillableTimeInSeconds=60, TrainingTimeInSeconds=60)
    assessed()
    answer = handler({"run": run, "error": None}, None)
    assert (answer["verdict"], answer["status"]) == ("completed", "COMPLETED")
    report = workshop.document(run, "report.json")
    assert (report["verdict"], report["steps"], report["first_loss"]) == ("completed", 20, 4.9)
    assert len(report["checkpoints"]) == 1
    assert workshop.keys("ARTIFACTS_BUCKET", f"runs/{run}/report.html")
    record = RunStore().run(run)
    assert record is not None
    assert record.status is RunStatus.COMPLETED
    assert record.report_uri == answer["report"]
    assert len(answer["subject"]) < 100
    assert run in answer["message"]


def test_written_again_it_says_the_same(
    workshop: Workshop, launched: Launched, assessed: Callable[..., dict[str, Any]], run: str
) -> None:
    workshop.sagemaker.end(launched())
    assessed()
    assert handler({"run": run}, None) == handler({"run": run}, None)


def test_a_failed_build(workshop: Workshop, planned: Callable[..., Any], run: str) -> None:
    planned()
    cause = json.dumps({"errorType": "ImageFailed", "errorMessage": "build x is FAILED: self-test: torch: failed"})
    answer = handler({"run": run, "error": {"Error": "ImageFailed", "Cause": cause}}, None)
    assert answer["verdict"] == "image_failed"
    assert "self-test" in answer["cause"]


def test_a_broken_workflow_stops_its_job(workshop: Workshop, launched: Launched, run: str) -> None:
    name = launched()
    answer = handler({"run": run, "error": {"Error": "Runtime.ExitError", "Cause": "no json"}}, None)
    assert (answer["verdict"], answer["status"]) == ("workflow_failed", "FAILED")
    assert workshop.sagemaker.stopped == [name]


def test_a_stopped_run_keeps_its_end(workshop: Workshop, launched: Launched, run: str) -> None:
    launched()
    RunStore().end_run(run, status=RunStatus.STOPPED.value, verdict=Verdict.STOPPED.value, cause="by a user")
    answer = handler({"run": run}, None)
    assert (answer["verdict"], answer["status"]) == ("stopped", "STOPPED")


def test_a_report_that_cannot_be_made_costs_no_verdict(
    workshop: Workshop,
    launched: Launched,
    assessed: Callable[..., dict[str, Any]],
    run: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workshop.sagemaker.end(launched())
    assessed()

    def broken(_: Any) -> None:
        raise ZeroDivisionError("in the report")

    monkeypatch.setattr(blackwell.report, "build_run_report", broken)
    answer = handler({"run": run}, None)
    assert answer["verdict"] == "completed"
    assert workshop.document(run, "report.json")["report_error"] == "ZeroDivisionError: in the report"


def test_the_state_machine_publishes_the_end_not_the_function(
    workshop: Workshop, launched: Launched, assessed: Callable[..., dict[str, Any]], run: str
) -> None:
    workshop.sagemaker.end(launched())
    assessed()
    handler({"run": run}, None)
    handler({"run": run, "notify": True}, None)  # its job ended once more, for an event that came late
    assert workshop.topic.published == []


def test_a_run_without_a_state_machine_is_published_once(
    workshop: Workshop, planned: Callable[..., Any], run: str
) -> None:
    planned()
    RunStore().end_run(run, status=RunStatus.STOPPED.value, verdict=Verdict.STOPPED.value)
    for _ in range(2):
        handler({"run": run, "notify": True}, None)
    assert workshop.topic.published == [("arn:topic", f"{run}: stopped")]


def test_a_report_that_died_before_it_counted_is_counted_when_it_is_made_again(
    workshop: Workshop,
    launched: Launched,
    assessed: Callable[..., dict[str, Any]],
    run: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workshop.sagemaker.end(launched(), "Failed", FailureReason="AlgorithmError: , exit code: 64")
    assessed()
    RunStore().end_run(run, status=RunStatus.FAILED.value, verdict=Verdict.USER_ERROR.value)
    for times in (1, 0):
        handler({"run": run}, None)
        assert capsys.readouterr().out.count('"RunsFailed": 1.0') == times
