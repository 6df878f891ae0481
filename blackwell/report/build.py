"""Composes the run report: reads the log once, then asks one module for each section."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from blackwell.findings import Finding
from blackwell.report import continuity, words
from blackwell.report.cost import AttemptCost, attempt_cost, spot_savings_percent
from blackwell.report.curves import smooth, thin
from blackwell.report.goodput import Account, account, total
from blackwell.report.history import History, Start
from blackwell.report.inputs import AttemptInputs, RunReportInputs
from blackwell.report.jobs import capacity_kind, cause, moment, number, timeline
from blackwell.report.model import (
    AttemptReport,
    CheckpointReport,
    Comparison,
    Cost,
    MemoryTerm,
    Notice,
    Restart,
    RunReport,
    Series,
    Transition,
)
from blackwell.runs import RunStatus
from blackwell.spec import Precision
from blackwell.verdict import TERMINAL_STATUSES, Verdict, classify_job

WARMUP_STEPS = 5
"""Logged steps after each start that are left out of the throughput: compilation, first allocations, cold caches."""
FINAL_STEPS = 10
"""Logged steps that final_loss is the mean of."""
SPOT_NOTICE_SECONDS = 120.0
"""From SIGTERM to SIGKILL: StopTrainingJob, MaxRuntime and EC2's notice before it takes spot capacity."""
SMOOTHING_SHARE = 40
"""The smoothed curve's half-life is one part in this many of the logged steps, at least two."""


@dataclass(slots=True)
class _Attempt:
    inputs: AttemptInputs
    entry: Mapping[str, Any]
    kind: str | None
    instance_type: str | None
    instances: int
    stretches: list[Transition]
    verdict: Verdict | None
    cost: AttemptCost
    account: Account


def build_run_report(inputs: RunReportInputs) -> RunReport:
    """The report on one run, finished or not. Each attempt's lines are read once."""
    history = History()
    ordered = sorted(inputs.attempts, key=lambda a: a.attempt)
    for attempt in ordered:
        history.read(attempt.attempt, attempt.lines)
    history.settle()

    attempts = _attempts(inputs, ordered, history)
    verdict = _verdict(inputs, attempts)
    status = _status(inputs, verdict, attempts)
    precision = _precision(inputs, history)
    checkpoints = _checkpoints(inputs, history)
    restarts = _restarts(history, attempts)
    proof = continuity.prove(history, precision, {c.step for c in checkpoints if c.complete or c.in_s3})
    goodput = total([a.account for a in attempts])
    figures = _Figures(history)
    before = proof.intervals[0].after_tokens if proof.intervals else None
    trained = figures.tokens - (before or 0)
    cost = _cost(inputs, attempts, restarts, trained)
    reports = [_attempt_report(a, history, inputs) for a in attempts]
    training = _mapping(inputs.spec.get("training"))
    newest = history.starts[-1] if history.starts else None
    started, ended = _span(inputs, attempts, status)
    report = RunReport(
        run=inputs.run,
        created=inputs.now,
        status=status,
        verdict=verdict,
        headline="",
        started=started,
        ended=ended,
        wall_seconds=(ended - started).total_seconds() if started and ended else None,
        precision=precision,
        backend=_text(newest.fields.get("backend")) if newest else None,
        emulated_precision=bool(training.get("emulate_precision")),
        num_parameters=_int(newest.fields.get("num_parameters")) if newest else None,
        world_size=newest.world_size if newest else None,
        image=_text(inputs.item.get("image")),
        steps=figures.steps,
        start_step=proof.intervals[0].after_step if proof.intervals else 0,
        resume_from=_text(inputs.spec.get("resume_from")),
        planned_steps=_planned_steps(training, history),
        tokens=figures.tokens,
        tokens_trained=trained,
        first_loss=figures.first_loss,
        final_loss=figures.final_loss,
        final_validation_loss=figures.validation.value[-1] if figures.validation.value else None,
        tokens_per_second=figures.tokens_per_second,
        tokens_per_second_method=figures.method,
        mfu_percent=figures.mfu_percent,
        peak_tflops=figures.peak_tflops,
        memory_peak_gb=figures.memory_peak_gb,
        non_finite_steps=figures.non_finite,
        attempts=reports,
        checkpoints=checkpoints,
        restarts=restarts,
        continuity=proof,
        goodput=goodput,
        cost=cost,
        comparisons=_comparisons(inputs, figures, cost),
        notice=_notice(checkpoints, history),
        memory_terms=_memory_terms(inputs.plan),
        findings=_findings(inputs),
        loss=figures.loss,
        loss_smoothed=figures.smoothed,
        smoothing=figures.smoothing,
        validation_loss=figures.validation,
        throughput=figures.throughput,
        memory_gb=figures.memory,
        profile=_profile(history),
    )
    report.headline = words.headline(report)
    report.explanation = words.explanation(report)
    report.next_steps = words.next_steps(report, inputs.spec)
    return report


