"""Writes a hashed lock file from the few packages that are asked for: `python -m stacks.lock lambdas|container`.

`<folder>/requirements.in` holds what is asked for, `<folder>/requirements.txt` every file with its SHA-256,
resolved for the platform that runs it. Needs the package index.
"""

from __future__ import annotations

import json
import subprocess
import sys

from stacks import asset

HEADER = "# Written by `python -m stacks.lock {folder}` from requirements.in; do not edit.\n"
CONTAINER_PYTHON = (3, 12)
"""Of both base images (stacks/settings.py)."""

_HOW = {
    "lambdas": ("--only-binary=:all:",),
    # the base image holds the rest, PyTorch above all; s3torchconnector is published as source only
    "container": ("--no-deps",),
}


def lock(folder: str) -> str:
    """The text of the lock file.

    Raises:
        asset.AssetError: when pip cannot resolve the list.
    """
    python = {"lambdas": asset.PYTHON, "container": CONTAINER_PYTHON}[folder]
    version = f"{python[0]}{python[1]}"
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report=-",
            "--implementation=cp", f"--python-version={python[0]}.{python[1]}",
            *_HOW[folder], f"--abi=cp{version}", "--abi=abi3", "--abi=none",
            *[f"--platform={tag}_x86_64" for tag in asset.PLATFORMS], "--target=/nonexistent",
            f"--requirement={asset.ROOT / folder / 'requirements.in'}",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise asset.AssetError(f"pip could not resolve {folder}/requirements.in: {done.stderr.strip()[-2000:]}")
    wheels = {
        item["metadata"]["name"].lower().replace("_", "-"): (
            item["metadata"]["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in json.loads(done.stdout)["install"]
    }
    lines = [
        f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for name, (version, digest) in sorted(wheels.items())
    ]
    return HEADER.format(folder=folder) + "".join(lines)


if __name__ == "__main__":
    text = lock(sys.argv[1])
    (asset.ROOT / sys.argv[1] / "requirements.txt").write_text(text)
    print(text, end="")
