"""The plan: what a job spec means in memory, speed, time and money, every choice made, and every finding.

`plan_job` is pure: facts that only AWS knows are passed in. The `Plan` is what the command line prints, the workflow
stores and the report compares with what was measured.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from blackwell.findings import Finding, FindingsError, Severity, errors
from blackwell.hardware import INSTANCES, Price, instance
from blackwell.planning import checks, runs
from blackwell.planning.checkpoints import plan_checkpoints
from blackwell.planning.configuration import Configuration
from blackwell.planning.cost import plan_cost
from blackwell.planning.resolve import (
    CONTEXT_GB,
    Choice,
    Place,
    base_configuration,
    best_choice,
    longest_sequence,
    margin,
    place_of,
)
from blackwell.planning.runs import MeasuredRun
from blackwell.planning.stacks import constants
from blackwell.spec import CapacityEntry, CapacityKind, Goal, JobSpec, parse_job_spec
from blackwell.trainer_config import PLAN_END_MARGIN_SECONDS

PLAN_VERSION = 1
DEFAULT_LENGTH = 4096
"""Tokens per sequence where the spec says auto and its goal is not the longest context."""
"""SageMaker stops jobs this long before a training plan ends."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PriceFact(_Part):
    """A price read from AWS."""

    usd_per_hour: Annotated[float, Field(gt=0)]
    source: str
    region: str
    date: str


class TrainingPlanFact(_Part):
    """What DescribeTrainingPlan says, as far as a plan needs it."""

    end_time: datetime | None = None
    upfront_fee: float | None = None
    """US dollars for the whole plan."""
    instance_hours: float | None = None
    """Instances times reserved hours that the fee buys."""


class Facts(_Part):
    """Facts that are not in the spec; all optional."""

    prices: dict[str, PriceFact] = {}
    """By instance type."""
    training_plans: dict[str, TrainingPlanFact] = {}
    """By ARN."""
    spot_hours_between_interruptions: Annotated[float, Field(gt=0)] | None = None
    now: datetime | None = None
    runs: list[MeasuredRun] = []
    """Completed runs of this stack on the same instance type; they narrow the prediction."""


class Term(_Part):
    """One term of a sum."""

    name: str
    value: float


class MemoryPlan(_Part):
    """Peak memory of the fullest rank, decimal GB."""

    terms: list[Term]
    allocated_gb: float
    peak_gb: float
    """What the allocator is expected to hold at its peak."""
    low_gb: float
    high_gb: float
    context_gb: float
    """CUDA context and communication buffers outside the allocator."""
    usable_gb: float
    """What the device has, less the context."""
    headroom_gb: float
    """usable_gb less peak_gb."""
    moment: str
    """When the peak is: loss, backward or optimizer."""
    fits: bool
    margin_percent: float
    """Distance that the prediction must keep from the limit to count as fitting."""
    device: str


class ThroughputPlan(_Part):
    """Speed; times are seconds of one optimizer step."""

    tokens_per_second_per_gpu: float
    tokens_per_second: float
    low_tokens_per_second: float
    high_tokens_per_second: float
    step_seconds: float
    terms: list[Term]
    tokens_per_step: int
    model_tflops_per_gpu: float
    mfu_percent: float
    peak_tflops: float
    """Dense peak that mfu_percent divides by: of the precision's own format."""
    peak_of: str
    formula: str


class CheckpointPlan(_Part):
    """Checkpoints; sizes in decimal GB, times in seconds."""

    interval_steps: int
    interval_seconds: float
    optimal_interval_seconds: float
    size_gb: float
    stall_seconds: float
    upload_seconds: float
    at_risk_seconds: float
    """Work lost at the worst moment: the interval and the upload lag."""
    at_risk_steps: int | None
    transport: str
    hours_between_interruptions: float
    interruption_basis: str


class CostPlan(_Part):
    """Cost in US dollars; None where no price or no speed is known."""

    basis: str
    price_per_instance_hour: float | None
    price_source: str
    price_verified: bool
    instances: int
    expected_usd: float | None
    low_usd: float | None
    high_usd: float | None
    prepaid_share_usd: float | None
    budget_usd: float | None
    expected_seconds: float | None
    """Billed seconds of one instance, start-up and interruptions included."""
    compute_seconds: float | None
    startup_seconds: float
    checkpoint_seconds: float
    expected_interruptions: float
    interruption_seconds: float


