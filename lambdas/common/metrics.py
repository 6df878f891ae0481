"""Publishes metrics about a run: one line in the function's log, which CloudWatch turns into metrics."""

from __future__ import annotations

import sys
import time

from blackwell.metrics import metric_line
from lambdas.common.environment import environment


def publish(run: str, values: dict[str, float | None]) -> None:
    """Values that are None are left out."""
    line = metric_line(values, stage=environment().stage, run=run, unix_time=time.time())
    if line is not None:
        sys.stdout.write(line + "\n")  # as a line of its own: a logger would wrap it
        sys.stdout.flush()
