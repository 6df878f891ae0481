"""The run report's figures, on a run whose every second and step is known."""

from __future__ import annotations

import json
import math
from datetime import timedelta

import pytest
from synthetic_run import (
    BEGIN,
    INTERVAL,
    SPEC,
    STEP_SECONDS,
    TOKENS_PER_STEP,
    VALIDATION_SECONDS,
    JobLog,
    eventful_run,
    loss_at,
    manifests,
)

from blackwell.findings import Finding
from blackwell.planning import plan_job
from blackwell.report import AttemptInputs, RunReport, RunReportInputs, build_run_report
from blackwell.report.build import FINAL_STEPS
from blackwell.report.words import money
from blackwell.spec import parse_job_spec
from blackwell.telemetry import format_step, parse_step
from blackwell.verdict import Verdict


@pytest.fixture(scope="module")
def report() -> RunReport:
    return build_run_report(eventful_run())


def test_report_counts_every_step_once(report: RunReport) -> None:
    assert (report.status, report.verdict) == ("COMPLETED", Verdict.COMPLETED)
    assert report.steps == report.planned_steps == 1000
    assert report.tokens == 1000 * TOKENS_PER_STEP
    assert report.first_loss == loss_at(1)
    assert report.final_loss == pytest.approx(sum(loss_at(s) for s in range(991, 1001)) / FINAL_STEPS)
    assert report.tokens_per_second == pytest.approx(TOKENS_PER_STEP / (STEP_SECONDS + 0.02))
    assert report.memory_peak_gb == 133.4


def test_report_restarts_have_their_kind_steps_and_seconds(report: RunReport) -> None:
    found = [(r.kind, r.verdict, r.last_step, r.resumed_from_step, r.steps_lost) for r in report.restarts]
    assert found == [
        ("in_place", Verdict.OUT_OF_MEMORY, 3, 0, 3),
        ("new_attempt", Verdict.OUT_OF_MEMORY, 5, 0, 5),
        ("interruption", None, 437, 400, 37),
        ("in_place", Verdict.HUNG, 720, 700, 20),
    ]
    interruption = report.restarts[2]
    assert interruption.down_seconds == pytest.approx(4 + 1900 + 470 + 45, abs=0.01)
    assert interruption.recompute_seconds == pytest.approx(37 * 2.52 + 12, abs=0.01)
    assert interruption.seconds_lost == pytest.approx(interruption.down_seconds + interruption.recompute_seconds)


def test_report_bills_no_waiting_for_capacity_to_an_interruption(report: RunReport) -> None:
    interruption = report.restarts[2]
    hourly = report.attempts[1].cost_usd / report.attempts[1].training_seconds * 3600
    paid = interruption.seconds_lost - 1900  # Interrupted and Starting
    assert interruption.cost_usd == pytest.approx(paid * hourly / 3600, rel=1e-3)
    assert report.cost.lost_to_restarts_usd == pytest.approx(sum(r.cost_usd for r in report.restarts))


def test_report_proves_continuity_over_restarts(report: RunReport) -> None:
    proof = report.continuity
    assert proof.proven
    assert proof.steps_gapless
    assert proof.tokens_gapless
    assert proof.hashes_equal
    assert [(i.after_step, i.last_step) for i in proof.intervals] == [(0, 400), (400, 700), (700, 1000)]
    assert proof.overlap.steps == sum(r.steps_lost for r in report.restarts)
    assert proof.overlap.bitwise_equal
    assert proof.hashed_steps == proof.distinct_hashes == 1000


def test_report_finds_other_samples_on_the_second_reading() -> None:
    proof = build_run_report(eventful_run(wrong_order_at=410)).continuity
    assert proof.proven is False
    assert proof.hashes_equal is False
    assert "step 410 read other samples" in proof.problems[0]


@pytest.mark.parametrize(
    ("precision", "noise", "within"), [("fp32", 1e-7, True), ("fp32", 1e-3, False), ("bf16", 1e-3, None)]
)
def test_report_tolerance_for_recomputed_losses_is_for_fp32_only(
    precision: str, noise: float, within: bool | None
) -> None:
    inputs = eventful_run(noise=noise)
    for attempt in inputs.attempts:
        attempt.lines = [(t, text.replace('"mxfp8"', f'"{precision}"')) for t, text in attempt.lines]
    overlap = build_run_report(inputs).continuity.overlap
    assert overlap.within_tolerance is within
    assert overlap.max_relative_difference == pytest.approx(noise, rel=0.2)
    assert not overlap.bitwise_equal


