"""`make demo`: the whole job on the embedded AWS, from deploy to destroy, in a few minutes on two cores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from blackwell.client import Client
from blackwell.names import DATASETS_PREFIX
from blackwell.spec import load_job_spec
from local.demo import dataset, inventory
from local.demo.cdk import STACK, cdk
from local.demo.result import DemoResult, StageError
from local.server import LocalAws

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "demo"
ASSEMBLY = OUT / "cdk.out"
"""Synthesised once; its own folder, so that another synth at the same time does not take it away."""
JOB = ROOT / "examples" / "jobs" / "tiny-cpu.json"
INTERRUPT_AT_STEP = 80
STEP_LINES = 10
"""Every so many steps are printed; the report has them all."""
LOSS_RATIO = 0.8
"""The run must bring the loss below this share of its first value."""


def main() -> int:
    """Runs every stage; returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    console = Console(highlight=False, soft_wrap=True)
    result = DemoResult()
    try:
        _run(result, console)
        result.status = "ok"
    except StageError as failure:
        result.status = f"failed in {failure.stage}"
        result.error = str(failure.cause) or type(failure.cause).__name__
    except KeyboardInterrupt:
        result.status = "interrupted"
    result.write(OUT / "report.json")
    _print_stages(result, console)
    if result.status == "ok":
        console.print("demo: ok")
        return 0
    console.print(f"demo: {result.status}: {result.error or ''}\nlogs: {OUT}")
    return 130 if result.error == "KeyboardInterrupt" or result.status == "interrupted" else 1


def _run(result: DemoResult, console: Console) -> None:
    def say(text: str) -> None:
        console.print(f"[{sum(result.stages.values()):6.1f} s] {text}")

    say("starting the embedded AWS")
    with result.stage("start"):
        aws = LocalAws(OUT / "aws")
        aws.start()
    try:
        with result.stage("bootstrap"):
            cdk(
                ["synth", "--quiet", "--output", str(ASSEMBLY), STACK],
                root=ROOT,
                environment=aws.child_environment(),
                log=OUT / "cdk.log",
            )
            cdk(
                ["bootstrap", "--app", str(ASSEMBLY)],
                root=ROOT,
                environment=aws.child_environment(),
                log=OUT / "cdk.log",
            )
        before = inventory.take(aws.client)
        say(f"cdk deploy {STACK}")
        with result.stage("deploy"):
            cdk(
                ["deploy", STACK, "--app", str(ASSEMBLY), "--require-approval", "never"],
                root=ROOT,
                environment=aws.child_environment(),
                log=OUT / "cdk.log",
            )
        say("training a tokenizer on the standard library's sources, writing token shards, uploading them")
        with result.stage("data"):
            _upload_dataset(aws)
        with result.stage("run"):
            _execute(aws, result, console, say)
        say("cdk destroy")
        with result.stage("destroy"):
            cdk(
                ["destroy", STACK, "--app", str(ASSEMBLY), "--force"],
                root=ROOT,
                environment=aws.child_environment(),
                log=OUT / "cdk.log",
            )
        with result.stage("check"):
            after = inventory.take(aws.client)
            result.checked = {kind: len(names) for kind, names in after.items()}
            result.leftovers = inventory.left_over(before, after)
            say("checked that nothing is left of: " + ", ".join(result.checked))
            if result.leftovers:
                raise RuntimeError("left after destroy: " + "; ".join(result.leftovers))
    finally:
        aws.stop()


def _upload_dataset(aws: LocalAws) -> None:
    folder = OUT / "dataset"
    dataset.prepare(folder, OUT / "data.log")
    client = Client.from_stack(STACK, session=aws.session())
    for file in sorted(folder.iterdir()):
        client.upload(file, f"{DATASETS_PREFIX}stdlib/{file.name}")


def _execute(aws: LocalAws, result: DemoResult, console: Console, say) -> None:  # type: ignore[no-untyped-def]
    client = Client.from_stack(STACK, session=aws.session())
    result.run = f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    aws.set_faults([{"kind": "interruption", "step": INTERRUPT_AT_STEP}])
    say(f"execution {result.run} of {JOB.relative_to(ROOT)}, one spot interruption at step {INTERRUPT_AT_STEP}")
    handle = client.submit(load_job_spec(JOB), run=result.run)
    for progress in client.follow(handle.run):
        if progress.step is None or progress.step.step % STEP_LINES == 0 or progress.step.step == 1:
            console.print(f"           {progress.line()}")
    folder = OUT / "run"
    folder.mkdir(exist_ok=True)
    for name in ("report.json", "report.html"):
        (folder / name).write_bytes(client.document(handle.run, name))
    report = json.loads((folder / "report.json").read_bytes())
    result.take_run_report(report)
    _check_run(result)
    say(
        f"run {result.verdict}: loss {result.first_loss:.3f} -> {result.final_loss:.3f}, {result.tokens_per_second:.0f} tokens/s, {len(result.restarts)} restart(s); report in {folder}"
    )


def _check_run(result: DemoResult) -> None:
    wanted = load_job_spec(JOB).training.steps
    if result.verdict != "completed" or result.steps != wanted:
        raise RuntimeError(f"the run ended {result.verdict} after {result.steps} of {wanted} steps")
    if result.first_loss is None or result.final_loss is None or not result.final_loss < LOSS_RATIO * result.first_loss:
        raise RuntimeError(
            f"the loss went from {result.first_loss} to {result.final_loss}, which is not below {LOSS_RATIO} of the first"
        )
    if not result.restarts:
        raise RuntimeError("the spot interruption did not restart the job")


def _print_stages(result: DemoResult, console: Console) -> None:
    table = Table(box=None, show_header=False)
    for name, seconds in result.stages.items():
        table.add_row(name, f"{seconds:.1f} s")
    console.print(table)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
