"""Faults as ordinary inputs of the embedded AWS: `engine_of(context)` is asked by every host before it does its work.

`model` is the language, `engine` counts and answers, `hooks` reaches the API calls, events and functions. Faults come
from the file that LOCAL_AWS_FAULTS names when the server starts, or through the control interface: POST
`/_local/faults` {"faults": [...], "keep": false}, GET for what has happened.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from local.faults.engine import FaultEngine

if TYPE_CHECKING:
    from local.overlay.context import OverlayContext

FAULTS_ENV = "LOCAL_AWS_FAULTS"

_engines: dict[Path, FaultEngine] = {}


def engine_of(context: OverlayContext) -> FaultEngine:
    """The server's one fault engine."""
    return _engines.setdefault(context.work_dir, FaultEngine(context.work_dir / "faults"))


def install(context: OverlayContext) -> None:
    """Hooks the faults into API calls, events and functions, and serves their control interface.

    Raises OSError or ValueError when LOCAL_AWS_FAULTS names a file that is missing or wrong.
    """
    from local.faults import hooks

    engine = engine_of(context)
    hooks.install(context, engine)
    if path := os.environ.get(FAULTS_ENV):
        engine.arm(json.loads(Path(path).read_text(encoding="utf-8")))
    context.route("POST", "faults", lambda body: {"armed": engine.arm(body["faults"], keep=bool(body.get("keep")))})
    context.route("GET", "faults", lambda body: engine.journal())
