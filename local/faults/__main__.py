"""`python -m local.faults FILE...` checks fault files; without a file it writes `schema.json` anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from local.faults.model import json_schema, load_faults

SCHEMA = Path(__file__).with_name("schema.json")


def main(paths: list[str]) -> int:
    """Exit code 2 when a file is wrong."""
    if not paths:
        SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n")
        print(f"wrote {SCHEMA}")
        return 0
    wrong = 0
    for path in paths:
        try:
            print(f"{path}: {len(load_faults(Path(path)))} faults")
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            wrong = 2
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
