"""The sweep report as one HTML page, in the run report's style: no network, no script, charts inline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from blackwell.report import elements, svg
from blackwell.report.model import Series
from blackwell.report.words import count, duration, money, percent
from blackwell.runs import RunStatus
from blackwell.sweep.convergence import ConvergenceVerdict, Judgement
from blackwell.sweep.report import Bound, Curves, PointReport, Ratio, SweepReport

_COLOURS = (8, 0, 1, 5, 6, 2, 4, 7)
"""Of the style sheet's, in an order that keeps neighbours apart; the baseline is grey."""
MOST_CURVES = len(_COLOURS)
_STYLES = [f"s{number}" for number in _COLOURS]
_CSS = "".join(
    f"svg polyline.s{n}{{stroke:var(--p{n});stroke-width:2}}svg circle.s{n}{{fill:var(--p{n})}}"
    f".key.line.s{n}{{background:var(--p{n})}}"
    for n in _COLOURS
)
_BOUND_STYLE = {
    Bound.COMPUTE: "p0", Bound.MEMORY: "p5", Bound.COMMUNICATION: "p1", Bound.DATA: "p2", Bound.OVERHEAD: "p8",
}  # fmt: skip
_BADGE = {
    ConvergenceVerdict.EQUIVALENT: "good",
    ConvergenceVerdict.WORSE: "bad",
    ConvergenceVerdict.INCONCLUSIVE: "warn",
}


def render_sweep_html(report: SweepReport) -> str:
    """The whole page."""
    sections = [
        _header(report),
        _tiles(report),
        _story(report),
        _precisions(report),
        _curves(report),
        _speed(report),
        _bottlenecks(report),
        _predictions(report),
        _dropped(report),
        _footer(report),
    ]
    return elements.page(f"{report.sweep}: sweep report", sections, _CSS)


def _header(report: SweepReport) -> str:
    done = f"{report.completed} of {len(report.points)} runs"
    style = "good" if report.ok else "warn" if report.completed else "bad"
    return (
        f'<header><p class="soft">Sweep report</p><h1>{escape(report.sweep)} <span class="badge {style}">{done}</span>'
        f'</h1><p class="lead">{escape(report.headline)}</p></header>'
    )


def _tiles(report: SweepReport) -> str:
    tiles: list[tuple[str, str, str]] = []
    best = report.recommendation
    if best is not None and best.speedup is not None:
        tiles.append(("Speed of the recommended point", f"{best.speedup:.2f} x", "against the baseline"))
    if best is not None and best.saves_usd is not None and best.full_run_tokens:
        tiles.append(("Saved on the full run", money(best.saves_usd), f"{count(best.full_run_tokens)} tokens"))
    if best is not None and best.saves_seconds is not None:
        tiles.append(("Time saved on it", duration(best.saves_seconds), ""))
    planned = f"planned {money(report.planned_usd)}" if report.planned_usd is not None else ""
    tiles.append(("The sweep cost", money(report.total_usd), planned))
    tiles.append(("Points", f"{len(report.points)}", f"{len(report.dropped)} dropped before the start"))
    if report.noise_nats is not None:
        tiles.append(("Noise of the seed", f"{report.noise_nats:.4f} nats", "one sigma of a run's end"))
    return elements.tiles(tiles)


def _story(report: SweepReport) -> str:
    return "<h2>What was found</h2>" + "".join(f"<p>{escape(text)}</p>" for text in report.explanation)


def _precisions(report: SweepReport) -> str:
    if not report.precisions:
        return ""
    rows = "".join(
        f"<tr><td>{escape(v.precision + (' (emulated)' if v.emulated else ''))}</td>"
        f'<td><span class="badge {_BADGE[v.judgement.verdict]}">{v.judgement.verdict}</span></td>'
        f'<td class="n">{_nats(v.judgement.gap_nats)}</td><td class="n">{_interval(v.judgement)}</td>'
        f'<td class="n">{_times(v.judgement.grad_norm_ratio)}</td><td class="w">{escape(v.judgement.reason)}</td></tr>'
        for v in report.precisions
    )
    return (
        "<h2>Does it converge alike?</h2>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Convergence"><table><thead><tr>'
        '<th scope="col">Precision</th><th scope="col">Verdict</th><th scope="col" class="n">Gap</th>'
        '<th scope="col" class="n">Interval</th><th scope="col" class="n">Gradient norm</th><th scope="col">Reason</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="soft">Gap: mean of loss minus the baseline\'s loss at the same step on the same data, over the last '
        f"steps, in nats per token; interval by block bootstrap, each end one-sided at 5 %, widened by the noise of the "
        f"seed. Equivalent: all of it at most {report.tolerance_nats:g}; worse: all of it above. Gradient norm: the "
        f"baseline's is 1.</p>"
    )


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"


