"""Advice in the published guide's order for the goal, each with its predicted gain and its risk.

Every figure is a prediction of the same models as the plan's. Where the guide's rule of thumb and the model disagree,
the advice says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from blackwell.planning.configuration import Configuration
from blackwell.planning.resolve import (
    WORTH,
    Choice,
    Place,
    evaluate,
    illegal_dimensions,
    longest_sequence,
)
from blackwell.spec import ActivationCheckpointing, Goal, JobSpec, Precision

if TYPE_CHECKING:
    from blackwell.planning.plan import Advice, Plan

SMALL_MODEL = 14e9
"""The guide: models below about 14 billion parameters usually need no activation checkpointing on one B200 node."""
PRECISION_LADDER = (Precision.BF16, Precision.FP8, Precision.MXFP8, Precision.NVFP4)
PRECISION_RISK = {
    Precision.FP8: "per-tensor scales can clip; compare the loss with bf16 for the first thousand steps",
    Precision.MXFP8: "block scales keep bf16's loss in published runs; small layers gain little, quantizing costs time",
    Precision.NVFP4: "needs the whole recipe (tail in bf16, Hadamard transform, stochastic rounding); compare the loss with bf16 and mxfp8",
    Precision.BF16: "none",
}
MORE_THAN_NOISE = 1.02


def advise(spec: JobSpec, place: Place, choice: Choice, plan: Plan) -> list[Advice]:
    """The list, most important first for the spec's goal. Empty on CPU, where speed is not modelled."""
    if not place.on_gpu:
        return []
    topics = {
        Goal.THROUGHPUT: (_checkpointing, _batch, _precision, _sharding, _sequence, _start_up),
        Goal.COMMUNICATION: (_sharding, _batch, _checkpointing, _precision, _sequence, _start_up),
        Goal.CONTEXT: (_sequence, _checkpointing, _batch, _precision, _sharding, _start_up),
    }[spec.goal]
    return [advice for topic in topics for advice in topic(_Case(spec, place, choice, plan))]


class _Case:
    """The plan that is advised on, and a way to ask for variants of it."""

    def __init__(self, spec: JobSpec, place: Place, choice: Choice, plan: Plan) -> None:
        self.spec, self.place, self.choice, self.plan = spec, place, choice, plan

    @property
    def c(self) -> Configuration:
        return self.choice.configuration

    @property
    def rate(self) -> float:
        """Tokens per second and GPU of the plan."""
        return self.choice.speed.tokens_per_second_per_gpu

    def variant(self, **changes: object) -> Choice:
        return evaluate(replace(self.c, **changes), self.place.limit_gb)  # type: ignore[arg-type]

    def best_batch(self, checkpointing: ActivationCheckpointing, **changes: object) -> Choice | None:
        """The fastest power-of-two micro batch that fits, the same tokens per step kept where they are given."""
        best: Choice | None = None
        micro = 1
        while micro <= 256:
            accumulation = (
                max(1.0, self.c.accumulation * self.c.micro_batch / micro)
                if self.spec.training.global_batch_size
                else 1.0
            )
            found = self.variant(checkpointing=checkpointing, micro_batch=micro, accumulation=accumulation, **changes)
            if not found.fits:
                break
            if best is None or _rate(found) > _rate(best) * WORTH:
                best = found
            micro *= 2
        return best


def _rate(choice: Choice) -> float:
    return choice.speed.tokens_per_second_per_gpu


def _advice(topic: str, text: str, **values: object) -> Advice:
    from blackwell.planning.plan import Advice

    return Advice.model_validate({"topic": topic, "text": text, **values})


def _percent(faster: float, slower: float) -> str:
    return f"{100 * (faster / slower - 1):+.0f} % tokens/s"


