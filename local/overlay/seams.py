"""The places in ministack that the overlay replaces, each pinned by a digest of its source.

A new ministack release may move or mend any of them. `Seams.take` compares what is installed with what the overlay was
written against; `Seams.check` refuses to start with every difference at once. After a look at the new source,
`python -m local.overlay.seams` prints the digests as they are now.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import sys
from types import ModuleType
from typing import Any

MINISTACK_VERSION = "1.5.33"


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
        self._wrong: list[str] = []

    def take(self, module: ModuleType | type, name: str, expected: str) -> Any:
        """The attribute as ministack wrote it, to be wrapped or replaced; a difference is kept for `check`."""
        place = f"{module.__name__}.{name}"
        target = getattr(module, name, None)
        if target is None:
            self._wrong.append(f"{place}: missing")
            return None
        found = digest(target)
        self.taken[place] = found
        if found != expected:
            self._wrong.append(f"{place}: source digest {found}, the overlay was written against {expected}")
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
    """Print every seam's digest as installed; the exit code tells whether the overlay still fits."""
    from pathlib import Path

    from local.overlay import install
    from local.overlay.context import OverlayContext

    seams = Seams()
    install.install_overlay(OverlayContext(Path(), ""), seams)
    for place, found in sorted(seams.taken.items()):
        print(found, place)
    try:
        seams.check()
    except SeamError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
