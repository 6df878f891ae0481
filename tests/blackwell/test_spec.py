"""The job spec: every kind of mistake is a finding with its path, all at once."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from blackwell.findings import Finding, FindingsError
from blackwell.model import PRESETS
from blackwell.spec import JobSpec, PresetName, load_job_spec, parse_job_spec, parse_job_spec_text

SPEC: dict[str, Any] = {
    "model": "1b",
    "data": {"train": "s3://bucket/data/"},
    "training": {"steps": 10},
    "capacity": [{"kind": "on-demand"}],
}


def refused(document: object) -> list[Finding]:
    with pytest.raises(FindingsError) as error:
        parse_job_spec(document)
    return error.value.findings


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(SPEC)
    *parents, last = path.split(".")
    target: Any = document
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
    target[last] = value
    return document


def test_the_least_spec_is_enough() -> None:
    spec = parse_job_spec(SPEC)
    assert spec.training.global_batch_size is None
    assert spec.capacity[0].instance_type == "ml.p6-b200.48xlarge"


def test_preset_names_are_the_presets() -> None:
    assert set(PresetName.__args__) == set(PRESETS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "value", "identity"),
    [
        ("modle", "1b", "BTS-003"),
        ("training.learning_rat", 1e-4, "BTS-003"),
        ("training.steps", "ten", "BTS-005"),
        ("training.steps", 0, "BTS-006"),
        ("training.steps", -5, "BTS-006"),
        ("training.steps", 10.5, "BTS-005"),
        ("training.micro_batch_size", "many", None),
        ("training.precision", "fp7", "BTS-007"),
        ("training.learning_rate", math.nan, "BTS-009"),
        ("training.learning_rate", math.inf, "BTS-009"),
        ("training.warmup_steps", 11, "BTS-006"),
        ("training.checkpoint.keep", 1, "BTS-006"),
        ("capacity", [], "BTS-006"),
        ("capacity.0.kind", "magic", "BTS-007"),
        ("capacity.0.max_wait_seconds", 100, "BTS-008"),
        ("capacity.0.kind", "spot", "BTS-008"),
        ("capacity.0.kind", "training-plan", "BTS-008"),
        ("capacity.0.hourly_price", 0, "BTS-006"),
        ("data", None, "BTS-004"),
        ("budget.max_cost_usd", -1, "BTS-006"),
        ("model", "9b", "BTS-007"),
        ("model", 7, None),
    ],
)
def test_a_mistake_is_a_finding_at_its_path(path: str, value: Any, identity: str | None) -> None:
    findings = refused(changed(path, value))
    assert identity is None or identity in {f.id for f in findings}
    where = path.removesuffix(".max_wait_seconds").removesuffix(".kind")
    assert any(f.path.startswith(where) for f in findings), [f.line() for f in findings]


def test_no_path_names_a_branch_of_a_union() -> None:
    for finding in refused(changed("training.micro_batch_size", 0)) + refused(
        changed("training.checkpoint.interval_steps", "never")
    ):
        assert finding.path in ("training.micro_batch_size", "training.checkpoint.interval_steps")


def test_a_value_that_may_be_a_number_or_auto_gets_one_finding() -> None:
    for value in (0, -3, "often", 2.5, [1]):
        found = [
            f for f in refused(changed("training.micro_batch_size", value)) if f.path == "training.micro_batch_size"
        ]
        assert len(found) == 1, [f.line() for f in found]
        assert "'auto'" in (found[0].legal or "")


def test_all_mistakes_come_at_once() -> None:
    document = changed("training.steps", 0)
    document["training"]["precision"] = "fp7"
    document["capacity"][0]["kind"] = "magic"
    document["extra"] = 1
    assert {f.path for f in refused(document)} >= {"training.steps", "training.precision", "capacity.0.kind", "extra"}


def test_steps_or_tokens() -> None:
    assert refused(changed("training.tokens", 100))[0].id == "BTS-008"
    assert refused(changed("training.steps", None))[0].id == "BTS-008"


@pytest.mark.parametrize(
    ("model", "path", "nearest"),
    [
        ({"preset": "1b", "num_key_value_heads": 7}, "model.num_key_value_heads", 4),
        ({"preset": "1b", "hidden_size": 2050}, "model.hidden_size", 2048),
        ({"preset": "1b", "num_hidden_layers": 0}, "model.num_hidden_layers", 1),
        ({"preset": "1b", "vocab_size": 0}, "model.vocab_size", 2),
    ],
)
def test_shapes_that_cannot_be_have_a_nearest_legal_value(model: dict[str, Any], path: str, nearest: int) -> None:
    (finding,) = refused(changed("model", model))
    assert (finding.path, finding.nearest) == (path, nearest)


def test_a_shape_without_a_preset_names_every_missing_key() -> None:
    assert {f.path for f in refused(changed("model", {"hidden_size": 64}))} == {
        "model.num_hidden_layers", "model.num_attention_heads", "model.intermediate_size",
    }  # fmt: skip


@pytest.mark.parametrize("document", [[], "text", 3, None, True])
def test_a_spec_is_an_object(document: object) -> None:
    assert refused(document)[0].id == "BTS-001"


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[" * 100_000, '{"a": 1} x', "\x00"])
def test_text_that_is_no_json(text: str) -> None:
    with pytest.raises(FindingsError) as error:
        parse_job_spec_text(text)
    assert error.value.findings[0].id == "BTS-002"


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_json_does_not_have(constant: str) -> None:
    with pytest.raises(FindingsError) as error:
        parse_job_spec_text(json.dumps(SPEC).replace("10", constant))
    assert error.value.findings[0].id == "BTS-009"


def test_a_file_with_a_byte_order_mark_is_read_and_other_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SPEC).encode())
    assert load_job_spec(path) == parse_job_spec(SPEC)
    path.write_bytes(b'{"model": "\xff"}')
    with pytest.raises(FindingsError) as error:
        load_job_spec(path)
    assert error.value.findings[0].id == "BTS-002"


def test_a_spec_survives_its_json() -> None:
    spec = parse_job_spec(SPEC)
    assert JobSpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec
