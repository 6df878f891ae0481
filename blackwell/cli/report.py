"""`python -m blackwell report RUN`: a run's report in the terminal, as JSON, or as the page in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackwell.cli.common import (
    STAGE,
    UNEXPECTED,
    AsJson,
    Profile,
    Region,
    Stage,
    aws_errors,
    connect,
    console,
    exit_code,
    fail,
    named,
)

if TYPE_CHECKING:
    from blackwell.report import RunReport

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="Name of the run, `latest`, or a report.json.", metavar="RUN")] = "latest",
    html: Annotated[Path | None, typer.Option("--html", help="Write the page to this file instead.")] = None,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Print a run's report. The exit code says how the run ended."""
    from blackwell.report import render_html

    text = _local(Path(run))
    if text is None:
        with aws_errors():
            client = connect(stage, profile, region)
            text = client.document(named(client, run), "report.json").decode()
    found = _parse(text, run)
    if html is not None:
        html.write_text(render_html(found), encoding="utf-8")
        print(f"wrote {html}")
    elif as_json:
        print(text)
    else:
        from blackwell.cli.report_text import report_text

        out = console()
        out.print(report_text(found, out))
    raise typer.Exit(exit_code(found.status))


def _local(path: Path) -> str | None:
    """The text of a report's file; None where `path` is no file, so that it names a run."""
    if path.suffix != ".json":
        return None
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}")


def _parse(text: str, name: str) -> RunReport:
    from pydantic import ValidationError

    from blackwell.report import RunReport

    try:
        return RunReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        fail(f"{name} holds no run report of this version: {where}: {first['msg']}", UNEXPECTED)
