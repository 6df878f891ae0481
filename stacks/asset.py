"""The one Lambda asset: lambdas/ + blackwell/ + the locked wheels for the functions' own platform and Python.

`python -m stacks.asset` installs the wheels (needs the package index); a synthesis only adds our code to them, offline,
and refuses missing or stale ones. Every file's content and mode is fixed, so the same sources give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "lambdas" / "requirements.txt"
WHEELS = ROOT / "build" / "lambda-wheels"
ASSETS = ROOT / "build" / "lambda"
STAMP = "requirements.sha256"
"""File in WHEELS with the digest of what it was built from."""

PYTHON = (3, 14)
"""The newest runtime of Lambda that aws-cdk-lib knows; cdk-nag refuses any other."""
ARCHITECTURE = "x86_64"
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
"""Tags that Amazon Linux 2023 (glibc 2.34) runs."""

FORMAT = 2
"""To be raised when this module puts the wheels together in another way."""
OWN_CODE = ("lambdas", "blackwell")
_SKIP = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyi", "requirements.*", ".mypy_cache", "tests")


class AssetError(RuntimeError):
    """The asset is missing or does not belong to the lock file; the message says what to run."""


def pip_arguments(target: Path) -> list[str]:
    """pip's arguments: wheels only, for the functions' platform, whatever machine builds."""
    tags = [f"--platform={tag}_{ARCHITECTURE}" for tag in PLATFORMS]
    return [
        "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--require-hashes",
        "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON[0]}.{PYTHON[1]}",
        f"--abi=cp{PYTHON[0]}{PYTHON[1]}", "--abi=abi3", "--abi=none", *tags,
        f"--target={target}", f"--requirement={REQUIREMENTS}",
    ]  # fmt: skip


def lock_digest() -> str:
    """SHA-256 of all that decides which wheels are installed: the lock file, Python, platform."""
    what = f"{FORMAT}|{PYTHON}|{ARCHITECTURE}|{PLATFORMS}|".encode()
    return hashlib.sha256(what + REQUIREMENTS.read_bytes()).hexdigest()


def build_wheels() -> Path:
    """Installs the wheels into WHEELS, if they are not there already.

    Raises:
        AssetError: when pip fails.
    """
    stamp = WHEELS / STAMP
    if stamp.exists() and stamp.read_text() == lock_digest():
        return WHEELS
    WHEELS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WHEELS.parent) as fresh:
        target = Path(fresh) / "wheels"
        done = subprocess.run([sys.executable, "-m", "pip", *pip_arguments(target)], capture_output=True, text=True)
        if done.returncode:
            raise AssetError(f"pip could not install lambdas/requirements.txt: {done.stderr.strip()[-2000:]}")
        _drop_unused(target)
        (target / STAMP).write_text(lock_digest())
        shutil.rmtree(WHEELS, ignore_errors=True)
        target.rename(WHEELS)
    return WHEELS


def _drop_unused(target: Path) -> None:
    """Drops what carries the building machine's paths and is not used in a function; RECORD then lists what is left."""
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in ("INSTALLER", "REQUESTED", "direct_url.json"):
        for file in target.glob(f"*.dist-info/{name}"):
            file.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in sorted(lines) if (target / line.split(",")[0].strip('"')).exists()))


@dataclass(frozen=True, slots=True)
class Staged:
    """The asset's folder and the digest of its content."""

    path: Path
    digest: str


def stage() -> Staged:
    """Puts wheels and our own code together in build/lambda/<digest>; offline. The synthesis calls it.

    Raises:
        AssetError: when the wheels are missing or older than the lock file.
    """
    stamp = WHEELS / STAMP
    if not stamp.exists():
        raise AssetError(
            "the Lambda asset is missing: run `make setup` (or `python -m stacks.asset`) once, with network"
        )
    if stamp.read_text() != lock_digest():
        raise AssetError("the Lambda asset is older than lambdas/requirements.txt: run `python -m stacks.asset`")
    digest = _content_digest()
    staged = Staged(ASSETS / digest, digest)
    if staged.path.exists():
        return staged
    ASSETS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ASSETS.parent) as fresh:
        target = Path(fresh) / "asset"
        shutil.copytree(WHEELS, target, ignore=shutil.ignore_patterns(STAMP))
        for name in OWN_CODE:
            shutil.copytree(ROOT / name, target / name, ignore=_SKIP)
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
        with contextlib.suppress(OSError):  # another process was faster; the content is the same
            target.rename(staged.path)
    return staged


def _content_digest() -> str:
    """SHA-256, shortened, over wheels' lock and every file of ours, by name and content."""
    digest = hashlib.sha256(lock_digest().encode())
    for name in OWN_CODE:
        for directory, folders, files in os.walk(ROOT / name):
            folders[:] = sorted(set(folders) - _SKIP(str(directory), folders))
            for file in sorted(set(files) - _SKIP(str(directory), files)):
                path = Path(directory) / file
                digest.update(f"{path.relative_to(ROOT)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def main() -> int:
    try:
        build_wheels()
        path = stage().path
    except AssetError as error:
        print(f"asset: {error}", file=sys.stderr)
        return 1
    for old in ASSETS.iterdir():
        if old != path:
            shutil.rmtree(old, ignore_errors=True)
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    print(f"asset: {path.relative_to(ROOT)} ({size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
