"""Plan: job spec -> plan, or every finding that refuses it. Creates nothing in AWS but the run's own documents."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from blackwell.attempt import pinned, plan_attempt
from blackwell.findings import Finding, FindingsError, errors
from blackwell.names import RUN_ID, job_name
from blackwell.planning import Facts, Plan, plan_job
from blackwell.remedy import utc_now
from blackwell.request import check_request, training_job_request
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.spec import JobSpec, parse_job_spec, parse_job_spec_text
from blackwell.verdict import Verdict
from lambdas.common import documents
from lambdas.common.environment import environment
from lambdas.common.launch_context import launch_context
from lambdas.common.log import about, logger
from lambdas.common.notices import subject
from lambdas.common.store import RunStore
from lambdas.plan import preflight

log = logger("plan")

FINDINGS_IN_CAUSE = 5
CAUSE_MAX = 30_000  # Step Functions: a Fail state's cause has at most 32,768 characters
GIVEN_MAX = 300
_ANY_IMAGE = f"image@sha256:{'0' * 64}"
"""Stands for the image that is only known when it is built."""


class PlanEvent(BaseModel):
    """What the Plan state sends. `spec` is the execution's input as it came."""

    run: str
    execution_arn: str
    started_at: str | float | int
    spec: Any = None


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = PlanEvent.model_validate(event)
    about(log, request.run)
    try:
        spec, plan, findings = _plan(request)
    except FindingsError as refused:
        return _reject(request, refused.findings)
    if errors(findings):
        return _reject(request, findings)
    if not _record(request, spec, plan):
        return _reject(request, [*findings, _name_taken(request.run)])
    documents.write(request.run, documents.FINDINGS, [f.model_dump(mode="json") for f in findings])
    log.info("planned", extra={"findings": [f.line() for f in findings]})
    return {"accepted": True, "run": request.run, "attempt": 1, "findings": len(findings)}


def _plan(request: PlanEvent) -> tuple[JobSpec, Plan, list[Finding]]:
    """The spec, its plan and all findings; raises FindingsError where there is no legal spec or no plan at all."""
    named: list[Finding] = []
    if RUN_ID.match(request.run) is None:
        named.append(
            Finding(
                id="BTS-209",
                path="",
                message="the execution's name is the run's name and part of tags, log lines and S3 keys",
                given=request.run,
                legal="letters, digits, hyphen, underscore and dot, beginning with a letter or digit",
            )
        )
    try:
        # a string is JSON text: so it comes from a file under jobs/ that is no JSON
        spec = parse_job_spec_text(request.spec) if isinstance(request.spec, str) else parse_job_spec(request.spec)
    except FindingsError as refused:
        raise FindingsError([*named, *refused.findings]) from None
    given, spec = spec, preflight.within_the_stacks_budget(spec, environment())
    findings = named + preflight.check(spec, environment())
    facts, unread = preflight.facts(spec)
    findings += unread
    try:
        plan = plan_job(spec, facts)
    except FindingsError as refused:
        raise FindingsError(_unique([*findings, *refused.findings])) from None
    findings += plan.findings
    for index in range(len(spec.capacity)):
        findings += _entry_findings(request.run, spec, index, pinned(plan.resolved), facts)
    if given.budget is None:
        findings = [preflight.about_the_stacks_budget(finding, environment()) for finding in findings]
    return spec, plan, _unique(findings)


def _entry_findings(run: str, spec: JobSpec, index: int, overrides: dict[str, Any], facts: Facts) -> list[Finding]:
    """What a capacity entry's own plan says, and what SageMaker would say to its request: any entry may get the run."""
    try:
        plan = plan_attempt(spec, index, overrides, facts)
    except FindingsError as refused:
        return [_with_index(finding, index) for finding in refused.findings]
    found = [_with_index(finding, index) for finding in plan.findings] if index else []
    body = training_job_request(plan.resolved, launch_context(_attempt(run, 1), plan.resolved, _ANY_IMAGE))
    said = {finding.id for finding in errors(plan.findings)}
    return found + _at(index, [f for f in check_request(body) if f.id not in said])


def _at(index: int, findings: list[Finding]) -> list[Finding]:
    """A request's findings, at the capacity entry that it was made for."""
    return [
        f.model_copy(update={"path": f"capacity.{index}", "message": f"the request's {f.path} {f.message}"})
        for f in findings
    ]


