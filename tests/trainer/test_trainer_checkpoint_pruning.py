"""Pruning: a model of every history of saves, uploads, losses and restarts, against the promises of the rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainer.checkpoint.pruning import State, prunable

HISTORIES = st.dictionaries(st.integers(1, 60), st.sampled_from(State), max_size=12)


@given(states=HISTORIES, keep=st.integers(-1, 6))
@settings(max_examples=400, deadline=None)
def test_what_pruning_promises(states: dict[int, State], keep: int) -> None:
    gone = prunable(states, keep)
    durable = sorted(step for step, state in states.items() if state is State.DURABLE)
    left = [step for step in durable if step not in gone]
    wanted = max(keep, 2)
    assert set(gone) <= states.keys()
    assert len(left) == min(len(durable), wanted), "as many durable ones as asked for, never fewer than two by pruning"
    assert left == durable[len(durable) - len(left) :], "the newest ones"
    if not durable:
        assert gone == []
    else:
        assert all(step < durable[-1] for step in gone), "nothing goes before a newer one is durable"
    after = {step: state for step, state in states.items() if step not in gone}
    assert prunable(after, keep) == [], "one pass is enough"
    unsettled = [step for step, state in states.items() if state is State.COMPLETE and left and step > left[0]]
    assert not set(unsettled) & set(gone), "what may still become durable stays"


@pytest.mark.parametrize("keep", [2, 3])
def test_disk_use_is_bounded_once_uploads_keep_up(keep: int) -> None:
    states: dict[int, State] = {}
    for step in range(1, 50):
        states[step] = State.COMPLETE if step % 3 else State.BROKEN
        for old in states:
            if old < step and states[old] is State.COMPLETE:
                states[old] = State.DURABLE
        for gone in prunable(states, keep):
            del states[gone]
        assert len(states) <= keep + 3


class Host(RuleBasedStateMachine):
    """A run whose checkpoints are uploaded file by file, in any order, from a host that may be lost at any time.

    S3 holds the files of each save that have arrived; a checkpoint can be restored from S3 when all have.
    """

    FILES = 3

    @initialize(keep=st.integers(2, 4))
    def begin(self, keep: int) -> None:
        self.keep = keep
        self.step = 0
        self.states: dict[int, State] = {}
        self.in_s3: dict[int, set[int]] = {}
        self.promised = 0

    def restorable(self) -> list[int]:
        return [step for step, files in self.in_s3.items() if len(files) == self.FILES]

    @rule()
    def save(self) -> None:
        self.step += 1
        self.states[self.step] = State.COMPLETE

    @rule()
    def fail_to_save(self) -> None:
        self.step += 1
        self.states[self.step] = State.BROKEN

    @rule(data=st.data())
    def upload_a_file(self, data: st.DataObject) -> None:
        waiting = [
            (step, file)
            for step, state in self.states.items()
            if state is not State.BROKEN
            for file in range(self.FILES)
            if file not in self.in_s3.get(step, set())
        ]
        if waiting:
            step, file = data.draw(st.sampled_from(waiting))
            self.in_s3.setdefault(step, set()).add(file)

    @rule()
    def settle(self) -> None:
        for step, state in self.states.items():
            if state is State.COMPLETE and len(self.in_s3.get(step, ())) == self.FILES:
                self.states[step] = State.DURABLE
                self.promised = max(self.promised, step)
        for step in prunable(self.states, self.keep):
            del self.states[step]

    @rule(data=st.data())
    def delete_in_s3_what_is_gone_here(self, data: st.DataObject) -> None:
        gone = [(step, file) for step, files in self.in_s3.items() if step not in self.states for file in files]
        if gone:
            step, file = data.draw(st.sampled_from(gone))
            self.in_s3[step].discard(file)

    @rule()
    def lose_the_host(self) -> None:
        """A new host has what S3 has, and no idea of what was durable before."""
        whole = set(self.restorable())
        self.states = {
            step: State.COMPLETE if step in whole else State.BROKEN for step, files in self.in_s3.items() if files
        }

    @invariant()
    def the_newest_durable_checkpoint_can_always_be_restored(self) -> None:
        if self.promised:
            assert max(self.restorable(), default=0) >= self.promised

    @invariant()
    def two_stay(self) -> None:
        durable = [step for step, state in self.states.items() if state is State.DURABLE]
        if len(durable) >= 2:
            assert len(set(durable) & set(self.restorable())) >= 2


Host.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHost = Host.TestCase
