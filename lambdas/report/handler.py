"""Report: ends the run in the run table and writes what it did, as JSON and as a page, whatever happened before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from blackwell import metrics
from blackwell.findings import Finding
from blackwell.names import RunPlaces
from blackwell.remedy import utc_now
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.verdict import RULES, Verdict
from lambdas.common import checkpoints, documents, jobs, measured
from lambdas.common.aws import client
from lambdas.common.environment import environment
from lambdas.common.errors import ImageFailed
from lambdas.common.log import about, logger
from lambdas.common.metrics import publish
from lambdas.common.notices import subject
from lambdas.common.settle import abandon
from lambdas.common.store import RunStore

log = logger("report")


class WorkflowFault(BaseModel):
    """The error that ended the workflow early, as Step Functions has it."""

    Error: str
    Cause: str = ""


class ReportEvent(BaseModel):
    run: str
    error: WorkflowFault | None = None
    notify: bool = False
    """Publish the end here: the run has no state machine that would."""


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = ReportEvent.model_validate(event)
    about(log, request.run)
    store = RunStore()
    record = store.run(request.run)
    if record is None:
        raise LookupError(f"there is no run {request.run!r}")
    record = _end(store, record, request.error)
    page, document = _report(store, record)
    documents.write(record.run, documents.REPORT, document)
    uri = documents.write(record.run, documents.REPORT_PAGE, page) if page else environment().document_uri(
        record.run, documents.REPORT
    )  # fmt: skip
    store.update_run(record.run, report_uri=uri)
    if not record.counted:  # a report made again counts nothing twice
        _count(store, record, document)
        _remember(record, document)
        store.update_run(record.run, counted=True)
    log.info("reported", extra={"verdict": record.verdict, "uri": uri})
    answer = _answer(record, document, uri)
    _notify_once(store, record, answer, here=request.notify)
    return answer


def _end(store: RunStore, record: RunItem, error: WorkflowFault | None) -> RunItem:
    """The run with its end. A run that ended before (stopped, for instance) keeps the end it has."""
    if record.status is not RunStatus.RUNNING:
        return record
    verdict, cause = record.verdict, record.cause
    if error is not None and verdict is None:
        verdict = Verdict.IMAGE_FAILED if error.Error == ImageFailed.__name__ else Verdict.WORKFLOW_FAILED
        cause = _first_line(error)
    verdict = verdict or Verdict.WORKFLOW_FAILED
    if error is not None:
        abandon(store, record.run, verdict)
    end: dict[str, Any] = {
        "status": RunStatus.of(verdict).value,
        "verdict": verdict.value,
        "cause": cause or RULES[verdict].meaning,
        "ended_at": utc_now().isoformat(),
    }
    store.end_run(record.run, **end)
    return store.run(record.run) or record


def _count(store: RunStore, record: RunItem, document: dict[str, Any]) -> None:
    completed = record.status is RunStatus.COMPLETED
    publish(
        record.run,
        {
            metrics.RUNS_COMPLETED: float(completed),
            metrics.RUNS_FAILED: float(record.status is RunStatus.FAILED),
            metrics.ATTEMPTS: float(len(store.attempts(record.run))),
            metrics.GOODPUT: (document.get("goodput") or {}).get("goodput"),
        },
    )


def _remember(record: RunItem, document: dict[str, Any]) -> None:
    """What a completed run measured corrects later plans; a run's end never depends on it."""
    if record.status is not RunStatus.COMPLETED:
        return
    try:
        measured.remember(documents.read(record.run, documents.PLAN), document, utc_now(), record.image)
    except Exception:
        log.exception("what the run measured could not be kept")


def _notify_once(store: RunStore, record: RunItem, answer: dict[str, Any], *, here: bool) -> None:
    """Publishes the run's end where no state machine does and nobody has; a report made again tells nobody twice."""
    if record.notified:
        return
    if here:
        client("sns").publish(TopicArn=environment().topic_arn, Subject=answer["subject"], Message=answer["message"])
    store.update_run(record.run, notified=True)


def _first_line(error: WorkflowFault) -> str:
    try:
        text = str(json.loads(error.Cause)["errorMessage"])
    except (ValueError, KeyError, TypeError):
        text = error.Cause
    return f"{error.Error}: {text}".splitlines()[0][:1_000]


def _report(store: RunStore, record: RunItem) -> tuple[str | None, dict[str, Any]]:
    """(page, JSON). A report that cannot be made never costs the run its verdict."""
    from blackwell.report import AttemptInputs, RunReportInputs, build_run_report, render_html

    attempts = store.attempts(record.run)
    bucket, places = environment().checkpoint_bucket, RunPlaces(record.run)
    try:
        inputs = RunReportInputs(
            run=record.run,
            spec=documents.read(record.run, documents.SPEC) or {},
            plan=documents.read(record.run, documents.PLAN),
            attempts=[
                AttemptInputs(
                    attempt=a.attempt,
                    job=jobs.describe(a.job_name) or {} if a.job_arn else {},
                    item=a.model_dump(mode="json", exclude={"task_token"}),
                    lines=_lines(a),
                )
                for a in attempts
            ],
            checkpoints=[_checkpoint(c) for c in checkpoints.stored(bucket, places.checkpoints)],
            item=record.model_dump(mode="json"),
            verdict=record.verdict,
            findings=[Finding.model_validate(f) for f in documents.read(record.run, documents.FINDINGS) or []],
            now=_now(record, attempts),
        )
        report = build_run_report(inputs)
        return render_html(report), report.model_dump(mode="json")
    except Exception as error:
        log.exception("the report could not be made")
        return None, {
            "run": record.run,
            "verdict": record.verdict,
            "status": record.status,
            "cause": record.cause,
            "attempts": [a.model_dump(mode="json", exclude={"task_token"}) for a in attempts],
            "report_error": f"{type(error).__name__}: {error}",
        }


def _lines(attempt: AttemptItem) -> Iterator[tuple[float, str]]:
    return iter(()) if attempt.job_arn is None else ((float(at), text) for at, text in jobs.lines(attempt.job_name))


def _checkpoint(stored: checkpoints.StoredCheckpoint) -> dict[str, Any]:
    return {
        **stored.manifest,
        "folder": stored.folder,
        "bytes": stored.bytes,
        "durable": stored.durable,
        "written_at": stored.written_at.isoformat(),
    }


def _now(record: RunItem, attempts: list[AttemptItem]) -> datetime:
    """The run's end, not the clock: a report made again says the same."""
    ends = [record.ended_at, *[a.ended_at for a in attempts if a.status is AttemptStatus.ENDED]]
    return max((datetime.fromisoformat(end) for end in ends if end), default=utc_now())


def _answer(record: RunItem, document: dict[str, Any], uri: str) -> dict[str, Any]:
    verdict = record.verdict or Verdict.WORKFLOW_FAILED
    text = [
        f"Run {record.run} ended: {verdict}.",
        record.cause or RULES[verdict].meaning,
        RULES[verdict].advice,
        f"Report: {uri}",
    ]
    return {
        "run": record.run,
        "verdict": verdict.value,
        "status": record.status.value,
        "cause": (record.cause or "")[:1_000],
        "report": uri,
        "subject": subject(f"{record.run}: {verdict}"),
        "message": "\n\n".join(text),
        **{key: document.get(key) for key in ("first_loss", "final_loss", "steps", "tokens_per_second")},
    }
