"""The list of what is in an image."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def test_names_every_distribution_and_package_and_is_the_same_twice(repository_root: Path) -> None:
    def run() -> str:
        command = [sys.executable, str(repository_root / "container" / "sbom.py")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = run()
    assert text == run()
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    urls = {c["purl"] for c in document["components"]}
    assert f"pkg:pypi/pydantic@{metadata.version('pydantic')}" in urls
    assert len(urls) == len(document["components"])
