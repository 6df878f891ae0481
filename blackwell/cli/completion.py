"""`python -m blackwell completion SHELL`: prints a completion script for bash, zsh or fish.

The script holds the commands and their options as they are now; it starts no Python while one types.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)
PROGRAM = "blackwell"
"""Name that the scripts complete; `alias blackwell="python -m blackwell"` gives it one."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print a completion script: `source <(python -m blackwell completion bash)`."""
    print(_SCRIPTS[shell](options()))


def options() -> dict[str, list[str]]:
    """Command -> its long options, in the order of the commands."""
    from typer.main import get_command

    from blackwell.cli import COMMANDS

    found: dict[str, list[str]] = {}
    for name in COMMANDS:
        try:
            command = get_command(import_module(f"blackwell.cli.{name}").app)
        except ModuleNotFoundError:
            continue
        found[name] = [o for p in command.params for o in p.opts if o.startswith("--")]
    return found


def _bash(commands: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    {name}) words="{" ".join(flags)}" ;;' for name, flags in commands.items())
    return f"""_{PROGRAM}() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [[ "$word" == -* ]]; then COMPREPLY=($(compgen -W "$words" -- "$word")); else COMPREPLY=($(compgen -f -- "$word")); fi
}}
alias {PROGRAM}="python -m blackwell"
complete -F _{PROGRAM} {PROGRAM}"""


def _zsh(commands: dict[str, list[str]]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(commands)


def _fish(commands: dict[str, list[str]]) -> str:
    lines = [
        f'alias {PROGRAM}="python -m blackwell"',
        f"complete -c {PROGRAM} -n __fish_use_subcommand -a '{' '.join(commands)}'",
    ]
    for name, flags in commands.items():
        lines += [
            f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {name}' -l {flag.removeprefix('--')}"
            for flag in flags
        ]
    return "\n".join(lines)


_SCRIPTS = {Shell.BASH: _bash, Shell.ZSH: _zsh, Shell.FISH: _fish}
