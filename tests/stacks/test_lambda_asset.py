"""The deployed Lambda asset: what is locked, for the functions' own platform and Python, and importable by itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from stacks import asset

HANDLERS = sorted(path.parent.name for path in (asset.ROOT / "lambdas").glob("*/handler.py"))


@pytest.fixture(scope="module")
def staged() -> Path:
    return asset.stage().path


def test_holds_exactly_the_locked_distributions(staged: Path) -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", asset.REQUIREMENTS.read_text(), re.MULTILINE))
    installed = {}
    for metadata in staged.glob("*.dist-info/METADATA"):
        text = metadata.read_text(encoding="utf-8", errors="replace")
        name = re.search(r"^Name: (\S+)", text, re.MULTILINE)
        version = re.search(r"^Version: (\S+)", text, re.MULTILINE)
        assert name is not None
        assert version is not None
        installed[re.sub(r"[-_.]+", "-", name[1]).lower()] = version[1]
    assert installed == locked


def test_lock_names_a_hash_for_every_distribution() -> None:
    text = asset.REQUIREMENTS.read_text()
    assert len(re.findall(r"==", text)) == len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", text)) > 5


def test_every_extension_is_built_for_the_function(staged: Path) -> None:
    """Whatever machine built it: the ABI in each name, the platform in each wheel's tags, the architecture in the ELF."""
    extensions = list(staged.rglob("*.so"))
    assert extensions, "pydantic_core is compiled"
    abi = f"cpython-{asset.PYTHON[0]}{asset.PYTHON[1]}-{asset.ARCHITECTURE}-linux-gnu"
    for extension in extensions:
        assert abi in extension.name or ".abi3." in extension.name
        header = extension.read_bytes()[:20]
        assert header[:4] == b"\x7fELF"
        assert header[18:20] == b"\x3e\x00"  # EM_X86_64
    legal = {"any", *(f"{platform}_{asset.ARCHITECTURE}" for platform in asset.PLATFORMS)}
    for wheel in staged.glob("*.dist-info/WHEEL"):
        for tag in re.findall(r"^Tag: (\S+)", wheel.read_text(), re.MULTILINE):
            python, abi_tag, platform = tag.split("-")
            assert python in ("py3", "py2.py3", "py2", f"cp{asset.PYTHON[0]}{asset.PYTHON[1]}", "cp36", "cp39"), tag
            assert abi_tag in ("none", "abi3", f"cp{asset.PYTHON[0]}{asset.PYTHON[1]}"), tag
            assert set(platform.split(".")) & legal, tag


def test_names_no_path_of_the_building_machine(staged: Path) -> None:
    assert not (staged / "bin").exists()
    for record in staged.glob("*.dist-info/RECORD"):
        for line in record.read_text().splitlines():
            assert (staged / line.split(",")[0].strip('"')).exists(), line


def test_fits_into_a_function(staged: Path) -> None:
    """AWS: 250 MB unzipped; and what is uploaded at each change should stay small."""
    size = sum(f.stat().st_size for f in staged.rglob("*") if f.is_file())
    assert size < 60e6


def test_our_code_is_in_it_and_nothing_else_of_ours(staged: Path) -> None:
    for name in HANDLERS:
        assert (staged / "lambdas" / name / "handler.py").exists()
    ours = {"lambdas", "blackwell"}
    assert ours <= {p.name for p in staged.iterdir()}
    for foreign in ("stacks", "local", "trainer", "tests", "app.py"):
        assert not (staged / foreign).exists()
    assert not list(staged.rglob("__pycache__"))


def test_same_sources_same_digest_and_a_changed_one_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in asset.OWN_CODE:
        (code / name).mkdir(parents=True)
        (code / name / "one.py").write_text("x = 1\n")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / asset.STAMP).write_text(asset.lock_digest())
    monkeypatch.setattr(asset, "ROOT", code)
    monkeypatch.setattr(asset, "WHEELS", wheels)
    monkeypatch.setattr(asset, "ASSETS", tmp_path / "staged")
    first = asset.stage()
    assert asset.stage() == first
    (code / "lambdas" / "__pycache__").mkdir()
    (code / "lambdas" / "__pycache__" / "one.pyc").write_text("compiled")
    assert asset.stage() == first
    (code / "lambdas" / "one.py").write_text("x = 2\n")
    second = asset.stage()
    assert second.digest != first.digest
    assert (second.path / "lambdas" / "one.py").read_text() == "x = 2\n"
    assert {f.stat().st_mode & 0o777 for f in second.path.rglob("*.py")} == {0o644}


@pytest.mark.skipif(
    shutil.which(f"python{asset.PYTHON[0]}.{asset.PYTHON[1]}") is None,
    reason=f"needs a python{asset.PYTHON[0]}.{asset.PYTHON[1]} of the functions' own version",
)
def test_every_handler_imports_from_the_asset_alone(staged: Path, tmp_path: Path) -> None:
    archive = tmp_path / "asset.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        for file in staged.rglob("*"):
            bundle.write(file, file.relative_to(staged))
    unzipped = tmp_path / "unzipped"
    with zipfile.ZipFile(archive) as bundle:
        bundle.extractall(unzipped)
    python = shutil.which(f"python{asset.PYTHON[0]}.{asset.PYTHON[1]}")
    assert python is not None
    imports = "; ".join(f"import lambdas.{name}.handler" for name in HANDLERS)
    done = subprocess.run(
        [python, "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(unzipped)!r}); {imports}; import boto3; "
         f"assert boto3.__file__.startswith({str(unzipped)!r})"],
        capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin", "AWS_REGION": "us-east-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
