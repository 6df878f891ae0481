"""What happens after an attempt: verdict + history -> the next attempt, or the end of the run.

`verdict.RULES` names the remedies of each verdict; this module carries them out as changes to the job spec, and keeps
them bounded: by the spec's `remedies.max_attempts`, by patience for capacity, by progress, by the budget. Pure and
deterministic, so a repeated call decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from blackwell.hardware import INSTANCES
from blackwell.runs import AttemptItem
from blackwell.spec import JobSpec, TrainingSpec, parse_job_spec
from blackwell.verdict import RULES, Remedy, Verdict, less_memory

BACKOFF_FIRST_SECONDS = 60
BACKOFF_MAX_SECONDS = 1_800
PATIENCE_SECONDS = 6 * 3_600
"""How long the last capacity entry is tried again, where it has no max_pending_seconds."""
PATIENCE_BEFORE_FALLBACK_SECONDS = 900
"""How long an entry is tried again while another one stands behind it."""
RETRIES_WITHOUT_PROGRESS = 2
"""Repeats of the same request that may end without a newer durable checkpoint."""
SHORTEST_SEQUENCE = 512


class Decision(BaseModel):
    """What to do next. `launch` makes attempt number (last + 1) after `wait_seconds`, `report` ends the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["launch", "report"]
    verdict: Verdict
    """The run's verdict where it ends here; the attempt's otherwise."""
    why: str
    remedy: Remedy = Remedy.NONE
    wait_seconds: int = 0
    capacity_index: int = 0
    overrides: dict[str, Any] = {}
    skip_data: dict[str, int] | None = None


def apply_overrides(spec: JobSpec, overrides: Mapping[str, Any]) -> JobSpec:
    """The spec with changes to `training`, by dotted path.

    Raises:
        FindingsError: the changed spec is not legal.
    """
    if not overrides:
        return spec
    document = spec.model_dump(mode="json", by_alias=True)
    for path, value in overrides.items():
        place = document["training"]
        *parents, last = path.split(".")
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return parse_job_spec(document)


def decide(
    spec: JobSpec, attempts: Sequence[AttemptItem], *, now: datetime, spent_usd: float | None = None
) -> Decision:
    """What follows the newest attempt, which has its verdict.

    `spec` is the resolved spec of the run's first plan; `attempts` are all attempts in order. `spent_usd` is what the
    run has cost so far, None where no price is known.
    """
    last = attempts[-1]
    verdict = last.verdict
    if verdict is None:
        raise ValueError(f"attempt {last.attempt} has no verdict")
    rule = RULES[verdict]
    if rule.terminal:
        return _end(verdict, last.cause or rule.meaning)
    if spec.budget and spent_usd is not None and spent_usd >= spec.budget.max_cost_usd:
        return _end(Verdict.BUDGET_REACHED, f"spent ${spent_usd:.2f} of ${spec.budget.max_cost_usd:.2f}")
    made = sum(1 for a in attempts if a.job_arn is not None)
    if made >= spec.remedies.max_attempts:
        return _end(verdict, f"{made} training jobs are all that remedies.max_attempts allows")
    for remedy in rule.remedies:
        decision = _REMEDIES[remedy](spec, attempts, verdict, now)
        if decision is not None:
            return decision
    return _end(verdict, f"{last.cause or rule.meaning}; no remedy is left")


def _end(verdict: Verdict, why: str) -> Decision:
    return Decision(action="report", verdict=verdict, why=why)


def _again(
    last: AttemptItem,
    verdict: Verdict,
    remedy: Remedy,
    why: str,
    *,
    wait_seconds: int = 0,
    capacity_index: int | None = None,
    changes: Mapping[str, Any] | None = None,
    skip_data: dict[str, int] | None = None,
) -> Decision:
    return Decision(
        action="launch",
        verdict=verdict,
        remedy=remedy,
        why=why,
        wait_seconds=wait_seconds,
        capacity_index=last.capacity_index if capacity_index is None else capacity_index,
        overrides={**last.overrides, **(changes or {})},
        skip_data=skip_data or last.skip_data,
    )


def _less_memory(spec: JobSpec, attempts: Sequence[AttemptItem], verdict: Verdict, now: datetime) -> Decision | None:
    last = attempts[-1]
    steps = list(_ladder(spec, attempts))
    if not steps:
        return None
    changes = next((s for s in steps if _fits(spec, last, s)), steps[-1])
    words = ", ".join(f"{key} {value}" for key, value in changes.items())
    return _again(last, verdict, Remedy.LESS_MEMORY, f"out of memory: {words}", changes=changes)


def _ladder(spec: JobSpec, attempts: Sequence[AttemptItem]) -> Iterator[dict[str, Any]]:
    """All smaller memory needs that are left, the nearest first; each as changes to the last attempt.

    A shorter sequence only while there is no checkpoint: its position in the data counts sequences of the old length.
    """
    saved = any(a.durable_step for a in attempts) or spec.resume_from is not None
    changes: dict[str, Any] = {}
    while True:
        training = apply_overrides(spec, {**attempts[-1].overrides, **changes}).training
        micro = training.micro_batch_size if isinstance(training.micro_batch_size, int) else 1
        step = less_memory(training.activation_checkpointing, micro)
        if step is None and spec.remedies.allow_shorter_sequence and not saved:
            step = _shorter_sequence(training)
        if step is None:
            return
        changes = {**changes, **step}
        yield changes


