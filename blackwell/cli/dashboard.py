"""`python -m blackwell dashboard`: a page with the live state of all runs, on this machine alone, read only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackwell.cli.common import (
    REFUSED,
    STAGE,
    AsJson,
    Profile,
    Region,
    Stage,
    aws_errors,
    connect,
    fail,
    print_json,
)
from blackwell.names import stack_name

if TYPE_CHECKING:
    from blackwell.live import Watcher
    from blackwell.report.live import LiveRuns

app = typer.Typer(add_completion=False)
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")]
Every = Annotated[float, typer.Option("--every", min=1.0, max=3600.0, help="Seconds between two looks at AWS.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="The newest runs, at most so many.")]
Once = Annotated[
    Path | None, typer.Option("--once", help="Write the page to this file and end; no server.", metavar="FILE.html")
]


@app.command()
def dashboard(
    port: Port = 8765,
    every: Every = 5.0,
    limit: Limit = 50,
    once: Once = None,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Show all runs on a page that renews itself, until Ctrl-C. Nothing on it can start, stop or change a run."""
    from blackwell.live import Watcher
    from blackwell.report.live import render_live

    stack = stack_name(stage)
    with aws_errors():
        watcher = Watcher(connect(stage, profile, region), stack, limit=limit)
        first = watcher.look()
    if once is not None:
        try:
            once.write_text(render_live(first), encoding="utf-8")
        except OSError as error:
            fail(f"{once} cannot be written: {error.strerror or error}", REFUSED)
    if as_json:
        print_json(first.model_dump(mode="json"))
    elif once is not None:
        print(f"wrote {once}")
    else:
        _serve(watcher, first, port, every)


def _serve(watcher: Watcher, first: LiveRuns, port: int, every: float) -> None:
    from blackwell.live_server import HOST, Latest, Server

    latest = Latest(first, watcher.look, every)
    try:
        server = Server(port, latest, every)
    except OSError as error:
        fail(f"{HOST}:{port} cannot be used: {error.strerror or error}; choose another with --port", REFUSED)
    print(server.url, flush=True)
    latest.start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        latest.stop()
        server.server_close()
