"""The run report as data: what `report.json` holds and `docs/report.schema.json` describes.

Seconds are wall-clock seconds, memory is GB of 10^9 bytes, money is US dollars, losses are nats per token. A figure
that could not be measured is null, never zero.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from blackwell.findings import Finding
from blackwell.runs import RunStatus
from blackwell.verdict import Verdict

REPORT_VERSION = 1


class _Report(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="null")


class Transition(_Report):
    """One stretch of time in one secondary status of the training job."""

    status: str
    start: datetime
    end: datetime
    seconds: float
    message: str = ""
    billed: bool
    """False while the job waits for capacity."""


class AttemptReport(_Report):
    """One training job."""

    attempt: int
    job_name: str
    status: str
    secondary_status: str = ""
    verdict: Verdict | None
    explanation: str
    """What happened, in plain words."""
    cause: str = ""
    """First line of the cause, where the job failed."""
    remedy: str | None = None
    """What the workflow did next."""
    overrides: dict[str, Any] = {}
    """Settings that this attempt changed against the plan."""
    capacity_kind: str | None = None
    instance_type: str | None = None
    instance_count: int = 1
    created: datetime | None = None
    ended: datetime | None = None
    training_seconds: float | None = None
    """SageMaker's TrainingTimeInSeconds: wall clock with instances."""
    billable_seconds: float | None = None
    """SageMaker's BillableTimeInSeconds: the same, less the spot discount."""
    cost_usd: float | None = None
    interruptions: int = 0
    """How often SageMaker took the instances and started the same job again."""
    first_step: int | None = None
    last_step: int | None = None
    timeline: list[Transition] = []


class CheckpointReport(_Report):
    """One checkpoint: written, complete, durable, pruned."""

    step: int
    tokens: int | None = None
    world_size: int | None = None
    bytes: int | None = None
    created: datetime | None = None
    save_seconds: float | None = None
    """From the request to the manifest on disk."""
    durable_lag_seconds: float | None = None
    """From the manifest on disk until every file was in S3."""
    complete: bool = False
    durable: bool = False
    pruned: bool = False
    in_s3: bool = False
    """Its manifest was in S3 when the report was written."""
    resumed_from: int = 0
    """How often training went on from it."""


class Restart(_Report):
    """One time that training stopped and went on: in place, in the same job, or in a new one."""

    kind: str
    """`interruption` (SageMaker took the instances and started the job again), `in_place` (the launcher restarted its
    workers), `container` (the container started again without an interruption) or `new_attempt`."""
    attempt: int
    """The attempt that went on."""
    verdict: Verdict | None = None
    remedy: str | None = None
    last_step: int | None
    """Newest step that was logged before it."""
    resumed_from_step: int | None
    """Step of the checkpoint that training went on from; null where no step followed."""
    steps_lost: int
    """Steps that were taken twice because of it."""
    seconds_lost: float | None
    """Without training, and taking those steps again."""
    down_seconds: float | None
    """From the last step before until the first step after began."""
    recompute_seconds: float = 0.0
    cost_usd: float | None = None
    """Price of the paid part of seconds_lost: waiting without instances costs nothing."""
    time: datetime | None = None
    """When the last step before it ended."""


class Interval(_Report):
    """Steps that one start of the workers contributed to the final history: (first, last], tokens alike."""

    attempt: int
    start: int
    """How often the workers had been started before, over all attempts."""
    after_step: int
    last_step: int
    after_tokens: int | None
    last_tokens: int | None


class Overlap(_Report):
    """Steps that were taken twice, and how far the two losses are apart."""

    steps: int = 0
    compared_hashes: int = 0
    """Repeats of a step for which both hashes were logged."""
    equal_hashes: int = 0
    max_relative_difference: float | None = None
    """Largest |second - first| / |first| of the loss."""
    bitwise_equal: bool | None = None
    """All repeated losses are the same number."""
    same_shape: bool | None = None
    """World size and micro batch were the same both times, so equal bits may be expected on a CPU."""
    tolerance: float | None = None
    """1e-5 in fp32; other precisions have none, their difference is printed."""
    within_tolerance: bool | None = None
    examples: list[tuple[int, float, float]] = []
    """(step, first loss, second loss), at most ten."""


class Continuity(_Report):
    """Proof that the run read every token once, in order, in spite of what happened to it."""

    proven: bool | None
    """True where every check below holds, false where one fails, null where there were no steps."""
    statement: str
    intervals: list[Interval] = []
    steps_gapless: bool | None = None
    tokens_gapless: bool | None = None
    """Each start went on with exactly the token after its checkpoint's last one."""
    hashes_equal: bool | None = None
    """A step that was taken twice read the same samples both times; null where none was."""
    distinct_hashes: int = 0
    hashed_steps: int = 0
    left_out: list[str] = []
    """Data that was left out on purpose after a divergence, as the spec allows; later steps are not compared."""
    overlap: Overlap = Overlap()
    overlap_statement: str = "no overlapping step"
    problems: list[str] = []


