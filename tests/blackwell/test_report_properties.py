"""Whatever happens to a run, its report counts every step once, every second once, and proves only what holds."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_run import BEGIN, TOKENS_PER_STEP, JobLog

from blackwell.report import AttemptInputs, RunReport, RunReportInputs, build_run_report, render_html
from blackwell.report.curves import smooth, thin
from blackwell.report.svg import nice_ticks

INTERVAL = 5


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    """([(attempt, resumed from, last step)], steps that the run has taken in the end): each start goes on from a
    checkpoint that some start before it made."""
    starts: list[tuple[int, int, int]] = []
    attempt, reached = 1, 0
    saved = [0]
    for _ in range(draw(st.integers(1, 6))):
        base = draw(st.sampled_from(saved[-2:]))
        last = base + draw(st.integers(0, 17))
        starts.append((attempt, base, last))
        # a later start throws away the checkpoints that are newer than the one it went on from
        saved = [s for s in saved if s <= base] + [s for s in range(base + 1, last + 1) if s % INTERVAL == 0]
        if last > base:
            reached = last
        attempt += draw(st.integers(0, 1))
    return starts, reached


def _report(starts: list[tuple[int, int, int]], *, broken: int | None = None) -> RunReport:
    """The report on these starts; `broken` is the number of a start that skips a step's worth of tokens."""
    logs: dict[int, JobLog] = {}
    clock = BEGIN
    for number, (attempt, base, last) in enumerate(starts):
        log = logs.setdefault(attempt, JobLog("r", attempt, clock))
        log.clock = max(log.clock, clock.timestamp())
        log.start(base or None)
        before = len(log.lines)
        log.steps(base + 1, last)
        if number == broken:
            for index in range(before, len(log.lines)):
                stamp, text = log.lines[index]
                for step in range(base + 1, last + 1):
                    text = text.replace(
                        f'"tokens":{step * TOKENS_PER_STEP},', f'"tokens":{(step + 1) * TOKENS_PER_STEP},'
                    )
                log.lines[index] = (stamp, text)
        clock = BEGIN + timedelta(seconds=log.clock - BEGIN.timestamp() + 30)
    inputs = RunReportInputs(
        run="r",
        spec={"training": {"steps": 100}},
        attempts=[AttemptInputs(attempt=number, lines=log.lines) for number, log in logs.items()],
        now=clock,
    )
    return build_run_report(inputs)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_an_honest_history_is_proven_and_counted_once(drawn: tuple[list[tuple[int, int, int]], int]) -> None:
    starts, reached = drawn
    report = _report(starts)
    if reached == 0:
        assert report.continuity.proven is None
        return
    assert report.continuity.proven, (starts, report.continuity.problems)
    assert report.steps == reached
    assert report.tokens == reached * TOKENS_PER_STEP
    borders = [(i.after_step, i.last_step) for i in report.continuity.intervals]
    assert borders[0][0] == 0
    assert borders[-1][1] == reached
    assert all(before[1] == after[0] for before, after in itertools.pairwise(borders))
    assert len(report.loss.step) == reached
    assert len(report.restarts) == len(starts) - 1
    assert report.continuity.overlap.bitwise_equal in (None, True)
    assert sum(p.seconds for p in report.goodput.parts) == pytest.approx(report.goodput.billed_seconds)
    assert all(p.seconds >= 0 for p in report.goodput.parts)
    render_html(report)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(0, 5))
def test_skipped_tokens_are_never_proven(drawn: tuple[list[tuple[int, int, int]], int], which: int) -> None:
    starts, _reached = drawn
    honest = _report(starts)
    kept = [(i.attempt, i.after_step, i.last_step) for i in honest.continuity.intervals]
    number = which % len(starts)
    attempt, base, last = starts[number]
    # only a start whose steps all count, after another one, and with more than one step can be seen to skip
    if base == 0 or last - base < 2 or (attempt, base, last) not in kept or number == 0:
        return
    assert _report(starts, broken=number).continuity.proven is False


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=3000),
    st.integers(8, 400),
)
@settings(max_examples=60, deadline=None)
def test_thinning_keeps_ends_and_extremes(values: list[float], limit: int) -> None:
    curve = thin(range(len(values)), values, limit)
    finite = [v for v in values if abs(v) < float("inf")]
    assert len(curve.value) <= max(limit, len(finite) if len(values) <= limit else limit)
    assert curve.step == sorted(curve.step)
    if finite:
        assert max(curve.value) == pytest.approx(max(finite), rel=1e-5)
        assert min(curve.value) == pytest.approx(min(finite), rel=1e-5)
    else:
        assert curve.value == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.floats(1, 50))
def test_smoothing_stays_inside_the_values(values: list[float], half_life: float) -> None:
    smoothed = smooth(values, half_life)
    assert smoothed[0] == values[0]
    assert min(values) - 1e-6 <= min(smoothed)
    assert max(smoothed) <= max(values) + 1e-6


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 10))
def test_ticks_are_few_round_and_inside(low: float, span: float, wanted: int) -> None:
    high = low + span
    ticks = nice_ticks(low, high, wanted)
    assert len(ticks) <= wanted + 2
    slack = span * 1e-6 + abs(low) * 1e-12
    assert all(low - slack <= tick <= high + slack for tick in ticks)
