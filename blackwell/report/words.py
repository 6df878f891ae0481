"""The report in plain words: what happened, why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blackwell.report.goodput import PARTS, PRODUCTIVE
from blackwell.report.model import Restart, RunReport
from blackwell.runs import RunStatus
from blackwell.verdict import RULES, Verdict

RESTART_WORDS = {
    "interruption": "SageMaker took the instances and started the same job again",
    "in_place": "the launcher restarted its workers on the same instances",
    "container": "the container was started again",
    "new_attempt": "the workflow started a new job",
}
"""Kind of a restart -> what happened."""
_NOTICEABLE_SHARE = 0.05
_WORTH_ADVICE = 0.1


def duration(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s`, `4.2 s`; `unknown` for None."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    hours, rest = divmod(whole, 3600)
    if hours < 48:
        return f"{hours} h {rest // 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def money(usd: float | None) -> str:
    """`$1,234`, `$0.52`, `$0.0042`; `unknown` for None."""
    if usd is None:
        return "unknown"
    sign, amount = "-" if usd < 0 else "", abs(usd)
    if amount >= 1000:
        return f"{sign}${amount:,.0f}"
    return f"{sign}${amount:.2f}" if amount >= 0.1 or amount == 0 else f"{sign}${amount:.4f}"


def count(value: float | None) -> str:
    """`1,234`, `1.23 M`, `45.6 B`; `unknown` for None."""
    if value is None:
        return "unknown"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}"


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share * 100:.1f} %"


def headline(report: RunReport) -> str:
    """One sentence: how the run stands."""
    of = f" of {report.planned_steps:,}" if report.planned_steps else ""
    if report.status is RunStatus.REJECTED:
        number = len(report.findings)
        return (
            f"The job spec was refused before anything was created, with {number} finding{'' if number == 1 else 's'}."
        )
    if report.status is RunStatus.COMPLETED:
        which = (
            f"steps {report.start_step + 1:,} to {report.steps:,}"
            if report.start_step
            else f"all {report.steps:,} steps"
        )
        text = f"The run finished {which} in {duration(report.wall_seconds)}"
        return text + (f" for {money(report.cost.total_usd)}." if report.cost.total_usd is not None else ".")
    if report.status is RunStatus.RUNNING:
        return f"The run is at step {report.steps:,}{of}."
    meaning = RULES[report.verdict].meaning if report.verdict else "it ended without a verdict"
    return f"The run ended at step {report.steps:,}{of}: {meaning}."


def attempt_explanation(verdict: Verdict | None, cause: str) -> str:
    """What happened to one attempt."""
    if verdict is None:
        return "It has not ended."
    meaning = RULES[verdict].meaning
    text = meaning[0].upper() + meaning[1:]
    return f"{text}: {cause}" if cause and verdict is not Verdict.COMPLETED else f"{text}."


def explanation(report: RunReport) -> list[str]:
    """What happened, one paragraph each: the way of the loss, the interruptions, the time, the money."""
    if report.status is RunStatus.REJECTED:
        return ["No training job, image build or checkpoint was made for it."]
    text: list[str] = []
    if report.start_step:
        source = f" of {report.resume_from}" if report.resume_from else ""
        text.append(f"It went on from step {report.start_step:,}{source}.")
    if report.first_loss is not None and report.final_loss is not None and report.steps:
        sentence = (
            f"The loss went from {report.first_loss:.3f} to {report.final_loss:.3f} nats per token "
            f"over {count(report.tokens_trained)} tokens"
        )
        if report.tokens_per_second:
            sentence += f", at {report.tokens_per_second:,.0f} tokens per second"
        text.append(sentence + ".")
        if report.non_finite_steps:
            text.append(f"{report.non_finite_steps} logged steps had a loss that was not finite.")
    elif not report.steps:
        text.append("No training step was logged.")
    if len(report.attempts) > 1:
        text.append(_attempts(report))
    if report.restarts:
        text.append(_restarts(report.restarts))
    if report.goodput.goodput is not None and report.steps:
        lost = sorted((p for p in report.goodput.parts if p.name != PRODUCTIVE), key=lambda p: -p.seconds)
        sentence = f"{percent(report.goodput.goodput)} of the paid time moved the training forward"
        if lost and lost[0].share >= _NOTICEABLE_SHARE:
            sentence += f"; the largest other part was {lost[0].name} with {percent(lost[0].share)}"
        text.append(sentence + ".")
    if report.emulated_precision:
        text.append(
            f"{report.precision} was emulated: its numbers show how the format rounds, not how fast the hardware is."
        )
    return text


def _attempts(report: RunReport) -> str:
    pieces = []
    for attempt in report.attempts[:-1]:
        verdict = attempt.verdict.value.replace("_", " ") if attempt.verdict else "no verdict"
        piece = f"attempt {attempt.attempt} ended with {verdict}"
        if attempt.remedy and attempt.remedy != "none":
            piece += f", answered by {attempt.remedy.replace('_', ' ')}"
        pieces.append(piece)
    return f"The run took {len(report.attempts)} attempts: {'; '.join(pieces)}."


def _restarts(restarts: list[Restart]) -> str:
    steps = sum(r.steps_lost for r in restarts)
    known = [r.seconds_lost for r in restarts if r.seconds_lost is not None]
    kinds: dict[str, int] = {}
    for restart in restarts:
        kinds[restart.kind] = kinds.get(restart.kind, 0) + 1
    if len(kinds) == 1:
        how = RESTART_WORDS[restarts[0].kind]
    else:
        how = "; ".join(f"{_times(number)} {RESTART_WORDS[kind]}" for kind, number in kinds.items())
    return (
        f"Training was interrupted {_times(len(restarts))}: {how}. That cost {steps} step{'' if steps == 1 else 's'} "
        f"and {duration(sum(known))}."
    )


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def next_steps(report: RunReport, spec: Mapping[str, Any]) -> list[str]:
    """What a person can do now, the most useful first."""
    steps: list[str] = []
    if report.status is RunStatus.REJECTED:
        steps.append(
            "Mend the findings below; `python -m blackwell plan JOB.json` shows them without starting anything."
        )
        return steps
    if report.status is RunStatus.RUNNING:
        steps.append(f"Follow it with `python -m blackwell logs -f {report.run}`.")
    elif report.verdict is not None and report.verdict is not Verdict.COMPLETED:
        steps.append(RULES[report.verdict].advice)
        if any(c.in_s3 or (c.durable and not c.pruned) for c in report.checkpoints):
            newest = max(c.step for c in report.checkpoints if c.in_s3 or (c.durable and not c.pruned))
            steps.append(f"Go on from step {newest:,} with `python -m blackwell resume {report.run}`.")
    for part in report.goodput.parts:
        if part.share >= _WORTH_ADVICE and report.steps and part.name in _GOODPUT_ADVICE:
            steps.append(f"{percent(part.share)} of the paid time: {PARTS[part.name]}. {_GOODPUT_ADVICE[part.name]}")
    if report.continuity.proven is False:
        steps.append("Look at the problems under Continuity before you use the model.")
    for row in report.comparisons:
        if row.name == "memory peak" and row.ratio < 0.6:
            steps.append("Memory was used far less than planned: a larger micro_batch_size may be faster.")
    return steps


_ONCE_PER_START = "It is paid once per start, so its share falls as the run gets longer."
_GOODPUT_ADVICE = {
    "recompute after restart": "Save checkpoints more often (`training.checkpoint.interval_steps`).",
    "checkpoint stall": "Save less often, or leave `training.checkpoint.asynchronous` on.",
    "data wait": "Use `input_mode` FastFile with larger shards.",
    "validation": "Validate less often (`training.validation_interval_steps`) or on fewer batches.",
    "image": _ONCE_PER_START,
    "download": "With `input_mode` FastFile the job starts while data streams.",
    "start-up": _ONCE_PER_START,
    "ending": _ONCE_PER_START,
}
"""Part of the paid time -> what makes it smaller."""
