"""The published schemas of sweep and sweep report: current, described, and what the examples and reports obey."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import synthetic_sweep
from ruamel.yaml import YAML

from blackwell.cli.schema import FILES, text


@pytest.mark.parametrize("name", ["sweep", "sweep-report"])
def test_published_schemas_are_current(repository_root: Path, name: str) -> None:
    published = (repository_root / "docs" / FILES[name]).read_text()
    assert published == text(name), f"run `python -m blackwell schema {name} > docs/{FILES[name]}`"


def test_the_schema_takes_every_example_and_describes_its_keys(repository_root: Path) -> None:
    schema = json.loads(text("sweep"))
    examples = sorted((repository_root / "examples" / "sweeps").iterdir())
    assert len(examples) >= 3
    for path in examples:
        jsonschema.validate(YAML(typ="safe").load(path.read_text()), schema)
    assert "seeds" in schema["properties"]["baseline_repeats"]["description"]


def test_reports_obey_the_schema() -> None:
    jsonschema.validate(json.loads(synthetic_sweep.report().model_dump_json()), json.loads(text("sweep-report")))
