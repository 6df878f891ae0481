"""Carries scenarios out on one deployment, side by side where they may, and checks what must hold for every run."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from blackwell.names import RunPlaces
from blackwell.verdict import Verdict
from local.deployment import Deployment
from local.run import run_spec
from local.scenarios.model import ANY_VERDICT, Result, Scenario

SETTLE_SECONDS = 30.0
"""After a run's end its jobs must have ended within this time."""
Done = Callable[[Result], None]


def run_all(
    deployment: Deployment, scenarios: Iterable[Scenario], *, workers: int = 2, done: Done = lambda r: None
) -> list[Result]:
    """Every scenario's result, in the order given."""
    listed = list(scenarios)
    deployment.aws.set_faults([])
    results: dict[str, Result] = {}

    def carry_out(scenario: Scenario) -> None:
        results[scenario.scenario] = result = run_scenario(deployment, scenario)
        done(result)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(carry_out, [s for s in listed if not s.alone]))
    for scenario in listed:
        if scenario.alone:
            carry_out(scenario)
    return [results[scenario.scenario] for scenario in listed]


def run_scenario(deployment: Deployment, scenario: Scenario) -> Result:
    """One scenario, to its end and the end of everything it started."""
    run = f"{scenario.scenario}-{secrets.token_hex(3)}"
    aws = deployment.aws
    began = time.monotonic()
    plan = aws.control("sagemaker/plan", {**scenario.plan, "name": run})["TrainingPlanArn"] if scenario.plan else None
    aws.control("faults", {"faults": scenario.narrowed(run), "keep": True})
    report = run_spec(deployment, run, scenario.spec(plan))
    _keep(deployment, run, report)
    result = _result(scenario, run, report)
    result.problems += _broken_expectations(scenario, result)
    result.problems += _left_running(deployment, run)
    result.problems += _records(deployment, run, report)
    if result.verdict == "completed":
        result.problems += _completed(deployment, run, report)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _keep(deployment: Deployment, run: str, report: dict[str, Any]) -> None:
    """Report and log stay for whoever looks for a cause."""
    folder = deployment.folder / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    (folder / "job.log").write_text("\n".join(deployment.client.log_lines(run)) + "\n")


def _result(scenario: Scenario, run: str, report: dict[str, Any]) -> Result:
    restarts = report.get("restarts", [])
    return Result(
        scenario=scenario.scenario,
        run=run,
        expected=scenario.expected,
        verdict=str(report.get("verdict")),
        attempts=len(report.get("attempts", [])),
        restarts=len(restarts),
        steps_lost=sum(restart["steps_lost"] for restart in restarts),
        seconds_lost=round(sum(restart["seconds_lost"] or 0.0 for restart in restarts), 2),
        cost=(report.get("cost") or {}).get("total_usd"),
    )


def _broken_expectations(scenario: Scenario, result: Result) -> list[str]:
    problems = []
    if scenario.expected == ANY_VERDICT:
        if result.verdict not in set(Verdict) - {Verdict.WORKFLOW_FAILED, Verdict.REJECTED}:
            problems.append(f"verdict {result.verdict} says nothing about the run")
    elif result.verdict != scenario.expected:
        problems.append(f"verdict {result.verdict}, expected {scenario.expected}")
    for name in ("attempts", "restarts"):
        wanted = getattr(scenario, name)
        if wanted is not None and getattr(result, name) != wanted:
            problems.append(f"{name} {getattr(result, name)}, expected {wanted}")
    if scenario.max_steps_lost is not None and result.steps_lost > scenario.max_steps_lost:
        problems.append(f"{result.steps_lost} steps lost, at most {scenario.max_steps_lost} expected")
    return problems


def _left_running(deployment: Deployment, run: str) -> list[str]:
    """Jobs of the run that still run, a while after its end."""
    sagemaker = deployment.aws.client("sagemaker")
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        jobs = sagemaker.list_training_jobs(NameContains=run)["TrainingJobSummaries"]
        running = [j["TrainingJobName"] for j in jobs if j["TrainingJobStatus"] in ("InProgress", "Stopping")]
        if not running or time.monotonic() > deadline:
            return [f"job {name} still runs" for name in running]
        time.sleep(0.5)


def _records(deployment: Deployment, run: str, report: dict[str, Any]) -> list[str]:
    """One job per attempt, one verdict each, nothing without a record."""
    problems = []
    attempts = deployment.client.attempts(run)
    jobs = deployment.aws.client("sagemaker").list_training_jobs(NameContains=run)["TrainingJobSummaries"]
    known = {attempt.job_name for attempt in attempts}
    problems += [f"job {j['TrainingJobName']} has no attempt" for j in jobs if j["TrainingJobName"] not in known]
    problems += [f"attempt {a.attempt} has no verdict" for a in attempts if a.verdict is None]
    item = deployment.client.item(run)
    if item is not None and (item.verdict is None or item.status == "RUNNING"):
        problems.append(f"the run's item is {item.status} with verdict {item.verdict}")
    if (report.get("continuity") or {}).get("proven") is False:
        problems.append(
            "continuity: " + "; ".join(report["continuity"]["problems"] or [report["continuity"]["statement"]])
        )
    return problems


def _completed(deployment: Deployment, run: str, report: dict[str, Any]) -> list[str]:
    """A completed run has all its steps, a checkpoint of the last one, and the model."""
    problems = []
    places = RunPlaces(run)
    spec = deployment.client.document(run, "spec.json")
    s3, bucket = deployment.aws.client("s3"), deployment.client.outputs.checkpoint_bucket
    keys = [
        item["Key"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=places.prefix)
        for item in page.get("Contents", [])
    ]
    if not any(key.startswith(places.model_output) and key.endswith(".safetensors") for key in keys):
        problems.append("no model in the checkpoint bucket")
    steps = report.get("steps")
    if not any(f"step-{steps:08d}/MANIFEST.json" in key for key in keys):
        problems.append(f"no checkpoint of step {steps}")
    if f'"steps":{steps}' not in spec.decode().replace(" ", ""):
        problems.append(f"{steps} steps are not what the spec asks for")
    return problems
