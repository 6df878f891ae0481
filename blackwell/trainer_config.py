"""What the trainer is told: hyperparameters (strings, as SageMaker has them) and a few environment variables.

A hyperparameter's key is the dotted path in the job spec without the leading `training.`; the value is plain text,
JSON, or JSON twice encoded (the SageMaker SDK encodes once more than the API does): all three read the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError, model_validator

from blackwell.findings import Finding, FindingsError, from_validation_error
from blackwell.spec import DataSpec, JobSpec, ModelSpec, TrainingSpec, Workload, _Spec

ALIASES: dict[str, str] = {
    # the published names
    "num-layers": "model.num_hidden_layers",
    "batch-size": "micro_batch_size",
    "seq-length": "seq_length",
    "lr": "learning_rate",
    "num_layers": "model.num_hidden_layers",
    "batch_size": "micro_batch_size",
    "run-name": "run",
    "run_name": "run",
}

ENV_RUN = "BLACKWELL_RUN"
ENV_ATTEMPT = "BLACKWELL_ATTEMPT"
ENV_ML_ROOT = "BLACKWELL_ML_ROOT"
ENV_CONTROL_URI = "BLACKWELL_CONTROL_S3_URI"
"""S3 URI of the run's control file; without it there is none."""
ENV_CHECKPOINT_URI = "BLACKWELL_CHECKPOINT_S3_URI"
"""S3 URI prefix of the run's checkpoints, where durability is checked and transport `s3` writes."""
ENV_RESUME_URI = "BLACKWELL_RESUME_S3_URI"
"""S3 URI prefix of checkpoints of another run to start from when this run has none."""
ENV_PLAN_CONTINUES = "BLACKWELL_PLAN_HAS_LATER_RESERVATION"
"""`1` when the training plan has a later reservation, so the job is interrupted, not ended."""
PLAN_TAKEN_BEFORE_SECONDS = 30 * 60
"""SageMaker begins to terminate a training plan's instances this long before a reservation ends."""
PLAN_LAST_SAVE_SECONDS = 300
"""The trainer makes its last save at least this long before that."""
PLAN_END_MARGIN_SECONDS = PLAN_TAKEN_BEFORE_SECONDS + PLAN_LAST_SAVE_SECONDS
"""No work is done this long before a reservation ends."""

ENV_SKIP_DATA = "BLACKWELL_SKIP_DATA"
"""JSON {"before_step": n, "sequences": m}: resume from a checkpoint before step n and leave out the next m sequences."""


class TrainerConfig(_Spec):
    """The part of a job spec that the trainer needs, every `auto` decided but those that the trainer decides."""

    model: ModelSpec
    training: TrainingSpec
    data: DataSpec | None = None
    run: str = "local"
    tag: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if findings := self.model.lacks(self.training.workload):
            raise FindingsError(findings)
        return self


def to_hyperparameters(spec: JobSpec) -> dict[str, str]:
    """Flattens a spec, defaults included, so that the job itself records all of it. Values are JSON, strings plain."""
    flat: dict[str, Any] = {}
    _flatten("model", spec.model.model_dump(mode="json", exclude_none=True), flat)
    fields = type(spec.training).model_fields
    training = spec.training.model_dump(mode="json")
    # null says something only where it is not the default anyway
    _flatten("", {k: v for k, v in training.items() if v is not None or fields[k].default is not None}, flat)
    if spec.data is not None:
        _flatten("data", {"document_mask": spec.data.document_mask} if spec.data.document_mask else {}, flat)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in sorted(flat.items())}


def _flatten(prefix: str, values: dict[str, Any], into: dict[str, Any]) -> None:
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            _flatten(path, value, into)
        else:
            into[path] = value


def from_hyperparameters(raw: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> TrainerConfig:
    """Typed settings from hyperparameters.json.

    Raises:
        FindingsError: for unknown keys, values of the wrong type and values out of range, all at once.
    """
    tree: dict[str, Any] = {"model": {}, "training": {}, "data": {}}
    for key, value in raw.items():
        path = ALIASES.get(key, key)
        if key.startswith("sagemaker_"):  # the SDK's own keys
            continue
        path = path.replace("-", "_")
        if path in ("run", "tag"):
            tree[path] = _as_text(value)
            continue
        if path == "model":
            tree["model"]["preset"] = _decode(value)
            continue
        section, _, rest = path.partition(".")
        target = tree[section] if section in ("model", "data") and rest else tree["training"]
        keys = (rest if target is not tree["training"] else path).split(".")
        for part in keys[:-1]:
            target = target.setdefault(part, {})
        target[keys[-1]] = _decode(value)
    tree["run"] = environment.get(ENV_RUN) or tree.get("run", "local")
    if not {"preset", "hidden_size"} & tree["model"].keys():
        tree["model"]["preset"] = "1b"  # the published recipe names only the number of layers
    if not tree["data"] and tree["training"].get("workload") == Workload.LAYERS:
        tree.pop("data")
    else:
        tree["data"].setdefault("train", "train")
    try:
        return TrainerConfig.model_validate(tree)
    except ValidationError as error:
        findings = [
            f.model_copy(update={"path": f.path.removeprefix("training.")}) for f in from_validation_error(error)
        ]
        raise FindingsError(findings) from None


def _decode(value: Any) -> Any:
    """Plain, quoted or JSON-encoded text to a value; text that is no JSON stays text."""
    for _ in range(3):
        if not isinstance(value, str):
            return value
        try:
            value = json.loads(value, parse_constant=_not_finite)
        except ValueError:
            lowered = value.strip()
            if lowered in ("True", "False", "None"):
                return {"True": True, "False": False, "None": None}[lowered]
            return value
    return value


def _as_text(value: Any) -> str:
    while isinstance(value, str) and value[:1] == '"':
        try:
            value = json.loads(value)
        except ValueError:
            break
    return str(value) if isinstance(value, str) else json.dumps(value)


def _not_finite(text: str) -> float:
    raise FindingsError([Finding(id="BTS-009", message="a hyperparameter must be a finite number", given=text)])
