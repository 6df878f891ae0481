"""sweep_report: compares the points of a sweep and writes the report, as JSON and as a page."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from blackwell.names import SweepPlaces
from blackwell.remedy import utc_now
from blackwell.report.sweep import render_sweep_html
from blackwell.sweep.compare import build_sweep_report
from lambdas.common import sweeps
from lambdas.common.log import about, logger
from lambdas.common.notices import subject

log = logger("sweep_report")


class SweepReportEvent(BaseModel):
    sweep: str


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = SweepReportEvent.model_validate(event)
    about(log, request.sweep)
    spec, plan = sweeps.read_spec(request.sweep), sweeps.read_plan(request.sweep)
    records = {
        point.id: record
        for point in plan.points
        if (record := sweeps.read_record(request.sweep, point.id, point.digest)) is not None
    }
    report = build_sweep_report(spec, plan, records, utc_now())
    places = SweepPlaces(request.sweep)
    sweeps.write(places.document(sweeps.REPORT), report.model_dump(mode="json"))
    uri = sweeps.write(places.document(sweeps.REPORT_PAGE), render_sweep_html(report))
    log.info("reported", extra={"completed": report.completed, "points": len(report.points)})
    text = [f"Sweep {request.sweep} ended.", report.headline, *report.explanation, f"Report: {uri}"]
    return {
        "sweep": request.sweep,
        "completed": report.completed,
        "points": len(report.points),
        "ok": report.ok,
        "recommended": report.recommendation.point if report.recommendation else None,
        "headline": report.headline,
        "report": uri,
        "subject": subject(f"sweep {request.sweep}: {report.completed} of {len(report.points)} runs"),
        "message": "\n\n".join(text),
    }