def _fits(spec: JobSpec, last: AttemptItem, changes: Mapping[str, Any]) -> bool:
    """Whether the change is enough, by the planner's model corrected with what was just observed.

    The job ran out of memory although the plan said that it fits, so the model is too low by at least the device's
    memory (and the allocation that failed) over the predicted peak. Where there is no GPU, every step is tried.
    """
    from blackwell.attempt import plan_attempt

    entry = spec.capacity[last.capacity_index]
    known = INSTANCES.get(entry.instance_type)
    if known is None or known.gpu is None:
        return True
    before = plan_attempt(spec, last.capacity_index, last.overrides).memory
    after = plan_attempt(spec, last.capacity_index, {**last.overrides, **changes}).memory
    wanted = (last.failure or {}).get("detail", {}).get("bytes") or 0
    observed = max(before.usable_gb, before.peak_gb) + wanted / 1e9
    return after.peak_gb * observed / before.peak_gb <= after.usable_gb


def _shorter_sequence(training: TrainingSpec) -> dict[str, Any] | None:
    """Half the sequence, twice the global batch: as many tokens per step."""
    length, whole = training.seq_length, training.global_batch_size
    if not isinstance(length, int) or whole is None or length % 2 or length // 2 < SHORTEST_SEQUENCE:
        return None
    return {"seq_length": length // 2, "global_batch_size": whole * 2}


def _retry_same(spec: JobSpec, attempts: Sequence[AttemptItem], verdict: Verdict, now: datetime) -> Decision | None:
    last = attempts[-1]
    if _stalled(attempts) > RETRIES_WITHOUT_PROGRESS:
        return None
    return _again(last, verdict, Remedy.RETRY_SAME, f"{verdict}: again from the newest checkpoint, on new instances")


def _stalled(attempts: Sequence[AttemptItem]) -> int:
    """How many attempts at the end of the list brought no newer durable checkpoint, with the newest one's verdict."""
    count = 0
    for index in range(len(attempts) - 1, -1, -1):
        item = attempts[index]
        before = max((a.durable_step or 0 for a in attempts[:index]), default=0)
        if item.verdict is not attempts[-1].verdict or (item.durable_step or 0) > before:
            break
        count += 1
    return count


def _next_capacity(spec: JobSpec, attempts: Sequence[AttemptItem], verdict: Verdict, now: datetime) -> Decision | None:
    last = attempts[-1]
    progressed = _stalled(attempts) == 0
    if verdict is Verdict.RUNTIME_EXCEEDED and progressed:
        return _again(last, verdict, Remedy.RETRY_SAME, "max_runtime_seconds reached: on from the newest checkpoint")
    index = last.capacity_index + 1
    if index >= len(spec.capacity):
        return None
    entry = spec.capacity[index]
    words = f"{verdict}: on to capacity entry {index} ({entry.kind}, {entry.instance_count} x {entry.instance_type})"
    return _again(last, verdict, Remedy.NEXT_CAPACITY, words, capacity_index=index)


def _wait_and_retry(spec: JobSpec, attempts: Sequence[AttemptItem], verdict: Verdict, now: datetime) -> Decision | None:
    last = attempts[-1]
    tries = []
    for item in reversed(attempts):
        if item.capacity_index != last.capacity_index or item.verdict is not verdict:
            break
        tries.append(item)
    first = tries[-1].planned_at
    since = datetime.fromisoformat(first) if first else now
    wait = min(BACKOFF_FIRST_SECONDS * 2 ** (len(tries) - 1), BACKOFF_MAX_SECONDS)
    if now + timedelta(seconds=wait) > since + timedelta(seconds=_patience(spec, last.capacity_index)):
        return None
    return _again(last, verdict, Remedy.WAIT_AND_RETRY, f"{verdict}: again in {wait} s", wait_seconds=wait)


def _patience(spec: JobSpec, index: int) -> int:
    entry = spec.capacity[index]
    default = PATIENCE_SECONDS if index == len(spec.capacity) - 1 else PATIENCE_BEFORE_FALLBACK_SECONDS
    return entry.max_pending_seconds or default


def _skip_data(spec: JobSpec, attempts: Sequence[AttemptItem], verdict: Verdict, now: datetime) -> Decision | None:
    last = attempts[-1]
    already = any(a.remedy and a.remedy.get("remedy") == Remedy.SKIP_DATA for a in attempts[:-1])
    training = apply_overrides(spec, last.overrides).training
    failed = (last.failure or {}).get("step") or (last.last_step or 0) + 1
    whole = training.global_batch_size
    if not spec.remedies.allow_data_skip or already or whole is None:
        return None
    # a spike is only called one after some steps of patience: what began it lies before
    before = max(1, failed - (training.loss_spike.patience_steps - 1 if training.loss_spike else 0))
    resumed = max((step for step in last.durable_steps if step < before), default=0)
    skip = {"before_step": before, "sequences": (failed - resumed) * whole}
    words = f"diverged at step {failed}: once more from step {resumed}, past the data up to there"
    return _again(last, verdict, Remedy.SKIP_DATA, words, skip_data=skip)


_REMEDIES = {
    Remedy.LESS_MEMORY: _less_memory,
    Remedy.RETRY_SAME: _retry_same,
    Remedy.NEXT_CAPACITY: _next_capacity,
    Remedy.WAIT_AND_RETRY: _wait_and_retry,
    Remedy.SKIP_DATA: _skip_data,
}


def utc_now() -> datetime:
    """The time that everything here is measured in."""
    return datetime.now(UTC)
