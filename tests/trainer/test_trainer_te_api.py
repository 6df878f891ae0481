"""Every call into Transformer Engine against NVIDIA's own Python API, for the oldest and the newest supported version."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from trainer_harness import REPOSITORY

OLDEST, NEWEST = "2.11.0", "2.20.2"
SNAPSHOTS = Path(__file__).parent / "te_api"
pytestmark = pytest.mark.xdist_group("trainer-te")


def run_contract(folder: Path | None = None) -> dict[str, Any]:
    """What te_contract.py says, for the installed version or an unpacked wheel."""
    here = Path(__file__).parent
    result = subprocess.run(
        [sys.executable, str(here / "te_contract.py"), *([str(folder)] if folder else [])],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{here}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, result.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


@pytest.fixture(scope="session")
def newest() -> dict[str, Any]:
    return run_contract()


def signature(parameters: dict[str, list[Any]]) -> inspect.Signature:
    """A signature out of a snapshot's {name: [kind, has default]}."""
    made = [
        inspect.Parameter(name, getattr(inspect.Parameter, kind), default=0 if default else inspect.Parameter.empty)
        for name, (kind, default) in parameters.items()
    ]
    return inspect.Signature(sorted(made, key=lambda p: (p.kind, p.default is not inspect.Parameter.empty)))


def compact(signatures: dict[str, Any]) -> dict[str, Any]:
    return {api: {n: [p["kind"], p["default"]] for n, p in ps.items()} for api, ps in signatures.items()}


def snapshot(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SNAPSHOTS / f"{version}.json").read_text())
    return found


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_call_binds_to_the_signatures_of(version: str, newest: dict[str, Any]) -> None:
    recorded = snapshot(version)
    apis = {name for name, _, _ in newest["calls"]}
    assert apis <= recorded.keys()
    assert {"TransformerLayer", "TransformerLayer.forward", "autocast", "checkpoint", "FusedAdam"} <= apis
    for name, count, keywords in newest["calls"]:
        signature(recorded[name]).bind(*range(count), **dict.fromkeys(keywords))


def test_a_call_that_is_wrong_does_not_bind() -> None:
    with pytest.raises(TypeError):
        signature(snapshot(OLDEST)["autocast"]).bind(fp8_recipe=None)
    with pytest.raises(TypeError):
        signature(snapshot(OLDEST)["TransformerLayer"]).bind(softcap=0.0)  # came later


def test_snapshot_of_the_newest_version_is_the_installed_api(newest: dict[str, Any]) -> None:
    assert newest["version"] == NEWEST
    assert compact(newest["signatures"]) == snapshot(NEWEST)


def check_layers(found: dict[str, Any]) -> None:
    for shape, layer in found["layers"].items():
        assert layer["te"] == layer["torch"], shape
        assert list(layer["te"]) == list(layer["torch"]), "the order of parameters"
        assert layer["interleaved"], "query, key, value rows go by group"
        assert not layer["rotary_interleaved"], "half rotation"
        assert layer["extra_state"], "the state that must stay out of checkpoints"


def test_layers_have_equal_parameter_names_and_shapes_in_both_backends(newest: dict[str, Any]) -> None:
    check_layers(newest)
    assert newest["base_modules_per_layer"] >= 3


@pytest.mark.slow
def test_oldest_version_itself() -> None:
    folder = REPOSITORY / "build" / "te" / OLDEST
    if not (folder / "transformer_engine").is_dir():
        wheels = folder.parent
        download = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "-d",
            str(wheels),
            f"transformer-engine=={OLDEST}",
        ]
        if subprocess.run(download, capture_output=True, timeout=300).returncode:
            pytest.skip(f"transformer-engine=={OLDEST} (0.7 MB) cannot be downloaded here")
        with zipfile.ZipFile(next(wheels.glob(f"transformer_engine-{OLDEST}-*.whl"))) as wheel:
            wheel.extractall(folder)
    found = run_contract(folder)
    assert found["version"] == OLDEST
    assert compact(found["signatures"]) == snapshot(OLDEST)
    check_layers(found)