def _single(lines: list[tuple[float, str]], checkpoints: list[dict[str, object]] | None = None) -> RunReport:
    return build_run_report(
        RunReportInputs(
            run="r",
            attempts=[AttemptInputs(attempt=1, lines=lines)],
            checkpoints=checkpoints or [],
            now=BEGIN + timedelta(days=1),
        )
    )


def test_report_without_a_repeat_says_so() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 20)
    proof = _single(log.lines).continuity
    assert proof.proven
    assert proof.overlap_statement == "no overlapping step"
    assert proof.hashes_equal is None


def test_report_names_a_gap_in_the_steps() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 30)
    log.start(50)
    log.steps(51, 60)
    proof = _single(log.lines).continuity
    assert proof.proven is False
    assert proof.steps_gapless is False
    assert proof.problems[0].startswith("steps 31 to 50 are in no log")


def test_report_takes_a_checkpoint_for_a_lost_log_line() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 99)
    log.start(100)
    log.steps(101, 110)
    proof = _single(log.lines, manifests((100,))).continuity
    assert proof.proven
    assert [(i.after_step, i.last_step) for i in proof.intervals] == [(0, 100), (100, 110)]


def test_report_names_tokens_that_were_skipped() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 40)
    log.start(40)
    before = len(log.lines)
    log.steps(41, 60)
    for index in range(before, len(log.lines)):
        stamp, text = log.lines[index]
        for step in range(41, 61):
            text = text.replace(f'"tokens":{step * TOKENS_PER_STEP},', f'"tokens":{step * TOKENS_PER_STEP + 4096},')
        log.lines[index] = (stamp, text)
    proof = _single(log.lines).continuity
    assert proof.tokens_gapless is False
    assert proof.problems == ["4096 tokens were skipped after step 40"]


def test_report_accepts_data_that_was_left_out_on_purpose() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 40)
    log.event("skip_data", before_step=31, sequences=128, position=30 * 128 + 128)
    log.start(30)
    log.steps(31, 50, wrong_order_at=35, noise=0.01)
    proof = _single(log.lines, manifests((30,))).continuity
    assert proof.left_out == ["128 sequences after step 30"]
    assert proof.proven
    assert proof.overlap.steps == 0


def test_report_compares_nothing_across_left_out_data_however_often_the_run_restarts() -> None:
    """The checkpoint is older than the divergence asks for, and a later start of the attempt says nothing of the skip."""
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 40)
    log.event("skip_data", before_step=36, sequences=128, position=30 * 128 + 128)
    log.start(30)
    log.steps(31, 36, wrong_order_at=31, noise=0.01)
    log.start(35)
    log.steps(36, 50, wrong_order_at=37, noise=0.01)
    proof = _single(log.lines, manifests((30, 35))).continuity
    assert proof.problems == []
    assert proof.overlap.steps == 1, "step 36 of the second start, taken again by the third"
    log.start(30)
    log.steps(31, 60, noise=0.01)
    assert _single(log.lines, manifests((30, 35))).continuity.problems != [], "without the skip that is another order"


def test_report_goodput_parts_sum_to_the_billed_time(report: RunReport) -> None:
    parts = {p.name: p.seconds for p in report.goodput.parts}
    assert sum(parts.values()) == pytest.approx(report.goodput.billed_seconds)
    slow_firsts = 3 * 12  # the first step after each start whose steps count
    assert parts["productive steps"] == pytest.approx(1000 * STEP_SECONDS + slow_firsts, abs=1)
    assert parts["validation"] == pytest.approx(4 * VALIDATION_SECONDS)
    assert parts["checkpoint stall"] == pytest.approx(1000 / INTERVAL * 0.9)
    assert parts["recompute after restart"] == pytest.approx(65 * 2.52 + 24, abs=1)
    assert parts["image"] == pytest.approx(385 + 370 + 350)
    after_steps = (20 + 15) + (4 + 25 + 180)
    assert parts["ending"] == pytest.approx(after_steps - VALIDATION_SECONDS, abs=0.01)
    assert parts["download"] == pytest.approx(40 + 20 + 105)
    assert report.goodput.goodput == pytest.approx(parts["productive steps"] / report.goodput.billed_seconds)
    assert report.goodput.waiting_seconds == pytest.approx(95 + 120 + 1900)


