"""The server's own control interface: health and the clock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams


def install(context: OverlayContext, seams: Seams) -> None:
    """Serve `GET /_local/health` and `POST /_local/clock` {"advance": seconds}."""

    def health(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "pid": os.getpid(), "now": context.clock.now()}

    def clock(body: Mapping[str, Any]) -> dict[str, float]:
        return {"offset": context.clock.advance(float(body["advance"])), "now": context.clock.now()}

    context.route("GET", "health", health)
    context.route("POST", "clock", clock)
