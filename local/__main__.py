"""`python -m local up | status | down | run`: the embedded AWS for hand work with cdk, boto3 and the aws CLI.

`up` prints `export` lines on standard output and everything else on standard error, so that
`eval "$(python -m local up)"` is all a shell needs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from local import run
from local.server import PROJECT, LocalAws, LocalAwsError, client_environment, end_marked, end_process, healthy, marked

WORK_DIR = PROJECT / "build" / "local-aws"
STATE = WORK_DIR / "up.json"
EXIT_NOT_RUNNING = 1
EXIT_FAILED = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 0 when the state asked for is reached."""
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up_parser = commands.add_parser("up", help="start it and keep it running; prints the export lines")
    up_parser.add_argument("--port", type=int, default=0, help="default: a free one")
    up_parser.add_argument("--json", action="store_true", help="print JSON instead of export lines")
    commands.add_parser("status", help="say whether it runs, where, and its memory").add_argument(
        "--json", action="store_true"
    )
    commands.add_parser("down", help="stop it and everything that it started")
    run.add_arguments(commands.add_parser("run", help="one job spec through the deployed workflow, faults included"))
    options = parser.parse_args(arguments)
    if options.command == "up":
        return up(options.port, as_json=options.json)
    if options.command == "status":
        return status(as_json=options.json)
    if options.command == "run":
        return run.main(options)
    return down()


def up(port: int, *, as_json: bool) -> int:
    """Start detached, or say where the running one is."""
    state = running()
    if state is None:
        _clear()
        aws = LocalAws(WORK_DIR, port=port, detached=True)
        try:
            aws.start()
        except LocalAwsError as error:
            print(error, file=sys.stderr)
            return EXIT_FAILED
        state = {"endpoint": aws.endpoint, "pid": aws.pid, "marker": aws.marker, "log": str(aws.log_path)}
        STATE.write_text(json.dumps(state))
        print(
            f"embedded AWS at {aws.endpoint}, log {aws.log_path}; stop it with: python -m local down", file=sys.stderr
        )
    else:
        print(f"already running at {state['endpoint']}", file=sys.stderr)
        if port not in (0, int(state["endpoint"].rpartition(":")[2])):
            print(f"port {port} was asked for: run `python -m local down` first", file=sys.stderr)
            return EXIT_FAILED
    environment = client_environment(state["endpoint"])
    if as_json:
        print(json.dumps({**state, "environment": environment}))
    else:
        print("unset AWS_PROFILE AWS_SESSION_TOKEN")
        for key, value in environment.items():
            print(f"export {key}={shlex.quote(value)}")
    return 0


def status(*, as_json: bool) -> int:
    """Exit code 0 when it runs and answers, else 1."""
    state = running()
    if as_json:
        print(json.dumps({"running": state is not None, **(state or {})}))
    elif state is None:
        print("not running")
    else:
        memory = sum(process.memory_info().rss for process in marked(state["marker"])) / 2**20
        print(f"running at {state['endpoint']} (pid {state['pid']}, {memory:.0f} MiB, log {state['log']})")
    return 0 if state is not None else EXIT_NOT_RUNNING


def down() -> int:
    """Stop it; nothing to do is fine too."""
    state = _read_state()
    if state is None:
        print("not running", file=sys.stderr)
        return 0
    if any(process.pid == state["pid"] for process in marked(state["marker"])):
        end_process(state["pid"])
    _clear()
    print("stopped", file=sys.stderr)
    return 0


def running() -> dict[str, Any] | None:
    """The running server's state, or None when there is none that answers."""
    state = _read_state()
    if state is None or not any(process.pid == state["pid"] for process in marked(state["marker"])):
        return None
    return state if healthy(state["endpoint"]) else None


def _clear() -> None:
    """End what a former server left and forget it."""
    state = _read_state()
    if state is not None:
        end_marked(state["marker"])
        STATE.unlink(missing_ok=True)


def _read_state() -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return None
    return state


if __name__ == "__main__":
    sys.exit(main())