# --- the run and its attempts ---------------------------------------------------------------------------------------


def _attempts(inputs: RunReportInputs, ordered: list[AttemptInputs], history: History) -> list[_Attempt]:
    capacity = [entry for entry in inputs.spec.get("capacity") or [] if isinstance(entry, Mapping)]
    out: list[_Attempt] = []
    before: float | None = None
    for given in ordered:
        index = _int(given.item.get("capacity_index")) or 0
        entry = capacity[index] if 0 <= index < len(capacity) else {}
        resources = _mapping(given.job.get("ResourceConfig"))
        instance_type = _text(resources.get("InstanceType") or entry.get("instance_type"))
        instances = _int(resources.get("InstanceCount") or entry.get("instance_count")) or 1
        kind = capacity_kind(given, entry)
        stretches = timeline(given.job, inputs.now)
        starts = [s for s in history.starts if s.attempt == given.attempt]
        out.append(
            _Attempt(
                inputs=given,
                entry=entry,
                kind=kind,
                instance_type=instance_type,
                instances=instances,
                stretches=stretches,
                verdict=_attempt_verdict(given),
                cost=attempt_cost(given.job, stretches, entry, kind, instance_type, instances),
                account=account(given.job, stretches, starts, instances, before),
            )
        )
        times = [s.last_time for s in starts if s.step and s.last_time is not None]
        before = max(times) if times else before
    return out


def _attempt_verdict(given: AttemptInputs) -> Verdict | None:
    named = given.item.get("verdict")
    if named:
        return Verdict(named)
    if given.job.get("TrainingJobStatus") in TERMINAL_STATUSES:
        stopped_for = given.item.get("stopped_for")
        return classify_job(given.job, stopped_for=Verdict(stopped_for) if stopped_for else None).verdict
    return None


def _verdict(inputs: RunReportInputs, attempts: list[_Attempt]) -> Verdict | None:
    if inputs.verdict is not None:
        return inputs.verdict
    named = inputs.item.get("verdict")
    if named:
        return Verdict(named)
    return attempts[-1].verdict if attempts else None


def _status(inputs: RunReportInputs, verdict: Verdict | None, attempts: list[_Attempt]) -> RunStatus:
    if verdict is not None and (inputs.verdict is not None or inputs.item.get("verdict")):
        return RunStatus.of(verdict)
    named = inputs.item.get("status")
    if named:
        return RunStatus(named)
    return RunStatus.RUNNING if verdict is None else RunStatus.of(verdict)


def _span(
    inputs: RunReportInputs, attempts: list[_Attempt], status: RunStatus
) -> tuple[datetime | None, datetime | None]:
    started = moment(inputs.item.get("started_at"))
    ended = moment(inputs.item.get("ended_at"))
    times = [m for a in attempts for m in (moment(a.inputs.job.get("CreationTime")),) if m is not None]
    edges = [t for a in attempts for s in a.stretches for t in (s.start, s.end)]
    if started is None and (times or edges):
        started = min(times + edges)
    if ended is None:
        ended = inputs.now if status is RunStatus.RUNNING else (max(edges) if edges else None)
    return started, ended


