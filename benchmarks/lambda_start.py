"""Cold start of the functions: CPU seconds to import each handler, and the size of their one package.

    python -m benchmarks.lambda_start [--out FILE]

Each import is measured in a fresh interpreter, best of several; `floor` is boto3 with a client alone, which every
function needs. Lambda gives a function of 512 MB about a third of a core, so wall time there is a multiple of this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from stacks import asset
from stacks.workflow import FUNCTION_STATES

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
OTHERS = ("job_event", "execution_ended", "guard", "spec_drop")
"""Functions that the state machine does not call itself."""
_MEASURE = "import time; a = time.process_time(); {}; print(time.process_time() - a)"
_FLOOR = "import boto3, pydantic, aws_lambda_powertools"
UNZIPPED_LIMIT_MB = 250.0
"""Lambda's limit of a function's code and layers."""


def cpu_seconds(statement: str, rounds: int = ROUNDS) -> float:
    """Least CPU time of a statement in a fresh interpreter, files in the page cache."""
    command = [sys.executable, "-c", _MEASURE.format(statement)]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(rounds + 1)]
    return min(float(done.stdout) for done in runs[1:])


def measure() -> dict[str, object]:
    """All figures: seconds by function, the floor, and the package in MB."""
    staged = asset.stage()
    size = sum(file.stat().st_size for file in staged.path.rglob("*") if file.is_file()) / 1e6
    names = sorted({*FUNCTION_STATES.values(), *OTHERS})
    return {
        "floor_seconds": cpu_seconds(_FLOOR),
        "import_seconds": {name: cpu_seconds(f"import lambdas.{name}.handler") for name in names},
        "package_mb": round(size, 1),
        "package_share_of_limit": round(size / UNZIPPED_LIMIT_MB, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures as JSON too")
    out = parser.parse_args().out
    found = measure()
    floor, imports = found["floor_seconds"], found["import_seconds"]
    assert isinstance(floor, float)
    assert isinstance(imports, dict)
    print(f"package: {found['package_mb']} MB of {UNZIPPED_LIMIT_MB:.0f} MB")
    print(f"floor (boto3, pydantic, powertools): {floor:.3f} s of CPU")
    for name, seconds in sorted(imports.items(), key=lambda item: item[1]):
        print(f"{name:16s} {seconds:.3f} s  {seconds / floor:.2f} x floor")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
