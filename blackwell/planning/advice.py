"""Advice in the published guide's order for the goal, each with its predicted gain and its risk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blackwell.planning.resolve import Choice, Place
from blackwell.spec import JobSpec

if TYPE_CHECKING:
    from blackwell.planning.plan import Advice, Plan


def advise(spec: JobSpec, place: Place, choice: Choice, plan: Plan) -> list[Advice]:
    """The list, most important first."""
    return []