class GoodputPart(_Report):
    name: str
    seconds: float
    """Instance seconds: wall clock x instances."""
    share: float
    """Of billed_seconds."""


class Goodput(_Report):
    """Where the paid time went. Instance seconds: wall clock x instances."""

    goodput: float | None
    """Productive step seconds / billed seconds."""
    productive_seconds: float
    billed_seconds: float
    """Wall clock with instances; a spot discount lowers the price here, not the seconds."""
    waiting_seconds: float
    """Wall clock without instances, which nobody bills."""
    parts: list[GoodputPart] = []


class Cost(_Report):
    """What the run cost, and what it would have cost on demand."""

    total_usd: float | None
    basis: str
    """Which seconds and which price were multiplied."""
    on_demand_usd: float | None = None
    saved_usd: float | None = None
    saved_percent: float | None = None
    """AWS's formula for spot: (1 - BillableTimeInSeconds / TrainingTimeInSeconds) x 100."""
    lost_to_restarts_usd: float | None = None
    """Paid seconds without progress around restarts, at the same price."""
    budget_usd: float | None = None
    usd_per_billion_tokens: float | None = None
    predicted_usd: float | None = None


class Comparison(_Report):
    """One figure of the plan against what was measured."""

    name: str
    unit: str
    predicted: float
    measured: float
    ratio: float
    """measured / predicted"""


class MemoryTerm(_Report):
    """One term of the planned memory of a rank."""

    name: str
    predicted_gb: float


class Notice(_Report):
    """Whether a checkpoint can be made safe within the two minutes between a spot notice and the end."""

    seconds: float | None = None
    """Median time to write a checkpoint plus median time until every file of it was in S3."""
    limit_seconds: float
    fits: bool | None = None
    steps_at_risk: int
    """Most steps that an interruption without any notice can cost: the checkpoint interval and the durable lag."""


class Series(_Report):
    """A curve for plotting: thinned to what a screen can show, first, last, lowest and highest of each stretch kept."""

    step: list[int] = []
    value: list[float] = []


class RunReport(_Report):
    """What one run did, what it cost, and proof that nothing was lost on the way."""

    version: Annotated[int, Field(ge=1)] = REPORT_VERSION
    run: str
    created: datetime
    status: RunStatus
    verdict: Verdict | None
    headline: str
    """One sentence."""
    explanation: list[str] = []
    """What happened in plain words, one paragraph each."""
    next_steps: list[str] = []
    started: datetime | None = None
    ended: datetime | None = None
    wall_seconds: float | None = None

    precision: str | None = None
    backend: str | None = None
    emulated_precision: bool = False
    num_parameters: int | None = None
    world_size: int | None = None
    image: str | None = None

    steps: int = 0
    """Optimizer steps done."""
    start_step: int = 0
    """Step of the other run's checkpoint that this run began at; 0 for a run of its own."""
    resume_from: str | None = None
    """The run or the S3 URI that it went on from."""
    planned_steps: int | None = None
    tokens: int = 0
    """Training tokens since step 0, those of the run before included."""
    tokens_trained: int = 0
    """Training tokens of this run alone."""
    first_loss: float | None = None
    """Loss of the first logged step."""
    final_loss: float | None = None
    """Mean of the last ten logged steps."""
    final_validation_loss: float | None = None
    tokens_per_second: float | None = None
    """Median over the logged steps after warm-up, all ranks together."""
    tokens_per_second_method: str = ""
    mfu_percent: float | None = None
    peak_tflops: float | None = None
    """The peak that mfu_percent divides by."""
    memory_peak_gb: float | None = None
    """Highest reserved memory of rank 0."""
    non_finite_steps: int = 0

    attempts: list[AttemptReport] = []
    checkpoints: list[CheckpointReport] = []
    restarts: list[Restart] = []
    continuity: Continuity
    goodput: Goodput
    cost: Cost
    notice: Notice | None = None
    """None before the first checkpoint."""
    comparisons: list[Comparison] = []
    memory_terms: list[MemoryTerm] = []
    """What the plan expected to fill the memory of a rank."""
    findings: list[Finding] = []

    loss: Series = Series()
    loss_smoothed: Series = Series()
    smoothing: str = ""
    validation_loss: Series = Series()
    throughput: Series = Series()
    memory_gb: Series = Series()
    profile: dict[str, float] = {}
    """Seconds by kind from the profile window, where there was one."""
