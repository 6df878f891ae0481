"""Hyperparameters: however they were encoded on their way, the trainer reads the same typed settings or a clear error."""

import json
from pathlib import Path

import pytest

from blackwell.findings import FindingsError
from blackwell.spec import load_job_spec
from blackwell.trainer_config import ENV_RUN, from_hyperparameters, to_hyperparameters

EXAMPLE = Path(__file__).parents[2] / "examples/jobs/tiny-cpu.json"
PLAIN = {
    "precision": "mxfp8",
    "steps": "5",
    "lr": "1e-4",
    "run-name": "2026",
    "tag": "true",
    "compile": "true",
    "seed": "007",
}


def test_a_spec_survives_the_way_through_hyperparameters() -> None:
    spec = load_job_spec(EXAMPLE)
    sent = to_hyperparameters(spec)
    assert all(isinstance(value, str) and len(value) <= 2_500 for value in sent.values())
    assert len(sent) <= 100
    received = from_hyperparameters(sent, {ENV_RUN: "r1"})
    assert received.training == spec.training
    assert received.model == spec.model
    assert received.run == "r1"


@pytest.mark.parametrize(
    "encode",
    [lambda v: v, lambda v: json.dumps(v), lambda v: json.dumps(json.dumps(v))],
    ids=["plain", "quoted", "twice"],
)
def test_plain_quoted_and_twice_encoded_values_read_the_same(encode: object) -> None:
    values = {**PLAIN, "seed": "7"}
    config = from_hyperparameters({key: encode(value) for key, value in values.items()}, {})  # type: ignore[operator]
    assert config.training.precision == "mxfp8"
    assert config.training.learning_rate == 1e-4
    assert config.training.steps == 5
    assert config.training.compile is True
    assert config.training.seed == 7
    assert (config.run, config.tag) == ("2026", "true")


def test_the_published_names_work() -> None:
    config = from_hyperparameters(
        {"precision": "fp8", "num-layers": "10", "batch-size": "8", "seq-length": "2048", "steps": "3"}, {}
    )
    assert config.model.shape().num_hidden_layers == 10
    assert config.training.micro_batch_size == 8
    assert config.training.seq_length == 2048


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(FindingsError) as caught:
        from_hyperparameters({"steps": "five", "precision": "fp7", "no_such": "1", "learning_rate": "-1"}, {})
    said = {(finding.id, finding.path) for finding in caught.value.findings}
    assert {
        ("BTS-005", "steps"),
        ("BTS-007", "precision"),
        ("BTS-003", "no_such"),
        ("BTS-006", "learning_rate"),
    } <= said


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_not_finite_are_refused(value: str) -> None:
    with pytest.raises(FindingsError):
        from_hyperparameters({"steps": "5", "learning_rate": value}, {})


def test_the_sdk_s_own_keys_are_ignored() -> None:
    assert from_hyperparameters({"steps": "5", "sagemaker_program": "train.py"}, {}).training.steps == 5
