"""The real CDK command line, against the embedded AWS."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

STACK = "BlackwellTrainingStack"
TIMEOUT_SECONDS = 600


class CdkError(Exception):
    """`cdk` ended with an error; the message holds its last lines, the log all of them."""


def cdk(arguments: list[str], *, root: Path, environment: Mapping[str, str], log: Path) -> None:
    """Runs one `cdk` command in the project root; `environment` is the whole of what it sees.

    Raises:
        CdkError: non-zero exit, or no end within TIMEOUT_SECONDS.
    """
    command = [str(root / "node_modules/.bin/cdk"), *arguments]
    with log.open("ab") as sink:
        sink.write(f"$ cdk {' '.join(arguments)}\n".encode())
        sink.flush()
        start = sink.tell()
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=dict(environment),
                stdout=sink,
                stderr=sink,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            outcome = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            outcome = f"no end within {TIMEOUT_SECONDS} seconds"
    if outcome:
        printed = log.read_bytes()[start:].decode(errors="replace")
        tail = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines() if line.strip()][-6:]
        raise CdkError(f"cdk {arguments[0]}: {outcome}\n" + "\n".join(tail))
