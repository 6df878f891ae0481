"""The run report as one HTML page: no network, no script, charts inline; every value from the run is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from blackwell.findings import Severity
from blackwell.report import elements, svg
from blackwell.report.goodput import PARTS, PRODUCTIVE
from blackwell.report.model import AttemptReport, CheckpointReport, Notice, Restart, RunReport, Transition
from blackwell.report.words import RESTART_WORDS, count, duration, money, percent

MAX_ROWS = 40
"""Rows of a table; of longer ones the newest are shown, and how many were left out."""

_PART_STYLE = {name: f"p{number}" for number, name in enumerate(PARTS)}
_STATUS_STYLE = {
    "DownloadingTrainingImage": _PART_STYLE["image"],
    "Downloading": _PART_STYLE["download"],
    "PreparingTrainingStack": _PART_STYLE["start-up"],
    "Training": _PART_STYLE[PRODUCTIVE],
    "Uploading": _PART_STYLE["ending"],
    "Stopping": _PART_STYLE["ending"],
}
_WAITING_STYLE = _PART_STYLE["idle"]


def render_html(report: RunReport) -> str:
    """The whole page."""
    sections = [
        _header(report),
        _tiles(report),
        _story(report),
        _loss(report),
        _throughput(report),
        _attempts(report),
        _restarts(report.restarts),
        _continuity(report),
        _goodput(report),
        _cost(report),
        _comparisons(report),
        _checkpoints(report),
        _findings(report),
        _footer(report),
    ]
    return elements.page(f"{report.run}: run report", sections)


def _part_style(name: str) -> str:
    """A report of another version may name other parts."""
    return _PART_STYLE.get(name, _WAITING_STYLE)


def _header(report: RunReport) -> str:
    style, word = elements.badge(report.status, report.verdict)
    facts = []
    if report.num_parameters:
        facts.append(f"{count(report.num_parameters)} parameters")
    if report.precision:
        facts.append(report.precision + (" (emulated)" if report.emulated_precision else ""))
    if report.backend:
        facts.append({"te": "Transformer Engine", "torch": "PyTorch layers"}.get(report.backend, report.backend))
    if report.attempts:
        last = report.attempts[-1]
        facts.append(f"{last.instance_count} x {last.instance_type} ({last.capacity_kind})")
    if report.world_size:
        facts.append(f"{report.world_size} ranks")
    when = f"{report.started:%Y-%m-%d %H:%M} UTC" if report.started else ""
    facts.extend([when] if when else [])
    return (
        f'<header><p class="soft">Run report</p><h1>{escape(report.run)} '
        f'<span class="badge {style}">{escape(word)}</span></h1>'
        f'<p class="soft">{escape(" · ".join(facts))}</p><p class="lead">{escape(report.headline)}</p></header>'
    )


def _tiles(report: RunReport) -> str:
    tiles: list[tuple[str, str, str]] = []
    if report.steps:
        of = f"of {report.planned_steps:,} planned" if report.planned_steps else ""
        begun = f"from step {report.start_step:,}" if report.start_step else ""
        tiles.append(("Steps", f"{report.steps:,}", begun or of or f"{count(report.tokens)} tokens"))
    if report.final_loss is not None:
        note = f"from {report.first_loss:.3f}; mean of the last 10 steps" if report.first_loss is not None else ""
        tiles.append(("Final loss", f"{report.final_loss:.4f}", note))
    if report.final_validation_loss is not None:
        tiles.append(("Validation loss", f"{report.final_validation_loss:.4f}", "newest"))
    if report.tokens_per_second is not None:
        mfu = (
            f"{report.mfu_percent:.1f} % of {report.peak_tflops:,.0f} TFLOPS"
            if report.mfu_percent and report.peak_tflops
            else "median, all ranks"
        )
        tiles.append(("Tokens per second", f"{report.tokens_per_second:,.0f}", mfu))
    if report.goodput.goodput is not None:
        tiles.append(("Goodput", percent(report.goodput.goodput), f"of {duration(report.goodput.billed_seconds)} paid"))
    if report.cost.total_usd is not None:
        saved = f"spot saved {money(report.cost.saved_usd)}" if (report.cost.saved_usd or 0) > 0 else ""
        budget = f"of {money(report.cost.budget_usd)} budget" if report.cost.budget_usd else ""
        tiles.append(("Cost", money(report.cost.total_usd), saved or budget))
    if report.wall_seconds is not None:
        waited = report.goodput.waiting_seconds
        tiles.append(
            ("Wall clock", duration(report.wall_seconds), f"{duration(waited)} without instances" if waited else "")
        )
    if report.memory_peak_gb is not None:
        tiles.append(("Memory peak", f"{report.memory_peak_gb:.1f} GB", "reserved, rank 0"))
    return elements.tiles(tiles)


def _story(report: RunReport) -> str:
    out = ""
    if report.explanation:
        out += "<h2>What happened</h2>" + "".join(f"<p>{escape(text)}</p>" for text in report.explanation)
    if report.next_steps:
        out += (
            "<h2>What to do next</h2><ol>"
            + "".join(f"<li>{elements.code(text)}</li>" for text in report.next_steps)
            + "</ol>"
        )
    return out


def _marks(report: RunReport) -> list[svg.Mark]:
    return [
        svg.Mark(
            float(r.resumed_from_step),
            f"went on from step {r.resumed_from_step:,}: {_restart_reason(r)}; {r.steps_lost} steps lost",
        )
        for r in report.restarts
        if r.resumed_from_step is not None
    ]


def _restart_reason(restart: Restart) -> str:
    words = RESTART_WORDS.get(restart.kind, restart.kind)
    return f"{words} ({restart.verdict.value.replace('_', ' ')})" if restart.verdict else words


def _loss(report: RunReport) -> str:
    if not report.loss.step:
        return ""
    lines = [
        svg.Line("loss", report.loss.step, report.loss.value, "raw"),
        svg.Line("smoothed loss", report.loss_smoothed.step, report.loss_smoothed.value, "smooth"),
        svg.Line("validation loss", report.validation_loss.step, report.validation_loss.value, "points"),
    ]
    marks = _marks(report)
    description = (
        f"Training loss in nats per token from step {report.loss.step[0]:,} to {report.loss.step[-1]:,}: "
        f"{report.loss.value[0]:.3f} at the start, {report.loss_smoothed.value[-1]:.3f} smoothed at the end; "
        f"training went on from a checkpoint {len(marks)} times."
    )
    chart = elements.both(
        lambda identity, width: svg.line_chart(
            lines,
            identity=identity,
            title="Loss over steps",
            description=description,
            x_label="optimizer step",
            y_format=lambda value: f"{value:.3g}",
            width=width,
            height=300 if width > 500 else 240,
            marks=marks,
        ),
        "loss",
    )
    keys = [("line raw", "loss (nats per token)"), ("line smooth", f"smoothed: {report.smoothing}")]
    keys += [("points", "validation loss")] if report.validation_loss.step else []
    keys += [("markkey", "training went on from here")] if marks else []
    return f"<h2>Loss</h2><figure>{chart}<figcaption>{elements.keys(keys)}</figcaption></figure>"


def _throughput(report: RunReport) -> str:
    if not report.throughput.step:
        return ""
    chart = elements.both(
        lambda identity, width: svg.line_chart(
            [svg.Line("tokens per second", report.throughput.step, report.throughput.value, "smooth")],
            identity=identity,
            title="Tokens per second over steps",
            description=f"Tokens per second of all ranks together; median {report.tokens_per_second or 0:,.0f}.",
            x_label="optimizer step",
            y_format=count,
            width=width,
            height=220,
            marks=_marks(report),
            from_zero=True,
        ),
        "rate",
    )
    return (
        f"<h2>Throughput</h2><figure>{chart}<figcaption>Tokens per second, all ranks together. The figure above is the "
        f"{escape(report.tokens_per_second_method)}.</figcaption></figure>"
    )


def _attempts(report: RunReport) -> str:
    if not report.attempts:
        return ""
    rows = _timeline_rows(report)
    chart = elements.both(
        lambda identity, width: svg.timeline(
            rows,
            identity=identity,
            title="Timeline of attempts",
            description="; ".join(_row_words(a) for a in report.attempts),
            width=width,
            time_format=_clock,
        ),
        "time",
    )
    present = {t.status for a in report.attempts for t in a.timeline}
    keys = [
        (style, text)
        for status, style, text in (
            ("Training", _PART_STYLE[PRODUCTIVE], "training"),
            ("DownloadingTrainingImage", _PART_STYLE["image"], "image"),
            ("Downloading", _PART_STYLE["download"], "data and checkpoints"),
            ("PreparingTrainingStack", _PART_STYLE["start-up"], "preparing"),
            ("Uploading", _PART_STYLE["ending"], "uploading, stopping"),
        )
        if status in present
    ]
    keys += [(_WAITING_STYLE, "waiting for capacity (not billed)")]
    keys += [("markkey", "restart")] if report.restarts else []
    body = elements.table(
        ("Attempt", "Verdict", "What happened", "Capacity", "Steps", "Paid time", "Cost"),
        [
            (
                f"{a.attempt}",
                (a.verdict.value if a.verdict else a.status).replace("_", " "),
                a.explanation + _changes(a),
                f"{a.instance_count} x {a.instance_type} {a.capacity_kind}",
                f"{a.first_step:,} to {a.last_step:,}"
                if a.first_step is not None and a.last_step is not None
                else "none",
                duration(a.training_seconds if a.training_seconds is not None else a.billable_seconds),
                money(a.cost_usd),
            )
            for a in report.attempts
        ],
        numeric={0, 4, 5, 6},
        wide={2},
        label="Attempts",
    )
    figure = (
        f"<figure>{chart}<figcaption>{elements.keys(keys)}</figcaption></figure>" if any(r.blocks for r in rows) else ""
    )
    return f"<h2>Attempts</h2>{figure}{body}"


def _changes(attempt: AttemptReport) -> str:
    text = ""
    if attempt.overrides:
        text += " Ran with " + ", ".join(f"{k} = {v}" for k, v in attempt.overrides.items()) + "."
    if attempt.remedy and attempt.remedy != "none":
        text += f" Then: {attempt.remedy.replace('_', ' ')}."
    return text


def _timeline_rows(report: RunReport) -> list[svg.Row]:
    rows = []
    for attempt in report.attempts:
        blocks = [
            svg.Block(
                t.start.timestamp(),
                t.end.timestamp(),
                _STATUS_STYLE.get(t.status, _WAITING_STYLE),
                _block_label(t),
            )
            for t in attempt.timeline
            if t.seconds > 0
        ]
        marks = [
            svg.Mark(r.time.timestamp(), _restart_reason(r))
            for r in report.restarts
            if r.time is not None and r.attempt == attempt.attempt and r.kind != "new_attempt"
        ]
        name = f"attempt {attempt.attempt}: {attempt.instance_count} x {attempt.instance_type} {attempt.capacity_kind}"
        rows.append(svg.Row(name, blocks, marks))
    return rows


def _block_label(stretch: Transition) -> str:
    message = f": {stretch.message}" if stretch.message else ""
    return f"{stretch.status} for {duration(stretch.seconds)}{message}"


def _row_words(attempt: AttemptReport) -> str:
    parts = ", ".join(f"{t.status} {duration(t.seconds)}" for t in attempt.timeline if t.seconds > 0)
    return f"attempt {attempt.attempt}: {parts or 'no times known'}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def _restarts(restarts: Sequence[Restart]) -> str:
    if not restarts:
        return ""
    rows = [
        (
            f"{r.time:%H:%M:%S}" if r.time else "",
            _sentence(_restart_reason(r)),
            _step(r.last_step),
            _step(r.resumed_from_step),
            f"{r.steps_lost:,}",
            duration(r.seconds_lost),
            money(r.cost_usd),
        )
        for r in restarts[-MAX_ROWS:]
    ]
    return (
        "<h2>Restarts and what they cost</h2>"
        + elements.table(
            ("Time (UTC)", "What happened", "Last step", "Went on from", "Steps lost", "Time lost", "Money lost"),
            rows,
            numeric={2, 3, 4, 5, 6},
            wide={1},
            label="Restarts",
        )
        + _left_out(len(restarts))
        + '<p class="soft">Time lost: from the end of the last step until the same step was done again. Money lost counts '
        "only the paid part of it.</p>"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _step(step: int | None) -> str:
    return "" if step is None else f"{step:,}"


def _left_out(total: int) -> str:
    return (
        f'<p class="soft">The newest {MAX_ROWS} of {total} are shown; report.json has all.</p>'
        if total > MAX_ROWS
        else ""
    )


def _continuity(report: RunReport) -> str:
    proof = report.continuity
    if proof.proven is None:
        return f"<h2>Continuity</h2><p>{escape(proof.statement)}</p>" if report.attempts else ""
    checks = [
        (proof.steps_gapless, "Step intervals are disjoint and without a gap"),
        (proof.tokens_gapless, "Token intervals are disjoint and without a gap"),
        (proof.hashes_equal, "Steps that were taken twice read the same samples (data-order hash)"),
    ]
    overlap = proof.overlap
    if overlap.steps and overlap.max_relative_difference is not None:
        same = True if overlap.within_tolerance is None and overlap.bitwise_equal else overlap.within_tolerance
        checks.append((same, f"Recomputed losses: {proof.overlap_statement}"))
    else:
        checks.append((None, f"Recomputed losses: {proof.overlap_statement}"))
    items = "".join(
        f'<li class="{_check_style(ok)}"><b aria-hidden="true">{_check_sign(ok)}</b>{escape(text)}'
        f'<span class="soft"> {_check_word(ok)}</span></li>'
        for ok, text in checks
    )
    out = f'<h2>Continuity</h2><p>{escape(proof.statement)}</p><ul class="checks">{items}</ul>'
    for text in proof.left_out:
        out += f"<p>Left out on purpose after a divergence: {escape(text)}.</p>"
    if proof.problems:
        out += (
            '<ul class="checks">'
            + "".join(f'<li class="no"><b aria-hidden="true">✗</b>{escape(p)}</li>' for p in proof.problems)
            + "</ul>"
        )
    if len(proof.intervals) > 1:
        out += elements.table(
            ("Attempt", "Start", "Steps", "Tokens"),
            [
                (
                    f"{i.attempt}",
                    f"{i.start + 1}",
                    f"{i.after_step + 1:,} to {i.last_step:,}",
                    f"{i.after_tokens + 1:,} to {i.last_tokens:,}"
                    if i.after_tokens is not None and i.last_tokens is not None
                    else "not logged",
                )
                for i in proof.intervals[-MAX_ROWS:]
            ],
            numeric={0, 1, 2, 3},
            label="Intervals of the final history",
        ) + _left_out(len(proof.intervals))
    if overlap.examples:
        out += "<h3>Steps that were taken twice</h3>" + elements.table(
            ("Step", "Loss before", "Loss again", "Relative difference"),
            [(f"{step:,}", f"{a:.7f}", f"{b:.7f}", _difference(a, b)) for step, a, b in overlap.examples],
            numeric={0, 1, 2, 3},
            label="Recomputed losses",
        )
    return out


def _difference(first: float, second: float) -> str:
    if first == second:
        return "same bits"
    return f"{abs(second - first) / abs(first):.2e}" if first else f"{abs(second - first):.2e}"


def _check_style(ok: bool | None) -> str:
    return "none" if ok is None else "yes" if ok else "no"


def _check_sign(ok: bool | None) -> str:
    return "–" if ok is None else "✓" if ok else "✗"


def _check_word(ok: bool | None) -> str:
    return "" if ok is None else "(holds)" if ok else "(does not hold)"


def _goodput(report: RunReport) -> str:
    goodput = report.goodput
    if not goodput.parts:
        return ""
    shown = [p for p in goodput.parts if p.seconds > 0]
    bar = elements.both(
        lambda identity, width: svg.stacked_bar(
            [(p.name, p.share, _part_style(p.name)) for p in shown],
            identity=identity,
            title="Where the paid time went",
            description="; ".join(f"{p.name} {percent(p.share)}" for p in shown),
            width=width,
            height=40,
        ),
        "good",
    )
    rows = "".join(
        f'<tr><td><span class="key {_part_style(p.name)}"></span>{escape(p.name)}</td>'
        f'<td class="n">{duration(p.seconds)}</td><td class="n">{percent(p.share)}</td>'
        f'<td class="w soft">{escape(PARTS.get(p.name, ""))}</td></tr>'
        for p in goodput.parts
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Goodput"><table><thead><tr><th>Part</th>'
        f'<th class="n">Time</th><th class="n">Share</th><th>What it is</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )
    waited = (
        f" {duration(goodput.waiting_seconds)} of waiting for capacity come on top; nobody bills them."
        if goodput.waiting_seconds
        else ""
    )
    return (
        f"<h2>Where the paid time went</h2><figure>{bar}</figure>{table}"
        f'<p class="soft">Instance time (wall clock x instances), {duration(goodput.billed_seconds)} in all.{waited}</p>'
    )


def _cost(report: RunReport) -> str:
    cost = report.cost
    if not report.attempts:
        return ""
    rows: list[tuple[str, str]] = [("All attempts together", money(cost.total_usd))]
    if cost.budget_usd is not None:
        rows.append(("Budget", money(cost.budget_usd)))
    if cost.predicted_usd is not None:
        rows.append(("Planned", money(cost.predicted_usd)))
    if cost.on_demand_usd is not None:
        rows.append(("Spot attempts, had they been on demand", money(cost.on_demand_usd)))
    if cost.saved_usd is not None:
        rows.append(("Saved by spot", money(cost.saved_usd)))
    if cost.saved_percent is not None:
        rows.append(("Managed spot savings, as SageMaker counts them", f"{cost.saved_percent:.1f} %"))
    if cost.lost_to_restarts_usd is not None:
        rows.append(("Of it, lost to restarts", money(cost.lost_to_restarts_usd)))
    if cost.usd_per_billion_tokens is not None:
        rows.append(("Per billion tokens", money(cost.usd_per_billion_tokens)))
    return (
        "<h2>Cost</h2>"
        + elements.table(("What", "US dollars"), rows, numeric={1}, label="Cost")
        + f'<p class="soft">Basis: {escape(cost.basis)}. Storage, logs and the workflow itself are not counted.</p>'
    )


def _comparisons(report: RunReport) -> str:
    if not report.comparisons:
        return ""
    rows = [
        (
            row.name,
            f"{elements.amount(row.predicted)} {row.unit}",
            f"{elements.amount(row.measured)} {row.unit}",
            f"{(row.ratio - 1) * 100:+.1f} %",
        )
        for row in report.comparisons
    ]
    return (
        "<h2>Planned and measured</h2>"
        + elements.table(
            ("Figure", "Planned", "Measured", "Difference"), rows, numeric={1, 2, 3}, label="Planned and measured"
        )
        + _memory(report)
    )


def _memory(report: RunReport) -> str:
    """The planned terms of a rank's memory as a bar, with what was measured marked on it."""
    terms = [term for term in report.memory_terms if term.predicted_gb > 0]
    if not terms or report.memory_peak_gb is None:
        return ""
    measured = report.memory_peak_gb
    styles = [f"p{number % len(PARTS)}" for number in range(len(terms))]
    chart = elements.both(
        lambda identity, width: svg.bar_with_mark(
            [(t.name, t.predicted_gb, style) for t, style in zip(terms, styles, strict=True)],
            measured,
            identity=identity,
            title="Memory of a rank: planned terms and measured peak",
            description="; ".join(f"{t.name} {t.predicted_gb:.2f} GB" for t in terms) + f"; measured {measured:.2f} GB",
            width=width,
            mark_label=f"measured {measured:.1f} GB",
            tick_format=lambda value: f"{value:g} GB",
        ),
        "mem",
    )
    keys = [(style, f"{t.name} {t.predicted_gb:.2f} GB") for t, style in zip(terms, styles, strict=True)]
    return f"<figure>{chart}<figcaption>{elements.keys([*keys, ('markkey', 'measured peak')])}</figcaption></figure>"


