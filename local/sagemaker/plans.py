"""Training plans: reserved capacity that a test or a person sets, with its windows on the server's clock."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ministack.core.responses import get_account_id, get_region

from local.overlay.clock import Clock
from local.sagemaker.validation import ApiError, invalid

END_MARGIN_SECONDS = 30 * 60
"""SageMaker begins to take instances away this long before a reservation ends."""
DAY = 86_400


@dataclass
class Plan:
    """A purchased plan. `windows`: (start, end) of each reservation in seconds since the epoch, in order."""

    name: str
    arn: str
    instance_type: str
    instance_count: int
    windows: list[tuple[float, float]]
    upfront_fee: str = "0.0"
    failed: bool = False
    in_use: dict[str, int] = field(default_factory=dict)

    def window(self, now: float) -> tuple[float, float] | None:
        """The reservation that can run jobs now."""
        return next((w for w in self.windows if w[0] <= now < w[1] - END_MARGIN_SECONDS), None)

    def has_later(self, now: float) -> bool:
        """Whether another reservation starts after `now`."""
        return any(start > now for start, _ in self.windows)

    def status(self, now: float) -> str:
        if self.failed:
            return "Failed"
        if any(start <= now < end for start, end in self.windows):
            return "Active"
        return "Scheduled" if self.has_later(now) else "Expired"


class PlanStore:
    """The plans of the server; the control interface and CreateTrainingPlan add to it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._plans: dict[str, Plan] = {}
        self._lock = threading.Lock()

    def put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Set a plan: {name, instance_type, instance_count, windows: [[start, end], ...] in seconds from now,
        upfront_fee?, failed?}. Returns DescribeTrainingPlan's answer. Raises KeyError, ValueError."""
        now = self._clock.now()
        windows = sorted((now + float(a), now + float(b)) for a, b in body["windows"])
        if not windows or any(b <= a for a, b in windows):
            raise ValueError("windows: a non-empty list of [start, end] with start < end")
        name = str(body["name"])
        arn = f"arn:aws:sagemaker:{get_region()}:{get_account_id()}:training-plan/{name}"
        plan = Plan(
            name,
            arn,
            str(body["instance_type"]),
            int(body.get("instance_count", 1)),
            windows,
            str(body.get("upfront_fee", "0.0")),
            bool(body.get("failed", False)),
        )
        with self._lock:
            self._plans[name] = plan
        return self.describe({"TrainingPlanName": name})

    def clear(self) -> None:
        self._plans.clear()

    def of_arn(self, arn: str) -> Plan | None:
        return next((plan for plan in self._plans.values() if plan.arn == arn), None)

    def check(self, arn: str, instance_type: str, count: int) -> Plan:
        """The plan that a job wants. Raises ApiError when it takes no such job."""
        plan = self.of_arn(arn)
        if plan is None:
            raise invalid(f"Training plan {arn} not found.")
        status = plan.status(self._clock.now())
        if status not in ("Active", "Scheduled"):
            raise invalid(f"Training plan {arn} is in status {status}; it must be Scheduled or Active.")
        if plan.instance_type != instance_type:
            raise invalid(f"Training plan {arn} reserves {plan.instance_type}, the job asks for {instance_type}.")
        if count > plan.instance_count:
            raise invalid(f"Training plan {arn} has {plan.instance_count} instances, the job asks for {count}.")
        return plan

    def take(self, plan: Plan, job: str, count: int) -> bool:
        """Reserve instances for a job; False while others use them."""
        with self._lock:
            if sum(plan.in_use.values()) + count > plan.instance_count:
                return False
            plan.in_use[job] = count
            return True

    def release(self, plan: Plan, job: str) -> None:
        with self._lock:
            plan.in_use.pop(job, None)

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        plan = self._plans.get(request["TrainingPlanName"])
        if plan is None:
            raise ApiError("ResourceNotFound", f"Training plan {request['TrainingPlanName']} not found.")
        return self._summary(plan)

    def _summary(self, plan: Plan) -> dict[str, Any]:
        now = self._clock.now()
        in_use = sum(plan.in_use.values())
        hours = sum(end - start for start, end in plan.windows) / 3600
        return {
            "TrainingPlanArn": plan.arn,
            "TrainingPlanName": plan.name,
            "Status": plan.status(now),
            "DurationHours": int(hours),
            "DurationMinutes": round(hours % 1 * 60),
            "StartTime": plan.windows[0][0],
            "EndTime": plan.windows[-1][1],
            "UpfrontFee": plan.upfront_fee,
            "CurrencyCode": "USD",
            "TotalInstanceCount": plan.instance_count,
            "AvailableInstanceCount": plan.instance_count - in_use,
            "InUseInstanceCount": in_use,
            "UnhealthyInstanceCount": 0,
            "TargetResources": ["training-job"],
            "ReservedCapacitySummaries": [
                {
                    "ReservedCapacityArn": plan.arn.replace("training-plan/", "reserved-capacity/") + f"-{number}",
                    "InstanceType": plan.instance_type,
                    "TotalInstanceCount": plan.instance_count,
                    "Status": "Active" if start <= now < end else "Scheduled" if start > now else "Expired",
                    "AvailabilityZone": f"{get_region()}a",
                    "DurationHours": int((end - start) / 3600),
                    "StartTime": start,
                    "EndTime": end,
                }
                for number, (start, end) in enumerate(plan.windows, 1)
            ],
        }

    def list(self, request: Mapping[str, Any]) -> dict[str, Any]:
        wanted = [f["Value"] for f in request.get("Filters", []) if f["Name"] == "Status"]
        rows = [self._summary(plan) for plan in self._plans.values()]
        for row in rows:
            row.pop("UnhealthyInstanceCount")
        return {"TrainingPlanSummaries": [row for row in rows if not wanted or row["Status"] in wanted]}

    def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One offering that starts tomorrow, for what was asked; figures are the server's own, not AWS's prices."""
        hours = int(request.get("DurationHours", 24))
        start = max(float(request.get("StartTimeAfter", 0)), self._clock.now() + DAY)
        instance_type, count = request.get("InstanceType", "ml.p6-b200.48xlarge"), int(request.get("InstanceCount", 1))
        window = {"StartTime": start, "EndTime": start + hours * 3600}
        capacity = {"InstanceType": instance_type, "InstanceCount": count, "AvailabilityZone": f"{get_region()}a"}
        return {
            "TrainingPlanOfferings": [
                {
                    "TrainingPlanOfferingId": f"tpo-local-{count}-{hours}",
                    "TargetResources": request.get("TargetResources", ["training-job"]),
                    "DurationHours": hours,
                    "UpfrontFee": f"{1.0 * hours * count:.2f}",
                    "CurrencyCode": "USD",
                    "ReservedCapacityOfferings": [{**capacity, "DurationHours": hours, **window}],
                }
            ]
        }
