"""Spec files in JSON and YAML: the same document, and findings that name line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackwell import cli
from blackwell.findings import FindingsError
from blackwell.spec import load_job_spec
from blackwell.spec_file import load_job_file, load_spec_file

YAML = """\
# a comment
model: 1b
data:
  train: datasets/corpus/
training:
  precision: mxfp8   # the format
  steps: 100
  learning_rate: 3e-4
capacity:
  - kind: spot
    max_runtime_seconds: 3600
    max_wait_seconds: 7200
  - {kind: on-demand, max_runtime_seconds: 3600}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def findings(path: Path) -> list[str]:
    with pytest.raises(FindingsError) as refused:
        load_job_file(path)
    return [finding.line() for finding in refused.value.findings]


def test_yaml_and_json_are_the_same_job(tmp_path: Path) -> None:
    job = load_job_file(write(tmp_path, "job.yaml", YAML))
    again = write(tmp_path, "job.json", json.dumps(job.model_dump(mode="json", by_alias=True)))
    assert load_job_file(again) == job
    assert load_job_spec(again) == job
    assert job.training.learning_rate == 3e-4


def test_every_finding_has_its_line_and_column(tmp_path: Path) -> None:
    text = YAML.replace("steps: 100", "steps: 0").replace("kind: spot", "kind: spott").replace("  train:", "  trane:")
    found = findings(write(tmp_path, "job.yaml", text))
    assert any("training.steps" in line and "(line 7, column 3)" in line for line in found), found
    assert any("capacity.0.kind" in line and "(line 10, column 5)" in line for line in found), found
    assert any("BTS-003" in line and "(line 4, column 3)" in line for line in found), found
    # what is missing is shown where it belongs
    assert any("BTS-004" in line and "data.train" in line and "(line 3, column 1)" in line for line in found), found


def test_json_too(tmp_path: Path) -> None:
    text = '{\n  "model": "1b",\n  "training": {"steps": 5, "precision": "fp7"},\n  "capacity": []\n}\n'
    found = findings(write(tmp_path, "job.json", text))
    assert any("training.precision" in line and "(line 3, column 28)" in line for line in found), found
    # JSON may be indented with tabs, YAML may not: then there are no line numbers, but all findings
    assert len(findings(write(tmp_path, "tabs.json", text.replace("  ", "\t")))) == len(found)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "model: 1b\n  training: {", "BTS-002 error: no YAML: .* at line 2 column"),
        ("a.yaml", "a: 1\na: 2\n", "BTS-002 error: no YAML"),
        ("a.yml", "a: !!python/object/apply:os.system [ls]\n", "BTS-002 error: no YAML"),
        ("a.yaml", "", "BTS-001"),
        ("a.yaml", "just text", "BTS-001"),
        ("a.json", '{"model": }', "BTS-002 error: .* at line 1 column 11"),
        ("a.json", '{"model": NaN}', "BTS-009"),
        ("a.json", '{"training": {"steps": 1, "steps": 2}}', "BTS-002 error: the name 'steps' stands twice"),
        ("a.json", "[" * 100_000, "BTS-002"),
    ],
)
def test_what_is_no_document_says_where(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(FindingsError, match=says):
        load_job_file(write(tmp_path, name, text))


@given(text=st.text(max_size=200))
def test_any_text_is_a_document_or_findings(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    for name in ("job.yaml", "job.json"):
        path = tmp_path_factory.getbasetemp() / f"any-{name}"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FindingsError):
            load_job_file(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"model: \xff")
    with pytest.raises(FindingsError, match="not UTF-8 at byte 7"):
        load_spec_file(path, lambda document: document)


def test_the_command_line_takes_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path, "job.yaml", YAML)
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", str(good)])
    assert ended.value.code == 0
    bad = write(tmp_path, "bad.yaml", YAML.replace("steps: 100", "stebs: 100"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", str(bad)])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "(line 7, column 3)" in said.err + said.out
