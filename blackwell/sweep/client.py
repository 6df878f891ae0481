"""Start a sweep on a deployed stack, follow it, read its report."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from blackwell.client import POLL_SECONDS, RunNotFound, StackNotFound, StackOutputs
from blackwell.findings import Finding, FindingsError
from blackwell.names import SweepPlaces, split_s3_uri
from blackwell.sweep.expand import SweepPlan
from blackwell.sweep.record import PointRecord
from blackwell.sweep.report import SweepReport
from blackwell.sweep.spec import SweepSpec


@dataclass(frozen=True, slots=True)
class SweepHandle:
    """A sweep that was started."""

    sweep: str
    execution_arn: str


@dataclass(frozen=True, slots=True)
class PointEnded:
    """A point's run ended, or was found to have completed before."""

    point: str
    record: PointRecord


class SweepClient:
    """Sweeps of one deployed stack."""

    def __init__(self, outputs: StackOutputs, session: Any) -> None:
        """Raises StackNotFound for a stack of a release without sweeps."""
        try:
            self._machine = outputs.all["SweepStateMachineArn"]
        except KeyError:
            raise StackNotFound("the deployed stack has no sweeps; deploy it again") from None
        self._bucket = outputs.artifacts_bucket
        self._states, self._s3 = session.client("stepfunctions"), session.client("s3")

    def submit(self, spec: SweepSpec) -> SweepHandle:
        """Starts a sweep; points that completed in an earlier execution of it are not run again.

        Raises:
            FindingsError: it is running already.
        """
        taken = self.running(spec.title)
        if taken is not None:
            message = "wait for it (--watch), or stop it (--stop)"
            raise FindingsError([Finding(id="BTS-504", path="name", message=message, given=taken.execution_arn)])
        document = spec.model_dump(mode="json", exclude_unset=True, by_alias=True)
        answer = self._states.start_execution(
            stateMachineArn=self._machine, name=f"{spec.title}-{secrets.token_hex(3)}", input=json.dumps(document)
        )
        return SweepHandle(spec.title, str(answer["executionArn"]))

    def running(self, sweep: str) -> SweepHandle | None:
        """The sweep's execution that runs now; None where none does."""
        pages = self._states.get_paginator("list_executions").paginate(
            stateMachineArn=self._machine, statusFilter="RUNNING"
        )
        for page in pages:
            for execution in page["executions"]:
                if execution["name"].rpartition("-")[0] == sweep:
                    return SweepHandle(sweep, str(execution["executionArn"]))
        return None

    def stop(self, sweep: str) -> None:
        """Stops the sweep and the runs that it started; what ended before is kept. Raises RunNotFound."""
        handle = self.running(sweep)
        if handle is None:
            raise RunNotFound(f"no sweep {sweep!r} is running")
        self._states.stop_execution(executionArn=handle.execution_arn, cause="stopped by the user")

    def follow(
        self, handle: SweepHandle, *, sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[SweepPlan | PointEnded]:
        """The plan once it stands, then each point as it ends, until the sweep ends.

        Raises:
            FindingsError: the stack refused the sweep.
        """
        plan: SweepPlan | None = None
        seen: set[str] = set()
        while True:
            execution = self._states.describe_execution(executionArn=handle.execution_arn)
            ended = execution["status"] != "RUNNING"
            if execution.get("error") == "Rejected":
                raise FindingsError(self._refusal(str(execution.get("cause") or "")))
            if plan is None and (plan := self._plan(handle.sweep, execution["startDate"])) is not None:
                yield plan
            for point in plan.points if plan is not None else []:
                if point.id in seen:
                    continue
                record = self.record(handle.sweep, point.id)
                if record is not None and record.digest == point.digest:
                    seen.add(point.id)
                    yield PointEnded(point.id, record)
            if ended:
                return
            sleep(POLL_SECONDS)

    def failure(self, handle: SweepHandle) -> str | None:
        """Why the execution ended without a report; None where it has one, even if no run completed."""
        execution = self._states.describe_execution(executionArn=handle.execution_arn)
        if execution["status"] == "SUCCEEDED" or execution.get("error") == "NothingCompleted":
            return None
        return f"{execution['status']}: {execution.get('cause') or execution.get('error') or ''}"

    def record(self, sweep: str, point: str) -> PointRecord | None:
        """What the point's newest run measured; None before its end."""
        key = SweepPlaces(sweep).record(point)
        document = self._object(key)
        return PointRecord.model_validate_json(document) if document is not None else None

    def report(self, sweep: str) -> SweepReport:
        """Raises RunNotFound where there is none yet."""
        document = self._object(SweepPlaces(sweep).document("report.json"))
        if document is None:
            raise RunNotFound(f"sweep {sweep!r} has no report")
        return SweepReport.model_validate_json(document)

    def page(self, sweep: str) -> bytes:
        """The report's page. Raises RunNotFound where there is none yet."""
        found = self._object(SweepPlaces(sweep).document("report.html"))
        if found is None:
            raise RunNotFound(f"sweep {sweep!r} has no report")
        return found

    def _plan(self, sweep: str, since: datetime) -> SweepPlan | None:
        """The plan, once this execution wrote it; an earlier execution's does not count."""
        answer = self._get(SweepPlaces(sweep).document("plan.json"))
        if answer is None or answer["LastModified"] < since.replace(microsecond=0):
            return None
        return SweepPlan.model_validate_json(answer["Body"].read())

    def _refusal(self, cause: str) -> list[Finding]:
        """Every finding, from the document that the cause names."""
        _, key = split_s3_uri(json.loads(cause)["s3_uri"])
        return [Finding.model_validate(finding) for finding in json.loads(self._object(key) or b"[]")]

    def _object(self, key: str) -> bytes | None:
        answer = self._get(key)
        return bytes(answer["Body"].read()) if answer is not None else None

    def _get(self, key: str) -> Any:
        try:
            return self._s3.get_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