class Advice(_Part):
    """One thing that would be better, or that is as it should be, with the predicted gain and its risk."""

    topic: str
    text: str
    gain: str | None = None
    risk: str | None = None
    change: dict[str, Any] = {}
    """Keys of the job spec to change, by dotted path."""


class EntryPlan(_Part):
    """What one capacity entry means."""

    index: int
    kind: CapacityKind
    instance_type: str
    ranks: int
    peak_gb: float
    usable_gb: float
    fits: bool
    tokens_per_second: float | None
    expected_usd: float | None


class Plan(_Part):
    """Everything that the planner says about a job spec."""

    version: int = PLAN_VERSION
    ok: bool
    """No finding refuses the job."""
    findings: list[Finding]
    resolved: JobSpec
    """The spec with every choice made."""
    model: dict[str, Any]
    memory: MemoryPlan
    throughput: ThroughputPlan | None
    """None where speed is not modelled (CPU)."""
    checkpointing: CheckpointPlan
    cost: CostPlan
    steps: int | None
    tokens: int | None
    entries: list[EntryPlan]
    advice: list[Advice]
    calibrated_on: str
    """How many measured runs stand behind the figures of this stack."""


def plan_job(spec: JobSpec, facts: Facts | None = None) -> Plan:
    """Plans a job.

    Raises:
        FindingsError: where no configuration can be made at all: an instance type that is not known (BTS-108), a
            precision that the device does not have (BTS-103).
    """
    facts = facts or Facts()
    places = _places(spec)
    findings: list[Finding] = list(checks.before(spec, places))
    if blocking := [f for f in findings if f.severity is Severity.ERROR and f.id in checks.BLOCKING]:
        raise FindingsError([*blocking, *(f for f in findings if f not in blocking)])
    place = places[0]
    base = base_configuration(spec, place)
    if spec.training.seq_length == "auto":
        found = longest_sequence(spec, place, base) if spec.goal is Goal.CONTEXT else None
        length = found[0] if found else DEFAULT_LENGTH
        base = base.with_(seq_length=length)
    base = _shard(spec, place, base)
    choice = best_choice(spec, place, base)
    c = choice.configuration
    known = constants(c.stack)
    correction = runs.correction(facts.runs, place.instance.name)
    steps, tokens = _length(spec, c, place)
    step_seconds = choice.speed.step * correction.step if place.on_gpu else None

    entry = spec.capacity[0]
    given = spec.training.checkpoint
    saves = plan_checkpoints(
        c.shape, spec.training.workload, place.instance, place.instances, kind=entry.kind, asynchronous=given.asynchronous,
        transport=given.transport, interval_steps=given.interval_steps if given.interval_steps != "auto" else None,
        step_seconds=step_seconds, steps=steps, hours_between_interruptions=facts.spot_hours_between_interruptions,
    )  # fmt: skip
    band = known.speed_band if not correction.runs else min(known.speed_band, 0.10)
    cost = plan_cost(
        entry, place.instance, saves, step_seconds=step_seconds, steps=steps, band=band, refreshed=_price(facts, entry),
        measured_startup=correction.startup_seconds, plan_usd_per_instance_hour=_plan_price(facts, entry),
    )  # fmt: skip
    memory_plan = _memory_plan(choice, place, known.memory_band, correction)
    resolved = _resolved(spec, choice, saves.interval_steps, saves.transport, place)
    findings += checks.after(spec, places, choice, saves, cost, steps, _plan_end(facts, entry), memory_plan.fits)
    plan = Plan(
        ok=not errors(findings),
        findings=findings,
        resolved=resolved,
        model={
            "num_parameters": c.shape.num_parameters,
            "hidden_size": c.shape.hidden_size,
            "num_hidden_layers": c.shape.num_hidden_layers,
            "vocab_size": c.shape.vocab_size,
        },
        memory=memory_plan,
        throughput=_throughput_plan(choice, place, band, correction) if place.on_gpu else None,
        checkpointing=CheckpointPlan(
            interval_steps=saves.interval_steps, interval_seconds=saves.interval_seconds,
            optimal_interval_seconds=saves.optimal_interval_seconds, size_gb=saves.size_gb,
            stall_seconds=saves.stall_seconds, upload_seconds=saves.upload_seconds, at_risk_seconds=saves.at_risk_seconds,
            at_risk_steps=None if not step_seconds else math.ceil(saves.at_risk_seconds / step_seconds),
            transport=saves.transport, hours_between_interruptions=saves.hours_between_interruptions,
            interruption_basis=saves.interruption_basis,
        ),
        cost=CostPlan(
            basis=cost.basis, price_per_instance_hour=cost.price_per_hour, price_source=cost.price_source,
            price_verified=cost.price_verified, instances=place.instances, expected_usd=cost.expected_usd,
            low_usd=cost.low_usd, high_usd=cost.high_usd, prepaid_share_usd=cost.prepaid_share_usd,
            budget_usd=spec.budget.max_cost_usd if spec.budget else None,
            expected_seconds=cost.seconds if step_seconds is not None and steps is not None else None,
            compute_seconds=cost.compute_seconds if step_seconds is not None and steps is not None else None,
            startup_seconds=cost.startup_seconds, checkpoint_seconds=cost.checkpoint_seconds,
            expected_interruptions=cost.interruptions, interruption_seconds=cost.interruption_seconds,
        ),
        steps=steps,
        tokens=tokens,
        entries=_entries(spec, places, c, facts, steps),
        advice=[],
        calibrated_on=_calibrated_on(c, facts),
    )  # fmt: skip
    from blackwell.planning.advice import advise

    return plan.model_copy(update={"advice": advise(spec, place, choice, plan)})


