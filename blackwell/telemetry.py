"""The grammar of a run's log, defined once: what the trainer prints and what everything else reads.

A logged step is one line:

    [rank 0] loss 2.345678 tokens_per_second 12345.6 step 10 run my-run {"step":10,...}

The leading numbers are fixed-point, never with an exponent, so that a metric filter and a regular expression read
them right; the JSON at the end holds the full record. Numbers that are not finite never become JSON: they are null,
and the leading field says `nan` or `inf`, which no pattern here accepts as a number.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict

METRIC_NAMESPACE = "BlackwellTraining"
TRAINING_LOG_GROUP = "/aws/sagemaker/TrainingJobs"  # shared by the whole account; SageMaker has no other

_NUMBER = r"-?[0-9]+\.?[0-9]*"
STEP_LINE = re.compile(
    r"^\[rank (?P<rank>\d+)\] loss (?P<loss>\S+) tokens_per_second (?P<tokens_per_second>\S+)"
    r" step (?P<step>\d+) run (?P<run>\S+) (?P<json>\{.*\})\s*$"
)
EVENT_LINE = re.compile(r"^\[rank (?P<rank>\d+)\] event (?P<event>[a-z_]+) run (?P<run>\S+) (?P<json>\{.*\})\s*$")

METRIC_FILTER_PATTERN = (
    '[rank="rank 0", loss_word="loss", loss, throughput_word="tokens_per_second", tokens_per_second, '
    'step_word="step", step, run_word="run", run, ...]'
)
"""Space-delimited CloudWatch pattern; `[rank 0]` is one field to CloudWatch because of its brackets."""

METRIC_FILTERS: dict[str, str] = {"Loss": "$loss", "TokensPerSecond": "$tokens_per_second", "Step": "$step"}
"""Metric name -> field of METRIC_FILTER_PATTERN."""

METRIC_DEFINITIONS: tuple[dict[str, str], ...] = (
    {"Name": "loss", "Regex": rf"\[rank 0\] loss ({_NUMBER}) tokens_per_second"},
    {"Name": "tokens_per_second", "Regex": rf"\[rank 0\] loss \S+ tokens_per_second ({_NUMBER}) step"},
    {"Name": "step", "Regex": r"\[rank 0\] loss \S+ tokens_per_second \S+ step ([0-9]+) run"},
    {"Name": "mfu_percent", "Regex": rf'^\[rank 0\] loss .*"mfu_percent":({_NUMBER})[,}}]'},
    {"Name": "grad_norm", "Regex": rf'^\[rank 0\] loss .*"grad_norm":({_NUMBER})[,}}]'},
    {"Name": "memory_reserved_peak_gb", "Regex": rf'^\[rank 0\] loss .*"memory_reserved_peak_gb":({_NUMBER})[,}}]'},
    {"Name": "validation_loss", "Regex": rf'^\[rank 0\] event validation .*"validation_loss":({_NUMBER})[,}}]'},
    {
        "Name": "checkpoint_durable_lag_seconds",
        "Regex": rf'^\[rank 0\] loss .*"checkpoint_durable_lag_seconds":({_NUMBER})[,}}]',
    },
)
"""CreateTrainingJob's AlgorithmSpecification.MetricDefinitions (at most 40, regex at most 500 characters)."""


class StepRecord(BaseModel):
    """One logged optimizer step, as rank 0 saw it. Memory is in GB of 10^9 bytes, times in seconds."""

    model_config = ConfigDict(extra="ignore")

    step: int
    """Number of the optimizer step just taken, from 1."""
    time: float
    """Unix time at the end of the step."""
    loss: float | None
    """Mean loss in nats per token over the global batch; null where it was not finite."""
    learning_rate: float
    grad_norm: float | None = None
    """Global L2 norm before clipping."""
    tokens: int = 0
    """Training tokens consumed since step 0 of the run, this step included."""
    step_seconds: float = 0.0
    tokens_per_second: float = 0.0
    tokens_per_second_per_gpu: float = 0.0
    """Per rank, where ranks are processes on CPU."""
    mfu_percent: float | None = None
    peak_tflops: float | None = None
    """The peak that mfu_percent divides by; MFU means nothing without it."""
    memory_allocated_peak_gb: float | None = None
    memory_reserved_peak_gb: float | None = None
    data_wait_seconds: float = 0.0
    checkpoint_stall_seconds: float = 0.0
    checkpoint_durable_lag_seconds: float | None = None
    """Age of the newest durable checkpoint; null before the first one."""
    data_order_hash: str | None = None
    """16 hex digits over the sample indices of this global batch; a function of (seed, position) only."""
    world_size: int | None = None
    micro_batch_size: int | None = None
    attempt: int = 1
    restart: int = 0
    """How often this job's container or workers had been started before."""


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _value(value: Any) -> str:
    if isinstance(value, float):  # fixed-point here too: the metric definitions read these numbers
        return format(Decimal(repr(value)), "f")
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True, default=str)


def _json(fields: dict[str, Any]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{_value(value)}" for key, value in _finite(fields).items()) + "}"


def _fixed(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.6f}"


def format_step(record: StepRecord, run: str, rank: int = 0) -> str:
    """The line for one step. `run` must have no white space (run ids have none)."""
    fields = record.model_dump(exclude_none=True)
    return (
        f"[rank {rank}] loss {_fixed(record.loss)} tokens_per_second {_fixed(record.tokens_per_second)}"
        f" step {record.step} run {run} {_json(fields)}"
    )


def format_event(event: str, run: str, rank: int = 0, /, **fields: Any) -> str:
    """The line for anything that is not a step: checkpoint, restart, out_of_memory, validation, profile, ..."""
    return f"[rank {rank}] event {event} run {run} {_json(fields)}"


def parse_step(line: str) -> tuple[str, StepRecord] | None:
    """(run, record) of a step line, None for any other line; never raises."""
    match = STEP_LINE.match(line)
    if match is None:
        return None
    try:
        fields = json.loads(match["json"])
        known = {key: value for key, value in fields.items() if value is not None}
        return match["run"], StepRecord.model_validate({"loss": None, **known})
    except ValueError:
        return None


def parse_event(line: str) -> tuple[str, str, dict[str, Any]] | None:
    """(run, event, fields) of an event line, None for any other line; never raises."""
    match = EVENT_LINE.match(line)
    if match is None:
        return None
    try:
        fields = json.loads(match["json"])
    except ValueError:
        return None
    return match["run"], match["event"], fields
