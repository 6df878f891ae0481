"""`python -m blackwell resume RUN`: a new run that goes on from another one's newest checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blackwell.cli.common import STAGE, AsJson, Profile, Region, Run, Stage, aws_errors, connect, fail, named, refuse
from blackwell.cli.starting import Yes
from blackwell.cli.submit import Detach, Name, start
from blackwell.findings import FindingsError
from blackwell.spec import parse_job_spec
from blackwell.spec_file import load_job_file

app = typer.Typer(add_completion=False)


@app.command()
def resume(
    run: Run,
    job: Annotated[
        Path | None, typer.Option("--job", help="A changed job spec; default: the run's own.", metavar="JOB.json")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Train to this step instead.")] = None,
    new_name: Name = None,
    yes: Yes = False,
    detach: Detach = False,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a finished or stopped run from its newest checkpoint, on the same or other instances."""
    with aws_errors():
        client = connect(stage, profile, region)
        name = named(client, run)
        if not client.status(name).ended:
            fail(f"{name} is still running; follow it: python -m blackwell logs -f {name}")
        own = client.document(name, "spec.json")
    try:
        document = json.loads(own) if job is None else _document(job)
        spec = parse_job_spec(_continued(document, name, steps))
    except FindingsError as refused:
        refuse(refused.findings, as_json=as_json)
    start(spec, new_name, yes=yes, detach=detach, stage=stage, profile=profile, region=region, as_json=as_json)


def _document(job: Path) -> dict[str, Any]:
    return load_job_file(job).model_dump(mode="json", exclude_unset=True, by_alias=True)


def _continued(document: dict[str, Any], run: str, steps: int | None) -> dict[str, Any]:
    """The spec that goes on from `run`, to `steps` where that is given."""
    changed = document | {"resume_from": run}
    if steps is not None:
        training = {key: value for key, value in document["training"].items() if key != "tokens"}
        changed["training"] = training | {"steps": steps}
    return changed
