"""A run with everything in it, written the way the trainer and SageMaker write: for the report's tests and pictures.

An out-of-memory attempt, then a spot job with an interruption, an in-place restart after a hang, and the end.
"""

from __future__ import annotations

import hashlib
import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from blackwell.names import checkpoint_folder
from blackwell.report import AttemptInputs, RunReportInputs
from blackwell.telemetry import StepRecord, format_event, format_step
from blackwell.verdict import FailureRecord, Verdict

BEGIN = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)
TOKENS_PER_STEP = 8 * 16 * 4096
STEP_SECONDS = 2.5
INTERVAL = 100
VALIDATION_SECONDS = 6.0


def loss_at(step: int) -> float:
    """A plausible language-model loss: a power law with noise that is a function of the step only."""
    return 1.9 + 8.9 * (step + 4) ** -0.42 + random.Random(step).gauss(0, 0.03)


def order_hash(step: int) -> str:
    return hashlib.sha256(f"1234:{step}".encode()).hexdigest()[:16]


class JobLog:
    """Writes one job's log lines with CloudWatch timestamps, moving its own clock."""

    def __init__(self, run: str, attempt: int, clock: datetime) -> None:
        self.run, self.attempt, self.clock = run, attempt, clock.timestamp()
        self.restart = 0
        self.lines: list[tuple[float, str]] = []

    def say(self, text: str) -> None:
        self.lines.append((self.clock * 1000, text))

    def event(self, name: str, rank: int = 0, **fields: Any) -> None:
        self.say(format_event(name, self.run, rank, **fields))

    def start(self, resumed_from: int | None, *, micro: int = 2, seconds: float = 45.0) -> None:
        self.clock += seconds
        if resumed_from:
            self.event("resume", step=resumed_from, folder=checkpoint_folder(resumed_from), skipped=[])
        self.event(
            "start",
            world_size=8,
            num_parameters=8_030_261_248,
            precision="mxfp8",
            backend="te",
            resumed_from_step=resumed_from,
            micro_batch_size=micro,
            accumulation_steps=16 // micro,
            tokens_per_step=TOKENS_PER_STEP,
        )
        self.say("MXFP8 enabled")

    def steps(self, first: int, last: int, *, noise: float = 0.0, wrong_order_at: int | None = None) -> None:
        for step in range(first, last + 1):
            stall = 0.9 if step % INTERVAL == 0 else 0.0
            wait = 0.02 + (0.4 if step % 251 == 0 else 0.0)
            slow = 12.0 if step == first else 0.0
            # the trainer's clock runs from the end of one step to the end of the next, validation included
            seconds = (
                STEP_SECONDS + slow + stall + wait + (VALIDATION_SECONDS if step % 250 == 1 and step > first else 0)
            )
            self.clock += seconds
            loss = loss_at(step) * (1 + noise * math.sin(step))
            record = StepRecord(
                step=step,
                time=self.clock,
                loss=loss,
                learning_rate=3e-4,
                grad_norm=0.4,
                tokens=step * TOKENS_PER_STEP,
                step_seconds=seconds,
                tokens_per_second=TOKENS_PER_STEP / seconds,
                tokens_per_second_per_gpu=TOKENS_PER_STEP / seconds / 8,
                mfu_percent=31.0 * STEP_SECONDS / seconds,
                peak_tflops=4500,
                memory_allocated_peak_gb=118.2,
                memory_reserved_peak_gb=131.4 + (2 if step > 200 else 0),
                data_wait_seconds=wait,
                checkpoint_stall_seconds=stall,
                data_order_hash=order_hash(step if step != wrong_order_at else step + 1),
                world_size=8,
                micro_batch_size=2,
                attempt=self.attempt,
                restart=self.restart,
            )
            self.say(format_step(record, self.run))
            if step % INTERVAL == 0:
                self.event("checkpoint", step=step, phase="complete", seconds=7.5, bytes=96_363_134_976)
                self.event("checkpoint", step=step, phase="durable", seconds=31.0, bytes=96_363_134_976)
                if step > 3 * INTERVAL:
                    self.event("checkpoint", step=step - 3 * INTERVAL, phase="pruned")
            if step % 250 == 0:
                self.event("validation", step=step, validation_loss=loss_at(step) + 0.05, seconds=VALIDATION_SECONDS)


