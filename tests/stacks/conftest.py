"""Synthesised stacks, each combination of settings once per test run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stack_templates import Template

from stacks.settings import STACK_NAME
from stacks.synth import synthesise


@pytest.fixture(scope="session")
def assembly_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Settings -> cloud assembly; kept for the whole session."""
    made: dict[str, Path] = {}

    def assembly(**settings: Any) -> Path:
        key = json.dumps(settings, sort_keys=True)
        if key not in made:
            made[key] = synthesise(settings, into=tmp_path_factory.mktemp("assembly") / "cdk.out")
        return made[key]

    return assembly


@pytest.fixture(scope="session")
def template_of(assembly_of: Callable[..., Path]) -> Callable[..., Template]:
    """Settings -> the stack's template."""

    def template(**settings: Any) -> Template:
        loaded: Template = json.loads((assembly_of(**settings) / f"{STACK_NAME}.template.json").read_text())
        return loaded

    return template


@pytest.fixture(scope="session")
def template(template_of: Callable[..., Template]) -> Template:
    """The stack as everybody gets it."""
    return template_of()
