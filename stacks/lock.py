"""Writes a hashed lock file from the few packages that are asked for: `python -m stacks.lock lambdas|container`.

`<folder>/requirements.in` holds what is asked for, `<folder>/requirements.txt` every file with its SHA-256, resolved
for the platforms and Pythons that run it. Needs the package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from stacks import asset

HEADER = "# Written by `python -m stacks.lock {folder}` from requirements.in; do not edit.\n"


@dataclass(frozen=True, slots=True)
class _How:
    """For which Pythons a folder's list is resolved, and with which further arguments of pip."""

    pythons: tuple[tuple[int, int], ...]
    arguments: tuple[str, ...]


_HOW = {
    "lambdas": _How((asset.PYTHON,), ("--only-binary=:all:",)),
    # 3.12 and 3.13 are those of the Deep Learning Containers, 3.11 that of the stand-in that `make image-check` builds
    # on; the base image holds the dependencies, PyTorch above all; s3torchconnector is published as source only
    "container": _How(((3, 11), (3, 12), (3, 13)), ("--no-deps",)),
}


def lock(folder: str) -> str:
    """The text of the lock file.

    Raises:
        asset.AssetError: when pip cannot resolve the list.
        ValueError: when two Pythons would get different versions.
    """
    how = _HOW[folder]
    versions: dict[str, str] = {}
    digests: dict[str, set[str]] = {}
    for python in how.pythons:
        for name, version, digest in _resolved(folder, python, how.arguments):
            if versions.setdefault(name, version) != version:
                raise ValueError(f"{name}: {versions[name]} and {version}; pin it in requirements.in")
            digests.setdefault(name, set()).add(digest)
    lines = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(digests[name])) + "\n"
        for name, version in sorted(versions.items())
    ]
    return HEADER.format(folder=folder) + "".join(lines)


def _resolved(folder: str, python: tuple[int, int], arguments: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """(name, version, SHA-256) of every file that pip would install."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report=-",
            *arguments, "--implementation=cp", f"--python-version={python[0]}.{python[1]}",
            f"--abi=cp{python[0]}{python[1]}", "--abi=abi3", "--abi=none",
            *[f"--platform={tag}_x86_64" for tag in asset.PLATFORMS], "--target=/nonexistent",
            f"--requirement={asset.ROOT / folder / 'requirements.in'}",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise asset.AssetError(f"pip could not resolve {folder}/requirements.in: {done.stderr.strip()[-2000:]}")
    return [
        (
            item["metadata"]["name"].lower().replace("_", "-"),
            item["metadata"]["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in json.loads(done.stdout)["install"]
    ]


if __name__ == "__main__":
    text = lock(sys.argv[1])
    (asset.ROOT / sys.argv[1] / "requirements.txt").write_text(text)
    print(text, end="")