def _transition(status: str, start: float, end: float | None, message: str = "") -> dict[str, Any]:
    item = {"Status": status, "StartTime": datetime.fromtimestamp(start, UTC), "StatusMessage": message}
    return item if end is None else item | {"EndTime": datetime.fromtimestamp(end, UTC)}


def _job(run: str, attempt: int, status: str, transitions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    billed = [t for t in transitions if t["Status"] not in ("Starting", "Interrupted", "Completed", "Failed")]
    seconds = sum((t["EndTime"] - t["StartTime"]).total_seconds() for t in billed)
    return {
        "TrainingJobName": f"blackwell-dev-{run}-a{attempt}",
        "TrainingJobStatus": status,
        "SecondaryStatus": transitions[-1]["Status"],
        "SecondaryStatusTransitions": transitions,
        "CreationTime": transitions[0]["StartTime"],
        "TrainingEndTime": transitions[-1]["StartTime"],
        "TrainingTimeInSeconds": round(seconds),
        "BillableTimeInSeconds": round(seconds * 0.38),
        "EnableManagedSpotTraining": True,
        "ResourceConfig": {"InstanceType": "ml.p6-b200.48xlarge", "InstanceCount": 1},
        **more,
    }


SPEC: dict[str, Any] = {
    "model": "8b",
    "data": {"train": "s3://corpus-bucket/fineweb-shards/"},
    "training": {
        "precision": "mxfp8",
        "micro_batch_size": 2,
        "global_batch_size": 128,
        "seq_length": 4096,
        "steps": 1000,
        "checkpoint": {"interval_steps": INTERVAL},
    },
    "capacity": [
        {
            "kind": "spot",
            "instance_type": "ml.p6-b200.48xlarge",
            "max_runtime_seconds": 86400,
            "max_wait_seconds": 172800,
        }
    ],
    "budget": {"max_cost_usd": 250.0},
}


def out_of_memory_attempt(run: str, begin: datetime) -> tuple[AttemptInputs, datetime]:
    """Attempt 1: three steps, then a GPU is full, in place once more the same, then the launcher gives up."""
    log = JobLog(run, 1, begin + timedelta(seconds=560))
    log.start(None, micro=4)
    log.steps(1, 3)
    log.event("out_of_memory", rank=3, step=4, phase="backward", bytes=2_147_483_648)
    log.event("restart", verdict="out_of_memory", remedy="less_memory", restart=1, overrides={"micro_batch_size": 2})
    log.restart = 1
    log.start(None, micro=2, seconds=60)
    log.steps(1, 5)
    log.event("out_of_memory", rank=5, step=6, phase="backward", bytes=1_073_741_824)
    t0 = begin.timestamp()
    end = log.clock + 20
    record = FailureRecord(
        verdict=Verdict.OUT_OF_MEMORY, cause="CUDA out of memory. Tried to allocate 1024.00 MiB.", step=6, rank=5
    )
    transitions = [
        _transition("Starting", t0, t0 + 95, "Preparing the instances for training"),
        _transition("DownloadingTrainingImage", t0 + 95, t0 + 480, "Downloading the training image"),
        _transition("Downloading", t0 + 480, t0 + 520, "Downloading input data"),
        _transition("Training", t0 + 520, end, "Training image download completed. Training in progress."),
        _transition("Uploading", end, end + 15, "Uploading generated training model"),
        _transition("Failed", end + 15, None, "Training job failed"),
    ]
    job = _job(run, 1, "Failed", transitions, FailureReason=f"AlgorithmError: {record.encode()}, exit code: 68")
    item = {
        "attempt": 1,
        "status": "ENDED",
        "verdict": "out_of_memory",
        "remedy": {"remedy": "less_memory"},
        "capacity_index": 0,
    }
    return AttemptInputs(attempt=1, job=job, item=item, lines=log.lines), datetime.fromtimestamp(end + 15, UTC)


def interrupted_attempt(
    run: str, begin: datetime, *, noise: float = 0.0, wrong_order_at: int | None = None
) -> tuple[AttemptInputs, datetime]:
    """Attempt 2: to step 437, interrupted, on from 400, a hang at 720, in place from 700, to the end at 1000."""
    t0 = begin.timestamp() + 30
    log = JobLog(run, 2, datetime.fromtimestamp(t0 + 540, UTC))
    log.start(None)
    log.steps(1, 437)
    cut = log.clock + 4
    log.clock = back = cut + 1900
    log.clock += 470
    log.start(400)
    log.steps(401, 720, noise=noise, wrong_order_at=wrong_order_at)
    log.clock += 300
    log.event("restart", verdict="hung", remedy="retry_same", restart=1, overrides={})
    log.restart = 1
    log.start(700, seconds=50)
    log.steps(701, 1000)
    log.event("finish", step=1000, final_loss=loss_at(1000), seconds=log.clock - t0)
    end = log.clock + 25
    transitions = [
        _transition("Starting", t0, t0 + 120, "Preparing the instances for training"),
        _transition("DownloadingTrainingImage", t0 + 120, t0 + 490, "Downloading the training image"),
        _transition("Downloading", t0 + 490, t0 + 510, "Downloading input data"),
        _transition("Training", t0 + 510, cut, "Training image download completed. Training in progress."),
        _transition("Interrupted", cut, cut + 60, "Spot capacity was taken"),
        _transition(
            "Starting", cut + 60, back, "Insufficient capacity error from EC2 while launching instances, retrying!"
        ),
        _transition("DownloadingTrainingImage", back, back + 350, "Downloading the training image"),
        _transition("Downloading", back + 350, back + 455, "Downloading checkpoints"),
        _transition("Training", back + 455, end, "Training in progress."),
        _transition("Uploading", end, end + 180, "Uploading generated training model"),
        _transition("Completed", end + 180, None, "Training job completed"),
    ]
    job = _job(run, 2, "Completed", transitions)
    item = {
        "attempt": 2,
        "status": "ENDED",
        "verdict": "completed",
        "capacity_index": 0,
        "overrides": {"activation_checkpointing": "full"},
    }
    return AttemptInputs(attempt=2, job=job, item=item, lines=log.lines), datetime.fromtimestamp(end + 180, UTC)


def manifests(steps: tuple[int, ...] = (800, 900, 1000)) -> list[dict[str, Any]]:
    return [
        {
            "version": 1,
            "step": step,
            "world_size": 8,
            "tokens": step * TOKENS_PER_STEP,
            "created": (BEGIN + timedelta(seconds=3 * step)).isoformat(),
            "files": {f"__{rank}_0.distcp": {"bytes": 12_045_391_872, "sha256": "0" * 64} for rank in range(8)},
        }
        for step in steps
    ]


PLAN: dict[str, Any] = {
    "memory": {
        "peak_gb": 126.0,
        "terms": [
            {"name": "sharded weights", "value": 4.0},
            {"name": "gradients", "value": 4.0},
            {"name": "optimizer states", "value": 8.0},
            {"name": "saved activations", "value": 92.0},
            {"name": "workspace", "value": 6.0},
            {"name": "allocator", "value": 12.0},
            {"name": "output logits", "value": 0.0},
        ],
    },
    "throughput": {"tokens_per_second": 219_000.0},
    "cost": {"expected_usd": 48.5},
    "findings": [
        {"id": "BTS-112", "severity": "warning", "path": "capacity.0", "message": "the price is a list price of EC2"}
    ],
}
"""The parts of a plan's JSON that the report reads."""


def eventful_run(run: str = "eightb-mxfp8-spot", **second: Any) -> RunReportInputs:
    """The whole run."""
    first, ended = out_of_memory_attempt(run, BEGIN)
    last, end = interrupted_attempt(run, ended, **second)
    return RunReportInputs(
        run=run,
        spec=SPEC,
        plan=PLAN,
        attempts=[first, last],
        checkpoints=manifests(),
        item={
            "attempt": 0,
            "status": "COMPLETED",
            "verdict": "completed",
            "started_at": (BEGIN - timedelta(seconds=40)).isoformat(),
            "ended_at": (end + timedelta(seconds=20)).isoformat(),
            "image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/training@sha256:" + "ab" * 32,
        },
        now=end + timedelta(seconds=30),
    )
