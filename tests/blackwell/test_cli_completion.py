"""Shell completion: the scripts are legal, and bash completes with them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from blackwell.cli import COMMANDS
from blackwell.cli.completion import _SCRIPTS, Shell, options


def test_every_command_of_ours_is_completed() -> None:
    known = options()
    assert {"submit", "runs", "show", "logs", "stop", "resume", "report", "plan"} <= set(known) <= set(COMMANDS)
    assert "--yes" in known["submit"]
    assert "--html" in known["report"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["blackwell", "sub"], {"submit"}),
        (["blackwell", "report", "--ht"], {"--html"}),
        (["blackwell", "stop", "--b"], {"--because"}),
    ],
)
def test_bash_completes(typed: list[str], expected: set[str]) -> None:
    words = " ".join(f"'{w}'" for w in typed)
    script = (
        f"{_SCRIPTS[Shell.BASH](options())}\n"
        f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _blackwell; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    answer = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert set(answer.stdout.split()) == expected


@pytest.mark.parametrize("shell", list(Shell))
def test_script_is_legal(shell: Shell) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    script = _SCRIPTS[shell](options())
    subprocess.run(
        [shell, "-n", "-c", script] if shell is not Shell.FISH else [shell, "-n"], input=script, text=True, check=True
    )
