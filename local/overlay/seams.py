"""The places in ministack that the overlay replaces, each pinned by a digest of its source.

A new ministack release may move or mend any of them. `Seams.take` compares what is installed with what the overlay was
written against (`seams.json`); `Seams.check` refuses to start with every difference at once. After a look at the new
source, `python -m local.overlay.seams --accept` writes the digests as they are now.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MINISTACK_VERSION = "1.5.33"
DIGESTS = Path(__file__).with_name("seams.json")


class SeamError(RuntimeError):
    """ministack is not the one that the overlay mends; the message lists every seam that differs."""


def digest(target: Any) -> str:
    """First 10 hexadecimal digits of the SHA-256 of a function's or class's source, or of a constant's repr."""
    text = inspect.getsource(target) if callable(target) else repr(target)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class Seams:
    """Collects the seams taken while the overlay installs itself."""

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}
        self._expected: dict[str, str] = json.loads(DIGESTS.read_text())
        self._wrong: list[str] = []

    def take(self, module: ModuleType | type, name: str) -> Any:
        """The attribute as ministack wrote it, to be wrapped or replaced; a difference is kept for `check`."""
        place = f"{module.__name__}.{name}"
        if not hasattr(module, name):
            self._wrong.append(f"{place}: missing")
            return None
        target = getattr(module, name)
        found = digest(target)
        self.taken[place] = found
        if found != self._expected.get(place):
            self._wrong.append(f"{place}: its source is not the one the overlay was written against")
        return target

    def check(self) -> None:
        """Raise `SeamError` when ministack's version or any seam differs."""
        version = importlib.metadata.version("ministack")
        wrong = list(self._wrong)
        if version != MINISTACK_VERSION:
            wrong.insert(0, f"ministack {version} is installed, requirements.txt pins {MINISTACK_VERSION}")
        if wrong:
            raise SeamError(
                "the embedded AWS cannot start, ministack differs from the one it mends:\n  "
                + "\n  ".join(wrong)
                + f"\ninstall ministack=={MINISTACK_VERSION} (pip install -r requirements.txt)"
            )


def main() -> int:
    """Say whether the overlay still fits; with `--accept` take the seams as they are now."""
    from local.overlay import install
    from local.overlay.context import OverlayContext

    seams = Seams()
    install.install_overlay(OverlayContext(Path(), ""), seams)
    if "--accept" in sys.argv:
        DIGESTS.write_text(json.dumps(dict(sorted(seams.taken.items())), indent=1) + "\n")
        print(f"{len(seams.taken)} seams written to {DIGESTS.name}")
        return 0
    try:
        seams.check()
    except SeamError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"all {len(seams.taken)} seams are as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
