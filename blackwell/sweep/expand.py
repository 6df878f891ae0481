"""From a sweep spec to its points: one job each, planned; what cannot run is dropped with the reason. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from blackwell.findings import Finding, FindingsError, errors
from blackwell.planning import Facts, Plan, plan_job
from blackwell.spec import CapacityKind, JobSpec, Precision, parse_job_spec
from blackwell.sweep.spec import SweepSpec

PROFILED_STEPS = 3
PROFILE_AFTER = 5
"""Steps before the profile window: compilation and first allocations are not what a step usually costs."""
PLAN_VERSION = 1
MOST_OF_PLAN = 2.0
"""A run's share of the sweep's budget is at most this many times its planned cost."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axes(_Part):
    """Where a point lies in the grid."""

    precision: str
    micro_batch_size: int | str
    activation_checkpointing: str
    seq_length: int | str
    seed: int

    @property
    def name(self) -> str:
        """The point's id: unique in the sweep, and readable."""
        return (
            f"{self.precision}-mb{self.micro_batch_size}-{self.activation_checkpointing}-{self.seq_length}-s{self.seed}"
        )

    def alike(self, other: Axes) -> bool:
        """The same but for the precision: the two losses may be compared step by step."""
        return self.model_copy(update={"precision": other.precision}) == other

    def words(self) -> str:
        return (
            f"{self.precision}, micro batch {self.micro_batch_size}, checkpointing {self.activation_checkpointing}, "
            f"sequence {self.seq_length}"
        )


class PlannedPoint(_Part):
    """One run that the sweep will make, and what the planner says about it."""

    id: str
    axes: Axes
    digest: str
    """Of the job without its budget: a finished run of the same job is not made again."""
    repeat: bool = False
    """The baseline with another seed."""
    emulated: bool = False
    micro_batch_size: int
    """Chosen by the planner where the axis says auto."""
    global_batch_size: int
    seq_length: int
    steps: int | None
    tokens: int | None
    tokens_per_second: float | None
    memory_peak_gb: float
    usd: float | None
    """Expected cost; where speed is not modelled the most that it can be."""
    usd_is_ceiling: bool = False
    usd_per_billion_tokens: float | None = None
    budget_usd: float | None = None
    """The point's share of the sweep's budget."""


class DroppedPoint(_Part):
    """A point of the grid that cannot run."""

    id: str
    axes: Axes
    reasons: list[Finding]


class SweepPlan(_Part):
    """What a sweep will run, what it leaves out, and what it costs."""

    version: int = PLAN_VERSION
    sweep: str
    ok: bool
    findings: list[Finding]
    baseline: str
    """Id of the point that the others are compared with."""
    points: list[PlannedPoint]
    dropped: list[DroppedPoint]
    total_usd: float | None
    """None where the price of a point is not known."""
    budget_usd: float | None
    max_concurrency: int

    def point(self, identity: str) -> PlannedPoint:
        """Raises KeyError for an id that is not planned."""
        for point in self.points:
            if point.id == identity:
                return point
        raise KeyError(identity)


@dataclass(frozen=True, slots=True)
class Expansion:
    """The plan, and each point's job."""

    plan: SweepPlan
    jobs: dict[str, JobSpec]


def expand(spec: SweepSpec, facts: Facts | None = None, max_run_usd: float | None = None) -> Expansion:
    """Plans every point. Nothing is raised for points that cannot run: `plan.findings` and `plan.dropped` say why.
    `max_run_usd` is the most that the stack lets the budget of one run be.

    The global batch is the baseline's at every point, so that all read the same data in the same order.
    """
    points: list[PlannedPoint] = []
    dropped: list[DroppedPoint] = []
    jobs: dict[str, JobSpec] = {}
    batch = spec.base.training.global_batch_size
    baseline = ""
    for number, (values, seed) in enumerate(spec.combinations()):
        axes = Axes(seed=seed, **{axis: _plain(value) for axis, value in values.items()})
        baseline = baseline or axes.name
        try:
            job = _job(spec, values, seed, batch)
            plan = plan_job(job, facts)
            refused = errors(plan.findings)
        except FindingsError as error:
            refused = errors(error.findings)
        if refused:
            dropped.append(DroppedPoint(id=axes.name, axes=axes, reasons=refused))
            continue
        if batch is None:
            batch = plan.resolved.training.global_batch_size
            job = _job(spec, values, seed, batch)
        job = _profiled(job, plan.steps) if spec.profile else job
        jobs[axes.name] = job
        points.append(_point(axes, job, plan, repeat=0 < number <= spec.baseline_repeats))
    findings = _findings(spec, baseline, points, dropped)
    points, jobs = _share_budget(spec, points, jobs, max_run_usd)
    plan_of_sweep = SweepPlan(
        sweep=spec.title,
        ok=not errors(findings),
        findings=findings,
        baseline=baseline,
        points=points,
        dropped=dropped,
        total_usd=_total(points),
        budget_usd=spec.budget.max_cost_usd if spec.budget else None,
        max_concurrency=spec.max_concurrency,
    )
    return Expansion(plan_of_sweep, jobs)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else str(value)


