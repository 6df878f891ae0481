"""sweep_point: before a point's run, its job (or that it is done already); after it, what the run measured.

Whatever happened to the run, `measure` answers: one failing point never costs the sweep the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel

from blackwell.names import RunPlaces, SweepPlaces
from blackwell.runs import RunItem
from blackwell.sweep.expand import PlannedPoint
from blackwell.sweep.record import measure
from lambdas.common import jobs, sweeps
from lambdas.common.log import about, logger
from lambdas.common.store import RunStore

log = logger("sweep_point")


class SweepPointEvent(BaseModel):
    do: Literal["prepare", "measure"]
    sweep: str
    point: str
    run: str


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    request = SweepPointEvent.model_validate(event)
    about(log, request.run)
    planned = sweeps.read_plan(request.sweep).point(request.point)
    return _prepare(request, planned) if request.do == "prepare" else _measure(request, planned)


def _prepare(request: SweepPointEvent, planned: PlannedPoint) -> dict[str, Any]:
    """The job to start; none where a run of this very job has completed before."""
    record = sweeps.read_record(request.sweep, request.point, planned.digest)
    if record is not None and record.completed:
        log.info("done before", extra={"done_as": record.run})
        return {"done": True, "point": request.point, "run": record.run, "status": record.status}
    return {
        "done": False,
        "point": request.point,
        "run": request.run,
        "job": sweeps.read(SweepPlaces(request.sweep).job(request.point)),
    }


def _measure(request: SweepPointEvent, planned: PlannedPoint) -> dict[str, Any]:
    item = RunStore().run(request.run)
    record = measure(
        planned,
        request.run,
        status=item.status if item else None,
        verdict=item.verdict if item else None,
        cause=item.cause if item else "the run was never started",
        report=sweeps.read(RunPlaces(request.run).document(sweeps.REPORT)) if item else None,
        lines=_lines(item) if item else (),
    )
    sweeps.write(SweepPlaces(request.sweep).record(request.point), record.model_dump(mode="json"))
    log.info("measured", extra={"status": record.status, "steps": record.steps})
    return {"point": request.point, "run": request.run, "status": record.status}


def _lines(item: RunItem) -> Iterator[str]:
    for attempt in RunStore().attempts(item.run):
        if attempt.job_arn is not None:
            for _, text in jobs.lines(attempt.job_name):
                yield text
