"""Random runs: faults drawn from a seed. What they must come to is not known before, so any verdict will do; all that
must hold for every run is checked all the same."""

from __future__ import annotations

import random
from typing import Any

from local.scenarios.model import ANY_VERDICT, Scenario

STEPS = 20
"""Of each run; faults fall into them."""


def random_scenarios(count: int, seed: int) -> list[Scenario]:
    """`count` runs with none to three faults each; the same seed makes the same ones."""
    source = random.Random(seed)  # noqa: S311
    scenarios = []
    for number in range(1, count + 1):
        faults = [_fault(source) for _ in range(source.choice((0, 1, 1, 2, 2, 3)))]
        kinds: tuple[str, ...] = ("spot",) if source.random() < 0.6 else ("on-demand",)
        kinds += ("on-demand",) if source.random() < 0.5 else ()
        job = {
            "training": {"steps": STEPS, "seed": number, "checkpoint": {"interval_steps": source.choice((4, 5, 7))}},
            "capacity": [_entry(kind) for kind in kinds],
            "remedies": {"max_attempts": 4, "allow_data_skip": source.random() < 0.5},
        }
        scenarios.append(Scenario(scenario=f"soak-{number:03d}", expected=ANY_VERDICT, job=job, faults=faults))
    return scenarios


def _entry(kind: str) -> dict[str, Any]:
    entry = {"kind": kind, "instance_type": "ml.c7i.2xlarge", "max_runtime_seconds": 3600, "hourly_price": 0.4284}
    return entry | ({"max_wait_seconds": 7200} if kind == "spot" else {})


def _fault(source: random.Random) -> dict[str, Any]:
    step = source.randrange(2, STEPS)
    create = {"operation": "CreateTrainingJob", "nth": source.choice((1, 1, 2))}
    return source.choice(
        (
            {"kind": "interruption", "step": step, "notice_seconds": source.choice((0, 120))},
            {"kind": "host_lost", "step": step},
            {"kind": "host_lost", "during_upload": source.choice(("*/MANIFEST.json", "*.distcp"))},
            {"kind": "kill", "target": source.choice(("launcher", "worker")), "step": step},
            {"kind": "stop", "what": source.choice(("job", "execution")), "step": step},
            {"kind": "no_capacity", "tries": source.choice((1, 2))},
            {"kind": "out_of_memory", "step": step, "until_micro_batch_size": 1},
            {"kind": "nan", "step": step},
            {"kind": "error", "step": step},
            {"kind": "checkpoint_file", "what": source.choice(("damaged", "missing", "late", "out_of_order"))},
            {"kind": "api_error", "code": "ThrottlingException", "times": source.choice((1, 3)), **create},
            {"kind": "api_error", "code": "InternalFailure", "status": 500, "after_effect": True, **create},
            {"kind": "lambda_killed", "function": "launch", "when": source.choice(("before", "after")), **create},
            {"kind": "event", "what": source.choice(("lost", "doubled", "delayed", "swapped")), "status": "*"},
        )
    )
