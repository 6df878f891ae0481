"""The run table's items, to DynamoDB's wire form and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus, decode, encode
from blackwell.verdict import Verdict

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), PLAIN, max_size=6))
def test_values_survive_the_wire(values: dict) -> None:
    assert decode(encode(values)) == values


def test_items_survive_the_wire() -> None:
    run = RunItem(
        run="r", status=RunStatus.RUNNING, execution_arn="arn", started_at="now", plan={"memory": {"gb": 1.5}}
    )
    assert RunItem.from_attributes(run.to_attributes()) == run
    attempt = AttemptItem(
        run="r", attempt=2, status=AttemptStatus.LAUNCHED, job_name="j", overrides={"micro_batch_size": 4},
        verdict=Verdict.HUNG,
    )  # fmt: skip
    assert AttemptItem.from_attributes(attempt.to_attributes()) == attempt


def test_only_completed_is_completed() -> None:
    assert [v for v in Verdict if RunStatus.of(v) is RunStatus.COMPLETED] == [Verdict.COMPLETED]
    assert RunStatus.of(Verdict.BUDGET_REACHED) is RunStatus.FAILED
