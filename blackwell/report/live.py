"""All runs of a stack as they stand now, as data and as a page that renews itself. Nothing here calls AWS.

The page needs no other file. Its only script asks the same address for the page again and shows what came back; a
button stops that.
"""

from __future__ import annotations

from datetime import datetime
from html import escape

from pydantic import BaseModel, ConfigDict

from blackwell.report import elements, svg
from blackwell.report.model import Series
from blackwell.report.words import duration, money
from blackwell.runs import RunStatus
from blackwell.verdict import Verdict

LIVE_VERSION = 1
SPARK_POINTS = 160
"""Points of a run's small loss curve."""


class _Live(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="null")


class LiveRun(_Live):
    """One run now. Money in US dollars, losses in nats per token, times in UTC; null is what is not known."""

    run: str
    status: RunStatus
    verdict: Verdict | None = None
    stage: str | None = None
    """State of the workflow that it is in, while it runs."""
    job_status: str | None = None
    """SecondaryStatus of its training job, while it runs."""
    cause: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    step: int | None = None
    planned_steps: int | None = None
    loss: float | None = None
    """Of the newest step; of a run that has ended, the mean of its last ten."""
    tokens_per_second: float | None = None
    """All ranks together: median of the newest steps; of a run that has ended, of all."""
    seconds_left: float | None = None
    """Of training, at the pace of the newest steps."""
    spent_usd: float | None = None
    budget_usd: float | None = None
    attempts: int = 0
    """Training jobs made or tried."""
    restarts: int = 0
    """How often training began again."""
    curve: Series = Series()
    """Loss by step, thinned."""


class LiveRuns(_Live):
    """What the dashboard shows."""

    version: int = LIVE_VERSION
    stack: str
    at: datetime
    """When AWS was asked."""
    runs: list[LiveRun] = []
    """Newest first."""
    not_shown: int = 0
    """Older runs that the limit left out."""
    problem: str | None = None
    """Why the newest look failed; the runs are then those of the look before."""


_CSS = """
main{max-width:1180px}
.bar{display:flex;flex-wrap:wrap;gap:8px 16px;align-items:center;margin-top:8px}
button{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--soft);border-radius:8px;padding:4px 14px;min-height:32px}
.runs{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:14px;margin-top:12px}
.run{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 14px;min-width:0}
.run h3{margin:0 0 2px;overflow-wrap:anywhere}
.run dl{display:grid;grid-template-columns:1fr 1fr;gap:6px 14px;margin:10px 0 0}
.run dt{color:var(--soft);font-size:.8125rem}.run dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
svg.spark{margin-top:8px}td svg.spark{width:140px;margin:0}td .badge{font-size:.8125rem}
td small{display:block;color:var(--soft);max-width:24rem;overflow-wrap:anywhere}
@media print{button{display:none}}
"""

_SCRIPT = """
(() => {
  const button = document.getElementById("pause"), state = document.getElementById("state");
  let going = true;
  const say = text => { if (state.textContent !== text) state.textContent = text; };
  const renew = async () => {
    if (!going || document.hidden) return;
    try {
      const answer = await fetch(location.pathname, {cache: "no-store"});
      if (!answer.ok) throw new Error();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const busy = document.activeElement && document.activeElement.closest("#live");
      if (!going || busy || !getSelection().isCollapsed) return;
      document.getElementById("live").replaceWith(page.getElementById("live"));
      say("");
    } catch { say("The dashboard's process does not answer; what is shown is old."); }
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    going = !going;
    button.textContent = going ? "Pause" : "Go on";
    say(going ? "" : "Paused.");
    if (going) renew();
  });
  setInterval(renew, Number(document.documentElement.dataset.every) * 1000);
})();
"""


def live_policy() -> str:
    """Content-Security-Policy of the page that renews itself."""
    return elements.policy(_CSS, _SCRIPT)


def render_live(found: LiveRuns, *, every_seconds: float | None = None) -> str:
    """The whole page.

    Args:
        found: what is shown; every text in it is escaped.
        every_seconds: pause between two renewals; None makes a page that stays as it is.
    """
    running = [run for run in found.runs if run.status is RunStatus.RUNNING]
    ended = [run for run in found.runs if run.status is not RunStatus.RUNNING]
    live = [_tiles(found, running, ended), _problem(found), _running(running), _ended(ended, found.not_shown)]
    sections = [
        _header(found, renewed=every_seconds is not None),
        f'<div id="live"><p class="soft">{found.at:%Y-%m-%d %H:%M:%S} UTC</p>{"".join(live)}</div>',
        "<footer>Read only: nothing here starts, stops or changes a run.</footer>",
    ]
    script = _SCRIPT if every_seconds is not None else ""
    return elements.page(f"{found.stack}: runs", sections, _CSS, script=script, every_seconds=every_seconds)