def test_report_of_every_tenth_step_counts_the_same_time() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 240)
    every = _single(log.lines).goodput
    kept = []
    for stamp, text in log.lines:
        parsed = parse_step(text)
        if parsed is None:
            kept.append((stamp, text))
        elif parsed[1].step % 10 == 0:
            record = parsed[1]
            begin = max((t for t, s in log.lines if f" step {record.step - 10} " in s), default=None)
            seconds = (stamp - begin) / 1000 if begin is not None else 10 * 2.52 + 12
            waits = {"data_wait_seconds": 0.2, "checkpoint_stall_seconds": 0.9 if record.step % INTERVAL == 0 else 0.0}
            changed = record.model_copy(update={"tokens_per_second": 10 * TOKENS_PER_STEP / seconds, **waits})
            kept.append((stamp, format_step(changed, "r")))
    tenth = _single(kept)
    assert tenth.continuity.proven
    assert tenth.goodput.productive_seconds == pytest.approx(every.productive_seconds, rel=0.002)


def test_report_cost_uses_billable_seconds_and_the_listed_price(report: RunReport) -> None:
    billable = sum(a.billable_seconds for a in report.attempts)
    assert report.cost.total_usd == pytest.approx(billable * 113.9328 / 3600)
    assert report.cost.saved_percent == pytest.approx(62, abs=0.5)
    assert report.cost.saved_usd == pytest.approx(report.cost.on_demand_usd - report.cost.total_usd)
    assert "unverified" in report.cost.basis


def test_report_own_price_meets_wall_clock_seconds() -> None:
    inputs = eventful_run()
    entry = dict(inputs.spec["capacity"][0]) | {"hourly_price": 40.0}
    inputs.spec = dict(inputs.spec) | {"capacity": [entry]}
    report = build_run_report(inputs)
    assert report.cost.total_usd == pytest.approx(sum(a.training_seconds for a in report.attempts) * 40 / 3600)


def test_report_checkpoints_tell_their_lives(report: RunReport) -> None:
    by_step = {c.step: c for c in report.checkpoints}
    assert sorted(by_step) == list(range(100, 1001, 100))
    assert by_step[400].resumed_from == by_step[700].resumed_from == 1
    assert by_step[400].pruned
    assert not by_step[400].in_s3
    assert by_step[900].in_s3
    assert by_step[900].tokens == 900 * TOKENS_PER_STEP
    assert by_step[900].bytes == 8 * 12_045_391_872


def test_report_compares_the_plan_with_what_was_measured(report: RunReport) -> None:
    ratios = {row.name: row.ratio for row in report.comparisons}
    assert ratios["memory peak"] == pytest.approx(133.4 / 126.0)
    assert ratios["throughput"] == pytest.approx(report.tokens_per_second / 219_000)
    assert ratios["cost"] == pytest.approx(report.cost.total_usd / 48.5)
    assert sum(term.predicted_gb for term in report.memory_terms) == pytest.approx(126.0)
    assert [finding.id for finding in report.findings] == ["BTS-112"]


def test_report_reads_the_real_planner() -> None:
    spec = parse_job_spec(SPEC)
    plan = plan_job(spec)
    inputs = eventful_run()
    inputs.plan = plan.model_dump(mode="json", by_alias=True)
    rows = {row.name: row.predicted for row in build_run_report(inputs).comparisons}
    assert rows["memory peak"] == plan.memory.peak_gb
    assert plan.throughput is not None
    assert rows["throughput"] == plan.throughput.tokens_per_second
    assert rows["cost"] == plan.cost.expected_usd


def test_report_says_whether_the_notice_is_enough(report: RunReport) -> None:
    assert report.notice is not None
    assert report.notice.seconds == pytest.approx(7.5 + 31.0)
    assert report.notice.fits
    assert report.notice.steps_at_risk == INTERVAL + math.ceil(31 / 2.52)


def test_report_takes_a_manifest_without_its_files_for_no_checkpoint() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 20)
    (whole, broken) = manifests((10, 20))
    found = {c.step: c for c in _single(log.lines, [whole, broken | {"durable": False}]).checkpoints}
    assert found[10].in_s3
    assert not found[20].in_s3
    assert not found[20].complete


def test_report_of_a_rejected_run_has_its_findings() -> None:
    finding = Finding(id="BTS-003", path="trainig", message="unknown key")
    report = build_run_report(RunReportInputs(run="r", verdict=Verdict.REJECTED, findings=[finding], now=BEGIN))
    assert report.status == "REJECTED"
    assert report.findings == [finding]
    assert report.continuity.proven is None
    assert report.cost.total_usd is None


