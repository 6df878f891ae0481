"""What a scenario is, and what came of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from local.server import PROJECT

MATRIX = Path(__file__).with_name("matrix.json")
BASE_JOB = PROJECT / "examples" / "jobs" / "tiny-scenario.json"
BY_JOB = "job"
ANY_VERDICT = "any"
"""Expected where only the general rules must hold: the run ends, with a verdict about the run."""
BY_TEXT = ("api_error", "lambda_killed", "event")
"""Kinds of faults that are narrowed to one run by a text; the others by the job's name."""


class Scenario(BaseModel):
    """One run and how it must end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scenario: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=36)
    expected: str
    """Verdict."""
    job: dict[str, Any] = {}
    """JSON merge patch on examples/jobs/tiny-scenario.json."""
    document: Any = None
    """The whole input of the execution, in place of a job."""
    faults: list[dict[str, Any]] = []
    """They concern this run only: the runner narrows them."""
    plan: dict[str, Any] | None = None
    """A training plan to set up, see local.sagemaker.plans; its ARN replaces "$PLAN" in the job."""
    attempts: int | None = None
    restarts: int | None = None
    max_steps_lost: int | None = None
    alone: bool = False
    """It moves the clock, which everything on the server shares."""
    quick: bool = False
    """Part of `make test`."""

    def spec(self, plan_arn: str | None = None) -> Any:
        """The execution's input."""
        if self.document is not None:
            return self.document
        merged = merge(json.loads(BASE_JOB.read_text()), self.job)
        return json.loads(json.dumps(merged).replace("$PLAN", plan_arn or ""))

    def narrowed(self, run: str) -> list[dict[str, Any]]:
        """The faults, each for this run only."""
        narrowed = []
        for fault in self.faults:
            if fault["kind"] in BY_TEXT:
                narrowed.append({"text": run, **fault})
            else:
                narrowed.append({BY_JOB: f"*-{run}-a*", **fault})
        return narrowed


class Result(BaseModel):
    """What came of a scenario. `problems` is empty when it ended as it must."""

    scenario: str
    run: str
    expected: str
    verdict: str
    attempts: int = 0
    restarts: int = 0
    steps_lost: int = 0
    seconds_lost: float = 0.0
    cost: float | None = None
    seconds: float = 0.0
    problems: list[str] = []


def load_matrix(path: Path = MATRIX) -> list[Scenario]:
    """The committed scenarios. Raises ValueError naming every mistake."""
    scenarios = TypeAdapter(list[Scenario]).validate_json(path.read_bytes())
    names = [scenario.scenario for scenario in scenarios]
    if len(set(names)) != len(names):
        raise ValueError(f"scenario names twice: {sorted({n for n in names if names.count(n) > 1})}")
    return scenarios


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396): null takes a key away."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
