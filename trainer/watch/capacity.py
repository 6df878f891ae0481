"""The end of reserved capacity: a training plan's instances are taken 30 minutes before their reservation ends.

SageMaker says when in SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP (epoch milliseconds).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blackwell.trainer_config import ENV_PLAN_CONTINUES, PLAN_LAST_SAVE_SECONDS, PLAN_TAKEN_BEFORE_SECONDS

ENV_EXPIRATION = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
SHORT_INTERVAL_SECONDS = 120.0
"""Time between checkpoints once the end is near and the plan has a later reservation."""


@dataclass(frozen=True, slots=True)
class PlanEnd:
    """When this job's capacity goes, and whether the job itself goes on later."""

    at: float | None
    """Unix time from which instances may be taken; None without a plan."""
    continues: bool
    """A later reservation exists: SageMaker restarts the same job, so it must not end by itself."""
    clock: Callable[[], float] = time.time

    def reached(self, safe_seconds: float = 0.0) -> bool:
        """True when it is time for the last save, which must be safe before the capacity goes.

        Args:
            safe_seconds: what a step and a save, up to its copy in S3, took the last time; twice that is left.
        """
        return self.at is not None and self.clock() >= self.at - max(PLAN_LAST_SAVE_SECONDS, 2 * safe_seconds)


def plan_end(environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time) -> PlanEnd:
    """Reads SageMaker's environment. A value that is no number counts as no plan."""
    try:
        at = int(environment[ENV_EXPIRATION]) / 1_000 - PLAN_TAKEN_BEFORE_SECONDS
    except (KeyError, ValueError):
        return PlanEnd(None, False, clock)
    return PlanEnd(at, environment.get(ENV_PLAN_CONTINUES) == "1", clock)
