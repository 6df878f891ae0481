"""Writes the documents that are made from code, so that no fact stands in two places.

    python -m docs.generate           writes them
    python -m docs.generate --check   exits 1 and names those that differ from what the code says

Some pages are made whole; in hand-written ones only what stands between `<!-- generated: NAME -->` and
`<!-- end -->` is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from docs.generators import drawing, history, job_spec, tables

DOCS = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)


def report_schema() -> str:
    """JSON Schema of `report.json`."""
    from blackwell.report import RunReport

    return json.dumps(RunReport.model_json_schema(mode="serialization"), indent=2) + "\n"


WHOLE: dict[str, Callable[[], str]] = {
    "report.schema.json": report_schema,
    "job-spec.md": job_spec.job_spec_page,
}
"""File under docs/ -> what writes all of it."""

PARTS: dict[str, Callable[[], str]] = {
    "verdicts": tables.verdicts,
    "remedies": tables.remedies,
    "container-exit-codes": tables.container_exit_codes,
    "command-exit-codes": tables.command_exit_codes,
    "commands": tables.commands,
    "findings": tables.findings,
    "goodput": tables.goodput,
    "settings": tables.settings,
    "workflow": drawing.workflow_drawing,
    "sweep-history": history.sweep_history,
    "convergence-rates": tables.convergence_rates,
}
"""Name of a marked part -> what writes it."""


def current(path: Path) -> str:
    """What a page should say now.

    Raises:
        KeyError: it has a part that nothing writes.
    """
    made = WHOLE.get(path.name)
    if made is not None:
        return made()
    return _PART.sub(lambda m: f"{m[1]}{PARTS[m['name']]()}\n{m[4]}", path.read_text(encoding="utf-8"))


def pages(root: Path = DOCS) -> list[Path]:
    """Every document that code has a part in."""
    marked = [p for p in root.rglob("*.md") if "<!-- generated: " in p.read_text(encoding="utf-8")]
    return sorted({*marked, *(root / name for name in WHOLE)})


def stale(root: Path = DOCS) -> list[Path]:
    """Documents that differ from what the code says, missing ones too."""
    return [page for page in pages(root) if not page.is_file() or page.read_text(encoding="utf-8") != current(page)]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        found = stale()
        for page in found:
            print(f"docs/{page.relative_to(DOCS)} is out of date: run `python -m docs.generate`", file=sys.stderr)
        return 1 if found else 0
    for page in pages():
        page.write_text(current(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
