"""The faults in force: counts what happened, and answers the hosts' questions about it."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from local.faults import in_process
from local.faults.model import (
    IN_TRAINER,
    TIMED,
    ApiFailure,
    CheckpointFile,
    EventFault,
    Fault,
    HostLost,
    LambdaKilled,
    NoCapacity,
    parse_faults,
)


class FaultEngine:
    """Every host asks here before it does its work; thread safe. `markers` is a folder for what the trainer did."""

    def __init__(self, markers: Path) -> None:
        self.markers = markers
        self._lock = threading.Lock()
        self._faults: dict[int, Fault] = {}
        self._next = 0
        self._fired: Counter[int] = Counter()
        self._calls: Counter[int] = Counter()
        self._journal: list[dict[str, Any]] = []

    def arm(self, data: Any, *, keep: bool = False) -> int:
        """Put these faults in force, in place of the former ones unless `keep`. Raises ValueError for bad ones."""
        faults = parse_faults(data)
        with self._lock:
            if not keep:
                self._faults.clear()
            for fault in faults:
                self._faults[self._next] = fault
                self._next += 1
            return len(self._faults)

    def journal(self) -> dict[str, Any]:
        """What has happened so far, and how often each fault in force did."""
        with self._lock:
            return {
                "happened": list(self._journal),
                "faults": [
                    {**fault.model_dump(mode="json", exclude_none=True), "happened": self._count(number, fault)}
                    for number, fault in self._faults.items()
                ],
            }

    def _count(self, number: int, fault: Fault) -> int:
        if isinstance(fault, IN_TRAINER):
            return int(in_process.marker(number, self.markers).exists())
        return self._fired[number]

    def _fire(self, number: int, fault: Fault, **details: Any) -> None:
        self._fired[number] += 1
        self._journal.append({"kind": fault.kind, "time": time.time(), **details})

    def _take(self, number: int, fault: Fault, limit: int | None, **details: Any) -> bool:
        if limit is not None and self._fired[number] >= limit:
            return False
        self._fire(number, fault, **details)
        return True

    def _of(self, *kinds: type) -> list[tuple[int, Any]]:
        return [(number, fault) for number, fault in self._faults.items() if isinstance(fault, kinds)]

    def has_capacity(self, job: str, instance_type: str, spot: bool) -> bool:
        """Whether a start of this job finds instances."""
        with self._lock:
            for number, fault in self._of(NoCapacity):
                matches = fault.concerns(job) and fnmatch.fnmatchcase(instance_type, fault.instance_type)
                if (
                    matches
                    and fault.spot in (None, spot)
                    and self._take(number, fault, fault.tries, job=job, instance_type=instance_type)
                ):
                    return False
        return True

    def due(
        self,
        job: str,
        step: int | None,
        second: float,
        start: set[int],
        status: str = "Training",
        kinds: tuple[type, ...] = TIMED,
    ) -> list[Fault]:
        """Timed faults of a job whose moment has come; what is handed out counts as happened.

        `start` keeps what has happened to one start of the job: a fault with `times` happens once to each.
        """
        found: list[Fault] = []
        with self._lock:
            for number, fault in self._of(*kinds):
                if isinstance(fault, HostLost) and fault.during_upload is not None:
                    continue
                at_step = fault.step is None or (step is not None and step >= fault.step)
                at_second = fault.second is None or second >= fault.second
                if (
                    number not in start
                    and fault.status in (None, status)
                    and fault.concerns(job)
                    and at_step
                    and at_second
                    and self._take(number, fault, fault.times, job=job, step=step, second=round(second, 3))
                ):
                    start.add(number)
                    found.append(fault)
        return found

    def trainer_environment(self, job: str) -> dict[str, str]:
        """Environment that tells the trainer its own faults."""
        with self._lock:
            value = in_process.encode(((n, f) for n, f in self._of(*IN_TRAINER) if f.concerns(job)), self.markers)
        return {} if value is None else {in_process.ENV_TEST_FAULTS: value}

    def checkpoint_fault(self, job: str, file: str) -> CheckpointFile | None:
        """What happens to this checkpoint file on its way to S3; asked once for each version of a file."""
        with self._lock:
            for number, fault in self._of(CheckpointFile):
                if (
                    fault.concerns(job)
                    and fnmatch.fnmatchcase(file, fault.file)
                    and self._take(number, fault, fault.times, job=job, file=file, what=fault.what)
                ):
                    return fault  # type: ignore[no-any-return]
        return None

    def dies_uploading(self, job: str, file: str, host: int) -> bool:
        """Whether the host dies while it uploads this checkpoint file."""
        with self._lock:
            for number, fault in self._of(HostLost):
                if (
                    fault.during_upload is not None
                    and fault.host == host
                    and fault.concerns(job)
                    and fnmatch.fnmatchcase(file, fault.during_upload)
                    and self._take(number, fault, fault.times, job=job, file=file)
                ):
                    return True
        return False

    def api_failure(self, service: str, operation: str, text: str = "", *, after_effect: bool) -> ApiFailure | None:
        """The error that answers this call; every call counts, also one that nothing happens to."""
        return self._counted_call(ApiFailure, service, operation, text, after_effect=after_effect)  # type: ignore[return-value]

    def lambda_kill(self, service: str, operation: str, text: str = "", *, when: str) -> LambdaKilled | None:
        """The function to kill at this call."""
        return self._counted_call(LambdaKilled, service, operation, text, when=when)  # type: ignore[return-value]

    def _counted_call(self, kind: type, service: str, operation: str, text: str, **wanted: Any) -> Fault | None:
        found: Fault | None = None
        with self._lock:
            for number, fault in self._of(kind):
                same = (fault.service, fault.operation) == (service, operation) and fault.text in text
                if not same or any(getattr(fault, name) != value for name, value in wanted.items()):
                    continue
                self._calls[number] += 1
                if found is None and fault.nth <= self._calls[number] < fault.nth + fault.times:
                    self._fire(number, fault, service=service, operation=operation, call=self._calls[number])
                    found = fault
        return found

    def event_fault(self, detail_type: str, status: str, text: str = "") -> EventFault | None:
        """What happens to this event."""
        with self._lock:
            for number, fault in self._of(EventFault):
                if (
                    fault.text in text
                    and fnmatch.fnmatchcase(detail_type, fault.detail_type)
                    and fnmatch.fnmatchcase(status, fault.status)
                    and self._take(number, fault, fault.times, detail_type=detail_type, status=status)
                ):
                    return fault  # type: ignore[no-any-return]
        return None