def _places(spec: JobSpec) -> list[Place]:
    found: list[Place] = []
    findings: list[Finding] = []
    for index, entry in enumerate(spec.capacity):
        try:
            found.append(place_of(spec, entry, instance(entry.instance_type)))
        except FindingsError as error:
            findings += [f.model_copy(update={"path": f"capacity.{index}.{f.path}"}) for f in error.findings]
    if findings:
        raise FindingsError(findings)
    return found


def _shard(spec: JobSpec, place: Place, base: Configuration) -> Configuration:
    """Shards inside a node where that fits (less traffic between nodes), else over all ranks."""
    if spec.training.parallel.shard_across != "auto" or place.instances == 1:
        return base
    inside = base.with_(layout=base.layout.__class__(data=place.ranks, zero=3, shard=place.processes))
    return inside if best_choice(spec, place, inside).fits else base


def _length(spec: JobSpec, c: Configuration, place: Place) -> tuple[int | None, int | None]:
    """Steps and tokens of the run."""
    per_step = int(c.micro_batch) * int(c.accumulation) * place.ranks * c.seq_length
    if spec.training.steps is not None:
        return spec.training.steps, spec.training.steps * per_step
    if spec.training.tokens is not None:
        return max(1, math.ceil(spec.training.tokens / per_step)), spec.training.tokens
    return None, None


def _price(facts: Facts, entry: CapacityEntry) -> Price | None:
    fact = facts.prices.get(entry.instance_type)
    return Price(fact.usd_per_hour, fact.source, fact.region, fact.date, verified=True) if fact else None


def _plan_price(facts: Facts, entry: CapacityEntry) -> float | None:
    fact = facts.training_plans.get(entry.training_plan_arn or "")
    if fact is None or fact.upfront_fee is None or not fact.instance_hours:
        return None
    return fact.upfront_fee / fact.instance_hours


def _plan_end(facts: Facts, entry: CapacityEntry) -> float | None:
    """Seconds that a training plan leaves for work, None where that is not known."""
    fact = facts.training_plans.get(entry.training_plan_arn or "")
    if fact is None or fact.end_time is None:
        return None
    now = facts.now or datetime.now(UTC)
    return (fact.end_time - now - timedelta(seconds=PLAN_END_MARGIN_SECONDS)).total_seconds()


