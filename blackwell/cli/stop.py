"""`python -m blackwell stop RUN`: stops a run; its job gets two minutes to save a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from blackwell.cli.common import STAGE, AsJson, Profile, Region, Stage, aws_errors, connect, named, print_json

app = typer.Typer(add_completion=False)


@app.command()
def stop(
    run: Annotated[str, typer.Argument(help="Name of the run, `latest` for the newest.", metavar="RUN")],
    because: Annotated[str, typer.Option("--because", help="Why, for the report.")] = "stopped by the user",
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run. Its job saves a checkpoint within two minutes; nothing is deleted."""
    with aws_errors():
        client = connect(stage, profile, region)
        name = named(client, run)
        state = client.status(name)
        if not state.ended:
            client.stop(name, because)
    if as_json:
        print_json({"run": name, "stopped": not state.ended, "status": state.status})
    elif state.ended:
        print(f"{name} has ended already: {state.verdict or state.execution_status.lower()}")
    else:
        print(f"{name} is being stopped; its job has two minutes to save a checkpoint")
        print(f"go on with it: python -m blackwell resume {name}")
