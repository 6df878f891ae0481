"""A run report for a terminal: the page's story in text, with curves."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from blackwell.cli.plot import plot
from blackwell.report.model import RunReport, Series
from blackwell.report.words import RESTART_WORDS, count, duration, money, percent
from blackwell.runs import RunStatus

STYLES = {
    RunStatus.COMPLETED: "bold green",
    RunStatus.RUNNING: "bold yellow",
    RunStatus.STOPPED: "bold yellow",
    RunStatus.FAILED: "bold red",
    RunStatus.REJECTED: "bold red",
}
"""How a run's status is coloured."""
_MAX_WIDTH = 100


def report_text(report: RunReport, console: Console) -> ConsoleRenderable:
    """The report as something that rich prints, as wide as the terminal, at most 100 columns."""
    width = min(console.width, _MAX_WIDTH)
    unicode = not console.options.ascii_only
    return Group(*_parts(report, width, unicode))


def _parts(report: RunReport, width: int, unicode: bool) -> Iterator[ConsoleRenderable]:
    title = Text(report.run, style="bold")
    title.append(f"  {report.verdict or report.status.lower()}", style=STYLES[report.status])
    yield title
    yield Text(report.headline)
    yield Text("")
    yield _figures(report)
    for paragraph in report.explanation:
        yield Text(paragraph)
    marks = [float(r.resumed_from_step) for r in report.restarts if r.resumed_from_step]
    yield from _curve("Loss, smoothed", report.loss_smoothed, "{:.3f}".format, width, unicode, marks)
    yield from _curve("Tokens per second", report.throughput, count, width, unicode, marks)
    if report.restarts:
        yield Text("\nRestarts", style="bold")
        yield _restarts(report)
    if report.goodput.parts:
        yield Text("\nWhere the paid time went", style="bold")
        yield _goodput(report, width, unicode)
    if report.continuity.proven is not None:
        yield Text("\nContinuity", style="bold")
        yield Text(report.continuity.statement, style="" if report.continuity.proven else "red")
        yield Text(f"Recomputed losses: {report.continuity.overlap_statement}.")
        for problem in report.continuity.problems:
            yield Text(f"- {problem}", style="red")
    if report.attempts:
        yield Text(f"\nCost: {money(report.cost.total_usd)} ({report.cost.basis})")
    for finding in report.findings:
        yield Text(finding.line())
    if report.next_steps:
        yield Text("\nWhat to do next", style="bold")
        for number, step in enumerate(report.next_steps, 1):
            yield Text(f"{number}. {step.replace('`', '')}")


def _figures(report: RunReport) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    rows = [
        ("steps", f"{report.steps:,}" + (f" of {report.planned_steps:,}" if report.planned_steps else "")),
        (
            "loss",
            f"{report.first_loss:.4f} to {report.final_loss:.4f}"
            if report.first_loss is not None and report.final_loss is not None
            else "",
        ),
        ("validation", f"{report.final_validation_loss:.4f}" if report.final_validation_loss is not None else ""),
        ("tokens/s", f"{report.tokens_per_second:,.0f}" if report.tokens_per_second is not None else ""),
        (
            "MFU",
            f"{report.mfu_percent:.1f} % of {report.peak_tflops:,.0f} TFLOPS"
            if report.mfu_percent and report.peak_tflops
            else "",
        ),
        ("goodput", percent(report.goodput.goodput) if report.goodput.goodput is not None else ""),
        ("wall clock", duration(report.wall_seconds) if report.wall_seconds is not None else ""),
        ("memory", f"{report.memory_peak_gb:.1f} GB" if report.memory_peak_gb is not None else ""),
        ("checkpoints", f"{len(report.checkpoints)}, newest in S3: {_newest(report)}" if report.checkpoints else ""),
    ]
    for name, value in rows:
        if value:
            table.add_row(name, value)
    table.add_row("", "")
    return table


def _newest(report: RunReport) -> str:
    steps = [c.step for c in report.checkpoints if c.in_s3]
    return f"step {max(steps):,}" if steps else "none"


def _curve(
    title: str,
    series: Series,
    y_format: object,
    width: int,
    unicode: bool,
    marks: list[float],
) -> Iterator[ConsoleRenderable]:
    if len(series.step) < 2:
        return
    yield Text(f"\n{title}", style="bold")
    lines = plot(
        series.step,
        series.value,
        width=width,
        height=8,
        y_format=y_format,  # type: ignore[arg-type]
        marks=marks,
        unicode=unicode,
    )
    yield Text("\n".join(lines), no_wrap=True)


def _restarts(report: RunReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head, right in (
        ("what happened", False),
        ("went on from", True),
        ("steps lost", True),
        ("time lost", True),
        ("money lost", True),
    ):
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for restart in report.restarts:
        words = RESTART_WORDS.get(restart.kind, restart.kind)
        table.add_row(
            f"{words} ({restart.verdict})" if restart.verdict else words,
            "" if restart.resumed_from_step is None else f"{restart.resumed_from_step:,}",
            f"{restart.steps_lost:,}",
            duration(restart.seconds_lost),
            money(restart.cost_usd),
        )
    return table


def _goodput(report: RunReport, width: int, unicode: bool) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for right in (False, True, True, False):
        table.add_column(justify="right" if right else "left", overflow="fold")
    bar = "█" if unicode else "#"
    room = max(10, width - 55)
    for part in report.goodput.parts:
        if part.seconds > 0:
            table.add_row(
                part.name, duration(part.seconds), percent(part.share), bar * max(1, round(part.share * room))
            )
    return table