def _attempt_report(attempt: _Attempt, history: History, inputs: RunReportInputs) -> AttemptReport:
    given, job, item = attempt.inputs, attempt.inputs.job, attempt.inputs.item
    steps = [s for s in history.with_steps if s.attempt == given.attempt]
    remedy = item.get("remedy")
    verdict = attempt.verdict
    reason = "" if verdict is Verdict.COMPLETED else cause(given)
    return AttemptReport(
        attempt=given.attempt,
        job_name=str(job.get("TrainingJobName") or item.get("job_name") or ""),
        status=str(job.get("TrainingJobStatus") or item.get("status") or "unknown"),
        secondary_status=str(job.get("SecondaryStatus") or ""),
        verdict=verdict,
        explanation=words.attempt_explanation(verdict, reason),
        cause=reason,
        remedy=_text(remedy.get("remedy") if isinstance(remedy, Mapping) else remedy),
        overrides=_changes(_mapping(item.get("overrides")), inputs),
        capacity_kind=attempt.kind,
        instance_type=attempt.instance_type,
        instance_count=attempt.instances,
        created=moment(job.get("CreationTime")) or moment(item.get("started_at")),
        ended=moment(job.get("TrainingEndTime")) or moment(item.get("ended_at")),
        training_seconds=number(job.get("TrainingTimeInSeconds")),
        billable_seconds=number(job.get("BillableTimeInSeconds")),
        cost_usd=attempt.cost.usd,
        interruptions=sum(1 for s in attempt.stretches if s.status == "Interrupted"),
        first_step=steps[0].step[0] if steps else None,
        last_step=max(s.step[-1] for s in steps) if steps else None,
        timeline=attempt.stretches,
    )


def _changes(overrides: Mapping[str, Any], inputs: RunReportInputs) -> dict[str, Any]:
    """Overrides without those that only pin what the spec or the first plan says anyway."""
    planned = _mapping(_mapping(_mapping(inputs.plan).get("resolved")).get("training"))
    asked = _mapping(inputs.spec.get("training"))

    def said(path: str) -> list[Any]:
        values = []
        for source in (asked, planned):
            value: Any = source
            for key in path.split("."):
                value = _mapping(value).get(key)
            values.append(value)
        return values

    return {path: value for path, value in overrides.items() if value not in said(path)}


# --- restarts and checkpoints ---------------------------------------------------------------------------------------


def _restarts(history: History, attempts: list[_Attempt]) -> list[Restart]:
    by_number = {a.inputs.attempt: a for a in attempts}
    restarts: list[Restart] = []
    for before, after in pairwise(history.starts):
        attempt = by_number[after.attempt]
        lost = 0
        if after.step and before.step:
            lost = max(0, before.step[-1] - after.after_step)
        begin = after.first_begin if after.step else after.last_time
        end = before.last_time
        down = max(0.0, begin - end) if begin is not None and end is not None else None
        again = 0.0
        if lost:
            for index, step in enumerate(after.step):
                if step > before.step[-1]:
                    break
                again += after.interval_seconds(index)
        kind, verdict, remedy = _why(before, after, attempt, by_number)
        hourly = attempt.cost.hourly_usd
        paid = None if down is None else max(0.0, down - _unbilled(end, begin, attempts)) + again
        restarts.append(
            Restart(
                kind=kind,
                attempt=after.attempt,
                verdict=verdict,
                remedy=remedy,
                last_step=before.last_step,
                resumed_from_step=after.after_step if after.step or after.resumed_from is not None else None,
                steps_lost=lost,
                seconds_lost=None if down is None else down + again,
                down_seconds=down,
                recompute_seconds=again,
                cost_usd=paid * hourly / 3600 if paid is not None and hourly is not None else None,
                time=datetime.fromtimestamp(end, UTC) if end is not None else None,
            )
        )
    return restarts