def _interval(judgement: Judgement) -> str:
    if judgement.low_nats is None or judgement.high_nats is None:
        return ""
    return f"{judgement.low_nats:+.4f} to {judgement.high_nats:+.4f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} x"


def _chosen(report: SweepReport) -> list[Curves]:
    """The baseline and one point of each precision first, then others, as many as can be told apart."""
    by_point = {curves.point: curves for curves in report.curves}
    order = [report.baseline, *(v.point for v in report.precisions), *by_point]
    return [by_point[point] for point in dict.fromkeys(order) if point in by_point][:MOST_CURVES]


def _curves(report: SweepReport) -> str:
    chosen = _chosen(report)
    if not chosen:
        return ""
    names = {point.id: _name(point) for point in report.points}
    styles = dict(zip((c.point for c in chosen), _STYLES, strict=False))
    out = "<h2>Loss</h2>" + _chart(
        "Smoothed loss over steps",
        [(names[c.point], styles[c.point], c.loss) for c in chosen],
        "loss",
        "{:.3g}".format,
    )
    gaps = [(names[c.point], styles[c.point], c.gap) for c in chosen if c.gap.step]
    if gaps:
        out += "<h3>Loss minus the baseline's</h3>" + _chart(
            "Smoothed loss minus the baseline's, nats per token", gaps, "gap", "{:+.3g}".format
        )
    left = len(report.curves) - len(chosen)
    return out + (f'<p class="soft">{left} more curves stand in report.json.</p>' if left else "")


def _chart(title: str, curves: Sequence[tuple[str, str, Series]], identity: str, y_format: svg.Format) -> str:
    lines = [svg.Line(name, series.step, series.value, style) for name, style, series in curves]
    description = "; ".join(
        f"{name} ends at {y_format(series.value[-1])}" for name, _, series in curves if series.value
    )
    drawn = elements.both(
        lambda identity, width: svg.line_chart(
            lines, identity=identity, title=title, description=description, x_label="optimizer step",
            y_format=y_format, width=width, height=300 if width > 500 else 240,
        ),
        identity,
    )  # fmt: skip
    keys = elements.keys((f"line {style}", name) for name, style, _ in curves)
    return f"<figure>{drawn}<figcaption>{keys}</figcaption></figure>"


def _name(point: PointReport) -> str:
    text = point.axes.words() + (" (emulated)" if point.emulated else "")
    if point.baseline:
        return f"{text}: baseline"
    return f"{text}: baseline, seed {point.axes.seed}" if point.repeat else text


def _speed(report: SweepReport) -> str:
    rows = [
        (
            _name(point),
            "no trace" if point.status is None else str(point.verdict or point.status.lower()).replace("_", " "),
            _figure(point.tokens_per_second, "{:,.0f}"),
            _figure(point.memory_peak_gb, "{:,.1f} GB"),
            _money(point.usd_per_billion_tokens),
            f"{point.mfu_percent:.1f} %" if point.mfu_percent is not None else "",
            f"{point.final_loss:.4f}" if point.final_loss is not None else "",
            str(point.convergence.verdict) if point.convergence else "",
        )
        for point in _ranked(report)
    ]
    table = elements.table(
        ("Point", "Run ended", "Tokens/s", "Memory peak", "Per 1e9 tokens", "MFU", "Final loss", "Loss is"),
        rows,
        label="Points",
        numeric={2, 3, 4, 5, 6},
        wide={0},
    )
    return (
        f"<h2>Speed, memory and cost</h2>{table}"
        '<p class="soft">In brackets: against the baseline. The speed of an emulated precision says nothing about '
        "hardware that has it.</p>"
    )


