"""The fault language: every kind has an example, the published schema is the one in force, mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from local.faults import in_process, model
from local.faults.__main__ import SCHEMA, main
from local.faults.engine import FaultEngine

EXAMPLES = Path(model.__file__).with_name("examples")
KINDS = {cls.model_fields["kind"].annotation.__args__[0] for cls in get_args(get_args(model.Fault)[0])}


def test_published_schema_is_in_force() -> None:
    assert json.loads(SCHEMA.read_text()) == model.json_schema(), "python -m local.faults writes it anew"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_a_valid_example(kind: str) -> None:
    data = json.loads((EXAMPLES / f"{kind}.json").read_text())
    jsonschema.validate(data, model.json_schema())
    assert kind in [fault.kind for fault in model.parse_faults(data)]


def test_every_kind_is_documented(repository_root: Path) -> None:
    page = (repository_root / "docs" / "faults.md").read_text()
    assert not [kind for kind in KINDS if f"`{kind}`" not in page]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "interuption"}, "interuption"),
        ({"kind": "interruption", "step": 1, "second": 2}, "not both"),
        ({"kind": "interruption", "notice_seconds": 121}, "120"),
        ({"kind": "nan", "stp": 1}, "stp"),
        ({"kind": "api_error", "operation": "X"}, "code"),
    ],
)
def test_mistakes_are_named(fault: dict[str, Any], message: str, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ValueError, match=message):
        model.parse_faults([fault])
    with pytest.raises(jsonschema.ValidationError) if message != "not both" else pytest.raises(ValueError):
        jsonschema.validate([fault], model.json_schema())
        model.parse_faults([fault])
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([fault]))
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


def test_attempt_and_job_select(tmp_path: Path) -> None:
    engine = FaultEngine(tmp_path)
    engine.arm([{"kind": "interruption", "attempt": 2}, {"kind": "kill", "job": "*-mine-a*", "step": 5}])
    assert engine.due("p-mine-a1", 4, 0.0, set()) == []
    assert [f.kind for f in engine.due("p-mine-a1", 5, 0.0, set())] == ["kill"]
    assert engine.due("p-mine-a1", 6, 0.0, set()) == []
    assert [f.kind for f in engine.due("p-other-a2", 0, 0.0, set())] == ["interruption"]
    assert [row["happened"] for row in engine.journal()["faults"]] == [1, 1]


def test_a_fault_with_times_happens_once_to_each_start(tmp_path: Path) -> None:
    engine = FaultEngine(tmp_path)
    engine.arm([{"kind": "host_lost", "step": 3, "times": 2}])
    counts = []
    for _ in range(3):
        start: set[int] = set()
        counts.append(sum(len(engine.due("job-a1", step, 0.0, start)) for step in range(6)))
    assert counts == [1, 1, 0]


def test_calls_are_counted_by_operation(tmp_path: Path) -> None:
    engine = FaultEngine(tmp_path)
    engine.arm([{"kind": "api_error", "operation": "CreateTrainingJob", "nth": 2, "times": 2, "code": "Throttling"}])
    answers = []
    for _ in range(5):
        engine.api_failure("sagemaker", "DescribeTrainingJob", after_effect=False)
        answers.append(engine.api_failure("sagemaker", "CreateTrainingJob", after_effect=False))
    assert [answer is not None for answer in answers] == [False, True, True, False, False]


def test_trainer_is_told_in_its_own_terms(tmp_path: Path) -> None:
    engine = FaultEngine(tmp_path)
    assert engine.trainer_environment("job-a1") == {}
    engine.arm(
        [
            {"kind": "out_of_memory", "step": 3, "size_bytes": 5, "until_micro_batch_size": 2},
            {"kind": "nan", "step": 4, "attempt": 2},
            {"kind": "loss_spike", "step": 4, "value": 9},
        ]
    )
    told = json.loads(engine.trainer_environment("job-a1")[in_process.ENV_TEST_FAULTS])
    assert [(t["kind"], t["step"]) for t in told] == [("out_of_memory", 3), ("loss", 4)]
    assert (told[0]["bytes"], told[0]["until_micro_batch"]) == (5, 2)
    Path(told[1]["marker"]).parent.mkdir(exist_ok=True)
    Path(told[1]["marker"]).touch()
    assert [row["happened"] for row in engine.journal()["faults"]] == [0, 0, 1]