def _why(
    before: Start, after: Start, attempt: _Attempt, by_number: Mapping[int, _Attempt]
) -> tuple[str, Verdict | None, str | None]:
    if before.attempt != after.attempt:
        previous = by_number[before.attempt]
        remedy = previous.inputs.item.get("remedy")
        name = _text(remedy.get("remedy") if isinstance(remedy, Mapping) else remedy)
        return "new_attempt", previous.verdict, name
    if after.cause:
        named = after.cause.get("verdict")
        verdict = Verdict(named) if named in set(Verdict) else None
        return "in_place", verdict, _text(after.cause.get("remedy"))
    low, high = before.last_time, after.first_begin or after.last_time
    for stretch in attempt.stretches:
        if stretch.status != "Interrupted" or low is None or high is None:
            continue
        # SageMaker's clock has whole seconds, and the last step may end while the notice runs.
        if low - 130 <= stretch.start.timestamp() <= high + 1:
            return "interruption", None, None
    return "container", None, None


def _unbilled(begin: float | None, end: float | None, attempts: list[_Attempt]) -> float:
    """Seconds between two times in which no instance was paid for: waiting for capacity, or between two jobs."""
    if begin is None or end is None:
        return 0.0
    paid = 0.0
    for attempt in attempts:
        for stretch in attempt.stretches:
            if stretch.billed:
                low, high = max(begin, stretch.start.timestamp()), min(end, stretch.end.timestamp())
                paid += max(0.0, high - low)
    return max(0.0, end - begin - paid) if any(a.stretches for a in attempts) else 0.0


def _checkpoints(inputs: RunReportInputs, history: History) -> list[CheckpointReport]:
    found: dict[int, CheckpointReport] = {}

    def at(step: int) -> CheckpointReport:
        return found.setdefault(step, CheckpointReport(step=step))

    for start, event in history.events("checkpoint"):
        step = _int(event.fields.get("step"))
        if step is None:
            continue
        entry = at(step)
        phase, seconds, size = event.fields.get("phase"), number(event.fields.get("seconds")), event.fields.get("bytes")
        entry.bytes = _int(size) or entry.bytes
        entry.world_size = entry.world_size or start.world_size
        if phase == "complete":
            entry.complete, entry.pruned, entry.save_seconds = True, False, seconds
            entry.created = moment(event.time)
        elif phase == "durable":
            entry.complete = entry.durable = True
            entry.durable_lag_seconds = seconds if entry.durable_lag_seconds is None else entry.durable_lag_seconds
        elif phase == "pruned":
            entry.pruned = True
    for manifest in inputs.checkpoints:
        step = _int(manifest.get("step"))
        if step is None:
            continue
        entry = at(step)
        files = _mapping(manifest.get("files"))
        sizes = [_int(_mapping(f).get("bytes")) or 0 for f in files.values()]
        entry.bytes = sum(sizes) if sizes else (_int(manifest.get("bytes")) or entry.bytes)
        entry.tokens = _int(manifest.get("tokens"))
        entry.world_size = _int(manifest.get("world_size")) or entry.world_size
        entry.created = moment(manifest.get("created")) or entry.created
        whole = bool(manifest.get("durable", True))  # a manifest whose files are not all there proves nothing
        entry.in_s3 = whole
        entry.complete = entry.complete or whole
        entry.pruned = entry.pruned and not whole
    for start in history.starts:
        if start.resumed_from and start.resumed_from in found:
            found[start.resumed_from].resumed_from += 1
    return [found[step] for step in sorted(found)]


# --- figures from the steps -----------------------------------------------------------------------------------------


