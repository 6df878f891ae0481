"""The grammar of the log: what is printed is what every reader reads, for every number there is."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackwell import telemetry
from blackwell.telemetry import StepRecord

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def record(**changes: object) -> StepRecord:
    return StepRecord.model_validate({"step": 3, "time": 1.0, "loss": 2.5, "learning_rate": 1e-4, **changes})


def definition(name: str) -> re.Pattern[str]:
    return re.compile(next(d["Regex"] for d in telemetry.METRIC_DEFINITIONS if d["Name"] == name))


@given(loss=ANY_FLOAT, rate=ANY_FLOAT, step=st.integers(0, 10**9))
def test_a_step_line_reads_back_and_has_no_exponent_in_its_leading_fields(loss: float, rate: float, step: int) -> None:
    line = telemetry.format_step(record(loss=loss, tokens_per_second=rate, step=step), "run-1")
    assert "\n" not in line
    parsed = telemetry.parse_step(line)
    assert parsed is not None
    run, back = parsed
    assert (run, back.step) == ("run-1", step)
    leading = line.split(" {")[0]
    if math.isfinite(loss) and math.isfinite(rate):
        assert not re.search(r"[0-9]e[+-]?[0-9]", leading)
    match = definition("loss").search(line)
    if math.isfinite(loss):
        assert match is not None
        assert float(match[1]) == pytest.approx(loss, abs=1e-6)
    else:
        assert match is None
        assert back.loss is None


@given(value=st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_metric_definitions_never_misread_a_number(value: float) -> None:
    line = telemetry.format_step(record(grad_norm=value, mfu_percent=value), "r")
    for name in ("grad_norm", "mfu_percent"):
        match = definition(name).search(line)
        if match is not None:
            assert float(match[1]) == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_a_number_with_an_exponent_in_the_json_still_reaches_its_metric() -> None:
    line = telemetry.format_step(record(grad_norm=1.5e-7), "r")
    match = definition("grad_norm").search(line)
    assert match is not None
    assert float(match[1]) == pytest.approx(0.0, abs=1e-6)


def test_other_lines_are_not_steps() -> None:
    for line in (
        "",
        "loss 1.0",
        "[rank 0] loss",
        "[rank 0] loss 1 tokens_per_second 2 step 3 run r {broken",
        "x" * 10_000,
    ):
        assert telemetry.parse_step(line) is None


def test_events_read_back() -> None:
    line = telemetry.format_event("checkpoint", "r", step=5, seconds=float("nan"))
    assert telemetry.parse_event(line) == ("r", "checkpoint", {"step": 5, "seconds": None})
    assert telemetry.parse_event("[rank 0] event x") is None


def test_definitions_keep_to_the_limits_of_the_api() -> None:
    assert len(telemetry.METRIC_DEFINITIONS) <= 40
    assert all(len(d["Regex"]) <= 500 for d in telemetry.METRIC_DEFINITIONS)
