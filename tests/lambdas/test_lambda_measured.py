"""What completed runs measured is kept by instance type, and the newest are found again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from lambda_helpers import Workshop

from lambdas.common import measured

PLAN = {
    "entries": [{"instance_type": "ml.p6-b200.48xlarge", "ranks": 8}],
    "memory": {"peak_gb": 100.0},
    "throughput": {"step_seconds": 1.0, "tokens_per_step": 1000},
}
REPORT = {"memory_peak_gb": 110.0, "tokens_per_second": 800.0}
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def test_a_measured_run_is_found_again_by_its_instance_type(workshop: Workshop) -> None:
    run = measured.remember(PLAN, REPORT, NOW, "image@sha256:1")
    assert run is not None
    assert run.measured_step_seconds == pytest.approx(1.25)
    assert measured.recall(["ml.p6-b200.48xlarge", "ml.c7i.2xlarge"]) == [run]
    assert measured.recall(["ml.c7i.2xlarge"]) == []


def test_the_newest_come_first_and_not_all(workshop: Workshop) -> None:
    for n in range(measured.NEWEST + 3):
        measured.remember(PLAN, REPORT | {"memory_peak_gb": float(n + 1)}, NOW + timedelta(hours=n))
    found = measured.recall(["ml.p6-b200.48xlarge"])
    assert len(found) == measured.NEWEST
    assert found[0].measured_memory_gb == measured.NEWEST + 3


@pytest.mark.parametrize("plan", [None, {}, {"entries": []}, PLAN | {"memory": {}}])
def test_documents_that_say_too_little_are_no_run(workshop: Workshop, plan: dict | None) -> None:
    assert measured.remember(plan, REPORT, NOW) is None


def test_a_report_without_measurements_is_no_run(workshop: Workshop) -> None:
    assert measured.remember(PLAN, {"tokens_per_second": None}, NOW) is None
