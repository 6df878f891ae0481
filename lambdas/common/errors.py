"""Typed errors: their names are what the state machine retries and catches."""

# ruff: noqa: N818  the names are those that the state machine and the run table show

from __future__ import annotations

from blackwell.verdict import LAUNCH_ERRORS


class WorkflowError(Exception):
    """An error that the state machine knows by its class name."""


class Throttled(WorkflowError):
    """AWS asks to call less often."""


class NotReadyYet(WorkflowError):
    """IAM or S3 has not caught up with a deployment yet."""


class QuotaExceeded(WorkflowError):
    """The account's quota does not cover the job."""


class CapacityUnavailable(WorkflowError):
    """AWS has no such instances now."""


class PlanUnavailable(WorkflowError):
    """The training plan takes no jobs now."""


class LaunchRefused(WorkflowError):
    """The job would not be, or was not, accepted."""


class RunEnded(WorkflowError):
    """The run was stopped meanwhile: nothing may be started for it."""


class ImageFailed(WorkflowError):
    """The image could not be built, or failed its self-test."""


LAUNCH: dict[str, type[WorkflowError]] = {
    cls.__name__: cls
    for cls in (Throttled, NotReadyYet, QuotaExceeded, CapacityUnavailable, PlanUnavailable, LaunchRefused, RunEnded)
}
"""The Launch step's errors by name; the verdict on each stands in blackwell.verdict."""
assert LAUNCH.keys() == LAUNCH_ERRORS.keys()
