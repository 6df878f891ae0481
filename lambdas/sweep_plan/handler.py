"""sweep_plan: sweep spec -> points with their jobs in S3, or every finding that refuses it. Starts nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from blackwell.findings import Finding, FindingsError, errors
from blackwell.names import SweepPlaces
from blackwell.sweep.expand import Expansion, expand
from blackwell.sweep.spec import SweepSpec, parse_sweep_spec
from lambdas.common import sweeps
from lambdas.common.environment import environment
from lambdas.common.log import about, logger

log = logger("sweep_plan")

FINDINGS_IN_CAUSE = 5
CAUSE_MAX = 30_000  # Step Functions: a Fail state's cause has at most 32,768 characters
LINE_MAX = 600


class SweepPlanEvent(BaseModel):
    """What the Plan state sends. `spec` is the execution's input as it came."""

    execution: str
    """The execution's name."""
    spec: Any = None


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = SweepPlanEvent.model_validate(event)
    about(log, request.execution)
    try:
        spec = parse_sweep_spec(request.spec)
    except FindingsError as refused:
        return _reject(request.execution, refused.findings)
    expansion = expand(spec, max_run_usd=environment().max_budget_usd)
    findings = [*expansion.plan.findings, *_limits(spec)]
    if errors(findings):
        return _reject(request.execution, findings)
    _store(spec, expansion)
    plan = expansion.plan
    log.info("planned", extra={"sweep": plan.sweep, "points": len(plan.points), "dropped": len(plan.dropped)})
    return {
        "accepted": True,
        "sweep": plan.sweep,
        "max_concurrency": spec.max_concurrency,
        # the rest of a point stands in S3: two hundred of these stay far below 256 KiB
        "points": [{"point": p.id, "run": run_name(plan.sweep, p.id, request.execution)} for p in plan.points],
    }


def run_name(sweep: str, point: str, execution: str) -> str:
    """Name of the point's run: the same whenever this execution asks, another one in the next execution."""
    return f"{sweep}-{point}-{hashlib.sha256(execution.encode()).hexdigest()[:6]}"


def _limits(spec: SweepSpec) -> list[Finding]:
    """What every run would be refused for; quotas and data are left to the runs."""
    stack = environment()
    found = []
    for index, entry in enumerate(spec.base.capacity):
        if entry.instance_type not in stack.instance_types:
            found.append(
                Finding(
                    id="BTS-201",
                    path=f"base.capacity.{index}.instance_type",
                    message=f"stage {stack.stage} does not allow this instance type",
                    given=entry.instance_type,
                    legal=", ".join(stack.instance_types),
                )
            )
        if entry.instance_count > stack.max_instances:
            found.append(
                Finding(
                    id="BTS-202",
                    path=f"base.capacity.{index}.instance_count",
                    message=f"stage {stack.stage} allows at most {stack.max_instances} per job",
                    given=entry.instance_count,
                    legal=f"1 to {stack.max_instances}",
                    nearest=stack.max_instances,
                )
            )
    return found


def _store(spec: SweepSpec, expansion: Expansion) -> None:
    places = SweepPlaces(expansion.plan.sweep)
    for point, job in expansion.jobs.items():
        sweeps.write(places.job(point), job.model_dump(mode="json", by_alias=True))
    sweeps.write(places.document(sweeps.SPEC), spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    sweeps.write(places.document(sweeps.PLAN), expansion.plan.model_dump(mode="json"))


def _reject(execution: str, findings: list[Finding]) -> dict[str, Any]:
    ordered = errors(findings)
    lines = [finding.line()[:LINE_MAX] for finding in ordered[:FINDINGS_IN_CAUSE]]
    document = [finding.model_dump(mode="json", exclude_none=True) for finding in ordered]
    uri = sweeps.write(SweepPlaces(f"rejected/{execution}").document(sweeps.FINDINGS), document)
    log.info("rejected", extra={"findings": lines})
    cause = {"execution": execution, "findings": lines, "count": len(ordered), "s3_uri": uri}
    return {"accepted": False, "cause": json.dumps(cause)[:CAUSE_MAX]}
