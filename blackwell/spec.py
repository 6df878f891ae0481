"""The job spec: the one JSON document that a user writes, and the only one that starts a run.

Everything a user may say stands here with its type, unit, default and bounds; the published JSON Schema is made from
it. Unknown keys are refused. What spans several keys is checked in the validators; what needs knowledge of hardware
is the planner's work (`blackwell.planning`), what needs AWS is preflight's.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from blackwell.findings import Finding, FindingsError, from_validation_error
from blackwell.model import DEFAULT_RMS_NORM_EPS, DEFAULT_ROPE_THETA, PRESETS, ModelShape

DAY_SECONDS = 86_400
MAX_RUNTIME_SECONDS = 28 * DAY_SECONDS  # CreateTrainingJob StoppingCondition, API reference
MAX_PENDING_SECONDS = (1_800, 2_419_200)  # StoppingCondition.MaxPendingTimeInSeconds in botocore's model


class Precision(StrEnum):
    """Number formats of the matrix multiplications. Never replaced silently by another."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP8_DELAYED = "fp8_delayed"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def quantized(self) -> bool:
        """True for the formats that Transformer Engine quantizes to."""
        return self in (Precision.FP8, Precision.FP8_DELAYED, Precision.MXFP8, Precision.NVFP4)


class ActivationCheckpointing(StrEnum):
    """What is recomputed in the backward pass: nothing, all but matmul and attention outputs, or whole layers."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class CapacityKind(StrEnum):
    SPOT = "spot"
    TRAINING_PLAN = "training-plan"
    ON_DEMAND = "on-demand"


class Goal(StrEnum):
    """What the planner optimises first: batch size, simpler sharding, or sequence length."""

    THROUGHPUT = "throughput"
    COMMUNICATION = "communication"
    CONTEXT = "context"


class Workload(StrEnum):
    """`lm` trains a language model on data; `layers` times a bare stack of layers on random input."""

    LM = "lm"
    LAYERS = "layers"


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


PositiveInt = Annotated[int, Field(strict=True, ge=1)]
Auto = Literal["auto"]
PresetName = Literal["1b", "3b", "8b", "14b", "32b", "64b"]
"""Keys of `blackwell.model.PRESETS`."""


class ModelSpec(_Spec):
    """The model: a preset, a preset with changes, or a whole shape, by Hugging Face config names."""

    preset: PresetName | None = None
    """Starting shape; any other key given here replaces the preset's value."""
    hidden_size: Annotated[int, Field(strict=True, ge=8, le=65_536)] | None = None
    num_hidden_layers: Annotated[int, Field(strict=True, ge=1, le=1_024)] | None = None
    num_attention_heads: Annotated[int, Field(strict=True, ge=1, le=1_024)] | None = None
    num_key_value_heads: Annotated[int, Field(strict=True, ge=1, le=1_024)] | None = None
    """Defaults to num_attention_heads (no grouping) where there is no preset."""
    intermediate_size: Annotated[int, Field(strict=True, ge=8, le=1_048_576)] | None = None
    vocab_size: Annotated[int, Field(strict=True, ge=2, le=4_194_304)] | None = None
    head_dim: Annotated[int, Field(strict=True, ge=2, le=1_024, multiple_of=2)] | None = None
    """Defaults to hidden_size / num_attention_heads where there is no preset."""
    tie_word_embeddings: bool | None = None
    rms_norm_eps: Annotated[float, Field(gt=0, lt=1)] | None = None
    rope_theta: Annotated[float, Field(gt=1)] | None = None

    @model_validator(mode="after")
    def _whole_shape(self) -> Self:
        findings: list[Finding] = []
        needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        if self.preset is None:
            for name in needed:
                if getattr(self, name) is None:
                    findings.append(Finding(id="BTS-004", path=name, message="is required where no preset is given"))
        if not findings:
            heads, hidden = self._get("num_attention_heads"), self._get("hidden_size")
            kv = self.num_key_value_heads or (PRESETS[self.preset].num_key_value_heads if self.preset else heads)
            if heads % kv:
                nearest = max(k for k in range(1, kv + 1) if heads % k == 0)
                findings.append(
                    Finding(
                        id="BTS-006",
                        path="num_key_value_heads",
                        message="must divide num_attention_heads",
                        given=kv,
                        legal=f"a divisor of {heads}",
                        nearest=nearest,
                    )
                )
            open_head_dim = self.head_dim is None and (
                self.preset is None or self.hidden_size or self.num_attention_heads
            )
            if open_head_dim and (hidden % heads or (hidden // heads) % 2):
                findings.append(
                    Finding(
                        id="BTS-006",
                        path="hidden_size",
                        message="must be an even multiple of num_attention_heads where head_dim is not given",
                        given=hidden,
                        legal=f"a multiple of {2 * heads}",
                        nearest=max(1, round(hidden / (2 * heads))) * 2 * heads,
                    )
                )
        if findings:
            raise FindingsError(findings)
        return self

    def lacks(self, workload: Workload) -> list[Finding]:
        """What this workload needs and the model does not say: only `layers` does without a vocabulary."""
        if workload is Workload.LAYERS or self._get("vocab_size") is not None:
            return []
        return [Finding(id="BTS-004", path="model.vocab_size", message="is required where no preset is given")]

    def _get(self, name: str) -> Any:
        value = getattr(self, name)
        return value if value is not None or self.preset is None else getattr(PRESETS[self.preset], name)

    def shape(self) -> ModelShape:
        """The shape with every size known."""
        hidden, heads = self._get("hidden_size"), self._get("num_attention_heads")
        head_dim = self.head_dim
        if head_dim is None:
            keeps_preset = self.preset is not None and self.hidden_size is None and self.num_attention_heads is None
            head_dim = PRESETS[self.preset].head_dim if keeps_preset and self.preset else hidden // heads
        return ModelShape(
            hidden_size=hidden,
            num_hidden_layers=self._get("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=self._get("num_key_value_heads") or heads,
            intermediate_size=self._get("intermediate_size"),
            vocab_size=self._get("vocab_size") or 0,
            head_dim=head_dim,
            tie_word_embeddings=bool(self._get("tie_word_embeddings")),
            rms_norm_eps=self._get("rms_norm_eps") or DEFAULT_RMS_NORM_EPS,
            rope_theta=self._get("rope_theta") or DEFAULT_ROPE_THETA,
        )


class DataSpec(_Spec):
    """Where the token shards are; `python -m trainer.data prepare` makes them."""

    train: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1_024,
            pattern=r"^(s3://[a-z0-9][a-z0-9.-]{2,62}/.+|[A-Za-z0-9][A-Za-z0-9!_.*'()/-]*)$",
        ),
    ]
    """S3 URI of a folder of shards, or a prefix inside the stack's own artifacts bucket (`datasets/stdlib/`)."""
    validation: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    """The same for validation data; without it the validation split inside `train` is used, if there is one."""
    input_mode: Literal["File", "FastFile"] = "FastFile"
    """How SageMaker brings the data: a download before the start, or a stream."""
    document_mask: bool = False
    """Stop attention at document borders and reset positions there."""


class CheckpointSpec(_Spec):
    interval_steps: PositiveInt | Auto = "auto"
    """Steps between checkpoints; `auto` lets the planner choose from interruption rate and save time."""
    asynchronous: bool = True
    """Write in the background while training goes on."""
    keep: Annotated[int, Field(strict=True, ge=2, le=1_000)] = 3
    """Durable checkpoints kept; at least two, so that pruning can never destroy the last good one."""
    transport: Literal["auto", "sagemaker_sync", "s3"] = "auto"
    """How files reach S3: SageMaker's sync of /opt/ml/checkpoints, or straight from the trainer."""


class ParallelSpec(_Spec):
    shard_across: Literal["auto", "node", "all"] = "auto"
    """Ranks that share one copy of the states: those of a node (HSDP), or all (FSDP)."""
    reshard_after_forward: bool = True
    """False keeps gathered parameters until the backward pass: more memory, one all-gather less."""
    accumulate: Literal["auto", "local", "sharded"] = "auto"
    """Gradients of several micro batches: `local` adds up whole ones and reduces once per step, `sharded` reduces after
    every micro batch and keeps only its part; `auto` is local where that fits."""


class Nvfp4Spec(_Spec):
    """NVIDIA's NVFP4 pre-training recipe (arXiv 2509.25149 and Transformer Engine's NVFP4BlockScaling)."""

    high_precision_tail_fraction: Annotated[float, Field(ge=0, le=1)] = 0.15
    """Share of the last layers that stay in BF16; embeddings and head always do."""
    random_hadamard_transform: bool = True
    stochastic_rounding: bool = True
    two_dimensional_weight_scaling: bool = True


class LossSpikeSpec(_Spec):
    window_steps: Annotated[int, Field(strict=True, ge=8, le=10_000)] = 64
    """Steps over which median and spread of the loss are taken."""
    threshold_sigma: Annotated[float, Field(gt=0)] = 12.0
    """Robust standard deviations above the median that count as a spike."""
    patience_steps: PositiveInt = 4
    """Spiking steps in a row before the run is called diverged."""


class TrainingSpec(_Spec):
    """How to train. Batch sizes count sequences, lengths count tokens."""

    workload: Workload = Workload.LM
    precision: Precision | Auto = Precision.BF16
    micro_batch_size: PositiveInt | Auto = "auto"
    """Sequences per GPU and forward pass."""
    global_batch_size: PositiveInt | None = None
    """Sequences per optimizer step over all ranks; without it micro_batch_size x ranks."""
    seq_length: Annotated[int, Field(strict=True, ge=2, le=4_194_304)] | Auto = 4_096
    activation_checkpointing: ActivationCheckpointing | Auto = "auto"
    steps: Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)] | None = None
    """Optimizer steps; give this or `tokens`."""
    tokens: Annotated[int, Field(strict=True, ge=1, le=100_000_000_000_000)] | None = None
    """Training tokens; give this or `steps`."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 3e-4
    lr_schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    warmup_steps: Annotated[int, Field(strict=True, ge=0)] = 0
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the steps at the end over which `wsd` decays."""
    min_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-8
    grad_clip_norm: Annotated[float, Field(gt=0)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 1234
    log_interval_steps: PositiveInt = 1
    validation_interval_steps: PositiveInt | None = None
    validation_steps: PositiveInt = 8
    """Global batches per validation."""
    cross_entropy: Literal["chunked", "full"] = "chunked"
    """`chunked` never holds all logits at once."""
    backend: Literal["auto", "te", "torch"] = "auto"
    """Who makes the layers: Transformer Engine or PyTorch; `auto` takes Transformer Engine where a GPU is."""
    compile: bool = False
    emulate_precision: bool = False
    """Quantize and dequantize in PyTorch; refused where the hardware has the format."""
    quantized_weights: bool = False
    """Keep weights quantized between steps (Transformer Engine); resumes only on the same world size."""
    processes_per_instance: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None
    """Ranks per instance; default one per GPU, else 1."""
    in_place_restarts: Annotated[int, Field(strict=True, ge=0, le=30)] = 3
    """How often the launcher restarts its workers on the same instance."""
    hang_timeout_seconds: Annotated[int, Field(strict=True, ge=10)] = 1_800
    checkpoint: CheckpointSpec = CheckpointSpec()
    parallel: ParallelSpec = ParallelSpec()
    nvfp4: Nvfp4Spec = Nvfp4Spec()
    loss_spike: LossSpikeSpec | None = LossSpikeSpec()
    profile_steps: Annotated[list[PositiveInt], Field(max_length=2, min_length=2)] | None = None
    """First and last step of the profile window; none by default."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        findings: list[Finding] = []
        if (self.steps is None) == (self.tokens is None):
            findings.append(
                Finding(
                    id="BTS-008", path="steps", message="give exactly one of steps and tokens", legal="steps or tokens"
                )
            )
        if self.steps is not None and self.warmup_steps > self.steps:
            findings.append(
                Finding(
                    id="BTS-006",
                    path="warmup_steps",
                    message="is longer than the run",
                    given=self.warmup_steps,
                    legal=f"0 to {self.steps}",
                    nearest=self.steps,
                )
            )
        if (
            isinstance(self.micro_batch_size, int)
            and self.global_batch_size is not None
            and self.global_batch_size % self.micro_batch_size
        ):
            nearest = max(1, round(self.global_batch_size / self.micro_batch_size)) * self.micro_batch_size
            findings.append(
                Finding(
                    id="BTS-111",
                    path="global_batch_size",
                    message="must be a multiple of micro_batch_size",
                    given=self.global_batch_size,
                    legal=f"a multiple of {self.micro_batch_size}",
                    nearest=nearest,
                )
            )
        if self.emulate_precision and self.backend == "te":
            findings.append(
                Finding(
                    id="BTS-008",
                    path="emulate_precision",
                    message="needs the torch backend",
                    given=True,
                    legal="backend torch or auto",
                )
            )
        if findings:
            raise FindingsError(findings)
        return self


class CapacityEntry(_Spec):
    """One way to get instances; entries are tried in the order given."""

    kind: CapacityKind
    instance_type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")] = "ml.p6-b200.48xlarge"
    instance_count: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    training_plan_arn: (
        Annotated[
            str,
            Field(
                min_length=50,
                max_length=2_048,
                pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:training-plan/.+$",
            ),
        ]
        | None
    ) = None
    max_runtime_seconds: Annotated[int, Field(strict=True, ge=60, le=MAX_RUNTIME_SECONDS)] = DAY_SECONDS
    """Wall-clock limit of one attempt; SageMaker counts restarts in."""
    max_wait_seconds: Annotated[int, Field(strict=True, ge=60, le=2 * MAX_RUNTIME_SECONDS)] | None = None
    """Spot only: waiting and running together; at least max_runtime_seconds."""
    max_pending_seconds: (
        Annotated[int, Field(strict=True, ge=MAX_PENDING_SECONDS[0], le=MAX_PENDING_SECONDS[1])] | None
    ) = None
    hourly_price: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """US dollars per instance and hour that you pay; replaces the shipped price."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        findings: list[Finding] = []
        if self.kind is CapacityKind.SPOT:
            if self.max_wait_seconds is None or self.max_wait_seconds < self.max_runtime_seconds:
                findings.append(
                    Finding(
                        id="BTS-008",
                        path="max_wait_seconds",
                        message="spot needs max_wait_seconds of at least max_runtime_seconds",
                        given=self.max_wait_seconds,
                        legal=f">= {self.max_runtime_seconds}",
                        nearest=self.max_runtime_seconds,
                    )
                )
        elif self.max_wait_seconds is not None:
            findings.append(
                Finding(
                    id="BTS-008",
                    path="max_wait_seconds",
                    message=f"is for spot only, not for {self.kind}",
                    given=self.max_wait_seconds,
                    legal="leave it out",
                )
            )
        if self.kind is CapacityKind.TRAINING_PLAN:
            if self.training_plan_arn is None:
                findings.append(
                    Finding(
                        id="BTS-008",
                        path="training_plan_arn",
                        message="a training-plan entry needs the ARN of its plan",
                    )
                )
        elif self.training_plan_arn is not None:
            findings.append(
                Finding(
                    id="BTS-008",
                    path="training_plan_arn",
                    message=f"goes with kind training-plan, not with {self.kind}",
                    given=self.training_plan_arn,
                    legal="leave it out, or kind training-plan",
                )
            )
        if findings:
            raise FindingsError(findings)
        return self


class BudgetSpec(_Spec):
    max_cost_usd: Annotated[float, Field(gt=0, le=1e9)]
    """US dollars for all attempts of the run together; prepaid training plans do not count."""


class RemediesSpec(_Spec):
    """What the workflow may do by itself when an attempt ends badly."""

    max_attempts: Annotated[int, Field(strict=True, ge=1, le=20)] = 5
    """Training jobs that one run may create."""
    allow_shorter_sequence: bool = False
    """After out of memory, when nothing else is left and there is no checkpoint yet: half the sequence, twice the batch."""
    allow_data_skip: bool = False
    """After divergence: one retry from an older checkpoint, past the data that was read when it happened."""


def _preset_string(value: Any) -> Any:
    return {"preset": value} if isinstance(value, str) else value


class JobSpec(_Spec):
    """One training run, from its first step to its report."""

    model: Annotated[ModelSpec, BeforeValidator(_preset_string, json_schema_input_type=PresetName | ModelSpec)]
    """A preset's name, or an object."""
    data: DataSpec | None = None
    """Required for workload `lm`."""
    training: TrainingSpec
    capacity: Annotated[list[CapacityEntry], Field(min_length=1, max_length=10)]
    budget: BudgetSpec | None = None
    goal: Goal = Goal.THROUGHPUT
    remedies: RemediesSpec = RemediesSpec()
    resume_from: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    """A run of this stack, or the S3 URI of a checkpoint folder, to go on from."""
    infra_check: bool = True
    """SageMaker's own hardware check before the job; ignored on instances without GPUs."""
    schema_: Annotated[str | None, Field(alias="$schema")] = None
    """Ignored; editors read it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        findings = self.model.lacks(self.training.workload)
        if self.training.workload is Workload.LM and self.data is None:
            findings.append(
                Finding(
                    id="BTS-004",
                    path="data",
                    message="workload lm needs a data channel",
                    legal='{"train": "s3://bucket/prefix/"}',
                )
            )
        if findings:
            raise FindingsError(findings)
        return self

    def shape(self) -> ModelShape:
        """The model's shape as the workload trains it."""
        shape = self.model.shape()
        return shape.layers_workload() if self.training.workload is Workload.LAYERS else shape


def _refuse_constant(text: str) -> float:
    raise FindingsError(
        [Finding(id="BTS-009", message="JSON has no NaN and no Infinity", given=text, legal="a finite number")]
    )


def parse_job_spec(document: object) -> JobSpec:
    """Checks a decoded JSON document.

    Raises:
        FindingsError: with every finding about the shape of the document.
    """
    if not isinstance(document, dict):
        raise FindingsError(
            [
                Finding(
                    id="BTS-001",
                    message="a job spec is a JSON object",
                    given=type(document).__name__,
                    legal="an object: {...}",
                )
            ]
        )
    try:
        return JobSpec.model_validate(document)
    except ValidationError as error:
        raise FindingsError(from_validation_error(error)) from None


def parse_job_spec_text(text: str) -> JobSpec:
    """Checks JSON text.

    Raises:
        FindingsError: for text that is no JSON (with line and column), and as `parse_job_spec`.
    """
    return parse_job_spec(parse_json(text))


def parse_json(text: str) -> Any:
    """The document, of which nothing is dropped or bent: a name given twice, NaN and Infinity are refused.

    Raises:
        FindingsError: BTS-002 with line and column where the text is no JSON; BTS-009.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_name_once)
    except json.JSONDecodeError as error:
        raise FindingsError(
            [Finding(id="BTS-002", message=f"{error.msg} at line {error.lineno} column {error.colno}")]
        ) from None
    except RecursionError:
        raise FindingsError([Finding(id="BTS-002", message="nested too deeply")]) from None


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            message = f"the name {name[:100]!r} stands twice in one object; which of its values is meant?"
            raise FindingsError([Finding(id="BTS-002", message=message, given=value)])
        found[name] = value
    return found


def load_job_spec(path: Path) -> JobSpec:
    """Reads and checks a job spec file.

    Raises:
        FindingsError: as `parse_job_spec_text`; also for bytes that are not UTF-8.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FindingsError([Finding(id="BTS-002", message=f"not UTF-8 at byte {error.start}")]) from None
    return parse_job_spec_text(text)
