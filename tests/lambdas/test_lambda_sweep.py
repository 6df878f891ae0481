"""The functions of a sweep: planned or refused as a whole, points resumable one by one, a report whatever is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lambda_helpers import Workshop, job_spec

from blackwell.names import SweepPlaces
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.telemetry import StepRecord, format_step
from blackwell.verdict import Verdict
from lambdas.common.store import RunStore
from lambdas.sweep_plan.handler import CAUSE_MAX
from lambdas.sweep_plan.handler import handler as plan_handler
from lambdas.sweep_point.handler import handler as point_handler
from lambdas.sweep_report.handler import handler as report_handler


def sweep_spec(name: str, **changes: Any) -> dict[str, Any]:
    training = {
        "precision": "fp32",
        "activation_checkpointing": "none",
        "steps": 100,
        "validation_interval_steps": None,
    }
    return {
        "name": name, "base": job_spec(training=training), "grid": {"precision": ["fp32", "bf16"]},
        "baseline_repeats": 0, **changes,
    }  # fmt: skip


@pytest.fixture
def name(run: str) -> str:
    return f"s-{run[-12:]}"


@pytest.fixture
def planned(workshop: Workshop, name: str) -> dict[str, Any]:
    answer = plan_handler({"execution": "one", "spec": sweep_spec(name)}, None)
    assert answer["accepted"], answer
    return answer


def ask(do: str, planned: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return point_handler({"do": do, "sweep": planned["sweep"], **planned["points"][index]}, None)


def finish(workshop: Workshop, run: str, verdict: Verdict = Verdict.COMPLETED, steps: int = 100) -> None:
    """A run in the run table, with a job, its log and its report."""
    store, job = RunStore(), f"blackwell-dev-{run}-a1"
    store.create_run(
        RunItem(run=run, status=RunStatus.of(verdict), verdict=verdict, execution_arn=run, started_at="2026-12-01")
    )
    store.create_attempt(
        AttemptItem(run=run, attempt=1, status=AttemptStatus.ENDED, job_name=job, job_arn=f"arn:{job}")
    )
    record = StepRecord(step=1, time=1.0, loss=3.0, learning_rate=0.1, step_seconds=1.0, tokens_per_second=512.0)
    workshop.log(
        job, [format_step(record.model_copy(update={"step": s, "loss": 3 - s / 100}), run) for s in range(1, steps + 1)]
    )
    report = {"tokens_per_second": 512.0, "final_loss": 2.0, "cost": {"total_usd": 0.5}, "profile": {"gemm": 1.0}}
    workshop.aws.client("s3").put_object(
        Bucket=workshop.environment["ARTIFACTS_BUCKET"], Key=f"runs/{run}/report.json", Body=json.dumps(report).encode()
    )


def document(workshop: Workshop, key: str) -> Any:
    body = workshop.aws.client("s3").get_object(Bucket=workshop.environment["ARTIFACTS_BUCKET"], Key=key)
    return json.loads(body["Body"].read())


def test_plan_writes_what_the_points_need_and_answers_with_pointers(
    workshop: Workshop, planned: dict[str, Any], name: str
) -> None:
    assert planned["max_concurrency"] == 2
    assert len(planned["points"]) == 2
    assert all(set(point) == {"point", "run"} for point in planned["points"])
    for point in planned["points"]:
        job = document(workshop, SweepPlaces(name).job(point["point"]))
        assert job["training"]["precision"] == point["point"].split("-")[0]
    assert document(workshop, SweepPlaces(name).document("plan.json"))["ok"]


def test_the_same_execution_plans_the_same_runs_another_one_others(workshop: Workshop, name: str) -> None:
    def runs(execution: str) -> list[str]:
        return [p["run"] for p in plan_handler({"execution": execution, "spec": sweep_spec(name)}, None)["points"]]

    assert runs("one") == runs("one")
    assert not set(runs("one")) & set(runs("two"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (None, "BTS-001"),
        ({}, "BTS-004"),
        ({"base": {"model": "9b"}}, "base.model"),
        (sweep_spec("x", budget={"max_cost_usd": 0.01}), "BTS-106"),
        (sweep_spec("x", grid={"precision": ["nvfp4"]}), "BTS-502"),
        (
            sweep_spec("x", base=job_spec(capacity=[{"kind": "on-demand", "instance_type": "ml.p5.48xlarge"}])),
            "BTS-201",
        ),
        (sweep_spec("x", base=job_spec(capacity=[{"kind": "on-demand", "instance_count": 9}])), "BTS-202"),
        (sweep_spec("y" * 5_000), "name"),
    ],
)
def test_a_refused_sweep_says_why_and_leaves_its_findings(workshop: Workshop, run: str, spec: Any, says: str) -> None:
    answer = plan_handler({"execution": run, "spec": spec}, None)
    assert not answer["accepted"]
    assert len(answer["cause"]) <= CAUSE_MAX
    assert says in answer["cause"]
    assert document(workshop, f"sweeps/rejected/{run}/findings.json")


def test_a_point_is_prepared_with_its_job(planned: dict[str, Any]) -> None:
    answer = ask("prepare", planned)
    assert answer["done"] is False
    assert answer["job"]["training"]["precision"] == "fp32"


def test_a_measured_point_is_not_run_again_unless_its_job_changed(
    workshop: Workshop, planned: dict[str, Any], name: str
) -> None:
    finish(workshop, planned["points"][0]["run"])
    assert ask("measure", planned)["status"] == RunStatus.COMPLETED
    again = plan_handler({"execution": "two", "spec": sweep_spec(name)}, None)
    answer = ask("prepare", again)
    assert answer["done"] is True
    assert answer["run"] == planned["points"][0]["run"]
    longer = sweep_spec(name)
    longer["base"]["training"]["steps"] = 120
    changed = plan_handler({"execution": "three", "spec": longer}, None)
    assert ask("prepare", changed)["done"] is False


def test_a_failed_point_is_run_again(workshop: Workshop, planned: dict[str, Any], name: str) -> None:
    finish(workshop, planned["points"][0]["run"], Verdict.DIVERGED, steps=10)
    assert ask("measure", planned)["status"] == RunStatus.FAILED
    again = plan_handler({"execution": "two", "spec": sweep_spec(name)}, None)
    assert ask("prepare", again)["done"] is False


def test_a_run_that_never_was_is_measured_as_nothing(planned: dict[str, Any]) -> None:
    assert ask("measure", planned)["status"] is None


def test_report_with_one_point_missing(workshop: Workshop, planned: dict[str, Any], name: str) -> None:
    finish(workshop, planned["points"][0]["run"])
    ask("measure", planned)
    answer = report_handler({"sweep": name}, None)
    assert (answer["completed"], answer["points"], answer["ok"]) == (1, 2, False)
    assert len(answer["subject"]) < 100
    written = document(workshop, SweepPlaces(name).document("report.json"))
    by_status = {point["status"] for point in written["points"]}
    assert by_status == {"COMPLETED", None}
    page = workshop.aws.client("s3").get_object(
        Bucket=workshop.environment["ARTIFACTS_BUCKET"], Key=f"sweeps/{name}/report.html"
    )
    assert page["ContentType"].startswith("text/html")


def test_report_compares_what_was_measured(workshop: Workshop, planned: dict[str, Any], name: str) -> None:
    for index in range(2):
        finish(workshop, planned["points"][index]["run"])
        ask("measure", planned, index)
    assert report_handler({"sweep": name}, None)["ok"]
    written = document(workshop, SweepPlaces(name).document("report.json"))
    assert written["precisions"][0]["judgement"]["gap_nats"] == 0.0
    assert written["points"][0]["bottleneck"]["bound"] == "compute"
