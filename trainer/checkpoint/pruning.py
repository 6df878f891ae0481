"""Which checkpoints may go: one pure function, so that its promises can be tested against every history."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

MINIMUM_DURABLE = 2


class State(Enum):
    """What is known of a checkpoint folder."""

    DURABLE = "durable"
    COMPLETE = "complete"
    """Whole on this host, not yet known to be in S3."""
    BROKEN = "broken"
    """Half written or damaged; never one that is being written."""


def prunable(states: Mapping[int, State], keep: int) -> list[int]:
    """Steps whose checkpoints may be deleted, oldest first.

    The newest `keep` (at least two) durable ones stay, and everything newer than the oldest of these. As long as there
    are fewer, nothing goes. Broken ones go as soon as a newer one is durable.
    """
    durable = sorted((step for step, state in states.items() if state is State.DURABLE), reverse=True)
    if not durable:
        return []
    wanted = max(keep, MINIMUM_DURABLE)
    overtaken = {step for step, state in states.items() if state is State.BROKEN and step < durable[0]}
    old = {step for step in states if step < durable[wanted - 1]} if len(durable) >= wanted else set()
    return sorted(overtaken | old)