class _Figures:
    """Curves and single numbers of the final history."""

    def __init__(self, history: History) -> None:
        steps, losses, rates, memory = array("q"), array("d"), array("d"), array("d")
        warm, mfu = array("d"), array("d")
        for start, index in history.kept():
            steps.append(start.step[index])
            losses.append(start.loss[index])
            rates.append(start.rate[index] if start.rate[index] > 0 else math.nan)
            memory.append(start.memory[index])
            if index >= WARMUP_STEPS and start.rate[index] > 0:
                warm.append(start.rate[index])
                mfu.append(start.mfu[index])
        finite = array("d", (loss for loss in losses if math.isfinite(loss)))
        last = max((s for s in history.with_steps), key=lambda s: s.step[s.kept - 1] if s.kept else -1, default=None)
        self.steps = steps[-1] if steps else 0
        self.tokens = last.tokens[last.kept - 1] if last is not None and last.kept else 0
        self.first_loss = finite[0] if finite else None
        self.final_loss = sum(finite[-FINAL_STEPS:]) / len(finite[-FINAL_STEPS:]) if finite else None
        self.non_finite = len(losses) - len(finite)
        usable = warm
        without = f"without the first {WARMUP_STEPS} after each start"
        if not usable:
            usable, without = (
                array("d", (rate for rate in rates if rate > 0)),
                "warm-up included, the run was too short",
            )
        self.tokens_per_second = median(usable) if usable else None
        self.method = f"median of {len(usable)} logged steps, all ranks together, {without}" if usable else ""
        known = array("d", (value for value in mfu if math.isfinite(value)))
        self.mfu_percent = median(known) if known else None
        self.peak_tflops = next((s.peak_tflops for s in reversed(history.starts) if s.peak_tflops), None)
        self.memory_peak_gb = max((m for s in history.starts for m in s.memory if math.isfinite(m)), default=None)
        half_life = max(2.0, len(steps) / SMOOTHING_SHARE)
        self.smoothing = (
            f"moving average, half-life {half_life:.0f} logged steps, shorter at the start" if steps else ""
        )
        self.loss = thin(steps, losses)
        self.smoothed = thin(steps, smooth(losses, half_life))
        self.throughput = thin(steps, rates)
        self.memory = thin(steps, memory)
        self.validation = _validation(history)


def _validation(history: History) -> Series:
    values: dict[int, float] = {}
    for _start, event in history.events("validation"):
        step, loss = _int(event.fields.get("step")), number(event.fields.get("validation_loss"))
        if step is not None and loss is not None and math.isfinite(loss):
            values[step] = loss
    ordered = sorted(values)
    return thin(ordered, [values[step] for step in ordered])


def _profile(history: History) -> dict[str, float]:
    merged: dict[str, float] = {}
    for _start, event in history.events("profile"):
        for key, value in event.fields.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key.endswith("_seconds"):
                merged[key.removesuffix("_seconds").replace("_", " ")] = float(value)
    return merged


# --- cost, predictions, findings ------------------------------------------------------------------------------------


def _cost(inputs: RunReportInputs, attempts: list[_Attempt], restarts: list[Restart], tokens: int) -> Cost:
    known = [a.cost.usd for a in attempts if a.cost.usd is not None]
    spent = sum(known) if known else None
    spot = [a for a in attempts if a.kind == "spot"]
    on_demand: float | None = None
    saved: float | None = None
    if spot and all(a.cost.on_demand_usd is not None and a.cost.usd is not None for a in spot):
        on_demand = sum(a.cost.on_demand_usd or 0.0 for a in spot)
        saved = on_demand - sum(a.cost.usd or 0.0 for a in spot)
    percents = [p for a in spot for p in (spot_savings_percent(a.inputs.job),) if p is not None]
    lost = [r.cost_usd for r in restarts if r.cost_usd is not None]
    bases = list(dict.fromkeys(a.cost.basis for a in attempts))
    return Cost(
        total_usd=spent,
        basis="; ".join(bases) or "nothing was launched",
        on_demand_usd=on_demand,
        saved_usd=saved,
        saved_percent=sum(percents) / len(percents) if percents else None,
        lost_to_restarts_usd=sum(lost) if lost else None,
        budget_usd=number(_mapping(inputs.spec.get("budget")).get("max_cost_usd")),
        usd_per_billion_tokens=spent / tokens * 1e9 if spent is not None and tokens else None,
        predicted_usd=_predicted(inputs.plan, "cost", "expected_usd"),
    )


