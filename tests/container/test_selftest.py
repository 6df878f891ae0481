"""The image's self-test: what it finds, and that a broken image fails it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def selftest(repository_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("selftest", repository_root / "container" / "selftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_failure_does_not_hide_the_others(selftest: ModuleType) -> None:
    def check_good() -> str:
        return "fine"

    def check_bad() -> str:
        raise OSError("libcudart.so.12: cannot open shared object file")

    def check_elsewhere() -> str:
        raise selftest.NotMadeError("no GPU here")

    def check_exits() -> str:
        raise SystemExit(3)

    results = list(selftest.run((check_bad, check_exits, check_elsewhere, check_good)))
    assert [state for _, state, _ in results] == ["failed", "failed", "not made", "ok"]
    assert "libcudart.so.12" in results[0][2]


def test_broken_flash_attention_fails(selftest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the base image of the published pair: installed, and linked against a library that is not there."""
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')\n"
    )
    (tmp_path / "flash_attn-2.8.3.dist-info").mkdir()
    (tmp_path / "flash_attn-2.8.3.dist-info" / "METADATA").write_text("Name: flash-attn\nVersion: 2.8.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    ((_, state, found),) = selftest.run((selftest.check_flash_attention,))
    assert state == "failed"
    assert "libcudart.so.12" in found
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)


def test_cpu_build_of_torch_is_refused_unless_asked_for(selftest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "has_cuda_build", lambda: False)
    monkeypatch.delenv(selftest.CPU_BUILD, raising=False)
    with pytest.raises(AssertionError, match="CPU build"):
        selftest.check_torch()
    monkeypatch.setenv(selftest.CPU_BUILD, "1")
    assert "torch" in selftest.check_torch()


def test_package_that_is_not_as_locked_is_named(
    selftest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "requirements.txt").write_text(
        "pydantic==1.0.0 \\\n    --hash=sha256:00\nnot-there==1.0\n"
    )
    monkeypatch.setattr(selftest, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"pydantic .*, locked 1\.0\.0; not-there missing"):
        selftest.check_requirements()


def test_launcher_that_ignores_sigterm_fails(
    selftest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "train.sh").write_text(
        "trap '' TERM\necho '[rank 0] loss 1.0 tokens_per_second 1.0 step 1 run x {}'\nsleep 30\n"
    )
    monkeypatch.setattr(selftest, "ROOT", tmp_path)
    monkeypatch.setattr(selftest, "STOP_SECONDS", 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        selftest.check_stop()


def test_launcher_that_saves_nothing_fails(
    selftest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "container").mkdir()
    (tmp_path / "container" / "train.sh").write_text(
        "echo '[rank 0] loss 1.0 tokens_per_second 1.0 step 1 run x {}'\nexec sleep 30\n"
    )
    monkeypatch.setattr(selftest, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="0 checkpoints"):
        selftest.check_stop()


@pytest.mark.slow
def test_the_whole_self_test_passes_here(repository_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "container/selftest.py"], cwd=repository_root, capture_output=True, text=True,
        env={**os.environ, "BLACKWELL_SELFTEST_CPU": "1"}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "selftest: stop: ok" in done.stdout
