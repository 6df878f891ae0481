"""Inline Map states: every state of every item is in the history, and Step Functions' limits hold for all together."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from overlay_helpers import both, ended, history, machine, run, start

from local.overlay.executions import HISTORY_EVENTS, PAYLOAD_BYTES
from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("overlay")


def _map(output: Any = None, **fields: Any) -> dict[str, Any]:
    inner = {"Type": "Pass", "End": True} | ({"Output": output} if output is not None else {})
    return {
        "Map": {
            "Type": "Map",
            "Items": "{% $states.input.items %}",
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "INLINE"},
                "StartAt": "Inner",
                "States": {"Inner": inner},
            },
            "End": True,
            **fields,
        }
    }


def test_states_of_items_are_in_the_history(aws: LocalAws, stock: LocalAws) -> None:
    def counted(server: LocalAws) -> Counter[str]:
        execution = start(server, machine(server, _map()), {"items": [1, 2, 3]})
        assert json.loads(ended(server, execution)["output"]) == [1, 2, 3]
        return Counter(history(server, execution))

    mended, unmended = both(aws, stock, counted)
    assert mended == {
        "ExecutionStarted": 1,
        "MapStateEntered": 1,
        "MapStateStarted": 1,
        "MapIterationStarted": 3,
        "PassStateEntered": 3,
        "PassStateExited": 3,
        "MapIterationSucceeded": 3,
        "MapStateSucceeded": 1,
        "MapStateExited": 1,
        "ExecutionSucceeded": 1,
    }
    assert "MapIterationStarted" not in unmended


def test_all_results_together_are_bound_by_the_payload_limit(aws: LocalAws, stock: LocalAws) -> None:
    """An Output that leaves them out does not help: the array itself is a state's result."""
    states = _map("x" * (PAYLOAD_BYTES // 4), Output={"left": "out"})
    mended, unmended = both(aws, stock, lambda server: run(server, states, {"items": [1, 2, 3, 4]}))
    assert (mended["status"], mended["error"]) == ("FAILED", "States.DataLimitExceeded")
    assert unmended["status"] == "SUCCEEDED"
    assert run(aws, states, {"items": [1, 2, 3]})["status"] == "SUCCEEDED"


def test_outputs_of_states_are_bound_by_the_payload_limit(aws: LocalAws, stock: LocalAws) -> None:
    large = {"Large": {"Type": "Pass", "Output": dict.fromkeys("ab", "{% $states.input.text %}"), "End": True}}
    data = {"text": "x" * (PAYLOAD_BYTES // 2)}
    mended, unmended = both(aws, stock, lambda server: run(server, large, data))
    assert (mended["status"], mended["error"]) == ("FAILED", "States.DataLimitExceeded")
    assert unmended["status"] == "SUCCEEDED"


@pytest.mark.slow
def test_an_execution_ends_at_25_000_events(aws: LocalAws, stock: LocalAws) -> None:
    items = {"items": list(range(HISTORY_EVENTS // 4))}

    def counted(server: LocalAws) -> tuple[str, str, int]:
        execution = start(server, machine(server, _map(Output="done", MaxConcurrency=4)), items)
        described = ended(server, execution, 60)
        return described["status"], str(described.get("cause")), len(history(server, execution))

    mended, unmended = both(aws, stock, counted)
    assert (mended[0], mended[2]) == ("FAILED", HISTORY_EVENTS)
    assert "maximum number of history events" in mended[1]
    assert unmended[0] == "SUCCEEDED"