def _attempt(run: str, number: int) -> AttemptItem:
    name = job_name(environment().job_prefix, run, number)
    return AttemptItem(run=run, attempt=number, status=AttemptStatus.PLANNED, job_name=name)


def _with_index(finding: Finding, index: int) -> Finding:
    """Each plan sees its capacity entry alone, as number 0."""
    head, dot, rest = finding.path.partition(".")
    if head != "capacity" or not index:
        return finding
    return finding.model_copy(update={"path": f"{head}.{index}{rest.removeprefix('0')}" if dot else finding.path})


def _unique(findings: list[Finding]) -> list[Finding]:
    return list({(f.id, f.path, f.message): f for f in findings}.values())


def _record(request: PlanEvent, spec: JobSpec, plan: Plan) -> bool:
    item = RunItem(
        run=request.run,
        status=RunStatus.RUNNING,
        execution_arn=request.execution_arn,
        started_at=str(request.started_at),
        plan=_plan_summary(plan),
        spec=_spec_summary(spec),
    )
    store = RunStore()
    if not store.create_run(item):
        return False
    documents.write(request.run, documents.SPEC, spec.model_dump(mode="json", exclude_unset=True, by_alias=True))
    documents.write(request.run, documents.PLAN, plan.model_dump(mode="json"))
    first = _attempt(request.run, 1)
    decided = {"overrides": pinned(plan.resolved), "why": "first attempt", "planned_at": utc_now().isoformat()}
    store.create_attempt(first.model_copy(update=decided))
    return True


def _spec_summary(spec: JobSpec) -> dict[str, Any]:
    training = spec.training.model_dump(mode="json", include={"precision", "steps", "tokens", "seq_length"})
    capacity = [
        entry.model_dump(mode="json", include={"kind", "instance_type", "instance_count"}) for entry in spec.capacity
    ]
    return {"num_parameters": spec.shape().num_parameters, **training, "capacity": capacity}


def _plan_summary(plan: Plan) -> dict[str, Any]:
    whole = plan.model_dump(mode="json", include={"memory", "throughput", "cost"})
    return {
        part: {k: v for k, v in values.items() if isinstance(v, str | int | float | bool)}
        for part, values in whole.items()
        if isinstance(values, dict)
    }


def _name_taken(run: str) -> Finding:
    return Finding(id="BTS-210", path="", message="another run of this name stands in the run table", given=run)


def _reject(request: PlanEvent, findings: list[Finding]) -> dict[str, Any]:
    """Writes all findings; the answer's cause is what the Fail state says."""
    ordered = errors(findings) + [f for f in findings if f not in errors(findings)]
    whole = [f.model_dump(mode="json", exclude_none=True) for f in ordered]
    taken = any(f.id == "BTS-210" for f in findings)
    uri = environment().document_uri(request.run, documents.FINDINGS)
    if not taken:  # the other run's documents stay as they are
        uri = documents.write(request.run, documents.FINDINGS, whole)
        RunStore().create_run(
            RunItem(
                run=request.run,
                status=RunStatus.REJECTED,
                verdict=Verdict.REJECTED,
                cause=ordered[0].line()[:GIVEN_MAX],
                execution_arn=request.execution_arn,
                started_at=str(request.started_at),
                ended_at=utc_now().isoformat(),
            )
        )
    cause = {"run": request.run, "findings": [_short(f) for f in whole[:FINDINGS_IN_CAUSE]], "s3_uri": uri}
    log.info("rejected", extra={"findings": [f.line()[:GIVEN_MAX] for f in ordered]})
    lines = "\n".join(f.line()[:GIVEN_MAX] for f in ordered[:FINDINGS_IN_CAUSE])
    return {
        "accepted": False,
        "run": request.run,
        "cause": json.dumps(cause)[:CAUSE_MAX],
        "subject": subject(f"{request.run}: {Verdict.REJECTED}"),
        "message": f"Run {request.run} was rejected, nothing was started.\n\n{lines}\n\nAll findings: {uri}",
    }


def _short(finding: dict[str, Any]) -> dict[str, Any]:
    """Within the limits of a cause, whatever the user wrote."""
    return {k: v[:GIVEN_MAX] if isinstance(v, str) else v for k, v in finding.items()}
