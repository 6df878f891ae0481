"""`submit --rehearse`: 20 steps on one instance first, then the run's time and cost from what they measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from blackwell.cli.common import STOPPED, exit_code, fail, money, refuse
from blackwell.planning import Plan, plan_job
from blackwell.rehearsal import Revised, rehearsal_name, rehearsal_spec, revise
from blackwell.report.words import duration
from blackwell.runs import RunStatus

if TYPE_CHECKING:
    from blackwell.client import Client


def rehearse(client: Client, plan: Plan, run: str, *, as_json: bool) -> Revised:
    """Runs the rehearsal to its end and says what it means; leaves with the rehearsal's exit code where it failed."""
    spec = rehearsal_spec(plan)
    rehearsed = plan_job(spec)
    if not rehearsed.ok:
        refuse(rehearsed.findings, as_json=as_json)
    name = client.submit(spec, rehearsal_name(run)).run
    try:
        for progress in client.follow(name):
            if not as_json:
                print(f"rehearsal: {progress.line()}", flush=True)
    except KeyboardInterrupt:
        fail(f"the rehearsal {name} goes on, at most 15 minutes, and nothing follows it; stop it:\n"
             f"  python -m blackwell stop {name}", STOPPED)  # fmt: skip
    state = client.status(name)
    if state.final_status is not RunStatus.COMPLETED:
        ended = state.verdict or state.execution_status.lower()
        fail(f"the rehearsal {name} ended {ended}: {state.cause or ''}; nothing else was started",
             exit_code(state.final_status))  # fmt: skip
    revised = revise(plan, rehearsed, json.loads(client.document(name, "report.json")))
    if not as_json:
        print("\n".join(lines(revised)))
    return revised


def lines(revised: Revised) -> list[str]:
    """What was measured and what follows, in words."""
    found = ["", "the rehearsal measured"]
    if revised.memory_peak_gb is not None:
        found.append(f"  peak memory   {revised.memory_peak_gb:.1f} GB (predicted {revised.predicted_peak_gb:.1f} GB)")
    if revised.measured_tokens_per_second is not None:
        found.append(f"  speed         {revised.measured_tokens_per_second:,.0f} tokens/s")
    if revised.first_loss is not None and revised.final_loss is not None:
        found.append(f"  loss          {revised.first_loss:.3f} -> {revised.final_loss:.3f}")
    time = duration(revised.expected_seconds) if revised.expected_seconds is not None else "not known"
    cost = money(revised.expected_usd) if revised.expected_usd is not None else "not known (no price)"
    return [*found, f"so the whole run takes {time} and costs {cost} ({revised.basis})", ""]
