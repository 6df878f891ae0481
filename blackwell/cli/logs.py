"""`python -m blackwell logs [-f] RUN`: what the run's jobs print."""

from __future__ import annotations

from typing import Annotated

import typer

from blackwell.cli.common import STAGE, AsJson, Profile, Region, Run, Stage, aws_errors, connect, exit_code, named
from blackwell.telemetry import parse_event, parse_step

app = typer.Typer(add_completion=False)


@app.command()
def logs(
    run: Run = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of all the run's jobs, attempt by attempt. Ctrl-C ends the printing, never the run.

    --json prints steps and events alone, one JSON object a line.
    """
    with aws_errors():
        client = connect(stage, profile, region)
        name = named(client, run)
        try:
            for line in client.log_lines(name, follow=follow):
                _print(line, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
        state = client.status(name)
    raise typer.Exit(exit_code(state.final_status if follow else None))


def _print(line: str, *, as_json: bool) -> None:
    if not as_json:
        print(line, flush=True)
        return
    step = parse_step(line)
    if step is not None:
        print(step[1].model_dump_json(exclude_none=True), flush=True)
        return
    event = parse_event(line)
    if event is not None:
        import json

        print(json.dumps({"event": event[1]} | event[2]), flush=True)