def _checkpoints(report: RunReport) -> str:
    checkpoints = report.checkpoints
    if not checkpoints:
        return ""
    saves = [c.save_seconds for c in checkpoints if c.save_seconds is not None]
    lags = [c.durable_lag_seconds for c in checkpoints if c.durable_lag_seconds is not None]
    rows = [
        (
            f"{c.step:,}",
            _checkpoint_state(c),
            f"{c.bytes / 1e9:,.2f} GB" if c.bytes else "",
            f"{c.world_size}" if c.world_size else "",
            duration(c.save_seconds) if c.save_seconds is not None else "",
            duration(c.durable_lag_seconds) if c.durable_lag_seconds is not None else "",
            f"{c.resumed_from} time{'s' if c.resumed_from > 1 else ''}" if c.resumed_from else "",
        )
        for c in checkpoints[-MAX_ROWS:]
    ]
    notes = []
    if saves:
        notes.append(f"median time to write {duration(median(saves))}")
    if lags:
        notes.append(f"median time until durable in S3 {duration(median(lags))}, longest {duration(max(lags))}")
    note = _notice(report.notice) if report.notice is not None else ""
    note += f'<p class="soft">{escape(_sentence("; ".join(notes)))}.</p>' if notes else ""
    return (
        "<h2>Checkpoints</h2>"
        + elements.table(
            ("Step", "State", "Size", "Ranks", "Written in", "Durable after", "Resumed from"),
            rows,
            numeric={0, 2, 3, 4, 5},
            label="Checkpoints",
        )
        + _left_out(len(checkpoints))
        + note
    )