def _checkpointing(case: _Case) -> Iterator[Advice]:
    """Needed or not, and why."""
    limit = case.place.limit_gb
    best = {kind: case.best_batch(kind) for kind in (ActivationCheckpointing.NONE, ActivationCheckpointing.FULL)}
    none, full = best[ActivationCheckpointing.NONE], best[ActivationCheckpointing.FULL]
    small = case.c.shape.num_parameters < SMALL_MODEL
    rule = "the guide's rule (usually not needed below 14 B, needed from about 14 B)"
    if none is None:
        peak = case.variant(checkpointing=ActivationCheckpointing.NONE, micro_batch=1).memory.reserved
        text = f"needed: without it one sequence per GPU peaks at {peak:.0f} GB of {limit:.0f} GB"
        yield _advice("activation checkpointing", text + (f"; {rule} says otherwise for this size" if small else ""))
        return
    c = none.configuration
    words = f"not needed: micro batch {c.micro_batch:.0f} without it peaks at {none.memory.reserved:.0f} GB of {limit:.0f} GB"
    if not small:
        words += f"; {rule} says otherwise for this size"
    if full is None:
        yield _advice("activation checkpointing", words)
        return
    f = full.configuration
    if _rate(full) > _rate(none) * MORE_THAN_NOISE:
        yield _advice(
            "activation checkpointing",
            f"pays: full checkpointing with micro batch {f.micro_batch:.0f} beats none with micro batch {c.micro_batch:.0f}",
            gain=_percent(_rate(full), _rate(none)),
            risk="recomputation costs energy; a larger batch may need another learning rate",
            change={"training.activation_checkpointing": "full", "training.micro_batch_size": int(f.micro_batch)},
        )
    else:
        yield _advice(
            "activation checkpointing", words, gain=f"{_percent(_rate(none), _rate(full))} over full checkpointing at its best batch ({f.micro_batch:.0f})",
        )  # fmt: skip


def _batch(case: _Case) -> Iterator[Advice]:
    """The batch that pays."""
    one = case.variant(micro_batch=1)
    best = case.best_batch(case.c.checkpointing)
    if best is None:
        return
    b = best.configuration
    if b.micro_batch > case.c.micro_batch and _rate(best) > case.rate * MORE_THAN_NOISE:
        yield _advice(
            "micro batch", f"{b.micro_batch:.0f} sequences per GPU fit ({best.memory.reserved:.0f} GB) and are faster than {case.c.micro_batch:.0f}",
            gain=_percent(_rate(best), case.rate), risk="more tokens per step unless global_batch_size is given",
            change={"training.micro_batch_size": int(b.micro_batch)},
        )  # fmt: skip
    elif case.c.micro_batch > 1 and one.fits:
        larger = case.variant(micro_batch=2 * case.c.micro_batch)
        why = "larger ones gain less than 2 %" if larger.fits else "twice as many do not fit"
        yield _advice(
            "micro batch", f"{case.c.micro_batch:.0f} sequences per GPU are right: {why}",
            gain=f"{_percent(case.rate, _rate(one))} over micro batch 1 in steady state; a gain of 8x at batch 16, as in the guide's "
            "example, is mostly the first iteration's warm-up in a mean of five",
        )  # fmt: skip


