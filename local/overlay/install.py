"""Installs every mended seam and every service host into the running ministack, in one place."""

from __future__ import annotations

import importlib
import importlib.util

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

MENDED = (
    "hosts",
    "control",
    "unknown_services",
    "executions",
    "tasks",
    "maps",
    "state_logs",
    "functions",
    "logs",
    "alarms",
    "event_targets",
    "schedules",
    "buckets",
    "tables",
    "images",
    "stack_deletion",
    "account",
)
"""One module each under `local.overlay`, with `install(context, seams)`."""

HOSTS = ("local.faults", "local.sagemaker", "local.codebuild")
"""Services that ministack lacks, and the faults on all of them; each has `install(context)`."""


def install_overlay(context: OverlayContext, seams: Seams) -> None:
    """Replace the mended seams; `seams.check()` then tells whether they were the expected ones."""
    for name in MENDED:
        importlib.import_module(f"local.overlay.{name}").install(context, seams)


def install_all(context: OverlayContext) -> None:
    """Overlay and hosts. Raises `SeamError` before anything is served when ministack differs."""
    seams = Seams()
    install_overlay(context, seams)
    seams.check()
    for name in HOSTS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            importlib.import_module(name).install(context)