def _notice(notice: Notice) -> str:
    risk = f"an interruption without notice costs at most {notice.steps_at_risk:,} steps"
    if notice.seconds is None:
        return f"<p>No checkpoint was seen to become durable; {risk}.</p>"
    word = "so the two-minute notice is enough" if notice.fits else "which is longer than the two-minute notice"
    return f"<p>A checkpoint is safe in S3 {duration(notice.seconds)} after it is begun, {word}; {escape(risk)}.</p>"


def _checkpoint_state(checkpoint: CheckpointReport) -> str:
    if checkpoint.in_s3:
        return "in S3"
    if checkpoint.pruned:
        return "pruned"
    if checkpoint.durable:
        return "durable"
    return "complete" if checkpoint.complete else "incomplete"


def _findings(report: RunReport) -> str:
    if not report.findings:
        return ""
    order = list(Severity)
    rows = [
        (f.id, f.severity.value, f.path, f.message, "" if f.given is None else str(f.given), f.legal or "")
        for f in sorted(report.findings, key=lambda f: (order.index(f.severity), f.id))[:MAX_ROWS]
    ]
    return "<h2>Findings</h2>" + elements.table(
        ("Id", "Severity", "Path", "Message", "Given", "Legal"), rows, wide={3}, label="Findings"
    )


def _footer(report: RunReport) -> str:
    image = f" Image: <code>{escape(report.image)}</code>." if report.image else ""
    return (
        f"<footer><p>Written {report.created:%Y-%m-%d %H:%M:%S} UTC by BlackwellTrainingStack from the job's own log, "
        "SageMaker's description of each attempt, and the checkpoint manifests in S3. The same figures stand in "
        f"<code>report.json</code> beside this page.{image}</p></footer>"
    )