def _memory_plan(choice: Choice, place: Place, band: float, correction: runs.Correction) -> MemoryPlan:
    m, f = choice.memory, correction.memory
    usable = place.limit_gb
    peak = m.reserved * f
    if correction.runs:
        band = min(band, 0.05)
    need = peak * (1 + margin(choice.configuration))
    return MemoryPlan(
        terms=[Term(name=name, value=round(value * f, 4)) for name, value in m.terms().items()],
        allocated_gb=m.allocated * f, peak_gb=peak, low_gb=peak * (1 - band), high_gb=peak * (1 + band),
        context_gb=CONTEXT_GB if place.on_gpu else 0.0, usable_gb=usable, headroom_gb=usable - peak, moment=m.moment,
        fits=need <= usable, margin_percent=100 * margin(choice.configuration), device=place.gpu.name,
    )  # fmt: skip


def _throughput_plan(choice: Choice, place: Place, band: float, correction: runs.Correction) -> ThroughputPlan:
    s, c = choice.speed, choice.configuration
    rate = s.tokens_per_second_per_gpu / correction.step
    tflops = rate * s.model_flops_per_token / 1e12
    peak = c.gpu.peak_tflops[c.precision]
    return ThroughputPlan(
        tokens_per_second_per_gpu=rate, tokens_per_second=rate * place.ranks,
        low_tokens_per_second=rate * place.ranks / (1 + band), high_tokens_per_second=rate * place.ranks * (1 + band),
        step_seconds=s.step * correction.step,
        terms=[Term(name=name, value=value * correction.step) for name, value in s.terms().items()],
        tokens_per_step=int(s.tokens_per_step), model_tflops_per_gpu=tflops, mfu_percent=100 * tflops / peak,
        peak_tflops=peak, peak_of=f"{c.precision} dense on {c.gpu.name}",
        formula="6 x parameters (head counted, embedding not) + 6 x layers x attention width x sequence, per token",
    )  # fmt: skip


def _resolved(spec: JobSpec, choice: Choice, interval: int, transport: str, place: Place) -> JobSpec:
    c = choice.configuration
    document = spec.model_dump(mode="json", by_alias=True)  # a null is a choice: loss_spike
    training = document["training"]
    training |= {
        "precision": c.precision.value,
        "micro_batch_size": int(c.micro_batch),
        "seq_length": c.seq_length,
        "activation_checkpointing": c.checkpointing.value,
    }
    if training.get("global_batch_size") is None:
        training["global_batch_size"] = int(c.micro_batch) * place.ranks
    if training.get("backend") == "auto":
        training["backend"] = "te" if place.on_gpu and not spec.training.emulate_precision else "torch"
    training["checkpoint"] |= {"interval_steps": interval, "transport": transport}
    training["parallel"] |= {
        "shard_across": "node" if c.layout.shard else "all",
        "accumulate": "local" if c.accumulate_locally else "sharded",
    }
    return parse_job_spec(document)


def _entries(
    spec: JobSpec, places: list[Place], chosen: Configuration, facts: Facts, steps: int | None
) -> list[EntryPlan]:
    found = []
    for index, (entry, place) in enumerate(zip(spec.capacity, places, strict=True)):
        base = base_configuration(spec, place).with_(seq_length=chosen.seq_length)
        choice = best_choice(spec, place, base)
        price = entry.hourly_price or (place.instance.price.usd_per_hour if place.instance.price else None)
        usd = None
        if price and place.on_gpu and steps and entry.kind is not CapacityKind.TRAINING_PLAN:
            ratio = chosen.tokens_per_step / choice.speed.tokens_per_step
            usd = price * place.instances * choice.speed.step * ratio * steps / 3600
        found.append(
            EntryPlan(
                index=index, kind=entry.kind, instance_type=entry.instance_type, ranks=place.ranks,
                peak_gb=choice.memory.reserved, usable_gb=place.limit_gb, fits=choice.fits,
                tokens_per_second=choice.speed.tokens_per_second_per_gpu * place.ranks if place.on_gpu else None,
                expected_usd=usd,
            )
        )  # fmt: skip
    return found


def _calibrated_on(c: Configuration, facts: Facts) -> str:
    known = constants(c.stack)
    count = known.memory_runs + len(facts.runs)
    return f"stack {c.stack}: calibrated on {count} runs" + (
        "" if count else "; terms as counted, constants of the nearest public stack, band widened"
    )


def known_instances() -> list[str]:
    """Names of the instance types that the planner knows."""
    return list(INSTANCES)
