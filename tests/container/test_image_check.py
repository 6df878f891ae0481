"""The Dockerfile with a real builder; `make image-check` does the same by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("buildah") is None or shutil.which("debootstrap") is None,
        reason="needs root, buildah and debootstrap",
    ),
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the stand-in base has Debian 12's Python 3.11"),
]


def test_dockerfile_builds_proves_itself_and_a_broken_image_does_not(repository_root: Path) -> None:
    done = subprocess.run(
        ["bash", "tests/container/image_check.sh"], cwd=repository_root, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert done.stdout.rstrip().endswith("image-check: ok")