def _predicted(plan: Mapping[str, Any] | None, section: str, figure: str) -> float | None:
    """A figure of the plan's JSON; None where the plan has none."""
    found = number(_mapping(_mapping(plan).get(section)).get(figure))
    return found if found is not None and found > 0 else None


def _comparisons(inputs: RunReportInputs, figures: _Figures, cost: Cost) -> list[Comparison]:
    rows: list[Comparison] = []
    for name, unit, predicted, measured in (
        (
            "throughput",
            "tokens/s",
            _predicted(inputs.plan, "throughput", "tokens_per_second"),
            figures.tokens_per_second,
        ),
        ("memory peak", "GB", _predicted(inputs.plan, "memory", "peak_gb"), figures.memory_peak_gb),
        ("cost", "USD", cost.predicted_usd, cost.total_usd),
    ):
        if predicted and measured is not None:
            rows.append(
                Comparison(name=name, unit=unit, predicted=predicted, measured=measured, ratio=measured / predicted)
            )
    return rows


def _memory_terms(plan: Mapping[str, Any] | None) -> list[MemoryTerm]:
    terms = _mapping(_mapping(plan).get("memory")).get("terms") or []
    known = [(str(_mapping(t).get("name")), number(_mapping(t).get("value"))) for t in terms]
    return [MemoryTerm(name=name, predicted_gb=value) for name, value in known if value]


def _notice(checkpoints: list[CheckpointReport], history: History) -> Notice | None:
    saves = [c.save_seconds for c in checkpoints if c.save_seconds is not None]
    if not saves:
        return None
    lags = [c.durable_lag_seconds for c in checkpoints if c.durable_lag_seconds is not None]
    seconds = median(saves) + median(lags) if lags else None
    steps = [c.step for c in checkpoints]
    interval = max((b - a for a, b in pairwise(sorted({0, *steps}))), default=0)
    per_step = [s.seconds[i] for s in history.with_steps for i in range(WARMUP_STEPS, s.kept) if s.seconds[i] > 0]
    lag_steps = math.ceil(median(lags) / median(per_step)) if lags and per_step else 0
    return Notice(
        seconds=seconds,
        limit_seconds=SPOT_NOTICE_SECONDS,
        fits=None if seconds is None else seconds <= SPOT_NOTICE_SECONDS,
        steps_at_risk=interval + lag_steps,
    )


def _findings(inputs: RunReportInputs) -> list[Finding]:
    raw: Iterable[Any] = (inputs.plan or {}).get("findings") or []
    found = list(inputs.findings)
    for item in raw:
        finding = item if isinstance(item, Finding) else Finding.model_validate(item)
        if finding not in found:
            found.append(finding)
    return found


def _precision(inputs: RunReportInputs, history: History) -> str | None:
    for start in reversed(history.starts):
        logged = _text(start.fields.get("precision"))
        if logged:
            return logged
    asked = _text(_mapping(inputs.spec.get("training")).get("precision"))
    return asked if asked else Precision.BF16.value if inputs.spec else None


def _planned_steps(training: Mapping[str, Any], history: History) -> int | None:
    steps = _int(training.get("steps"))
    if steps is not None:
        return steps
    tokens = _int(training.get("tokens"))
    per_step = next((s.tokens_per_step for s in reversed(history.starts) if s.tokens_per_step), None)
    return math.ceil(tokens / per_step) if tokens and per_step else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return str(value) if value else None


def _int(value: Any) -> int | None:
    found = number(value)
    return None if found is None or not math.isfinite(found) else int(found)
