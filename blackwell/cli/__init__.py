"""The command line: `python -m blackwell COMMAND`. Each command is a module here, imported only when it is used.

A command's module holds `app`, a `typer.Typer` with one command. Exit codes: 0 done, 1 unexpected, 2 findings of
severity error (refused), others as the command documents.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module

COMMANDS: dict[str, str] = {
    "plan": "What a job spec means: memory, speed, time, cost, advice, findings.",
    "evaluate": "Score the planner on a table of measured configurations.",
    "calibrate": "Fit the planner's constants on a table, with cross-validation.",
    "schema": "Print a JSON Schema: of job, plan, sweep, sweep report.",
    "prices": "Prices the planner uses, refreshed from an AWS price list.",
    "submit": "Plan a job, show its cost, start its run.",
    "runs": "List the runs of the stack.",
    "dashboard": "Show all runs on a live page of this machine, read only.",
    "show": "Show one run.",
    "logs": "Print or follow a run's log.",
    "stop": "Stop a run; its checkpoints stay.",
    "resume": "Go on with a run from its newest checkpoint.",
    "report": "Print a run's report.",
    "sweep": "Plan and start a grid of runs, compare them.",
    "outputs": "Print names of the deployed stack: buckets, table, state machine.",
    "quotas": "Show the account's quotas that matter.",
    "offerings": "Search offerings of training plans.",
    "leftovers": "List everything of the stack that still exists.",
    "completion": "Print a completion script for bash, zsh or fish.",
}
"""Name -> one line of help; the module is `blackwell.cli.<name>`."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point; turns findings into lines on stderr and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        sys.exit(0 if given else 2)
    name = given[0]
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, 1)
        print(
            f"unknown command {name!r}" + (f"; did you mean {near[0]!r}?" if near else "") + f"\n\n{usage()}",
            file=sys.stderr,
        )
        sys.exit(2)
    from blackwell.findings import FindingsError

    try:
        module = import_module(f"blackwell.cli.{name}")
        module.app(args=given[1:], prog_name=f"python -m blackwell {name}")
    except FindingsError as refused:
        for finding in refused.findings:
            print(finding.line(), file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def usage() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: python -m blackwell COMMAND [--help] ...", "", *lines])
