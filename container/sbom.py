"""Prints what is in this image as a CycloneDX 1.6 document: Python distributions and the system's packages.

Runs inside the image: `docker run --entrypoint python IMAGE container/sbom.py`. Sorted and without a time, so that the
same image gives the same document.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from typing import Any

SYSTEM_PACKAGES = {
    "rpm": ["rpm", "-qa", "--queryformat", "%{NAME}\t%{VERSION}-%{RELEASE}\n"],
    "deb": ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\n"],
}
"""Kind of package, as package URLs name it -> the command that lists them."""


def python_components() -> list[dict[str, Any]]:
    """Every installed Python distribution."""
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            plain = re.sub(r"[-_.]+", "-", name).lower()
            found[plain] = _component("pypi", plain, distribution.version)
    return [found[name] for name in sorted(found)]


def system_components() -> list[dict[str, Any]]:
    """Every package of the first package manager that is here; none where there is none."""
    for kind, command in SYSTEM_PACKAGES.items():
        try:
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        rows = sorted({tuple(line.split("\t", 1)) for line in listed.splitlines() if "\t" in line})
        return [_component(kind, name, version) for name, version in rows]
    return []


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:{kind}/{name}@{version}"}


def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [*python_components(), *system_components()],
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    print()
