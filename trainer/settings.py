"""Settings of one worker: the container's folders, the job's hyperparameters, and every number decided.

The folders are SageMaker's contract under /opt/ml; BLACKWELL_ML_ROOT moves them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blackwell.findings import Finding, FindingsError
from blackwell.model import ModelShape
from blackwell.spec import ActivationCheckpointing, Precision, TrainingSpec, Workload
from blackwell.trainer_config import ENV_ATTEMPT, ENV_ML_ROOT, TrainerConfig, from_hyperparameters

ENV_OVERRIDES = "BLACKWELL_OVERRIDES"
"""JSON of training settings that the launcher changed after an earlier start failed."""
ENV_RESTART = "BLACKWELL_RESTART"
"""How often workers of this run and attempt were started before."""

LARGEST_AUTO_MICRO_BATCH = 8
AUTO_CHECKPOINTS = 10
"""`checkpoint.interval_steps: auto` without a planner: this many checkpoints over the run."""
AUTO_INTERVAL_LIMIT = 1_000
DEFAULT_SEQ_LENGTH = 4_096
TRAIN_CHANNEL = "train"
VALIDATION_CHANNEL = "validation"
MODEL_CHANNEL = "model"
"""A channel with a Hugging Face model to start from."""


@dataclass(frozen=True, slots=True)
class Places:
    """The container's folders."""

    root: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Places:
        return cls(Path(environment.get(ENV_ML_ROOT, "/opt/ml")))

    @property
    def config(self) -> Path:
        return self.root / "input" / "config"

    def channel(self, name: str) -> Path:
        return self.root / "input" / "data" / name

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def output_data(self) -> Path:
        """Uploaded at the end of the job; traces and memory snapshots go here."""
        return self.root / "output" / "data"

    @property
    def failure(self) -> Path:
        return self.root / "output" / "failure"

    def read_config(self, name: str) -> dict[str, Any]:
        """One of input/config/*.json; empty where it is missing."""
        path = self.config / name
        if not path.is_file():
            return {}
        document = json.loads(path.read_text())
        return document if isinstance(document, dict) else {}


def read_config(places: Places, environment: Mapping[str, str] = os.environ) -> TrainerConfig:
    """The job's settings with the launcher's overrides.

    Raises:
        FindingsError: as blackwell.trainer_config.from_hyperparameters; BTS-002 for hyperparameters that are no JSON.
    """
    try:
        raw = places.read_config("hyperparameters.json")
    except ValueError as error:
        raise FindingsError([Finding(id="BTS-002", path="hyperparameters.json", message=str(error))]) from None
    config = from_hyperparameters(raw, environment)
    overrides = json.loads(environment.get(ENV_OVERRIDES) or "{}")
    return with_overrides(config, overrides)


def with_overrides(config: TrainerConfig, overrides: Mapping[str, Any]) -> TrainerConfig:
    """The same settings with some training settings replaced; a key is a dotted path such as `parallel.accumulate`."""
    if not overrides:
        return config
    document = config.training.model_dump()
    for path, value in overrides.items():
        *sections, key = path.split(".")
        target = document
        for section in sections:
            target = target[section]
        target[key] = value
    training = TrainingSpec.model_validate(document)
    return config.model_copy(update={"training": training})


@dataclass(frozen=True, slots=True)
class Job:
    """A job with every number decided for a known number of ranks."""

    config: TrainerConfig
    training: TrainingSpec
    shape: ModelShape
    world_size: int
    micro_batch_size: int
    accumulation: int
    seq_length: int
    steps: int
    checkpoint_interval: int
    attempt: int
    restart: int

    @property
    def run(self) -> str:
        return self.config.run

    @property
    def precision(self) -> Precision:
        return Precision(self.training.precision)

    @property
    def recompute(self) -> ActivationCheckpointing:
        return ActivationCheckpointing(self.training.activation_checkpointing)

    @property
    def is_language_model(self) -> bool:
        return self.training.workload is Workload.LM

    @property
    def document_mask(self) -> bool:
        return self.config.data is not None and self.config.data.document_mask

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation * self.world_size

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.seq_length

    @property
    def model_hash(self) -> str:
        """16 hex digits over the model's shape and workload: checkpoints fit where it is equal."""
        identity = {**asdict(self.shape), "workload": self.training.workload.value}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def decide(config: TrainerConfig, world_size: int, environment: Mapping[str, str] = os.environ) -> Job:
    """Decides what is still `auto` and checks that the batch can be divided over the ranks.

    The planner has decided most of it for jobs that it started; the rules here are for a bare `trainer.launch`.

    Raises:
        FindingsError: BTS-111 for a global batch that is no multiple of micro_batch_size x ranks.
    """
    training = config.training
    shape = config.model.shape()
    if training.workload is Workload.LAYERS:
        shape = shape.layers_workload()
    seq_length = DEFAULT_SEQ_LENGTH if training.seq_length == "auto" else training.seq_length
    micro = _micro_batch(training, world_size)
    per_pass = micro * world_size
    global_batch = training.global_batch_size or per_pass
    if global_batch % per_pass:
        raise FindingsError(
            [
                Finding(
                    id="BTS-111",
                    path="global_batch_size",
                    message=f"must be a multiple of micro_batch_size x ranks = {micro} x {world_size}",
                    given=global_batch,
                    legal=f"a multiple of {per_pass}",
                    nearest=max(1, round(global_batch / per_pass)) * per_pass,
                )
            ]
        )
    steps = training.steps or math.ceil((training.tokens or 0) / (global_batch * seq_length))
    decided = training.model_copy(
        update={
            "precision": Precision.BF16 if training.precision == "auto" else training.precision,
            "micro_batch_size": micro,
            "global_batch_size": global_batch,
            "seq_length": seq_length,
            "steps": steps,
            "activation_checkpointing": ActivationCheckpointing.NONE
            if training.activation_checkpointing == "auto"
            else training.activation_checkpointing,
        }
    )
    wanted = training.checkpoint.interval_steps
    interval = max(1, min(steps // AUTO_CHECKPOINTS, AUTO_INTERVAL_LIMIT)) if wanted == "auto" else wanted
    return Job(
        config=config,
        training=decided,
        shape=shape,
        world_size=world_size,
        micro_batch_size=micro,
        accumulation=global_batch // per_pass,
        seq_length=seq_length,
        steps=steps,
        checkpoint_interval=interval,
        attempt=int(environment.get(ENV_ATTEMPT) or 1),
        restart=int(environment.get(ENV_RESTART) or 0),
    )


def _micro_batch(training: TrainingSpec, world_size: int) -> int:
    if training.micro_batch_size != "auto":
        return training.micro_batch_size
    if training.global_batch_size is None:
        return LARGEST_AUTO_MICRO_BATCH
    per_rank = training.global_batch_size // world_size
    return max((d for d in range(1, LARGEST_AUTO_MICRO_BATCH + 1) if per_rank % d == 0), default=1)
