"""What the commands that start something have in common: read the spec, refuse it, ask before money is spent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from blackwell.cli.common import REFUSED, fail, money, refuse
from blackwell.findings import FindingsError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")]
Spec = TypeVar("Spec")


@contextmanager
def refusing(*, as_json: bool) -> Iterator[None]:
    """Turns findings into lines, or JSON, and exit code 2."""
    try:
        yield
    except FindingsError as refused:
        refuse(refused.findings, as_json=as_json)


def read_spec(path: Path, load: Callable[[Path], Spec], *, as_json: bool) -> Spec:
    """The spec in a file; findings about it, or a file that cannot be read, end the command with exit code 2."""
    with refusing(as_json=as_json):
        try:
            return load(path)
        except OSError as error:
            fail(f"{path} cannot be read: {error.strerror or error}", REFUSED)


def consent(what: str, usd: float | None, question: Callable[[str], str]) -> None:
    """Asks before money is spent; without a terminal there is nobody to ask. Exit code 2 without a yes.

    Args:
        what: what is to be started, in one word.
        usd: expected cost in US dollars; None where no price is known.
        question: the cost in words -> what is asked.
    """
    words = f"about {money(usd)}" if usd is not None else "an unknown amount (no price is known)"
    if not sys.stdin.isatty():
        fail(f"this {what} costs {words}; there is no terminal to ask on, so say --yes", REFUSED)
    if not typer.confirm(question(words), default=False, err=True):
        fail("nothing was started", REFUSED)
