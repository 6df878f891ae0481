"""The committed scenarios: the deployed workflow brings every run to the end that it must come to, whatever happens."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blackwell.verdict import Verdict
from local.deployment import Deployment, deployed
from local.faults.model import Faults, parse_faults
from local.scenarios.model import ANY_VERDICT, Scenario, load_matrix, merge
from local.scenarios.runner import run_all
from local.scenarios.soak import random_scenarios

MATRIX = load_matrix()
SOAK_RUNS = 50
SOAK_SEED = 20_261_201


def test_matrix_is_as_large_as_promised_and_in_the_fault_language() -> None:
    assert len(MATRIX) >= 30
    assert sum(scenario.quick for scenario in MATRIX) >= 10
    assert {scenario.expected for scenario in MATRIX} <= set(Verdict)
    for scenario in MATRIX:
        parse_faults(scenario.narrowed("run"))
    kinds = {fault["kind"] for scenario in MATRIX for fault in scenario.faults}
    everything = {f["properties"]["kind"]["const"] for f in Faults.json_schema()["$defs"].values() if "properties" in f}
    assert kinds >= everything - {"slow_step", "slow_save"}


def test_merge_patch() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": None, "e": 3}, "d": [2]}) == {
        "a": {"c": 2, "e": 3},
        "d": [2],
    }


def test_the_same_seed_makes_the_same_soak() -> None:
    first, again, other = random_scenarios(20, 7), random_scenarios(20, 7), random_scenarios(20, 8)
    assert first == again != other
    assert {scenario.expected for scenario in first} == {ANY_VERDICT}


def _carry_out(deployment: Deployment, scenarios: list[Scenario], workers: int = 2) -> None:
    results = run_all(deployment, scenarios, workers=workers)
    wrong = [result for result in results if result.problems]
    logs = {r.run: (deployment.folder / "runs" / r.run / "job.log").read_text()[-2000:] for r in wrong}
    assert not wrong, json.dumps([r.model_dump() for r in wrong], indent=1) + "\n" + "\n\n".join(logs.values())


@pytest.mark.e2e
@pytest.mark.xdist_group("e2e")
@pytest.mark.timeout(1200)
def test_quick_scenarios(deployment: Deployment) -> None:
    """A representative dozen."""
    _carry_out(deployment, [scenario for scenario in MATRIX if scenario.quick])


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.xdist_group("e2e")
@pytest.mark.timeout(3600)
def test_all_other_scenarios(deployment: Deployment) -> None:
    _carry_out(deployment, [scenario for scenario in MATRIX if not scenario.quick])


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.xdist_group("e2e")
@pytest.mark.timeout(3600)
def test_soak(deployment: Deployment) -> None:
    """Every run ends with a verdict, none is lost, no job is left running, and what is completed is complete."""
    _carry_out(deployment, random_scenarios(SOAK_RUNS, SOAK_SEED))


@pytest.fixture
def own_deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Its clock may be moved by weeks: the functions' own stays, so that in a shared one no budget was ever reached."""
    with deployed(tmp_path / "stack") as made:
        yield made


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.xdist_group("e2e")
@pytest.mark.timeout(1800)
def test_history_of_a_28_day_run_stays_short(own_deployment: Deployment) -> None:
    """Step Functions ends an execution at 25,000 events; the clock is moved past the longest job there is."""
    days = 28
    limits = {"max_runtime_seconds": days * 86_400, "max_wait_seconds": days * 86_400}
    scenario = Scenario(
        scenario="four-weeks",
        expected="runtime_exceeded",
        job={
            "training": {"steps": 1_000_000, "processes_per_instance": 1, "checkpoint": {"interval_steps": 1_000}},
            "budget": None,
        },
    )
    spec = scenario.spec()
    spec["capacity"][0] |= limits
    states, client = own_deployment.aws.client("stepfunctions"), own_deployment.client
    run = f"four-weeks-{secrets.token_hex(3)}"
    started = states.start_execution(
        stateMachineArn=client.outputs.state_machine_arn, name=run, input=json.dumps(spec)
    )["executionArn"]

    def history() -> tuple[int, int]:
        """(events, entries of AwaitJob)."""
        pages = states.get_paginator("get_execution_history").paginate(executionArn=started)
        events = [event for page in pages for event in page["events"]]
        names = [e["stateEnteredEventDetails"]["name"] for e in events if "stateEnteredEventDetails" in e]
        return len(events), names.count("AwaitJob")

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    until(lambda: client.status(run).job_status == "Training")
    waits = days * 4
    for number in range(1, waits):
        own_deployment.aws.advance_clock(6 * 3600 + 1)
        until(lambda number=number: history()[1] > number)
    states.stop_execution(executionArn=started)
    until(lambda: client.status(run).ended)
    events, awaited = history()
    assert awaited == waits
    assert events < 2_000


def test_every_quick_scenario_needs_no_time_for_itself() -> None:
    """Scenarios that move the clock run alone, which `make test` has no time for."""
    assert not [scenario.scenario for scenario in MATRIX if scenario.quick and scenario.alone]


def test_examples_of_jobs_are_the_base(repository_root: Path) -> None:
    spec = MATRIX[0].spec()
    assert spec == json.loads((repository_root / "examples/jobs/tiny-scenario.json").read_text())
