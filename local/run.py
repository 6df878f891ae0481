"""`python -m local run JOB.json [--faults FAULTS.json]`: one job spec through the deployed workflow, faults included.

Deploys the stack on an embedded AWS of its own, runs the spec, prints the run's report, and ends everything again.
Exit code: 0 completed, 2 rejected, 3 failed, 4 stopped, 1 when it could not be run at all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blackwell.client import Client, RunNotFound
from blackwell.runs import RunStatus
from local.deployment import Deployment, Say, deployed, journal
from local.faults.model import load_faults
from local.server import PROJECT

OUT = PROJECT / "build" / "run"
EXIT_CODES = {"completed": 0, "rejected": 2, "stopped": 4}
EXIT_FAILED = 3
EXIT_ERROR = 1
REPORT_SECONDS = 180.0
"""How long a report may come after its execution's end: a job that is stopped has two minutes for its checkpoint."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("job", type=Path, help="job spec")
    parser.add_argument("--faults", type=Path, help="JSON list of faults, see local/faults/schema.json")
    parser.add_argument("--name", default="run", help="name of the run")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, nothing else on stdout")


def main(options: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        faults = load_faults(options.faults) if options.faults else []
        document = json.loads(options.job.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        with deployed(OUT, say) as deployment:
            deployment.aws.set_faults([fault.model_dump(mode="json", exclude_none=True) for fault in faults])
            report = run_spec(deployment, options.name, document, say)
            happened = journal(deployment.aws)["happened"]
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps({**report, "faults_happened": happened}, indent=2))
    else:
        _print(report, happened)
    return EXIT_CODES.get(str(report.get("verdict")), EXIT_FAILED)


def run_spec(
    deployment: Deployment,
    run: str,
    document: Any,
    say: Say = lambda text: None,
    *,
    watch: Callable[[Client, str], None] | None = None,
) -> dict[str, Any]:
    """Start an execution with `document` as it is, wait for its end, and return its report.

    A rejected run has no report: its verdict, cause and findings take the place.
    """
    client = deployment.client
    deployment.aws.client("stepfunctions").start_execution(
        stateMachineArn=client.outputs.state_machine_arn, name=run, input=json.dumps(document)
    )
    if watch is not None:
        watch(client, run)
    for progress in client.follow(run):
        say(f"  {progress.line()}")
    return _report_of(client, run)


def _report_of(client: Client, run: str) -> dict[str, Any]:
    """The run's report. That of a stopped execution comes after it, when its job has ended."""
    deadline = time.monotonic() + REPORT_SECONDS
    while True:
        state = client.status(run)
        try:
            return client.report(run)
        except RunNotFound:
            planned = state.item is not None and state.item.status is not RunStatus.REJECTED
            if planned and time.monotonic() < deadline:
                time.sleep(1)
                continue
            verdict = state.verdict or ("rejected" if state.findings else state.execution_status.lower())
            return {"run": run, "verdict": verdict, "cause": state.cause, "findings": [dict(f) for f in state.findings]}


def _print(report: dict[str, Any], happened: list[dict[str, Any]]) -> None:
    for fault in happened:
        details = ", ".join(f"{k} {v}" for k, v in fault.items() if k not in ("kind", "time"))
        print(f"fault: {fault['kind']}: {details}")
    for attempt in report.get("attempts", []):
        words = {k: attempt.get(k) for k in ("attempt", "job_name", "verdict", "remedy") if attempt.get(k) is not None}
        print("attempt: " + ", ".join(f"{k} {v}" for k, v in words.items()))
    for finding in report.get("findings", []):
        print(f"finding: {finding.get('id')} {finding.get('path', '')}: {finding.get('message', '')}")
    for name in ("steps", "first_loss", "final_loss", "tokens_per_second", "cause"):
        if report.get(name) is not None:
            print(f"{name}: {report[name]}")
    print(f"verdict: {report.get('verdict')}")