def _job(spec: SweepSpec, values: dict[str, Any], seed: int, batch: int | None) -> JobSpec:
    """The base job at one point. Raises FindingsError where the combination is no legal job."""
    document = spec.base.model_dump(mode="json", by_alias=True)  # a null is a choice: loss_spike
    training = document["training"]
    training |= {axis: _plain(value) for axis, value in values.items()}
    training |= {"seed": seed, "global_batch_size": batch}
    quantized = values["precision"] != "auto" and Precision(values["precision"]).quantized
    training["emulate_precision"] = bool(training["emulate_precision"] and quantized)
    return parse_job_spec(document)


def _profiled(job: JobSpec, steps: int | None) -> JobSpec:
    if job.training.profile_steps is not None or steps is None or steps < PROFILE_AFTER + PROFILED_STEPS:
        return job
    window = [PROFILE_AFTER + 1, PROFILE_AFTER + PROFILED_STEPS]
    return job.model_copy(update={"training": job.training.model_copy(update={"profile_steps": window})})


def digest_of(job: JobSpec) -> str:
    """What makes two runs the same: the whole job but its budget."""
    document = job.model_dump(mode="json", by_alias=True, exclude={"budget"})
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _point(axes: Axes, job: JobSpec, plan: Plan, *, repeat: bool) -> PlannedPoint:
    training = plan.resolved.training
    usd, ceiling = _cost(job, plan)
    per_billion = usd / plan.tokens * 1e9 if usd is not None and plan.tokens and not ceiling else None
    return PlannedPoint(
        id=axes.name,
        axes=axes,
        digest=digest_of(job),
        repeat=repeat,
        emulated=job.training.emulate_precision,
        micro_batch_size=int(training.micro_batch_size),
        global_batch_size=int(training.global_batch_size or 0),
        seq_length=int(training.seq_length),
        steps=plan.steps,
        tokens=plan.tokens,
        tokens_per_second=plan.throughput.tokens_per_second if plan.throughput else None,
        memory_peak_gb=plan.memory.peak_gb,
        usd=usd,
        usd_is_ceiling=ceiling,
        usd_per_billion_tokens=per_billion,
    )


def _cost(job: JobSpec, plan: Plan) -> tuple[float | None, bool]:
    """(US dollars, whether that is the most it can cost rather than what is expected); prepaid plans cost nothing."""
    entry = job.capacity[0]
    if entry.kind is CapacityKind.TRAINING_PLAN:
        return 0.0, False
    if plan.cost.expected_usd is not None:
        return plan.cost.expected_usd, False
    price = plan.cost.price_per_instance_hour
    if price is None:
        return (job.budget.max_cost_usd, True) if job.budget else (None, False)
    most = price * entry.instance_count * entry.max_runtime_seconds / 3600
    return (min(most, job.budget.max_cost_usd) if job.budget else most), True


def _total(points: list[PlannedPoint]) -> float | None:
    known = [point.usd for point in points if point.usd is not None]
    return sum(known) if len(known) == len(points) else None


def _findings(spec: SweepSpec, baseline: str, points: list[PlannedPoint], dropped: list[DroppedPoint]) -> list[Finding]:
    found: list[Finding] = []
    for point in dropped:
        if point.id == baseline:
            found += [
                reason.model_copy(update={"id": "BTS-502", "message": f"{point.axes.words()}: {reason.line()}"})
                for reason in point.reasons
            ]
    if not points:
        found.append(Finding(id="BTS-501", path="grid", message=f"all {len(dropped)} points were dropped"))
    if spec.budget is not None and points:
        total, limit = _total(points), spec.budget.max_cost_usd
        if total is None:
            found.append(
                Finding(
                    id="BTS-107",
                    path="budget.max_cost_usd",
                    message="the price of a point is not known, so the sweep's cost is not",
                    given=limit,
                    legal="hourly_price in the base job's capacity, or no budget",
                )
            )
        elif total > limit:
            found.append(
                Finding(
                    id="BTS-106",
                    path="budget.max_cost_usd",
                    message=f"{len(points)} points together are planned to cost ${total:,.2f}",
                    given=limit,
                    legal=f"{total:.2f} or more, or a smaller grid",
                    nearest=round(total + 0.005, 2),
                )
            )
    return found


def _share_budget(
    spec: SweepSpec, points: list[PlannedPoint], jobs: dict[str, JobSpec], max_run_usd: float | None
) -> tuple[list[PlannedPoint], dict[str, JobSpec]]:
    """Each run gets its share of the sweep's budget as its own, in proportion to its planned cost: the guard stops a
    run at its budget, so all together stay within the sweep's."""
    total = _total(points)
    if spec.budget is None or not total or total > spec.budget.max_cost_usd:
        return points, jobs
    scale = spec.budget.max_cost_usd / total
    shared: list[PlannedPoint] = []
    changed = dict(jobs)
    for point in points:
        job = jobs[point.id]
        if not point.usd:
            shared.append(point)
            continue
        limits = [point.usd * min(scale, MOST_OF_PLAN), max_run_usd, job.budget.max_cost_usd if job.budget else None]
        share = min(limit for limit in limits if limit is not None)
        changed[point.id] = parse_job_spec(
            job.model_dump(mode="json", by_alias=True) | {"budget": {"max_cost_usd": share}}
        )
        shared.append(point.model_copy(update={"budget_usd": share}))
    return shared, changed
