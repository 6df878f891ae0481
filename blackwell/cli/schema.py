"""`python -m blackwell schema job|plan`: the published JSON Schemas."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)

NAMES = ("job", "plan")


def document(name: str) -> dict[str, Any]:
    """JSON Schema of the job spec or of the plan."""
    from blackwell.planning import Plan
    from blackwell.spec import JobSpec

    model, title = {"job": (JobSpec, "Job spec"), "plan": (Plan, "Plan")}[name]
    mode = "validation" if name == "job" else "serialization"
    schema = model.model_json_schema(mode=mode, by_alias=True)  # type: ignore[attr-defined]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def text(name: str) -> str:
    """The file under docs/ that holds it."""
    return json.dumps(document(name), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@app.command()
def schema(name: Annotated[str, typer.Argument(help="job or plan")] = "job") -> None:
    """Print a JSON Schema; docs/job-spec.schema.json and docs/plan.schema.json are its output."""
    if name not in NAMES:
        typer.echo(f"unknown schema {name!r}; legal: {', '.join(NAMES)}", err=True)
        raise typer.Exit(2)
    print(text(name), end="")
