"""Plan: what is accepted and written down, and what is rejected with every finding."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from lambda_helpers import DATA, Workshop, client_error, job_spec

from blackwell.runs import AttemptStatus, RunStatus
from blackwell.spec import parse_job_spec
from blackwell.verdict import Verdict
from lambdas.common import environment as lambda_environment
from lambdas.common.environment import environment
from lambdas.common.store import RunStore
from lambdas.plan import preflight
from lambdas.plan.handler import handler

Planned = Callable[..., dict[str, Any]]


def send(run: str, spec: Any, started_at: str = "2026-12-01T00:00:00Z") -> dict[str, Any]:
    return handler({"run": run, "execution_arn": f"arn:{run}", "started_at": started_at, "spec": spec}, None)


def ids(answer: dict[str, Any]) -> set[str]:
    """Ids of the findings that refuse the spec."""
    return {f["id"] for f in json.loads(answer["cause"])["findings"] if f["severity"] == "error"}


def test_an_accepted_spec_is_written_down(workshop: Workshop, planned: Planned, run: str) -> None:
    answer = planned()
    assert (answer["accepted"], answer["attempt"]) == (True, 1)
    store = RunStore()
    record, attempt = store.run(run), store.attempt(run, 1)
    assert record is not None
    assert record.status is RunStatus.RUNNING
    assert (attempt.status, attempt.capacity_index) == (AttemptStatus.PLANNED, 0)
    assert attempt.overrides["global_batch_size"] == 8
    assert parse_job_spec(workshop.document(run, "spec.json")) == parse_job_spec(job_spec(budget={"max_cost_usd": 100}))
    assert workshop.document(run, "plan.json")["resolved"]["training"]["micro_batch_size"] == 4


def test_a_repeated_call_changes_nothing(workshop: Workshop, planned: Planned, run: str) -> None:
    assert planned() == planned()
    assert len(RunStore().attempts(run)) == 1


def test_rejected_with_all_findings_and_nothing_else(workshop: Workshop, run: str) -> None:
    spec = job_spec(surprise=1, training={"micro_batch_size": -1, "precision": "fp7", "dropout": "much"})
    answer = send(run, spec)
    assert not answer["accepted"]
    cause = json.loads(answer["cause"])
    assert cause["run"] == run
    assert ids(answer) == {"BTS-003", "BTS-005", "BTS-006", "BTS-007"}
    written = json.loads(
        workshop.aws.client("s3")
        .get_object(Bucket=cause["s3_uri"].split("/")[2], Key=cause["s3_uri"].split("/", 3)[3])["Body"]
        .read()
    )
    assert {f["path"] for f in written} == {
        "surprise",
        "training.micro_batch_size",
        "training.precision",
        "training.dropout",
    }
    record = RunStore().run(run)
    assert record is not None
    assert (record.status, record.verdict) == (RunStatus.REJECTED, Verdict.REJECTED)
    assert RunStore().attempts(run) == []
    assert workshop.keys("ARTIFACTS_BUCKET", f"runs/{run}/") == [f"runs/{run}/findings.json"]


@pytest.mark.parametrize(
    ("spec", "identity"),
    [
        ([], "BTS-001"),
        (3, "BTS-001"),
        (None, "BTS-001"),
        ("{no json", "BTS-002"),
        ('{"a": NaN}', "BTS-009"),
        ({}, "BTS-004"),
    ],
)
def test_what_is_no_job_spec(workshop: Workshop, run: str, spec: Any, identity: str) -> None:
    assert identity in ids(send(run, spec))


def test_json_text_is_a_spec_too(workshop: Workshop, run: str) -> None:
    assert send(run, json.dumps(job_spec()))["accepted"]


def test_spot_without_a_long_enough_wait(workshop: Workshop, run: str) -> None:
    spot = {"kind": "spot", "instance_type": "ml.c7i.2xlarge", "max_runtime_seconds": 600, "max_wait_seconds": 60}
    assert "BTS-008" in ids(send(run, job_spec(capacity=[spot])))


def test_missing_data_is_refused(workshop: Workshop, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ids(send(run, job_spec(data={"train": "datasets/nowhere/"}))) == {"BTS-205"}
    monkeypatch.setenv("DATA_BUCKETS", "no-such-bucket-anywhere")
    lambda_environment.environment.cache_clear()
    other = f"{run}-2"
    assert ids(send(other, job_spec(data={"train": "s3://no-such-bucket-anywhere/x/"}))) == {"BTS-205"}


def test_the_stacks_limits(workshop: Workshop, run: str) -> None:
    capacity = [{"kind": "on-demand", "instance_type": "ml.p6-b300.48xlarge", "instance_count": 3}]
    spec = job_spec(capacity=capacity, budget={"max_cost_usd": 101}, training={"global_batch_size": 24 * 4})
    assert {"BTS-201", "BTS-202", "BTS-207"} <= ids(send(run, spec))
    week = [{"kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "max_runtime_seconds": 7 * 86_400}]
    assert ids(send(f"{run}-2", job_spec(capacity=week))) == {"BTS-211"}


def test_what_the_api_would_refuse_is_found_before_anything_is_built(workshop: Workshop, run: str) -> None:
    """A pending limit is only legal on accelerated instances."""
    first, second = (
        {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge"} | more for more in ({}, {"max_pending_seconds": 7200})
    )
    answer = send(run, job_spec(capacity=[first, second]))
    assert ids(answer) == {"BTS-302"}
    found = [f["path"] for f in json.loads(answer["cause"])["findings"] if f["severity"] == "error"]
    assert found == ["capacity.1.max_pending_seconds"]


def test_a_small_quota_is_named(workshop: Workshop, run: str) -> None:
    workshop.quotas.values["ml.c7i.2xlarge for training job usage"] = 0.0
    answer = send(run, job_spec())
    assert ids(answer) == {"BTS-203"}
    assert "ml.c7i.2xlarge for training job usage" in answer["cause"]


def test_a_quota_that_was_raised_is_seen(workshop: Workshop, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.quotas.values["ml.c7i.2xlarge for training job usage"] = 0.0
    assert not send(run, job_spec())["accepted"]
    workshop.quotas.values["ml.c7i.2xlarge for training job usage"] = 1.0
    later = time.monotonic() + preflight.QUOTAS_KNOWN_SECONDS + 1
    monkeypatch.setattr(preflight.time, "monotonic", lambda: later)
    assert send(f"{run}-2", job_spec())["accepted"]


def test_a_run_without_a_budget_has_the_stages_limit(workshop: Workshop, run: str) -> None:
    """Forty days of eight B200 cost more than the stage allows, whether a budget is named or not."""
    dear = [{"kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "max_runtime_seconds": 3600, "hourly_price": 1.0}]
    assert send(run, job_spec(capacity=dear))["accepted"]
    assert workshop.document(run, "spec.json")["budget"] == {"max_cost_usd": 100.0}
    months = {
        "steps": 2_000_000,
        "seq_length": 8192,
        "precision": "bf16",
        "processes_per_instance": 8,
        "micro_batch_size": 1,
    }
    b200 = [{"kind": "on-demand", "instance_type": "ml.p6-b200.48xlarge", "max_runtime_seconds": 172_800}]
    answer = send(f"{run}-2", job_spec(model="8b", capacity=b200, training=months))
    assert "BTS-106" in ids(answer)
    assert "setting max_budget_usd" in answer["cause"]
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/prepaid"
    plan = [{"kind": "training-plan", "instance_type": "ml.p6-b200.48xlarge", "training_plan_arn": arn}]
    spec = parse_job_spec(job_spec(capacity=plan))
    assert preflight.within_the_stacks_budget(spec, environment()).budget is None


@pytest.mark.parametrize(
    ("change", "identity"),
    [
        ({"data": {"train": "s3://somebody-elses/corpus/"}}, "BTS-205"),
        ({"data": {"train": "corpus/mine/"}}, "BTS-205"),
        ({"data": {"train": DATA, "validation": "s3://somebody-elses/corpus/"}}, "BTS-205"),
        ({"resume_from": "s3://somebody-elses/runs/x/checkpoints/"}, "BTS-208"),
    ],
)
def test_what_the_jobs_role_may_not_read_is_refused(
    workshop: Workshop, run: str, change: dict[str, Any], identity: str
) -> None:
    """Whether the plan function itself could list it or not: the job would fail on instances that are paid for."""
    answer = send(run, job_spec(**change))
    assert ids(answer) == {identity}
    assert "data_buckets" in answer["cause"]


def test_a_bucket_of_the_settings_is_looked_into(workshop: Workshop, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.aws.client("s3").create_bucket(Bucket=f"{run}-corpus")
    workshop.aws.client("s3").put_object(Bucket=f"{run}-corpus", Key="mine/manifest.json", Body=b"{}")
    monkeypatch.setenv("DATA_BUCKETS", f"others,{run}-corpus")
    lambda_environment.environment.cache_clear()
    assert send(run, job_spec(data={"train": f"s3://{run}-corpus/mine/"}))["accepted"]


def test_a_rejected_run_has_a_message_for_whoever_dropped_its_spec(workshop: Workshop, run: str) -> None:
    answer = send(run, job_spec(data={"train": "datasets/nowhere/"}))
    assert answer["subject"] == f"{run}: rejected"
    assert "BTS-205" in answer["message"]
    assert answer["message"].endswith("findings.json")


def test_a_fact_that_cannot_be_read_is_a_warning(workshop: Workshop, run: str) -> None:
    workshop.quotas.error = client_error("AccessDeniedException")
    assert send(run, job_spec())["accepted"]
    assert "BTS-206" in {f["id"] for f in workshop.document(run, "findings.json")}


def test_the_listed_price_is_used(workshop: Workshop, run: str) -> None:
    entry = {"kind": "on-demand", "instance_type": "ml.p6-b200.48xlarge"}
    spec = job_spec(capacity=[entry], training={"processes_per_instance": 8, "micro_batch_size": 1})
    assert send(run, spec)["accepted"]
    assert workshop.document(run, "plan.json")["cost"]["price_per_instance_hour"] == 99.5
    assert send(f"{run}-2", job_spec(capacity=[entry | {"hourly_price": 7.0}], training=spec["training"]))["accepted"]
    assert workshop.document(f"{run}-2", "plan.json")["cost"]["price_per_instance_hour"] == 7.0


def test_training_plans_are_looked_at(workshop: Workshop, run: str) -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/gone-or-expired"
    entry = {"kind": "training-plan", "training_plan_arn": arn, "instance_type": "ml.p6-b200.48xlarge"}
    spec = job_spec(capacity=[entry], training={"processes_per_instance": 8, "micro_batch_size": 1})
    assert "BTS-204" in ids(send(run, spec))
    workshop.sagemaker.plans["gone-or-expired"] = {"Status": "Expired"}
    assert "BTS-204" in ids(send(f"{run}-2", spec))
    workshop.sagemaker.plans["gone-or-expired"] = {"Status": "Active", "TotalInstanceCount": 1}
    assert send(f"{run}-3", spec)["accepted"]
    workshop.sagemaker.plans["gone-or-expired"]["AvailableInstanceCount"] = 0
    assert send(f"{run}-4", spec)["accepted"]
    assert "BTS-204" in {f["id"] for f in workshop.document(f"{run}-4", "findings.json")}


def test_resume_from_needs_a_checkpoint(workshop: Workshop, run: str) -> None:
    assert ids(send(run, job_spec(resume_from=f"{run}-earlier"))) == {"BTS-208"}
    workshop.put_checkpoint(f"{run}-earlier", 10)
    assert send(f"{run}-2", job_spec(resume_from=f"{run}-earlier"))["accepted"]


@pytest.mark.parametrize("name", ["ünicode", "-first", "a b", "a+b"])
def test_names_that_are_no_run_names(workshop: Workshop, name: str) -> None:
    assert "BTS-209" in ids(send(name, job_spec()))


def test_a_taken_name_is_refused_and_left_alone(workshop: Workshop, planned: Planned, run: str) -> None:
    planned()
    before = workshop.document(run, "findings.json")
    answer = send(run, job_spec(), started_at="2027-01-01T00:00:00Z")
    assert ids(answer) == {"BTS-210"}
    assert workshop.document(run, "findings.json") == before
    record = RunStore().run(run)
    assert record is not None
    assert record.status is RunStatus.RUNNING


def test_a_cause_fits_into_a_fail_state(workshop: Workshop, run: str) -> None:
    spec = job_spec(**{f"key{n}": "x" for n in range(50)}) | {"x" * 20_000: 1}
    answer = send(run, spec | {"data": {"train": "y" * 20_000}})
    cause = json.loads(answer["cause"])
    assert len(answer["cause"]) < 32_768
    assert len(cause["findings"]) == 5


def test_every_capacity_entry_is_planned(workshop: Workshop, run: str) -> None:
    entries = [
        {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge"},
        {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "instance_count": 3},
    ]
    answer = send(run, job_spec(capacity=entries))
    assert not answer["accepted"]
    assert any(f["path"].startswith("capacity.1") for f in json.loads(answer["cause"])["findings"])
