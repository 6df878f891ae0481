"""What goes into the image, and that its tag follows from nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stacks.image_content import content_tag, image_files, stage
from stacks.settings import PUBLISHED_PAIR, BaseImage

ARGUMENTS = {"BASE_TAG": "2.13", "TRANSFORMER_ENGINE": "base"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small checkout."""
    files = {
        "container/Dockerfile": "FROM base\n",
        "container/train.sh": "#!/bin/sh\nexec python\n",
        "container/requirements.in": "x\n",
        "container/README.md": "text\n",
        "trainer/__init__.py": "",
        "trainer/launch.py": "from blackwell import spec\nfrom trainer.tests import helper\n",
        "trainer/tests/helper.py": "import blackwell.unused\n",
        "trainer/__pycache__/launch.pyc": "compiled",
        "blackwell/__init__.py": (
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from blackwell.unused import x\n"
        ),
        "blackwell/spec.py": "from .model import Shape\n",
        "blackwell/model.py": "Shape = 1\n",
        "blackwell/unused.py": "",
        "blackwell/report/__init__.py": "",
        ".git/config": "secret",
    }
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "root"


def test_holds_the_trainer_and_of_the_core_what_it_imports(tree: Path) -> None:
    assert set(image_files(tree)) == {
        "container/Dockerfile", "container/train.sh", "trainer/__init__.py", "trainer/launch.py",
        "blackwell/__init__.py", "blackwell/spec.py", "blackwell/model.py",
    }  # fmt: skip


def test_tag_follows_from_content_and_arguments_only(tree: Path, tmp_path: Path) -> None:
    tag = stage(ARGUMENTS, tree, tmp_path / "a").tag
    moved = shutil.copytree(tree, tmp_path / "elsewhere" / "root")
    (moved / "trainer" / "launch.py").chmod(0o600)
    (moved / "trainer" / "__pycache__" / "more.pyc").write_text("x")
    (moved / "blackwell" / "unused.py").write_text("changed = True\n")
    assert stage(ARGUMENTS, moved, tmp_path / "b").tag == tag
    (moved / "blackwell" / "model.py").write_text("Shape = 2\n")
    assert stage(ARGUMENTS, moved, tmp_path / "c").tag != tag
    assert stage({**ARGUMENTS, "TRANSFORMER_ENGINE": "2.11.0"}, tree, tmp_path / "d").tag != tag
    assert re.fullmatch(r"[0-9a-f]{32}", tag), "legal as a tag of ECR"


def test_windows_line_endings_and_file_modes_change_nothing(tree: Path, tmp_path: Path) -> None:
    before = stage(ARGUMENTS, tree, tmp_path / "a")
    script = tree / "container" / "train.sh"
    script.write_bytes(script.read_bytes().replace(b"\n", b"\r\n"))
    script.chmod(0o644)
    after = stage(ARGUMENTS, tree, tmp_path / "b")
    assert after.tag == before.tag
    staged = after.path / "container" / "train.sh"
    assert b"\r" not in staged.read_bytes()
    assert staged.stat().st_mode & 0o777 == 0o755


def test_renamed_file_changes_the_tag(tree: Path) -> None:
    files = image_files(tree)
    renamed = {("trainer/renamed.py" if n == "trainer/launch.py" else n): f for n, f in files.items()}
    assert content_tag(renamed, ARGUMENTS) != content_tag(files, ARGUMENTS)


def test_no_secret_no_test_no_history_in_the_real_context(repository_root: Path) -> None:
    names = image_files(repository_root)
    assert "trainer/launch.py" in names
    assert {"container/Dockerfile", "container/build.sh", "container/selftest.py", "container/buildspec.yml"} <= set(
        names
    )
    for name, file in names.items():
        assert name.split("/")[0] in ("container", "trainer", "blackwell")
        assert "test_" not in file.name
        assert not re.search(rb"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY", file.read_bytes()), name
    for heavy in ("blackwell/report/__init__.py", "blackwell/client.py", "blackwell/cli/__init__.py"):
        assert heavy not in names, "not imported by the trainer"


def test_dockerfile(repository_root: Path) -> None:
    text = (repository_root / "container" / "Dockerfile").read_text()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    newest = BaseImage()
    assert arguments["BASE_REPOSITORY"] == newest.repository
    assert arguments["BASE_TAG"] == newest.tag
    assert arguments["TRANSFORMER_ENGINE"] == newest.transformer_engine
    assert re.search(r'^ENTRYPOINT \["/bin/sh", "/opt/app/container/train.sh"\]$', text, re.MULTILINE), "exec form"
    script = (repository_root / "container" / "train.sh").read_text()
    assert "exec python -m trainer.launch" in script
    # packages are installed before our code is copied: a change of code does not install them again
    assert text.index("RUN bash container/install.sh") < text.index("COPY trainer")
    assert "/opt/ml" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def test_published_pair_is_the_published_pair() -> None:
    assert "2.9.0" in PUBLISHED_PAIR.tag
    assert "py312" in PUBLISHED_PAIR.tag
    assert "cu130" in PUBLISHED_PAIR.tag
    assert PUBLISHED_PAIR.transformer_engine == "2.11.0"


def test_container_requirements_are_pinned_with_hashes(repository_root: Path) -> None:
    text = (repository_root / "container" / "requirements.txt").read_text()
    pins = re.findall(r"^([a-z0-9-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", text, re.MULTILINE)
    assert len(pins) == text.count("==") > 5
    asked = re.findall(
        r"^([a-z0-9-]+)==(\S+)$", (repository_root / "container" / "requirements.in").read_text(), re.MULTILINE
    )
    assert sorted(pins) == sorted(asked)
    ours = dict(
        re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", (repository_root / "requirements.txt").read_text(), re.MULTILINE)
    )
    ours = {name.lower().replace("_", "-"): version for name, version in ours.items()}
    assert dict(pins) == {n: ours[n] for n, _ in pins}, "what is tested is what runs"