def _ranked(report: SweepReport) -> list[PointReport]:
    """The baseline first, then the cheapest per token, then the fastest; runs that did not complete last."""

    def order(point: PointReport) -> tuple[bool, bool, float, float]:
        cost = point.usd_per_billion_tokens.measured
        return (
            not point.baseline,
            point.status is not RunStatus.COMPLETED,
            cost if cost is not None else float("inf"),
            -(point.tokens_per_second.measured or 0.0),
        )

    return sorted(report.points, key=order)


def _figure(ratio: Ratio, form: str) -> str:
    if ratio.measured is None:
        return ""
    text = form.format(ratio.measured)
    return text if ratio.to_baseline in (None, 1.0) else f"{text} ({ratio.to_baseline:.2f} x)"


def _money(ratio: Ratio) -> str:
    if ratio.measured is None:
        return ""
    text = money(ratio.measured)
    return text if ratio.to_baseline in (None, 1.0) else f"{text} ({ratio.to_baseline:.2f} x)"


def _bottlenecks(report: SweepReport) -> str:
    known = [point for point in report.points if point.bottleneck is not None and not point.repeat]
    if not known:
        return ""
    rows = []
    for number, point in enumerate(known[:40]):
        found = point.bottleneck
        assert found is not None
        bar = elements.both(
            lambda identity, width, shares=found.shares: svg.stacked_bar(  # type: ignore[misc]
                [(bound.value, shares.get(bound, 0.0), _BOUND_STYLE[bound]) for bound in Bound],
                identity=identity, title="Where a step's time goes",
                description="; ".join(f"{b.value} {percent(shares.get(b, 0.0))}" for b in Bound),
                width=width, height=26,
            ),
            f"bound{number}-",
        )  # fmt: skip
        rows.append(f"<h3>{escape(_name(point))}: {found.bound}-bound</h3><figure>{bar}</figure>")
    keys = elements.keys((style, bound.value) for bound, style in _BOUND_STYLE.items())
    return (
        "<h2>What limits the speed</h2>"
        + keys
        + "".join(rows)
        + '<p class="soft">From a profile of three steps: compute is matrix products and attention, memory is everything '
        "element by element, communication is what no computation hides, overhead is a GPU that waits for its host; data "
        "is the wait for batches over all steps. On a CPU overhead cannot be told apart.</p>"
    )


def _predictions(report: SweepReport) -> str:
    rows = []
    for point in report.points:
        for name, unit, ratio in (
            ("throughput", "tokens/s", point.tokens_per_second),
            ("memory peak", "GB", point.memory_peak_gb),
            ("cost", "USD", point.cost_usd),
        ):
            if ratio.predicted is not None and ratio.measured is not None and ratio.to_prediction is not None:
                rows.append(
                    (
                        _name(point), name, f"{elements.amount(ratio.predicted)} {unit}",
                        f"{elements.amount(ratio.measured)} {unit}", f"{(ratio.to_prediction - 1) * 100:+.1f} %",
                    )
                )  # fmt: skip
    if not rows:
        return ""
    return "<h2>Planned and measured</h2>" + elements.table(
        ("Point", "Figure", "Planned", "Measured", "Difference"),
        rows,
        label="Planned and measured",
        numeric={2, 3, 4},
        wide={0},
    )


def _dropped(report: SweepReport) -> str:
    if not report.dropped:
        return ""
    rows = [(point.axes.words(), "; ".join(reason.line() for reason in point.reasons)) for point in report.dropped]
    return "<h2>Dropped before the start</h2>" + elements.table(
        ("Point", "Reason"), rows, label="Dropped points", wide={0, 1}
    )


def _footer(report: SweepReport) -> str:
    return (
        f"<footer><p>Written {report.created:%Y-%m-%d %H:%M:%S} UTC by BlackwellTrainingStack from the runs' own logs and "
        "reports. The same figures stand in <code>report.json</code> beside this page; each run has a report of its own."
        "</p></footer>"
    )
