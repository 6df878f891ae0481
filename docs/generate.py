"""Writes the documents that are made from code, so that no fact stands in two places.

python -m docs.generate           writes them
python -m docs.generate --check   exits 1 and names those that differ from what the code says
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent


def report_schema() -> str:
    """JSON Schema of `report.json`."""
    from blackwell.report import RunReport

    return json.dumps(RunReport.model_json_schema(mode="serialization"), indent=2) + "\n"


DOCUMENTS: dict[str, Callable[[], str]] = {"report.schema.json": report_schema}
"""File under docs/ -> what writes it."""


def stale() -> list[str]:
    """Documents that differ from what the code says, missing ones too."""
    return [
        name
        for name, make in DOCUMENTS.items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != make()
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        names = stale()
        for name in names:
            print(f"docs/{name} is out of date: run `python -m docs.generate`", file=sys.stderr)
        return 1 if names else 0
    for name, make in DOCUMENTS.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
