"""From the runs' records to the report: ratios, verdicts per precision, bottlenecks, one recommendation with a reason."""

from __future__ import annotations

import math

import pytest
import synthetic_sweep
from synthetic_sweep import NOW, STEPS, record, records, run_report, spec

from blackwell.runs import RunStatus
from blackwell.sweep.compare import bottleneck, build_sweep_report
from blackwell.sweep.convergence import ConvergenceVerdict
from blackwell.sweep.expand import expand
from blackwell.sweep.record import PointRecord, measure
from blackwell.sweep.report import Bound, SweepReport
from blackwell.telemetry import StepRecord, format_step
from blackwell.verdict import Verdict


@pytest.fixture(scope="module")
def report() -> SweepReport:
    return synthetic_sweep.report()


def test_each_precision_has_its_verdict(report: SweepReport) -> None:
    verdicts = {v.precision: v.judgement.verdict for v in report.precisions}
    assert verdicts == {
        "fp8": ConvergenceVerdict.EQUIVALENT,
        "mxfp8": ConvergenceVerdict.WORSE,
        "nvfp4": ConvergenceVerdict.WORSE,
    }
    assert report.noise_nats is not None


def test_recommends_the_cheapest_whose_loss_may_be_trusted(report: SweepReport) -> None:
    """nvfp4 is faster, but ends higher; fp8 is what is left."""
    best = report.recommendation
    assert best is not None
    assert best.axes.precision == "fp8"
    assert best.speedup == pytest.approx(220 / 150)
    assert best.saves_usd == pytest.approx((2.5e7 / 150_000 - 2.5e7 / 220_000) * 100)
    assert best.saves_seconds == pytest.approx(1e11 / 150_000 - 1e11 / 220_000)
    assert "nvfp4 (worse)" in best.reason
    assert report.headline.startswith("Take fp8")


def test_a_failed_run_is_a_line_and_no_more(report: SweepReport) -> None:
    failed = [p for p in report.points if p.status is not RunStatus.COMPLETED]
    assert [p.axes.precision for p in failed] == ["mxfp8"]
    assert failed[0].verdict is Verdict.DIVERGED
    assert report.completed == len(report.points) - 1
    assert not report.ok
    assert any("did not complete" in text for text in report.explanation)


def test_figures_against_baseline_and_plan(report: SweepReport) -> None:
    fp8 = next(p for p in report.points if p.axes.precision == "fp8")
    assert fp8.tokens_per_second.to_baseline == pytest.approx(220 / 150)
    assert fp8.tokens_per_second.predicted is not None
    assert fp8.tokens_per_second.to_prediction == pytest.approx(220_000 / fp8.tokens_per_second.predicted)
    assert fp8.memory_peak_gb.to_baseline == 1.0
    assert report.total_usd == 100.0 * (len(report.points) - 1)


def test_stays_with_the_baseline_where_nothing_is_better() -> None:
    found = spec(grid={"precision": ["bf16", "nvfp4"]})
    plan = expand(found).plan
    best = build_sweep_report(found, plan, records(plan), NOW).recommendation
    assert best is not None
    assert best.point == plan.baseline
    assert best.reason.startswith("No point with a trusted loss")


def test_an_emulated_precision_is_never_recommended() -> None:
    found = spec(grid={"precision": ["bf16", "fp8"]})
    plan = expand(found).plan
    emulated = plan.model_copy(
        update={"points": [p.model_copy(update={"emulated": p.axes.precision == "fp8"}) for p in plan.points]}
    )
    report = build_sweep_report(found, emulated, records(plan), NOW)
    assert report.precisions[0].judgement.verdict is ConvergenceVerdict.EQUIVALENT
    assert report.recommendation is not None
    assert report.recommendation.point == plan.baseline
    assert "Emulated" in report.recommendation.reason


def test_other_data_is_not_compared_step_by_step() -> None:
    """Another sequence length reads other samples: speed counts, the loss gets no verdict."""
    found = spec(grid={"seq_length": [8192, 4096]}, baseline_repeats=0)
    plan = expand(found).plan
    assert len(plan.points) == 2
    report = build_sweep_report(found, plan, records(plan), NOW)
    assert [p.convergence for p in report.points] == [None, None]


def test_without_any_record_there_is_a_report_that_says_so() -> None:
    found = spec()
    plan = expand(found).plan
    report = build_sweep_report(found, plan, {}, NOW)
    assert report.recommendation is None
    assert report.completed == 0
    assert any("baseline made no step" in text for text in report.explanation)
    assert SweepReport.model_validate_json(report.model_dump_json()) == report


def test_report_survives_json(report: SweepReport) -> None:
    assert SweepReport.model_validate_json(report.model_dump_json()) == report


class TestBottleneck:
    @pytest.mark.parametrize(
        ("profile", "waits", "bound"),
        [
            ({"gemm": 3.0, "attention": 1.0, "other": 1.0}, 0.0, Bound.COMPUTE),
            ({"gemm": 1.0, "other": 1.0, "copy": 0.5}, 0.0, Bound.MEMORY),
            ({"gemm": 1.0, "exposed communication": 1.5}, 0.0, Bound.COMMUNICATION),
            ({"gemm": 1.0, "idle": 2.0}, 0.0, Bound.OVERHEAD),
            ({"gemm": 1.0, "idle": 2.0}, 0.6, Bound.DATA),
        ],
    )
    def test_is_what_takes_most(self, profile: dict[str, float], waits: float, bound: Bound) -> None:
        found = bottleneck(profile, waits)
        assert found is not None
        assert found.bound is bound
        assert sum(found.shares.values()) == pytest.approx(1, abs=0.001)

    def test_without_a_profile_nothing_is_said(self) -> None:
        assert bottleneck({}, 0.9) is None


class TestRecord:
    def test_a_step_that_was_taken_twice_counts_once_and_the_later_one(self) -> None:
        point = expand(spec()).plan.points[0]

        def line(step: int, loss: float | None, run: str = "r") -> str:
            return format_step(StepRecord(step=step, time=0, loss=loss, learning_rate=0.1, grad_norm=2.0), run)

        text = [line(1, 3.0), line(2, 9.0), "noise", line(2, 2.5), line(3, None), line(3, 7.0, run="another")]
        found = measure(point, "r", status=None, verdict=None, cause=None, report=None, lines=text)
        assert found.curve_step == [1, 2, 3]
        assert found.curve_loss == [3.0, 2.5, None]
        assert math.isnan(found.curve().loss[2])
        assert found.steps == 3

    def test_long_curves_become_means_over_the_same_stretches_for_every_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("blackwell.sweep.record.MAX_CURVE", 50)
        planned = expand(spec()).plan.points[0].model_copy(update={"steps": 500})
        ends = []
        for steps in (500, 305):  # the second ended early
            text = (
                format_step(StepRecord(step=s, time=0, loss=float(s), learning_rate=0.1), "r")
                for s in range(1, steps + 1)
            )
            found = measure(planned, "r", status=None, verdict=None, cause=None, report=None, lines=text)
            ends.append(found.curve_step)
            assert found.curve_loss[0] == pytest.approx(5.5)
        assert ends[0] == list(range(10, 501, 10))
        assert ends[1] == [*range(10, 301, 10), 305]

    def test_report_s_figures_are_taken_over(self) -> None:
        point = expand(spec()).plan.points[0]
        found = record(point, report=run_report(point, final_loss=2.25))
        assert (found.final_loss, found.cost_usd, found.steps) == (2.25, 100.0, STEPS)
        assert found.data_wait_share == pytest.approx(0.01)
        assert PointRecord.model_validate_json(found.model_dump_json()) == found