def _header(found: LiveRuns, *, renewed: bool) -> str:
    bar = (
        '<div class="bar"><button type="button" id="pause" hidden>Pause</button>'
        '<span id="state" class="soft" role="status"></span></div>'
    )
    return f'<header><p class="soft">Runs</p><h1>{escape(found.stack)}</h1>{bar if renewed else ""}</header>'


def _problem(found: LiveRuns) -> str:
    if found.problem is None:
        return ""
    return f'<p class="lead"><span class="badge bad">not current</span> {escape(found.problem)}</p>'


def _tiles(found: LiveRuns, running: list[LiveRun], ended: list[LiveRun]) -> str:
    good = sum(run.status is RunStatus.COMPLETED for run in ended)
    known = [run.spent_usd for run in found.runs if run.spent_usd is not None]
    return elements.tiles(
        [
            ("Running", f"{len(running)}", ""),
            ("Completed", f"{good}", ""),
            ("Ended otherwise", f"{len(ended) - good}", "failed, stopped or rejected"),
            ("Spent", money(sum(known)) if known else "unknown", f"{len(known)} of {len(found.runs)} runs known"),
        ]
    )


def _running(runs: list[LiveRun]) -> str:
    if not runs:
        return "<h2>Running</h2><p>No run is running.</p>"
    return f'<h2>Running</h2><div class="runs">{"".join(_card(run, n) for n, run in enumerate(runs))}</div>'


def _card(run: LiveRun, number: int) -> str:
    style, word = _badge(run)
    now = " · ".join(text for text in (run.stage, run.job_status) if text)
    facts = [
        ("Step", _step(run)),
        ("Loss", _loss(run)),
        ("Tokens per second", _rate(run)),
        ("Time left", duration(run.seconds_left) if run.seconds_left is not None else "unknown"),
        ("Spent", _spent(run)),
        ("Attempts, restarts", f"{run.attempts}, {run.restarts}"),
    ]
    body = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return (
        f'<article class="run"><h3>{escape(run.run)} <span class="badge {style}">{escape(word)}</span></h3>'
        f'<p class="soft">{escape(now or "starting")}{_since(run)}</p>{_spark(run, f"r{number}", 320, 64)}'
        f"<dl>{body}</dl></article>"
    )


def _since(run: LiveRun) -> str:
    return f" · since {run.started:%Y-%m-%d %H:%M} UTC" if run.started is not None else ""


def _ended(runs: list[LiveRun], not_shown: int) -> str:
    if not runs:
        return ""
    head = ("Run", "Ended", "Loss curve", "Step", "Loss", "Tokens/s", "Spent", "Attempts", "Restarts")
    rows = [
        [
            _name(run),
            escape(f"{run.ended:%Y-%m-%d %H:%M}") if run.ended is not None else "",
            _spark(run, f"e{number}", 140, 36),
            *(escape(text) for text in (_step(run), _loss(run), _rate(run), _spent(run))),
            f"{run.attempts}",
            f"{run.restarts}",
        ]
        for number, run in enumerate(runs)
    ]
    left_out = f'<p class="soft">{not_shown} older runs are not shown; --limit shows more.</p>' if not_shown else ""
    made = elements.drawn_table(head, rows, label="Runs that have ended", numeric={3, 4, 5, 6, 7, 8})
    return f"<h2>Ended</h2>{made}{left_out}"


def _name(run: LiveRun) -> str:
    style, word = _badge(run)
    cause = f"<small>{escape(run.cause)}</small>" if run.cause and run.status is not RunStatus.COMPLETED else ""
    return f'{escape(run.run)} <span class="badge {style}">{escape(word)}</span>{cause}'


def _badge(run: LiveRun) -> tuple[str, str]:
    return elements.badge(run.status, run.verdict)


def _step(run: LiveRun) -> str:
    if run.step is None:
        return "none"
    if not run.planned_steps:
        return f"{run.step:,}"
    return f"{run.step:,} of {run.planned_steps:,} ({run.step / run.planned_steps * 100:.0f}\N{NO-BREAK SPACE}%)"


def _loss(run: LiveRun) -> str:
    return f"{run.loss:.4f}" if run.loss is not None else "unknown"


def _rate(run: LiveRun) -> str:
    return f"{run.tokens_per_second:,.0f}" if run.tokens_per_second is not None else "unknown"


def _spent(run: LiveRun) -> str:
    of = f" of {money(run.budget_usd)}" if run.spent_usd is not None and run.budget_usd is not None else ""
    return money(run.spent_usd) + of


def _spark(run: LiveRun, identity: str, width: int, height: int) -> str:
    steps, losses = run.curve.step, run.curve.value
    if not steps:
        return ""
    words = f"from {losses[0]:.4g} at step {steps[0]:,} to {losses[-1]:.4g} at step {steps[-1]:,}"
    return svg.sparkline(
        svg.Line("loss", steps, losses, "smooth"),
        identity=identity,
        title=f"Loss of {run.run}",
        description=f"Nats per token, {words}.",
        width=width,
        height=height,
    )
