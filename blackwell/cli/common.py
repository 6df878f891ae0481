"""What the commands that talk to a stack have in common: options, session, output, exit codes."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from blackwell.findings import Finding
from blackwell.names import DEFAULT_STAGE, stack_name
from blackwell.runs import RunStatus

if TYPE_CHECKING:
    from rich.console import Console

    from blackwell.client import Client

DONE, UNEXPECTED, REFUSED, FAILED, STOPPED = 0, 1, 2, 3, 4
EXIT_CODES: dict[int, str] = {
    DONE: "done; the run completed or is still running",
    UNEXPECTED: "something unexpected: AWS refused, or nothing was found; `leftovers`: something is left",
    REFUSED: "refused: findings of severity error, a wrong option, or no consent to start",
    FAILED: "the run failed",
    STOPPED: "the run was stopped",
}
"""Exit codes of every command."""
_BY_STATUS = {RunStatus.FAILED: FAILED, RunStatus.STOPPED: STOPPED, RunStatus.REJECTED: REFUSED}

Stage = Annotated[str, typer.Option("--stage", envvar="BLACKWELL_STAGE", help="Stage of the stack.")]
Profile = Annotated[str | None, typer.Option("--profile", help="AWS profile; default as the AWS CLI's.")]
Region = Annotated[str | None, typer.Option("--region", help="AWS region; default as the AWS CLI's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
Run = Annotated[str, typer.Argument(help="Name of the run, `latest` for the newest.", metavar="RUN")]
_FILE_WIDTH = 200
LATEST = "latest"
STAGE = DEFAULT_STAGE


def exit_code(status: RunStatus | None) -> int:
    """Exit code for a run that ended (or not) this way."""
    return _BY_STATUS.get(status, DONE) if status is not None else DONE


def session(profile: str | None, region: str | None) -> Any:
    """A boto3 session; AWS_ENDPOINT_URL points it at the embedded AWS."""
    import boto3

    return boto3.Session(profile_name=profile, region_name=region)


def clients(profile: str | None, region: str | None) -> Callable[[str], Any]:
    """Makes AWS clients by service name."""
    made = session(profile, region)
    return lambda service: made.client(service)


def connect(stage: str, profile: str | None, region: str | None) -> Client:
    """The stage's deployed stack."""
    from blackwell.client import Client

    return Client.from_stack(stack_name(stage), session(profile, region))


def named(client: Client, run: str) -> str:
    """The run's name; `latest` becomes the newest run's."""
    if run != LATEST:
        return run
    runs = client.runs()
    if not runs:
        fail("the stack has no runs yet; start one with `python -m blackwell submit JOB.json`")
    return runs[0].run


@contextmanager
def aws_errors() -> Iterator[None]:
    """Turns what AWS answers into one clear line and exit code 1."""
    from botocore.exceptions import BotoCoreError, ClientError

    from blackwell.client import RunNotFound, StackNotFound

    try:
        yield
    except (RunNotFound, StackNotFound) as missing:
        fail(str(missing))
    except ClientError as error:
        said = error.response.get("Error", {})
        fail(f"AWS refused {error.operation_name}: {said.get('Code')}: {said.get('Message')}")
    except BotoCoreError as error:
        fail(f"AWS cannot be reached: {error}")


def fail(message: str, code: int = UNEXPECTED) -> NoReturn:
    """One line on stderr, then out."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def refuse(findings: Sequence[Finding], *, as_json: bool) -> NoReturn:
    """Findings as lines on stderr, or as JSON on stdout, then exit code 2."""
    if as_json:
        print_json({"findings": [finding.model_dump(mode="json") for finding in findings]})
    else:
        for finding in findings:
            print(finding.line(), file=sys.stderr)
        print("nothing was started", file=sys.stderr)
    raise typer.Exit(REFUSED)


def print_json(document: Any) -> None:
    """JSON on stdout, as every `--json` prints it; pydantic models and datetimes included."""
    print(json.dumps(document, indent=2, default=str))


def console(*, stderr: bool = False) -> Console:
    """A terminal; plain where there is none or NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a terminal without Unicode shows a question mark, never a traceback
    # into a file or a pipe nothing is cut to the width of a terminal that is not there
    width = None if stream.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return Console(stderr=stderr, highlight=False, soft_wrap=False, width=width)


def money(usd: float | None) -> str:
    """US dollars for people."""
    from blackwell.report.words import money as words

    return words(usd)
