"""From the plan and the records of its runs to the sweep report: ratios, bottlenecks, verdicts, one recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from blackwell.report.curves import smooth, thin
from blackwell.report.model import Series
from blackwell.report.words import duration, money
from blackwell.sweep.convergence import ConvergenceVerdict, Judgement, judge
from blackwell.sweep.expand import PlannedPoint, SweepPlan
from blackwell.sweep.record import PointRecord
from blackwell.sweep.report import (
    Bottleneck,
    Bound,
    Curves,
    PointReport,
    PrecisionVerdict,
    Ratio,
    Recommendation,
    SweepReport,
)
from blackwell.sweep.spec import SweepSpec

CURVE_POINTS = 300
"""Of each plotted curve: a page of two hundred of them still opens at once."""
SMOOTHING_SHARE = 40
KINDS: dict[Bound, tuple[str, ...]] = {
    Bound.COMPUTE: ("gemm", "attention"),
    Bound.MEMORY: ("quantize", "copy", "other"),
    Bound.COMMUNICATION: ("exposed communication",),
    Bound.OVERHEAD: ("idle",),
}
"""Kinds of the profile window by what limits them: element-wise kernels wait for memory, an idle GPU for its host."""
BETTER = 1.02
"""A point must be this much faster or cheaper than the baseline to be worth a change."""


def build_sweep_report(
    spec: SweepSpec, plan: SweepPlan, records: Mapping[str, PointRecord], now: datetime
) -> SweepReport:
    """The report on a sweep whose runs have ended, well or not. `records` is by point."""
    points = [_point(plan, point, records) for point in plan.points]
    by_id = {point.id: point for point in points}
    judgements = _judgements(spec, plan, records)
    for identity, judgement in judgements.items():
        by_id[identity].convergence = judgement
    precisions = _precisions(plan, judgements)
    known = [r.cost_usd for r in records.values() if r.cost_usd is not None]
    report = SweepReport(
        sweep=plan.sweep,
        created=now,
        headline="",
        explanation=[],
        baseline=plan.baseline,
        tolerance_nats=spec.convergence.tolerance_nats,
        noise_nats=next((j.noise_nats for j in judgements.values() if j.noise_nats is not None), None),
        points=points,
        dropped=plan.dropped,
        precisions=precisions,
        recommendation=_recommend(spec, plan, points, precisions),
        planned_usd=plan.total_usd,
        total_usd=sum(known) if known else None,
        budget_usd=plan.budget_usd,
        findings=plan.findings,
        curves=_curves(plan, records),
    )
    report.headline = _headline(report)
    report.explanation = _explanation(report)
    return report


# --- one point ------------------------------------------------------------------------------------------------------


def _point(plan: SweepPlan, point: PlannedPoint, records: Mapping[str, PointRecord]) -> PointReport:
    record = records.get(point.id)
    base = records.get(plan.baseline)
    emulated = point.emulated

    def ratio(name: str, predicted: float | None) -> Ratio:
        measured, of_baseline = (getattr(r, name) if r is not None else None for r in (record, base))
        return Ratio(
            measured=measured,
            to_baseline=_over(measured, of_baseline),
            predicted=predicted,
            to_prediction=_over(measured, predicted),
        )

    return PointReport(
        id=point.id,
        axes=point.axes,
        run=record.run if record else "",
        status=record.status if record else None,
        verdict=record.verdict if record else None,
        cause=record.cause if record else "its run was not started or could not be measured",
        baseline=point.id == plan.baseline,
        repeat=point.repeat,
        emulated=emulated,
        steps=record.steps if record else 0,
        planned_steps=point.steps,
        tokens=record.tokens_trained if record else 0,
        final_loss=record.final_loss if record else None,
        tokens_per_second=ratio("tokens_per_second", point.tokens_per_second),
        memory_peak_gb=ratio("memory_peak_gb", point.memory_peak_gb),
        cost_usd=ratio("cost_usd", None if point.usd_is_ceiling else point.usd),
        usd_per_billion_tokens=ratio("usd_per_billion_tokens", point.usd_per_billion_tokens),
        mfu_percent=record.mfu_percent if record else None,
        bottleneck=bottleneck(record.profile, record.data_wait_share) if record else None,
    )


def _over(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def bottleneck(profile: Mapping[str, float], data_wait_share: float | None) -> Bottleneck | None:
    """What limits a step: seconds by kind of the profile window, and the share of all steps spent waiting for data.

    The window's idle time holds a wait for data too, so what was waited is taken out of it.
    """
    seconds = {bound: sum(profile.get(kind, 0.0) for kind in kinds) for bound, kinds in KINDS.items()}
    whole = sum(seconds.values())
    if whole <= 0:
        return None
    shares = {bound: value / whole for bound, value in seconds.items()}
    waiting = min(1.0, max(0.0, data_wait_share or 0.0))
    idle = shares[Bound.OVERHEAD]
    shares[Bound.OVERHEAD] = max(0.0, idle - waiting)
    shares[Bound.DATA] = waiting
    total = sum(shares.values())
    shares = {bound: round(shares[bound] / total, 4) for bound in Bound}
    return Bottleneck(bound=max(shares, key=lambda b: shares[b]), shares=shares)


# --- convergence ----------------------------------------------------------------------------------------------------


def _judgements(spec: SweepSpec, plan: SweepPlan, records: Mapping[str, PointRecord]) -> dict[str, Judgement]:
    """Verdict of every point that read the baseline's data with the baseline's seed, step by step."""
    base = records.get(plan.baseline)
    if base is None or not base.curve_step:
        return {}
    own = plan.point(plan.baseline)
    repeats = [
        record.curve()
        for point in plan.points
        if point.repeat and (record := records.get(point.id)) is not None and record.completed
    ]
    curve = base.curve()
    found: dict[str, Judgement] = {}
    for point in plan.points:
        record = records.get(point.id)
        same_data = (point.seq_length, point.global_batch_size) == (own.seq_length, own.global_batch_size)
        if point.id == plan.baseline or point.repeat or not same_data or record is None or not record.curve_step:
            continue
        found[point.id] = judge(curve, record.curve(), repeats, spec.convergence)
    return found


def _precisions(plan: SweepPlan, judgements: Mapping[str, Judgement]) -> list[PrecisionVerdict]:
    own = plan.point(plan.baseline).axes
    best: dict[str, PlannedPoint] = {}
    for point in plan.points:
        if point.id not in judgements or point.axes.precision == own.precision:
            continue
        chosen = best.get(point.axes.precision)
        if chosen is None or (point.axes.alike(own) and not chosen.axes.alike(own)):
            best[point.axes.precision] = point
    return [
        PrecisionVerdict(precision=precision, point=point.id, emulated=point.emulated, judgement=judgements[point.id])
        for precision, point in best.items()
    ]


# --- recommendation -------------------------------------------------------------------------------------------------


def _recommend(
    spec: SweepSpec, plan: SweepPlan, points: Sequence[PointReport], precisions: Sequence[PrecisionVerdict]
) -> Recommendation | None:
    """The cheapest per token (else the fastest) of the points whose loss may be trusted; None without a baseline."""
    base = next((p for p in points if p.baseline and p.status is not None and p.tokens_per_second.measured), None)
    if base is None:
        return None
    trusted = {base.axes.precision} | {
        v.precision for v in precisions if v.judgement.verdict is ConvergenceVerdict.EQUIVALENT
    }
    usable = [
        p
        for p in points
        if p.status is not None
        and p.verdict is not None
        and p.status.value == "COMPLETED"
        and p.axes.precision in trusted
        and not p.emulated
        and not p.repeat
        and not (p.convergence is not None and p.convergence.verdict is ConvergenceVerdict.WORSE)
        and p.tokens_per_second.measured
    ]
    if not usable:
        return None
    by_cost = all(p.usd_per_billion_tokens.measured is not None for p in usable)

    def gain(point: PointReport) -> float:
        """How many times better than the baseline."""
        figure = point.usd_per_billion_tokens.to_baseline if by_cost else point.tokens_per_second.to_baseline
        if not figure:
            return 0.0
        return 1 / figure if by_cost else figure

    best = max(usable, key=gain)
    if gain(best) < BETTER and base in usable:
        best = base
    return Recommendation(
        point=best.id,
        axes=best.axes,
        reason=_why(best, base, by_cost, precisions),
        speedup=best.tokens_per_second.to_baseline,
        full_run_tokens=spec.full_run_tokens,
        **_savings(spec.full_run_tokens, best, base),
    )


def _why(best: PointReport, base: PointReport, by_cost: bool, precisions: Sequence[PrecisionVerdict]) -> str:
    if best.id == base.id:
        text = f"No point with a trusted loss is more than {BETTER - 1:.0%} {'cheaper' if by_cost else 'faster'}."
    else:
        speed = best.tokens_per_second.to_baseline or 1.0
        text = f"It is {speed:.2f} times as fast as the baseline"
        cost = best.usd_per_billion_tokens.to_baseline
        text += f" and costs {cost:.2f} times as much per token" if by_cost and cost else ""
        if best.axes.precision != base.axes.precision:
            verdict = next(v for v in precisions if v.precision == best.axes.precision)
            text += f"; {best.axes.precision} converges alike: {verdict.judgement.reason}"
        text += "."
    left = [v for v in precisions if v.judgement.verdict is not ConvergenceVerdict.EQUIVALENT]
    if left:
        text += " Left out: " + "; ".join(f"{v.precision} ({v.judgement.verdict})" for v in left) + "."
    emulated = sorted({v.precision for v in precisions if v.emulated})
    if emulated:
        text += f" Emulated, so without a speed of their own: {', '.join(emulated)}."
    return text


def _savings(tokens: int | None, best: PointReport, base: PointReport) -> dict[str, float | None]:
    saves: dict[str, float | None] = {"saves_usd": None, "saves_seconds": None}
    if tokens is None:
        return saves
    cost, base_cost = best.usd_per_billion_tokens.measured, base.usd_per_billion_tokens.measured
    if cost is not None and base_cost is not None:
        saves["saves_usd"] = (base_cost - cost) * tokens / 1e9
    rate, base_rate = best.tokens_per_second.measured, base.tokens_per_second.measured
    if rate and base_rate:
        saves["saves_seconds"] = tokens / base_rate - tokens / rate
    return saves


# --- words and curves -----------------------------------------------------------------------------------------------


def _headline(report: SweepReport) -> str:
    done = f"{report.completed} of {len(report.points)} runs completed"
    if report.recommendation is None:
        return f"No recommendation: {done}."
    best = report.recommendation
    if best.point == report.baseline:
        return f"Stay with the baseline ({best.axes.words()}); {done}."
    speed = f"{best.speedup:.2f} times the baseline's speed" if best.speedup else "better than the baseline"
    return f"Take {best.axes.words()}: {speed}; {done}."


def _explanation(report: SweepReport) -> list[str]:
    text: list[str] = []
    best = report.recommendation
    if best is not None:
        text.append(best.reason)
        if best.full_run_tokens and best.point != report.baseline:
            parts = []
            if best.saves_usd is not None:
                parts.append(money(best.saves_usd))
            if best.saves_seconds is not None:
                parts.append(duration(best.saves_seconds))
            if parts:
                text.append(
                    f"On the full run of {best.full_run_tokens / 1e9:,.4g} B tokens it saves {' and '.join(parts)}."
                )
    elif not any(p.baseline and p.steps for p in report.points):
        text.append("The baseline made no step, so nothing can be compared.")
    for verdict in report.precisions:
        name = verdict.precision + (" (emulated)" if verdict.emulated else "")
        text.append(f"{name} is {verdict.judgement.verdict}: {verdict.judgement.reason}.")
    if report.noise_nats is not None:
        text.append(f"Runs that differ in nothing but their seed end {report.noise_nats:.4f} nats apart (one sigma).")
    failed = [p for p in report.points if p.status is None or p.status.value != "COMPLETED"]
    if failed:
        text.append(
            f"{len(failed)} {'run' if len(failed) == 1 else 'runs'} did not complete: "
            + "; ".join(f"{p.axes.words()} ({p.verdict or 'no verdict'})" for p in failed[:5])
            + ("; ..." if len(failed) > 5 else "")
            + ". Start the sweep again to run these only."
        )
    if report.dropped:
        text.append(f"Combinations dropped before the start: {len(report.dropped)}; the reasons stand below.")
    return text


def _curves(plan: SweepPlan, records: Mapping[str, PointRecord]) -> list[Curves]:
    base = records.get(plan.baseline)
    smoothed = {identity: _smoothed(record) for identity, record in records.items()}
    reference = smoothed[base.id] if base is not None else {}
    found = []
    for point in plan.points:
        curve = smoothed.get(point.id)
        if not curve:
            continue
        steps = list(curve)
        shared = [] if point.id == plan.baseline else [s for s in steps if s in reference]
        found.append(
            Curves(
                point=point.id,
                loss=thin(steps, list(curve.values()), CURVE_POINTS),
                gap=thin(shared, [curve[s] - reference[s] for s in shared], CURVE_POINTS) if shared else Series(),
            )
        )
    return found


def _smoothed(record: PointRecord) -> dict[int, float]:
    losses = [math.nan if loss is None else loss for loss in record.curve_loss]
    half_life = max(2.0, len(losses) / SMOOTHING_SHARE)
    return dict(zip(record.curve_step, smooth(losses, half_life), strict=True))
