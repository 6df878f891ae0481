"""EventBridge schedules go by the overlay's clock, and are looked at every second.

Stock ministack (1.5.33) looks every ten seconds, by real time: a scheduled guard could not be seen to act on a stall of
an hour without waiting for one.
"""

from __future__ import annotations

from ministack.services import eventbridge

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

TICK_SECONDS = 1.0


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the scheduler's time; event times follow it."""
    seams.take(eventbridge, "_now_ts")
    seams.take(eventbridge, "_tick_scheduled_rules")
    seams.take(eventbridge, "_scheduler_loop")
    eventbridge._now_ts = context.clock.now
    eventbridge._SCHEDULER_TICK_INTERVAL = TICK_SECONDS
