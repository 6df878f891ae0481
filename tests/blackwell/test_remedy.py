"""What follows an attempt: the table's remedies, in their order, and always with an end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackwell.remedy import PATIENCE_SECONDS, apply_overrides, decide
from blackwell.runs import AttemptItem, AttemptStatus
from blackwell.spec import JobSpec, parse_job_spec
from blackwell.verdict import RULES, Remedy, Verdict

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SPOT = {"kind": "spot", "max_runtime_seconds": 3600, "max_wait_seconds": 7200}
ON_DEMAND = {"kind": "on-demand", "max_runtime_seconds": 3600}
CPU = {"kind": "on-demand", "instance_type": "ml.c7i.2xlarge"}


def spec(**changes: Any) -> JobSpec:
    training = {"precision": "bf16", "micro_batch_size": 8, "global_batch_size": 64, "seq_length": 2048, "steps": 100}
    training |= {"activation_checkpointing": "none"} | changes.pop("training", {})
    document = {"model": "1b", "data": {"train": "datasets/x/"}, "training": training, "capacity": [SPOT, ON_DEMAND]}
    return parse_job_spec(document | changes)


def attempt(number: int, verdict: Verdict, **fields: Any) -> AttemptItem:
    known = {
        "run": "r",
        "attempt": number,
        "status": AttemptStatus.ENDED,
        "job_name": f"j-a{number}",
        "job_arn": f"arn:{number}",
        "verdict": verdict,
        "planned_at": NOW.isoformat(),
    }
    return AttemptItem.model_validate(known | fields)


def test_terminal_verdicts_end_the_run() -> None:
    for verdict, rule in RULES.items():
        if rule.terminal:
            decision = decide(spec(), [attempt(1, verdict)], now=NOW)
            assert (decision.action, decision.verdict) == ("report", verdict)


def test_out_of_memory_saves_memory_with_the_same_tokens_per_step() -> None:
    job = spec(remedies={"max_attempts": 20}, capacity=[CPU], training={"processes_per_instance": 8})
    attempts, seen = [attempt(1, Verdict.OUT_OF_MEMORY)], []
    while True:
        decision = decide(job, attempts, now=NOW)
        if decision.action == "report":
            break
        changed = apply_overrides(job, decision.overrides).training
        assert (changed.global_batch_size, changed.seq_length) == (64, 2048)
        assert changed.global_batch_size % changed.micro_batch_size == 0
        seen.append((changed.activation_checkpointing.value, changed.micro_batch_size))
        attempts.append(attempt(len(attempts) + 1, Verdict.OUT_OF_MEMORY, overrides=decision.overrides))
    assert seen == [("full", 8), ("full", 4), ("full", 2), ("full", 1)]
    assert decision.verdict is Verdict.OUT_OF_MEMORY


def test_out_of_memory_with_an_odd_batch() -> None:
    batches = {"micro_batch_size": 15, "global_batch_size": 15, "activation_checkpointing": "full"}
    job = spec(training=batches, capacity=[CPU])  # without a model of the GPU's memory, every rung is tried
    decision = decide(job, [attempt(1, Verdict.OUT_OF_MEMORY)], now=NOW)
    assert decision.overrides["micro_batch_size"] == 5


def test_a_shorter_sequence_only_where_it_is_allowed() -> None:
    floor = {"micro_batch_size": 1, "activation_checkpointing": "full"}
    assert decide(spec(training=floor), [attempt(1, Verdict.OUT_OF_MEMORY)], now=NOW).action == "report"
    allowed = spec(training=floor, remedies={"allow_shorter_sequence": True})
    decision = decide(allowed, [attempt(1, Verdict.OUT_OF_MEMORY)], now=NOW)
    assert decision.overrides == {"seq_length": 1024, "global_batch_size": 128}


@pytest.mark.parametrize("saved", ["this run", "an earlier attempt", "the run it goes on from"])
def test_no_shorter_sequence_over_a_checkpoint_of_longer_ones(saved: str) -> None:
    """Its position in the data counts sequences of that length: the trainer would refuse it."""
    floor = {"micro_batch_size": 1, "activation_checkpointing": "full"}
    more = {"resume_from": "earlier"} if saved == "the run it goes on from" else {}
    job = spec(training=floor, remedies={"allow_shorter_sequence": True}, **more)
    attempts = [attempt(1, Verdict.HARDWARE, durable_step=20 if saved == "an earlier attempt" else None)]
    attempts.append(attempt(2, Verdict.OUT_OF_MEMORY, durable_step=20 if saved == "this run" else None))
    assert decide(job, attempts, now=NOW).action == "report"


@pytest.mark.parametrize("verdict", [Verdict.INTERRUPTED, Verdict.WAIT_EXCEEDED, Verdict.QUOTA, Verdict.PLAN_ENDED])
def test_next_capacity_entry_then_the_end(verdict: Verdict) -> None:
    first = decide(spec(), [attempt(1, verdict)], now=NOW)
    assert (first.action, first.remedy, first.capacity_index) == ("launch", Remedy.NEXT_CAPACITY, 1)
    second = decide(spec(), [attempt(1, verdict), attempt(2, verdict, capacity_index=1)], now=NOW)
    assert (second.action, second.verdict) == ("report", verdict)


def test_runtime_exceeded_goes_on_only_with_progress() -> None:
    job = spec(capacity=[ON_DEMAND])
    moved = attempt(1, Verdict.RUNTIME_EXCEEDED, durable_step=40)
    assert decide(job, [moved], now=NOW).action == "launch"
    stuck = attempt(2, Verdict.RUNTIME_EXCEEDED, durable_step=40)
    assert decide(job, [moved, stuck], now=NOW).action == "report"


def test_capacity_is_waited_for_with_backoff_and_a_deadline() -> None:
    job, attempts, now, waits = spec(capacity=[ON_DEMAND]), [], NOW, []
    while True:
        attempts.append(attempt(len(attempts) + 1, Verdict.CAPACITY, planned_at=now.isoformat(), job_arn=None))
        decision = decide(job, attempts, now=now)
        if decision.action == "report":
            break
        waits.append(decision.wait_seconds)
        now += timedelta(seconds=decision.wait_seconds)
    assert waits[:4] == [60, 120, 240, 480]
    assert max(waits) == 1_800
    assert (now - NOW).total_seconds() <= PATIENCE_SECONDS
    assert sum(waits) > PATIENCE_SECONDS - 1_800


def test_capacity_gives_way_to_the_next_entry_sooner() -> None:
    job, attempts, now = spec(), [], NOW
    while True:
        attempts.append(attempt(len(attempts) + 1, Verdict.CAPACITY, planned_at=now.isoformat(), job_arn=None))
        decision = decide(job, attempts, now=now)
        if decision.capacity_index == 1:
            break
        now += timedelta(seconds=decision.wait_seconds)
    assert decision.remedy is Remedy.NEXT_CAPACITY
    assert (now - NOW).total_seconds() <= 900


def test_tries_without_a_job_do_not_use_up_the_attempts() -> None:
    job = spec(capacity=[ON_DEMAND], remedies={"max_attempts": 1})
    assert decide(job, [attempt(1, Verdict.THROTTLED, job_arn=None)], now=NOW).action == "launch"
    assert decide(job, [attempt(1, Verdict.HARDWARE)], now=NOW).action == "report"


def test_hardware_is_retried_a_bounded_number_of_times_without_progress() -> None:
    job, attempts = spec(remedies={"max_attempts": 20}), []
    while True:
        attempts.append(attempt(len(attempts) + 1, Verdict.HARDWARE))
        if decide(job, attempts, now=NOW).action == "report":
            break
    assert len(attempts) == 3
    moving = [attempt(n, Verdict.HARDWARE, durable_step=10 * n) for n in range(1, 8)]
    assert decide(job, moving, now=NOW).action == "launch"


def test_overrides_stay_for_later_attempts() -> None:
    last = attempt(1, Verdict.HARDWARE, overrides={"micro_batch_size": 4})
    assert decide(spec(), [last], now=NOW).overrides == {"micro_batch_size": 4}


def test_the_budget_ends_what_would_go_on() -> None:
    job = spec(budget={"max_cost_usd": 10})
    decision = decide(job, [attempt(1, Verdict.HARDWARE)], now=NOW, spent_usd=10.0)
    assert (decision.action, decision.verdict) == ("report", Verdict.BUDGET_REACHED)
    assert decide(job, [attempt(1, Verdict.HARDWARE)], now=NOW, spent_usd=9.0).action == "launch"


def test_data_is_skipped_once_and_only_where_it_is_allowed() -> None:
    assert decide(spec(), [attempt(1, Verdict.DIVERGED)], now=NOW).action == "report"
    job = spec(remedies={"allow_data_skip": True})
    first = decide(job, [attempt(1, Verdict.DIVERGED)], now=NOW)
    assert first.remedy is Remedy.SKIP_DATA
    done = attempt(1, Verdict.DIVERGED, remedy=first.model_dump(mode="json"))
    assert decide(job, [done, attempt(2, Verdict.DIVERGED)], now=NOW).action == "report"


def test_the_skip_goes_past_the_data_of_the_divergence() -> None:
    job = spec(remedies={"allow_data_skip": True}, training={"loss_spike": {"patience_steps": 4}})
    failed = attempt(1, Verdict.DIVERGED, failure={"step": 35}, durable_steps=[10, 20, 30, 33])
    decision = decide(job, [failed], now=NOW)
    assert decision.skip_data == {"before_step": 32, "sequences": 5 * 64}  # step 30 is the newest before the spike
    later = attempt(2, Verdict.HARDWARE, skip_data=decision.skip_data)
    assert decide(job, [failed, later], now=NOW).skip_data == decision.skip_data


def test_what_was_observed_corrects_the_memory_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan said 90 of 100 GB: steps that are too small once the observed peak is believed are left out."""

    def plan(job: JobSpec, index: int, overrides: dict[str, Any]) -> SimpleNamespace:
        micro = overrides.get("micro_batch_size", 16)
        peak = 10 + micro * (5 if overrides.get("activation_checkpointing") != "full" else 4)
        return SimpleNamespace(memory=SimpleNamespace(peak_gb=peak, usable_gb=100.0))

    monkeypatch.setattr("blackwell.attempt.plan_attempt", plan)
    job = spec(training={"micro_batch_size": 16, "global_batch_size": 128})
    small = attempt(1, Verdict.OUT_OF_MEMORY, failure={"detail": {"bytes": 10**9}})
    assert decide(job, [small], now=NOW).overrides == {"activation_checkpointing": "full"}  # 74 x 101 / 90 = 83
    large = attempt(1, Verdict.OUT_OF_MEMORY, failure={"detail": {"bytes": 100 * 10**9}})
    wanted = {"activation_checkpointing": "full", "micro_batch_size": 8}  # 42 x 200 / 90 = 93
    assert decide(job, [large], now=NOW).overrides == wanted
    hopeless = attempt(1, Verdict.OUT_OF_MEMORY, failure={"detail": {"bytes": 10**15}})
    assert decide(job, [hopeless], now=NOW).overrides["micro_batch_size"] == 1  # the floor is still tried


