"""Proof of continuity: that a run read every token once and in order, whatever happened to it on the way."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import groupby, pairwise

from blackwell.report.history import History, Start
from blackwell.report.model import Continuity, Interval, Overlap
from blackwell.spec import Precision

FP32_TOLERANCE = 1e-5
"""A recomputed loss in FP32 may differ by this much relative: other reduction orders, nothing else."""
_EXAMPLES = 10


def prove(history: History, precision: str | None, checkpointed_steps: set[int]) -> Continuity:
    """Checks the intervals of the final history and compares every step that was taken twice.

    `checkpointed_steps` are the steps of checkpoints that were written: a checkpoint at step n proves that step n was
    taken, even where its log line is missing.
    """
    starts = history.with_steps
    if not starts:
        return Continuity(proven=None, statement="No step was logged, so there is nothing to prove.")
    problems: list[str] = []
    intervals = _intervals(starts)
    steps_gapless = _check_steps(intervals, checkpointed_steps, problems)
    tokens_gapless = _check_tokens(intervals, problems)
    overlap = _overlap(starts, precision, problems)
    hashes_equal = None if not overlap.compared_hashes else overlap.equal_hashes == overlap.compared_hashes
    hashes = array("Q")
    for start in starts:
        if start.hashed:
            hashes.extend(start.order_hash[: start.kept])
    distinct = sum(1 for _ in groupby(sorted(hashes)))
    proven = not problems
    return Continuity(
        proven=proven,
        statement=_statement(proven, intervals, overlap),
        intervals=intervals,
        steps_gapless=steps_gapless,
        tokens_gapless=tokens_gapless,
        hashes_equal=hashes_equal,
        distinct_hashes=distinct,
        hashed_steps=len(hashes),
        left_out=[
            f"{start.left_out[1]:,} sequences after step {start.left_out[0]:,}"
            for start in starts
            if start.left_out is not None
        ],
        overlap=overlap,
        overlap_statement=_overlap_statement(overlap),
        problems=problems,
    )


def _intervals(starts: list[Start]) -> list[Interval]:
    intervals = []
    for start in starts:
        if not start.kept:
            continue
        per_step = start.tokens_per_step
        after_tokens = None
        if per_step is not None and start.tokens[0]:
            after_tokens = round(start.tokens[0] - per_step * (start.step[0] - start.after_step))
        intervals.append(
            Interval(
                attempt=start.attempt,
                start=start.number,
                after_step=start.after_step,
                last_step=start.step[start.kept - 1],
                after_tokens=after_tokens,
                last_tokens=start.tokens[start.kept - 1] or None,
            )
        )
    return intervals


def _check_steps(intervals: list[Interval], checkpointed_steps: set[int], problems: list[str]) -> bool:
    whole = True
    for before, after in pairwise(intervals):
        if after.after_step > before.last_step:
            if after.after_step in checkpointed_steps:
                before.last_step = after.after_step  # taken and saved, only its log line is missing
                before.last_tokens = after.after_tokens
            else:
                whole = False
                problems.append(
                    f"steps {before.last_step + 1} to {after.after_step} are in no log and no checkpoint shows them"
                )
        elif after.after_step < before.last_step:  # records are kept by step, so only a wider log interval gets here
            before.last_step = after.after_step
            before.last_tokens = after.after_tokens
    return whole


def _check_tokens(intervals: list[Interval], problems: list[str]) -> bool | None:
    whole: bool | None = None
    for before, after in pairwise(intervals):
        if before.last_tokens is None or after.after_tokens is None:
            continue
        whole = whole is not False
        if before.last_tokens != after.after_tokens:
            whole = False
            kind = "skipped" if after.after_tokens > before.last_tokens else "read twice"
            problems.append(
                f"{abs(after.after_tokens - before.last_tokens)} tokens were {kind} after step {after.after_step}"
            )
    if whole is None and len(intervals) == 1 and intervals[0].last_tokens is not None:
        return True
    return whole


def _overlap(starts: list[Start], precision: str | None, problems: list[str]) -> Overlap:
    steps = compared = equal = 0
    worst: float | None = None
    bitwise = True
    same_shape = True
    examples: list[tuple[int, float, float]] = []
    wrong_hash: list[int] = []
    for first, i, second, j in _repeats(starts):
        steps += 1
        same_shape = same_shape and (first.world_size, first.micro_batch_size) == (
            second.world_size,
            second.micro_batch_size,
        )
        if first.hashed and second.hashed:
            compared += 1
            if first.order_hash[i] == second.order_hash[j]:
                equal += 1
            else:
                wrong_hash.append(first.step[i])
        a, b = first.loss[i], second.loss[j]
        if math.isfinite(a) and math.isfinite(b):
            difference = abs(b - a) / abs(a) if a else abs(b - a)
            worst = difference if worst is None else max(worst, difference)
            bitwise = bitwise and a == b
            if len(examples) < _EXAMPLES:
                examples.append((first.step[i], a, b))
    if wrong_hash:
        problems.append(
            f"step {wrong_hash[0]} read other samples the second time ({len(wrong_hash)} of {compared} repeats differ)"
        )
    tolerance = FP32_TOLERANCE if precision == Precision.FP32 else None
    within = None if tolerance is None or worst is None else worst <= tolerance
    if within is False:
        problems.append(f"a recomputed loss differs by {worst:.2g} relative, more than {tolerance:g} in fp32")
    return Overlap(
        steps=steps,
        compared_hashes=compared,
        equal_hashes=equal,
        max_relative_difference=worst,
        bitwise_equal=bitwise if worst is not None else None,
        same_shape=same_shape if steps else None,
        tolerance=tolerance,
        within_tolerance=within,
        examples=examples,
    )


def _repeats(starts: list[Start]) -> Iterator[tuple[Start, int, Start, int]]:
    """Each record that was lost, with the next later record of the same step, up to where data was left out between."""
    for number, first in enumerate(starts):
        lost = {first.step[i]: i for i in range(first.kept, len(first.step))}
        same_until = math.inf
        for second in starts[number + 1 :]:
            if not lost:
                break
            # a start that leaves the same data out again, because its checkpoint is older, reads what `first` read
            if second.left_out is not None and second.left_out != _newest_left_out(starts[: number + 1]):
                same_until = min(same_until, second.left_out[0])
            for j, step in enumerate(second.step):
                if step > first.step[-1] or step > same_until:
                    break
                i = lost.pop(step, None)
                if i is not None:
                    yield first, i, second, j


def _newest_left_out(starts: list[Start]) -> tuple[int, int] | None:
    return next((start.left_out for start in reversed(starts) if start.left_out is not None), None)


def _overlap_statement(overlap: Overlap) -> str:
    if not overlap.steps:
        return "no overlapping step"
    text = f"{overlap.steps} step{'s were' if overlap.steps > 1 else ' was'} taken twice"
    if overlap.compared_hashes:
        text += f"; {overlap.equal_hashes} of {overlap.compared_hashes} read the same samples both times"
    if overlap.max_relative_difference is None:
        return text + "; no two finite losses to compare"
    if overlap.bitwise_equal:
        return text + "; every recomputed loss is the same to the last bit"
    text += f"; the recomputed loss differs by at most {overlap.max_relative_difference:.3g} relative"
    if overlap.tolerance is not None:
        word = "within" if overlap.within_tolerance else "outside"
        return text + f", {word} the tolerance of {overlap.tolerance:g}"
    return text


def _statement(proven: bool, intervals: list[Interval], overlap: Overlap) -> str:
    if not proven:
        return "Continuity could not be proven; the problems are listed."
    first, last = intervals[0].after_step + 1, intervals[-1].last_step
    if len(intervals) == 1:
        return f"Steps {first} to {last} were taken in one piece."
    return (
        f"Steps {first} to {last} were taken in {len(intervals)} pieces that follow each other without a gap and "
        "without a token read twice."
    )