def test_report_of_a_running_run_reads_what_is_there() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 12)
    job = {
        "TrainingJobName": "x",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Training",
        "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": BEGIN}],
        "ResourceConfig": {"InstanceType": "ml.p6-b200.48xlarge", "InstanceCount": 2},
    }
    report = build_run_report(
        RunReportInputs(
            run="r",
            item={"status": "RUNNING"},
            attempts=[AttemptInputs(attempt=1, job=job, lines=log.lines)],
            now=BEGIN + timedelta(seconds=600),
        )
    )
    assert (report.status, report.verdict, report.steps) == ("RUNNING", None, 12)
    assert report.goodput.billed_seconds == pytest.approx(2 * 600)
    assert report.attempts[0].capacity_kind == "on-demand"


def test_report_of_a_resumed_run_counts_its_own_tokens_only() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(40)
    log.steps(41, 60)
    inputs = RunReportInputs(
        run="r",
        spec={"resume_from": "before", "training": {"steps": 60}, "capacity": [{"kind": "spot", "hourly_price": 1.0}]},
        verdict=Verdict.COMPLETED,
        attempts=[AttemptInputs(attempt=1, job={"TrainingTimeInSeconds": 360}, lines=log.lines)],
        now=BEGIN,
    )
    report = build_run_report(inputs)
    assert (report.start_step, report.steps, report.resume_from) == (40, 60, "before")
    assert report.tokens == 60 * TOKENS_PER_STEP
    assert report.tokens_trained == 20 * TOKENS_PER_STEP
    assert report.headline.startswith("The run finished steps 41 to 60 in")
    assert report.cost.usd_per_billion_tokens == pytest.approx(0.1 / (20 * TOKENS_PER_STEP) * 1e9)


def test_report_shows_only_overrides_that_change_something() -> None:
    inputs = eventful_run()
    item = dict(inputs.attempts[1].item)
    item["overrides"] = {"global_batch_size": 128, "activation_checkpointing": "full", "micro_batch_size": 1}
    inputs.attempts[1].item = item
    report = build_run_report(inputs)
    assert report.attempts[1].overrides == {"activation_checkpointing": "full", "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("usd", "text"), [(1234.5, "$1,234"), (0.5, "$0.50"), (0.0, "$0.00"), (-0.0013, "-$0.0013"), (None, "unknown")]
)
def test_money_in_words(usd: float | None, text: str) -> None:
    assert money(usd) == text


def test_report_keeps_the_first_time_a_checkpoint_was_durable() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 20)
    log.event("checkpoint", step=20, phase="complete", seconds=1.0, bytes=9)
    log.event("checkpoint", step=20, phase="durable", seconds=2.0, bytes=9)
    log.start(20)
    log.steps(21, 21)
    log.event("checkpoint", step=20, phase="durable", seconds=900.0, bytes=9)
    (checkpoint,) = _single(log.lines).checkpoints
    assert checkpoint.durable_lag_seconds == 2.0


def test_report_survives_lines_of_every_kind() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 5)
    log.lines += [log.lines[-1]]  # CloudWatch delivers twice
    log.say('[rank 0] loss nan tokens_per_second 1.0 step 6 run r {"step":6,"time":1,"loss":null,"learning_rate":0}')
    log.say("[rank 0] loss 1.0 tokens_per_second 1.0 step 7 run r {broken")
    log.say("[rank 0] event checkpoint run r {broken")
    log.say("Traceback (most recent call last):")
    texts = ["2026-11-30T08:00:00.000Z " + text for _stamp, text in log.lines]
    report = _single(texts)
    assert report.steps == 6
    assert report.non_finite_steps == 1
    assert math.isfinite(report.final_loss)
    json.loads(report.model_dump_json())


def test_report_keeps_spikes_and_stays_small_over_a_long_run() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 6000)
    spike = next(i for i, (_t, text) in enumerate(log.lines) if " step 3777 " in text)
    stamp, text = log.lines[spike]
    log.lines[spike] = (stamp, text.replace(f'"loss":{loss_at(3777)}', '"loss":42.5'))
    report = _single(log.lines)
    assert 42.5 in report.loss.value
    assert len(report.loss.step) <= 1200
    assert len(report.model_dump_json()) < 200_000


def test_report_reads_a_generator_once() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 10)
    assert _single(line for line in log.lines).steps == 10  # type: ignore[arg-type]
