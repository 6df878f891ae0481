"""`python -m blackwell outputs [NAME]`: what the deployed stack is called: buckets, table, state machine."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import typer

from blackwell.cli.common import STAGE, AsJson, Profile, Region, Stage, aws_errors, connect, fail, print_json

app = typer.Typer(add_completion=False)


@app.command()
def outputs(
    name: Annotated[str | None, typer.Argument(help="Print this one's value alone.", metavar="NAME")] = None,
    stage: Stage = STAGE,
    profile: Profile = None,
    region: Region = None,
    as_json: AsJson = False,
) -> None:
    """Print the stack's outputs: `aws s3 sync data "s3://$(python -m blackwell outputs ArtifactsBucket)/datasets/x/"`."""
    with aws_errors():
        found = dict(connect(stage, profile, region).outputs.all)
    if name is not None and name not in found:
        near = get_close_matches(name, found, 1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        fail(f"the stack has no output {name!r}{hint} It has: {', '.join(sorted(found))}")
    if as_json:
        print_json(found if name is None else {name: found[name]})
    elif name is not None:
        print(found[name])
    else:
        width = max(map(len, found), default=0)
        print("\n".join(f"{key:<{width}}  {found[key]}" for key in sorted(found)))
