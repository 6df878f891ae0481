"""The spec of one attempt: one capacity entry, the remedies' changes, and what the first plan decided for the run.

What makes two attempts the same run (global batch, steps) is pinned by the first plan; the rest is planned again for
the instances that the attempt gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blackwell.remedy import apply_overrides
from blackwell.spec import JobSpec

if TYPE_CHECKING:
    from blackwell.planning import Facts, Plan


def plan_attempt(spec: JobSpec, capacity_index: int, overrides: Mapping[str, Any], facts: Facts | None = None) -> Plan:
    """The plan for one entry of the capacity list; its resolved spec has that entry alone.

    Raises:
        FindingsError: the overrides do not suit the spec.
        IndexError: there is no such capacity entry.
    """
    from blackwell.planning import plan_job

    changed = apply_overrides(spec, overrides)
    return plan_job(changed.model_copy(update={"capacity": [changed.capacity[capacity_index]]}), facts)


def pinned(resolved: JobSpec) -> dict[str, Any]:
    """Overrides that keep later attempts the same run: the batch and steps that the first plan decided on."""
    training = resolved.training
    values = {"global_batch_size": training.global_batch_size, "seq_length": training.seq_length}
    return {key: value for key, value in values.items() if isinstance(value, int)}
