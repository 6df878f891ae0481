"""How many events a sweep's execution has in its history, counted from the state machine's own definition.

Step Functions ends an execution at 25,000. Every state of every iteration of an inline Map counts, every repeated try
of a task does too; the time that a task takes does not, however long it waits.
"""

from __future__ import annotations

from typing import Any

from blackwell.sweep.spec import MAX_POINTS

LIMIT = 25_000
AROUND = 2
"""Events of an execution besides its states': its start and its end; of an iteration or a Map likewise."""
_TRY = 3
"""TaskScheduled, TaskStarted, and TaskSucceeded or TaskFailed."""


def sweep_events(points: int, *, every_retry: bool) -> int:
    """Events of a sweep of so many points, each of which runs.

    Args:
        points: points of the sweep.
        every_retry: every task fails as often as it is tried again; the most that there can be.
    """
    from stacks.sweep import point_states, states  # loads the CDK, which takes seconds

    machine = states()
    items = points * (AROUND + _longest(point_states(), "Prepare", every_retry=every_retry))
    return AROUND + AROUND + items + _longest(machine, "PlanSweep", every_retry=every_retry)


def sweep_history() -> str:
    """One sentence with both figures, for docs/sweeps.md."""
    usual, most = (sweep_events(MAX_POINTS, every_retry=every) for every in (False, True))
    return (
        f"A sweep of {MAX_POINTS} points leaves {usual:,} events in its execution's history, {most:,} if every task of "
        f"every point is tried as often as it may be, of the {LIMIT:,} at which Step Functions ends an execution."
    )


def _longest(machine: dict[str, dict[str, Any]], name: str, *, every_retry: bool) -> int:
    """Events of the way from this state to an end that has most of them."""
    state = machine[name]
    ways = [state.get("Next"), state.get("Default"), *(choice["Next"] for choice in state.get("Choices", ()))]
    if every_retry:  # else nothing is caught, for nothing fails
        ways += [catch["Next"] for catch in state.get("Catch", ())]
    after = max((_longest(machine, way, every_retry=every_retry) for way in ways if way is not None), default=0)
    return _events(state, every_retry=every_retry) + after


def _events(state: dict[str, Any], *, every_retry: bool) -> int:
    if state["Type"] == "Fail":
        return 1  # entered; the execution's end is counted apart
    if state["Type"] != "Task":
        return AROUND
    submitted = 1 if ".sync" in state["Resource"] else 0
    again = sum(retry["MaxAttempts"] for retry in state.get("Retry", ())) if every_retry else 0
    return AROUND + submitted + _TRY * (1 + again)
