"""Training jobs as SageMaker shows them: the record, its transitions, and the events that they send."""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region

from blackwell.verdict import FAILURE_REASON_MAX
from local.overlay.context import OverlayContext
from local.sagemaker.metrics import AlgorithmMetrics
from local.sagemaker.validation import DEFAULT_MAX_RUNTIME

EVENT_SOURCE = "aws.sagemaker"
EVENT_TYPE = "SageMaker Training Job State Change"
SPOT_BILLABLE_SHARE = 0.3
"""Billed seconds of a spot job per second run: a stand-in for the discount, which AWS shows in this way."""

_REQUEST_ONLY = ("Tags",)


class Status(StrEnum):
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.STOPPED})

STATUS_MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Pending": "Waiting for the training plan's reserved capacity",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Interrupted": "Spot capacity was interrupted, the job waits for new capacity",
    "Restarting": "Restarting the training job after an internal error",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Stopped": "Training job stopped",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job wait time exceeded MaxWaitTimeInSeconds provided",
}


class Job:
    """One training job. `commands` reaches the host that runs it; `lock` guards the record."""

    def __init__(self, context: OverlayContext, request: Mapping[str, Any]) -> None:
        self._context = context
        self.lock = threading.RLock()
        self.commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stop_requested = threading.Event()
        self.tags = {t["Key"]: t["Value"] for t in request.get("Tags", [])}
        self._billed_from: float | None = None
        self._seconds = 0.0
        now = context.clock.now()
        record = {k: copy.deepcopy(v) for k, v in request.items() if k not in _REQUEST_ONLY}
        record.setdefault("StoppingCondition", {}).setdefault("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
        record.setdefault("EnableManagedSpotTraining", False)
        record.setdefault("EnableNetworkIsolation", False)
        record.setdefault("EnableInterContainerTrafficEncryption", False)
        record["OutputDataConfig"].setdefault("CompressionType", "GZIP")
        record["OutputDataConfig"].setdefault("KmsKeyId", "")
        if "CheckpointConfig" in record:
            record["CheckpointConfig"].setdefault("LocalPath", "/opt/ml/checkpoints/")
        algorithm = record["AlgorithmSpecification"]
        if algorithm.get("MetricDefinitions"):
            algorithm.setdefault("EnableSageMakerMetricsTimeSeries", True)
        record.update(
            TrainingJobArn=job_arn(request["TrainingJobName"]),
            TrainingJobStatus=Status.IN_PROGRESS.value,
            SecondaryStatus="Starting",
            CreationTime=now,
            LastModifiedTime=now,
            SecondaryStatusTransitions=[],
            ProfilingStatus="Disabled" if record.get("ProfilerConfig", {}).get("DisableProfiler") else "Enabled",
        )
        self.record = record
        self.metrics = AlgorithmMetrics(self.name, algorithm.get("MetricDefinitions", ()))

    @property
    def name(self) -> str:
        return str(self.record["TrainingJobName"])

    @property
    def arn(self) -> str:
        return str(self.record["TrainingJobArn"])

    @property
    def spot(self) -> bool:
        return bool(self.record["EnableManagedSpotTraining"])

    @property
    def terminal(self) -> bool:
        return self.record["TrainingJobStatus"] in TERMINAL

    @property
    def instance_count(self) -> int:
        return int(self.record["ResourceConfig"].get("InstanceCount") or 1)

    @property
    def instance_type(self) -> str:
        return str(self.record["ResourceConfig"].get("InstanceType", ""))

    def describe(self) -> dict[str, Any]:
        """DescribeTrainingJob's answer, times in seconds."""
        with self.lock:
            return copy.deepcopy(self.record)

    def start_billing(self) -> None:
        """Instances are there: the training time runs."""
        with self.lock:
            self._billed_from = self._context.clock.now()
            self.record.setdefault("TrainingStartTime", self._billed_from)

    def stop_billing(self) -> None:
        """The instances are gone."""
        with self.lock:
            if self._billed_from is not None:
                self._seconds += self._context.clock.now() - self._billed_from
                self._billed_from = None

    def seconds_run(self) -> float:
        """Instance seconds so far, all starts of the job together."""
        with self.lock:
            running = self._context.clock.now() - self._billed_from if self._billed_from is not None else 0.0
            return self._seconds + running

    def transition(
        self, status: Status, secondary: str, message: str | None = None, failure: str | None = None
    ) -> None:
        """Move to a status and send the event. The same secondary status with another message only updates it."""
        with self.lock:
            if self.terminal:
                return
            now = self._context.clock.now()
            record, transitions = self.record, self.record["SecondaryStatusTransitions"]
            message = message or STATUS_MESSAGES[secondary]
            record.update(TrainingJobStatus=status.value, SecondaryStatus=secondary, LastModifiedTime=now)
            if transitions and transitions[-1]["Status"] == secondary and status not in TERMINAL:
                transitions[-1]["StatusMessage"] = message
            else:
                if transitions:
                    transitions[-1].setdefault("EndTime", now)
                transitions.append({"Status": secondary, "StartTime": now, "StatusMessage": message})
            if failure is not None:
                record["FailureReason"] = failure[:FAILURE_REASON_MAX]
            if status in TERMINAL:
                transitions[-1]["EndTime"] = now
                record["TrainingEndTime"] = now
                record["FinalMetricDataList"] = self.metrics.final()
                if "TrainingStartTime" in record:
                    self.stop_billing()
                    record["TrainingTimeInSeconds"] = max(1, round(self._seconds))
                    share = SPOT_BILLABLE_SHARE if self.spot else 1.0
                    record["BillableTimeInSeconds"] = max(1, round(self._seconds * share))
            detail = {**_milliseconds(record), "Tags": dict(self.tags)}
        self._context.emit_event(EVENT_SOURCE, EVENT_TYPE, detail, [self.arn])


def job_arn(name: str) -> str:
    return f"arn:aws:sagemaker:{get_region()}:{get_account_id()}:training-job/{name}"


def _milliseconds(value: Any, key: str = "") -> Any:
    """The record as an event's detail has it: every time an integer of milliseconds."""
    if isinstance(value, Mapping):
        return {k: _milliseconds(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_milliseconds(v) for v in value]
    if isinstance(value, float) and key.endswith(("Time", "Timestamp")):
        return round(value * 1000)
    return value


class JobStore:
    """Every training job of the server, by account, region and name."""

    def __init__(self) -> None:
        self._jobs = AccountRegionScopedDict()
        self._lock = threading.Lock()

    def add(self, job: Job) -> bool:
        """False when the name is taken."""
        with self._lock:
            if job.name in self._jobs:
                return False
            self._jobs[job.name] = job
            return True

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)  # type: ignore[no-any-return]

    def by_arn(self, arn: str) -> Job | None:
        return next((job for job in self.all() if job.arn == arn), None)

    def all(self, keep: Callable[[Job], bool] = lambda job: True) -> list[Job]:
        return [job for job in list(self._jobs.values()) if keep(job)]

    def remove(self, name: str) -> None:
        with self._lock:
            self._jobs.pop(name, None)

    def clear(self) -> None:
        self._jobs.clear()