def _precision(case: _Case) -> Iterator[Advice]:
    """The precision to start with, and the one to try next."""
    gpu, shape = case.place.gpu, case.c.shape
    found: list[tuple[Precision, Choice]] = []
    for precision in PRECISION_LADDER:
        if not gpu.has(precision) or illegal_dimensions(shape, precision):
            continue
        tail = case.spec.training.nvfp4.high_precision_tail_fraction if precision is Precision.NVFP4 else 0.0
        found.append(
            (
                precision,
                case.variant(
                    precision=precision,
                    quantized_layers=1 - tail,
                    recipe="current" if precision is Precision.FP8 else "",
                ),
            )
        )
    wide = next(x for p, x in found if p is Precision.BF16)
    eight = [(p, x) for p, x in found if p in (Precision.FP8, Precision.MXFP8) and x.fits]
    start = max(eight, key=lambda item: _rate(item[1]), default=None)
    if Precision.MXFP8 in {p for p, _ in eight}:
        start = next(item for item in eight if item[0] is Precision.MXFP8)
    if start is not None and _rate(start[1]) > _rate(wide) * MORE_THAN_NOISE:
        yield _advice(
            "precision to start with", start[0].value, gain=f"{_percent(_rate(start[1]), _rate(wide))} against bf16",
            risk=PRECISION_RISK[start[0]], change={"training.precision": start[0].value},
        )  # fmt: skip
    else:
        yield _advice(
            "precision to start with",
            "bf16: quantizing is predicted to gain nothing at this size",
            change={"training.precision": "bf16"},
        )
    following = [(p, x) for p, x in found if p is Precision.NVFP4 and x.fits]
    if following and start is not None and _rate(following[0][1]) > _rate(start[1]) * MORE_THAN_NOISE:
        p, x = following[0]
        yield _advice(
            "precision to try next", p.value, gain=f"{_percent(_rate(x), _rate(start[1]))} against {start[0].value}",
            risk=PRECISION_RISK[p], change={"training.precision": p.value},
        )  # fmt: skip


def _sharding(case: _Case) -> Iterator[Advice]:
    """Sharding that can be dropped."""
    c = case.c
    if c.reshard:
        kept = case.variant(reshard=False)
        if kept.fits and _rate(kept) > case.rate * 1.005:
            yield _advice(
                "sharding", f"keep gathered weights until the backward pass: {kept.memory.reserved:.0f} GB of {case.place.limit_gb:.0f} GB",
                gain=_percent(_rate(kept), case.rate), risk="less room for a longer sequence",
                change={"training.parallel.reshard_after_forward": False},
            )  # fmt: skip
        else:
            yield _advice(
                "sharding",
                "weights sharded and gathered layer by layer; keeping them gathered would gain less than 1 %"
                if kept.fits
                else "weights stay sharded: keeping them gathered does not fit",
            )
    if case.place.instances > 1:
        inside = replace(c.layout, shard=case.place.processes)
        across = replace(c.layout, shard=0)
        one, other = case.variant(layout=inside), case.variant(layout=across)
        if one.fits and _rate(one) > _rate(other) * MORE_THAN_NOISE:
            yield _advice(
                "sharding across instances", "shard inside an instance and replicate between them", gain=_percent(_rate(one), _rate(other)),
                change={"training.parallel.shard_across": "node"},
            )  # fmt: skip


def _sequence(case: _Case) -> Iterator[Advice]:
    """The longest sequence that fits."""
    spec = case.spec.model_copy(
        update={
            "training": case.spec.training.model_copy(
                update={"activation_checkpointing": "auto", "micro_batch_size": "auto"}
            )
        }
    )
    found = longest_sequence(spec, case.place, case.c)
    if found is None:
        yield _advice("longest sequence", "not even 1,024 tokens fit with full checkpointing")
        return
    length, choice = found
    yield _advice(
        "longest sequence", f"{length:,} tokens fit with one sequence per GPU and full checkpointing ({choice.memory.reserved:.0f} GB)",
        risk=f"at {choice.speed.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, attention grows with the length",
        change={"training.seq_length": length, "training.micro_batch_size": 1, "training.activation_checkpointing": "full"},
    )  # fmt: skip


def _start_up(case: _Case) -> Iterator[Advice]:
    """Where a run is so short that start-up is most of what is paid."""
    cost = case.plan.cost
    if cost.expected_seconds and cost.startup_seconds > 0.5 * cost.expected_seconds:
        yield _advice(
            "start-up", f"{100 * cost.startup_seconds / cost.expected_seconds:.0f} % of the billed time is start-up: more steps per run cost little",
        )  # fmt: skip


TOPICS: tuple[Callable[[_Case], Iterator[Advice]], ...] = (
    _checkpointing,
    _batch,
    _precision,
    _sharding,
    _sequence,
    _start_up,
)
