"""`python -m local.scenarios [NAME...]`: the committed matrix, or a soak of random runs, on one deployment.

Prints scenario, expected verdict, verdict, attempts, restarts, steps lost and seconds lost, writes
build/scenarios.json (build/soak.json), and exits with 1 when anything did not end as it must.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from local.deployment import deployed
from local.scenarios.model import Result, Scenario, load_matrix
from local.scenarios.runner import run_all
from local.scenarios.soak import random_scenarios
from local.server import PROJECT

BUILD = PROJECT / "build"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m local.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios of the matrix; default: all")
    parser.add_argument("--quick", action="store_true", help="those of `make test` only")
    parser.add_argument("--soak", type=int, metavar="N", help="N random runs instead of the matrix")
    parser.add_argument("--seed", type=int, help="of the soak; default: a new one, printed")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side")
    options = parser.parse_args(arguments)
    try:
        scenarios, out = _chosen(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()
    print(_row("scenario", "expected", "verdict", "attempts", "restarts", "steps lost", "seconds lost"), flush=True)
    with deployed(BUILD / out.stem, lambda text: print(text, file=sys.stderr, flush=True)) as deployment:
        results = run_all(deployment, scenarios, workers=options.workers, done=_print)
    out.write_text(json.dumps({"scenarios": [result.model_dump() for result in results]}, indent=2) + "\n")
    wrong = [result for result in results if result.problems]
    print(f"{len(results) - len(wrong)} of {len(results)} ended as they must, {time.monotonic() - began:.0f} s; {out}")
    return 1 if wrong else 0


def _chosen(options: argparse.Namespace) -> tuple[list[Scenario], Path]:
    if options.soak:
        seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
        print(f"soak of {options.soak} runs, seed {seed}")
        return random_scenarios(options.soak, seed), BUILD / "soak.json"
    scenarios = [s for s in load_matrix() if s.quick or not options.quick]
    unknown = set(options.names) - {s.scenario for s in scenarios}
    if unknown:
        raise ValueError(f"no such scenario: {', '.join(sorted(unknown))}")
    return [s for s in scenarios if not options.names or s.scenario in options.names], BUILD / "scenarios.json"


def _row(*cells: object) -> str:
    widths = (36, 18, 18, 9, 9, 11, 12)
    return " ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _print(result: Result) -> None:
    cells = (result.scenario, result.expected, result.verdict, result.attempts, result.restarts, result.steps_lost)
    print(_row(*cells, result.seconds_lost), flush=True)
    for problem in result.problems:
        print(f"    {problem} (run {result.run})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
