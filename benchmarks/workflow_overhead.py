"""What the workflow adds to a training job: from Launch to the job's start, from the job's end to its verdict.

    python -m benchmarks.workflow_overhead [--runs N] [--out FILE]

Runs small jobs, one after the other, through the deployed stack on the embedded AWS and reads the times from the
executions' histories and from DescribeTrainingJob. Functions, state machine and events are emulated, so this bounds
what our own code takes; what AWS's services take comes on top. The build of the image is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from local.deployment import Deployment, deployed
from local.run import run_spec

JOB = Path(__file__).resolve().parent.parent / "examples" / "jobs" / "tiny-scenario.json"
QUICK = {"steps": 3, "processes_per_instance": 1, "warmup_steps": 1, "checkpoint": {"interval_steps": 3}}
MEANINGS = {
    "launch_to_created": "Launch entered -> CreateTrainingJob answered",
    "launch_to_start": "Launch entered -> the job leaves Starting",
    "end_to_verdict": "the job has ended -> Assess done",
    "verdict_to_end": "Assess done -> report written, execution ended",
}


def overhead(deployment: Deployment, run: str) -> dict[str, float]:
    """Seconds by part, of a run with one attempt."""
    client = deployment.client
    pages = deployment.aws.client("stepfunctions").get_paginator("get_execution_history")
    events = [event for page in pages.paginate(executionArn=client.execution_arn(run)) for event in page["events"]]
    job = client.job(client.attempts(run)[0])
    assert job is not None

    def moment(kind: str, name: str) -> datetime:
        return next(e["timestamp"] for e in events if (e.get(f"state{kind}EventDetails") or {}).get("name") == name)

    started = job["SecondaryStatusTransitions"][0]["EndTime"]
    launch, assessed = moment("Entered", "Launch"), moment("Exited", "Assess")
    spans = {
        "launch_to_created": job["CreationTime"] - launch,
        "launch_to_start": started - launch,
        "end_to_verdict": assessed - job["TrainingEndTime"],
        "verdict_to_end": events[-1]["timestamp"] - assessed,
    }
    return {name: span.total_seconds() for name, span in spans.items()}


def measure(runs: int) -> dict[str, Any]:
    """Median and worst of every part over `runs` runs."""
    document = json.loads(JOB.read_text())
    document["training"] |= QUICK
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder) / "aws") as deployment:
        for number in range(runs + 1):
            run = f"overhead-{number}"
            report = run_spec(deployment, run, document)
            if report["verdict"] != "completed":
                raise RuntimeError(f"run {run} ended {report['verdict']}: {report.get('cause')}")
            if number:  # the first builds the image and starts every function
                found.append(overhead(deployment, run))
    return {
        name: {
            "meaning": meaning,
            "median_seconds": round(statistics.median(f[name] for f in found), 3),
            "worst_seconds": round(max(f[name] for f in found), 3),
        }
        for name, meaning in MEANINGS.items()
    } | {"runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the figures as JSON too")
    options = parser.parse_args()
    figures = measure(options.runs)
    for name in MEANINGS:
        part = figures[name]
        print(f"{part['meaning']:55s} median {part['median_seconds']:.2f} s, worst {part['worst_seconds']:.2f} s")
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
