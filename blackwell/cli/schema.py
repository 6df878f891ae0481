"""`python -m blackwell schema NAME`: the published JSON Schemas."""

from __future__ import annotations

import ast
import inspect
import json
from types import ModuleType
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)

FILES: dict[str, str] = {
    "job": "job-spec.schema.json",
    "plan": "plan.schema.json",
    "sweep": "sweep.schema.json",
    "sweep-report": "sweep-report.schema.json",
}
"""Schema -> its file under docs/."""


def document(name: str) -> dict[str, Any]:
    """The JSON Schema, with the attributes' docstrings as descriptions."""
    from blackwell import findings, spec
    from blackwell.planning import plan, runs
    from blackwell.report import model
    from blackwell.sweep import convergence, expand, report
    from blackwell.sweep import spec as sweep

    if name == "job":
        schema = spec.JobSpec.model_json_schema(mode="validation", by_alias=True)
    elif name == "sweep":
        schema = sweep.SweepSpec.model_json_schema(mode="validation", by_alias=True)
    elif name == "plan":
        schema = plan.Plan.model_json_schema(mode="serialization", by_alias=True)
    else:
        schema = report.SweepReport.model_json_schema(mode="serialization", by_alias=True)
    documents = {**schema.get("$defs", {}), schema["title"]: schema}
    for module in (spec, findings, runs, plan, sweep, expand, convergence, model, report):
        for class_name, descriptions in attribute_docstrings(module).items():
            properties = documents.get(class_name, {}).get("properties", {})
            for attribute, description in descriptions.items():
                found = properties.get(attribute) or properties.get(f"${attribute.rstrip('_')}")
                if found is not None:
                    found.setdefault("description", description)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def attribute_docstrings(module: ModuleType) -> dict[str, dict[str, str]]:
    """Class -> attribute -> the string that follows it in the source.

    Pydantic can do this itself, but at import, where it costs a lambda a quarter of its cold start.
    """
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for before, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found.setdefault(node.name, {})[before.target.id] = inspect.cleandoc(after.value.value)
    return found


def text(name: str) -> str:
    """The file under docs/ that holds it."""
    return json.dumps(document(name), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@app.command()
def schema(name: Annotated[str, typer.Argument(help=", ".join(FILES))] = "job") -> None:
    """Print a JSON Schema; those under docs/ are its output."""
    if name not in FILES:
        typer.echo(f"unknown schema {name!r}; legal: {', '.join(FILES)}", err=True)
        raise typer.Exit(2)
    print(text(name), end="")
