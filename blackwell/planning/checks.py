"""Findings about a job before and after its configuration is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blackwell.findings import Finding, Severity
from blackwell.hardware import ALIGNMENT, INSTANCES
from blackwell.planning.checkpoints import Checkpoints
from blackwell.planning.cost import Cost
from blackwell.planning.resolve import (
    LADDER,
    Choice,
    Place,
    base_configuration,
    best_choice,
    evaluate,
    illegal_dimensions,
    ladder,
)
from blackwell.spec import CapacityKind, JobSpec, Precision, Workload
from blackwell.trainer_config import PLAN_END_MARGIN_SECONDS

BLOCKING = frozenset({"BTS-103"})
"""Without these being mended there is nothing to predict."""
SPOT_LOSS_LIMIT = 0.05
"""Share of the run that expected interruptions may cost before it is worth a warning."""


def nearest_multiple(value: int, multiple: int) -> int:
    """The nearest positive multiple."""
    return max(1, round(value / multiple)) * multiple


def before(spec: JobSpec, places: list[Place]) -> Iterator[Finding]:
    """What the spec says that its hardware cannot do."""
    yield from _precision(spec, places)
    yield from _dimensions(spec)
    yield from _batch(spec, places)
    yield from _pending(spec, places)


def _pending(spec: JobSpec, places: list[Place]) -> Iterator[Finding]:
    for index, (entry, place) in enumerate(zip(spec.capacity, places, strict=True)):
        if entry.max_pending_seconds is not None and not place.on_gpu:
            yield Finding(
                id="BTS-302", path=f"capacity.{index}.max_pending_seconds", given=entry.max_pending_seconds,
                message=f"SageMaker takes a pending limit on accelerated instances only, {entry.instance_type} is none",
                legal="none",
            )  # fmt: skip


def _precision(spec: JobSpec, places: list[Place]) -> Iterator[Finding]:
    precision = spec.training.precision
    if precision == "auto":
        return
    for index, place in enumerate(places):
        has = place.gpu.has(precision)
        path = "training.precision"
        if spec.training.emulate_precision and has and place.on_gpu and precision.quantized:
            yield Finding(
                id="BTS-103", path="training.emulate_precision", given=True, legal="false",
                message=f"capacity.{index}: {place.gpu.name} has {precision}; emulating it would only be slower and less exact",
            )  # fmt: skip
        elif not has and not spec.training.emulate_precision:
            legal = [p.value for p in Precision if place.gpu.has(p)]
            near = "fp8" if Precision.FP8.value in legal and precision.quantized else "bf16"
            yield Finding(
                id="BTS-103", path=path, given=precision.value, legal=", ".join(legal), nearest=near,
                message=f"capacity.{index}: {place.instance.name} has no {precision}",
            )  # fmt: skip


def _dimensions(spec: JobSpec) -> Iterator[Finding]:
    training = spec.training
    if training.precision == "auto" or not training.precision.quantized:
        return
    precision = training.precision
    shape = spec.shape()
    for name, value, multiple in illegal_dimensions(shape, precision):
        given = value
        nearest: int | None = nearest_multiple(value, multiple)
        if name in ("num_attention_heads", "num_key_value_heads"):
            given = getattr(shape, name)
            nearest = None
            message = f"{name} x head_dim = {value} must be a multiple of {multiple} for {precision}"
        else:
            message = f"must be a multiple of {multiple} for {precision}"
        yield Finding(
            id="BTS-102",
            path=f"model.{name}",
            message=message,
            given=given,
            legal=f"a multiple of {multiple}",
            nearest=nearest,
        )
    multiple = ALIGNMENT[precision].tokens
    if training.micro_batch_size != "auto" and training.seq_length != "auto":
        tokens = training.micro_batch_size * training.seq_length
        if tokens % multiple:
            step = multiple // _common(multiple, training.micro_batch_size)
            yield Finding(
                id="BTS-102", path="training.seq_length", given=training.seq_length,
                message=f"micro_batch_size x seq_length = {tokens} must be a multiple of {multiple} for {precision}",
                legal=f"a multiple of {step}", nearest=nearest_multiple(training.seq_length, step),
            )  # fmt: skip
    elif training.seq_length != "auto" and training.seq_length % multiple:
        yield Finding(
            id="BTS-102", path="training.seq_length", given=training.seq_length,
            message=f"must be a multiple of {multiple} for {precision} whatever the micro batch",
            legal=f"a multiple of {multiple}", nearest=nearest_multiple(training.seq_length, multiple),
        )  # fmt: skip


def _common(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _batch(spec: JobSpec, places: list[Place]) -> Iterator[Finding]:
    batch, micro = spec.training.global_batch_size, spec.training.micro_batch_size
    if batch is None:
        return
    for index, place in enumerate(places):
        unit = place.ranks * (micro if micro != "auto" else 1)
        if batch % unit:
            each = f"micro_batch_size {micro} x {place.ranks} ranks" if micro != "auto" else f"{place.ranks} ranks"
            yield Finding(
                id="BTS-111", path="training.global_batch_size", given=batch, legal=f"a multiple of {unit}",
                message=f"capacity.{index}: cannot be divided over {each}", nearest=nearest_multiple(batch, unit),
            )  # fmt: skip


def after(
    spec: JobSpec, places: list[Place], choice: Choice, saves: Checkpoints, cost: Cost, steps: int | None,
    plan_seconds: float | None, fits: bool,
) -> Iterator[Finding]:  # fmt: skip
    """What the predictions say against the job."""
    place, entry = places[0], spec.capacity[0]
    if not fits:
        yield does_not_fit(spec, place, choice, 0)
    for index, other in enumerate(places[1:], start=1):
        base = base_configuration(spec, other).with_(seq_length=choice.configuration.seq_length)
        found = best_choice(spec, other, base)
        if not found.fits:
            yield does_not_fit(spec, other, found, index)
    if not place.on_gpu:
        yield Finding(
            id="BTS-110", severity=Severity.WARNING, path="capacity.0.instance_type", given=entry.instance_type,
            message="memory is planned, time and cost are not: speed is modelled for GPUs only",
        )  # fmt: skip
    yield from _checkpoint_findings(spec, saves, steps, place)
    yield from _time_findings(spec, cost, place, steps, plan_seconds)
    yield from _cost_findings(spec, cost, place)


def does_not_fit(spec: JobSpec, place: Place, choice: Choice, index: int) -> Finding:
    """BTS-101 with the nearest change that would fit."""
    m = choice.memory.reserved
    nearest = nearest_fit(spec, place, choice)
    words = ", ".join(f"{k} {v}" for k, v in nearest.items()) if nearest else None
    return Finding(
        id="BTS-101", path=f"capacity.{index}.instance_type", given=place.instance.name,
        message=f"the peak is {m:.1f} GB per rank, {place.gpu.name} has {place.limit_gb:.1f} GB for it",
        legal=f"for example {words}" if words else "a smaller model", nearest=nearest,
    )  # fmt: skip


def nearest_fit(spec: JobSpec, place: Place, choice: Choice) -> dict[str, object] | None:
    """The nearest configuration that fits: recompute more, then a smaller batch, chunked loss, shorter, more GPUs."""
    c = choice.configuration
    limit = place.limit_gb
    heavier = [x for x in ladder(c) if LADDER.index(x) >= LADDER.index(c.checkpointing)]
    for checkpointing in heavier:
        micro = int(c.micro_batch)
        while micro >= 1:
            if evaluate(replace(c, checkpointing=checkpointing, micro_batch=micro), limit).fits:
                return {"training.activation_checkpointing": checkpointing.value, "training.micro_batch_size": micro}
            micro //= 2
    c = replace(c, checkpointing=LADDER[-1], micro_batch=1, reshard=True)
    start = {"training.activation_checkpointing": LADDER[-1].value, "training.micro_batch_size": 1}
    if c.loss == "full":
        c = replace(c, loss="chunked")
        start["training.cross_entropy"] = "chunked"
        if evaluate(c, limit).fits:
            return dict(start)
    length = c.seq_length // 2
    while length >= 512:
        if evaluate(replace(c, seq_length=length), limit).fits:
            return {**start, "training.seq_length": length}
        length //= 2
    for instances in (2, 4, 8, 16, 32, 64):
        if instances > place.instances:
            layout = replace(c.layout, data=instances * place.processes, shard=0)
            if evaluate(replace(c, layout=layout), limit).fits:
                return {**start, "capacity.instance_count": instances, "training.parallel.shard_across": "all"}
    for known in INSTANCES.values():
        if known.gpu is not None and place.on_gpu and known.gpu.has(c.precision):
            other = Place(known, place.instances, known.default_processes)
            moved = replace(c, gpu=known.gpu, layout=replace(c.layout, data=other.ranks, shard=0))
            if evaluate(moved, other.limit_gb).fits:
                return {**start, "capacity.instance_type": known.name}
    return None


def _checkpoint_findings(spec: JobSpec, saves: Checkpoints, steps: int | None, place: Place) -> Iterator[Finding]:
    entry, given = spec.capacity[0], spec.training.checkpoint.interval_steps
    spot = any(e.kind is CapacityKind.SPOT for e in spec.capacity)
    if given != "auto" and steps is not None and given > steps:
        yield Finding(
            id="BTS-104", severity=Severity.ERROR if spot else Severity.WARNING, path="training.checkpoint.interval_steps",
            message=f"the run has {steps} steps, so no checkpoint is ever written before its end", given=given,
            legal=f"1 to {steps}", nearest=max(1, steps // 4),
        )  # fmt: skip
    elif given != "auto" and saves.interval_seconds > 2 * saves.optimal_interval_seconds and place.on_gpu:
        lost = saves.expected_lost_seconds_per_interruption / 3600
        best = max(1, round(given * saves.optimal_interval_seconds / saves.interval_seconds))
        yield Finding(
            id="BTS-104", severity=Severity.WARNING, path="training.checkpoint.interval_steps", given=given, nearest=best,
            message=f"one interruption in {saves.hours_between_interruptions:.1f} h ({saves.interruption_basis}) loses "
            f"{lost:.2f} h of every instance on average; {saves.at_risk_seconds / 3600:.2f} h are at risk",
            legal=f"about {saves.optimal_interval_seconds:.0f} s, which is {best} steps",
        )  # fmt: skip
    if entry.kind is CapacityKind.SPOT and place.on_gpu:
        share = saves.expected_lost_seconds_per_interruption / (saves.hours_between_interruptions * 3600)
        if share > SPOT_LOSS_LIMIT:
            yield Finding(
                id="BTS-113", severity=Severity.WARNING, path="capacity.0.kind",
                message=f"interruptions are expected to cost {100 * share:.0f} % of the time ({saves.interruption_basis})",
            )  # fmt: skip


def _time_findings(
    spec: JobSpec, cost: Cost, place: Place, steps: int | None, plan_seconds: float | None
) -> Iterator[Finding]:
    if not place.on_gpu or steps is None:
        return
    entry = spec.capacity[0]
    alone = len(spec.capacity) == 1
    seconds = cost.seconds
    if seconds > entry.max_runtime_seconds:
        yield Finding(
            id="BTS-109", severity=Severity.ERROR if alone and seconds > 2 * entry.max_runtime_seconds else Severity.WARNING,
            path="capacity.0.max_runtime_seconds", given=entry.max_runtime_seconds, nearest=int(1.25 * seconds) + 1,
            message=f"the run is expected to take {seconds:.0f} s; the job is stopped at the limit and goes on from its checkpoint only with another entry",
            legal=f"about {1.25 * seconds:.0f} s",
        )  # fmt: skip
    if entry.kind is CapacityKind.TRAINING_PLAN and plan_seconds is not None and seconds > plan_seconds:
        yield Finding(
            id="BTS-105", severity=Severity.ERROR if alone else Severity.WARNING, path="capacity.0.training_plan_arn",
            given=entry.training_plan_arn,
            message=f"the plan leaves {max(0.0, plan_seconds) / 3600:.1f} h of work (jobs must end {PLAN_END_MARGIN_SECONDS / 60:.0f} minutes before it does), the run needs {seconds / 3600:.1f} h",
            legal="a plan that ends later, fewer steps, or another capacity entry after this one",
        )  # fmt: skip


def _cost_findings(spec: JobSpec, cost: Cost, place: Place) -> Iterator[Finding]:
    entry = spec.capacity[0]
    prepaid = entry.kind is CapacityKind.TRAINING_PLAN
    if spec.budget is not None and cost.price_per_hour is None and not prepaid:
        yield Finding(
            id="BTS-107", path="capacity.0.hourly_price", given=None,
            message=f"a budget is set, but no price of {entry.instance_type} is known: say what you pay per instance and hour",
            legal="US dollars per instance and hour",
        )  # fmt: skip
    elif cost.price_per_hour is not None and not cost.price_verified:
        yield Finding(
            id="BTS-112", severity=Severity.WARNING, path="capacity.0.hourly_price",
            message=f"costed at ${cost.price_per_hour:.2f} per instance and hour: {cost.price_source}",
        )  # fmt: skip
    if spec.budget is not None and cost.expected_usd is not None and cost.expected_usd > spec.budget.max_cost_usd:
        yield Finding(
            id="BTS-106", path="budget.max_cost_usd", given=spec.budget.max_cost_usd,
            message=f"the run is expected to cost ${cost.expected_usd:.2f}, with price {cost.price_source}",
            legal=f"${cost.expected_usd:.2f} or more, or fewer steps", nearest=round(cost.expected_usd + 0.005, 2),
        )  # fmt: skip


def is_layers(spec: JobSpec) -> bool:
    """The timing workload without a language model."""
    return spec.training.workload is Workload.LAYERS
