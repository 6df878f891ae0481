"""The planner: memory, speed, time and cost of a job before a dollar is spent.

`plan_job(spec)` is the whole of it for most callers.
"""

from blackwell.planning.plan import Facts, Plan, PriceFact, TrainingPlanFact, plan_job
from blackwell.planning.runs import MeasuredRun

__all__ = ["Facts", "MeasuredRun", "Plan", "PriceFact", "TrainingPlanFact", "plan_job"]
