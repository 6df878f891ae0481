"""`python -m blackwell leftovers`: everything of a stack that still exists. Exit code 1 where anything does."""

from __future__ import annotations

import typer

from blackwell.cli.common import (
    DONE,
    STAGE,
    UNEXPECTED,
    AsJson,
    Profile,
    Region,
    Stage,
    aws_errors,
    clients,
    print_json,
)
from blackwell.names import job_prefix, stack_name

app = typer.Typer(add_completion=False)


@app.command()
def leftovers(stage: Stage = STAGE, profile: Profile = None, region: Region = None, as_json: AsJson = False) -> None:
    """List everything with the stack's tags or names, and whether it bills. Read-only rights are enough.

    What may not be listed is said: an unread kind is no proof that nothing is left.
    """
    from blackwell.account import leftovers as look

    with aws_errors():
        result = look(clients(profile, region), stack_name(stage), stage, job_prefix(stage))
    if as_json:
        print_json({"stage": stage, "found": [item.as_dict() for item in result.found], "unread": result.unread})
    else:
        for item in result.found:
            print(f"{item.kind}: {item.name}" + ("  (bills)" if item.bills else ""))
        for kind, why in result.unread.items():
            print(f"could not list: {kind}: {why}")
        if result.clean:
            print(f"nothing is left of {stack_name(stage)}")
    raise typer.Exit(DONE if result.clean else UNEXPECTED)