def test_dotted_overrides_reach_into_parts() -> None:
    changed = apply_overrides(spec(), {"checkpoint.transport": "sagemaker_sync"})
    assert changed.training.checkpoint.transport == "sagemaker_sync"
    assert changed.training.steps == 100


_ENDS = st.sampled_from([v for v in Verdict if not RULES[v].terminal])


@settings(max_examples=25, deadline=None)
@given(verdicts=st.lists(_ENDS, min_size=40, max_size=40), progress=st.lists(st.booleans(), min_size=40, max_size=40))
def test_every_history_ends(verdicts: list[Verdict], progress: list[bool]) -> None:
    """Whatever goes wrong in whatever order: a run makes at most max_attempts jobs and then ends."""
    job = spec(remedies={"max_attempts": 7, "allow_data_skip": True, "allow_shorter_sequence": True})
    attempts: list[AttemptItem] = []
    now, durable, index, overrides = NOW, 0, 0, {}
    for verdict, moved in zip(verdicts, progress, strict=True):
        durable += 10 * moved
        attempts.append(
            attempt(
                len(attempts) + 1, verdict, durable_step=durable, capacity_index=index, overrides=overrides,
                planned_at=now.isoformat(),
            )
        )  # fmt: skip
        decision = decide(job, attempts, now=now)
        assert decision == decide(job, attempts, now=now)
        if decision.action == "report":
            return
        apply_overrides(job, decision.overrides)
        index, overrides = decision.capacity_index, decision.overrides
        now += timedelta(seconds=decision.wait_seconds)
    pytest.fail(f"{len(attempts)} attempts and no end")
