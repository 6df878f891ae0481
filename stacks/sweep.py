"""The second state machine: a sweep spec goes in, many runs of the first state machine come out, compared.

Every point is a nested execution of the training workflow. A point that fails is a line of the report and nothing
else; an execution of the same sweep later only makes what did not complete.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from blackwell.names import RUNS_PREFIX, SWEEPS_PREFIX
from stacks.encryption import Encryption
from stacks.functions import Functions
from stacks.permission import Permission
from stacks.python_function import PythonFunction
from stacks.settings import Settings
from stacks.state_machine import (
    RETRY_DIED,
    RETRY_SERVICE,
    Json,
    choice,
    executions_arn,
    make_machine,
    notify,
    query,
)
from stacks.storage import Storage

FUNCTION_STATES = {
    "PlanSweep": "sweep_plan",
    "Prepare": "sweep_point",
    "Measure": "sweep_point",
    "Compare": "sweep_report",
}
"""State -> the function that it calls."""

_RETRY_START: Json = {
    "ErrorEquals": ["StepFunctions.ThrottlingException", "StepFunctions.ServiceUnavailableException"],
    "IntervalSeconds": 5,
    "MaxAttempts": 8,
    "BackoffRate": 2.0,
    "MaxDelaySeconds": 120,
    "JitterStrategy": "FULL",
}
"""Starting an execution again under its name answers with the one that runs, so a repeat starts nothing twice."""


def _call(state: str, payload: Json, *, next_state: str | None, catch: str) -> Json:
    after: Json = {"Next": next_state} if next_state else {"End": True}
    return {
        "Type": "Task",
        "Resource": "arn:${Partition}:states:::lambda:invoke",
        "Arguments": {"FunctionName": f"${{{FUNCTION_STATES[state]}}}", "Payload": payload},
        "Output": query("$states.result.Payload"),
        "Retry": [RETRY_SERVICE, RETRY_DIED],
        "Catch": [{"ErrorEquals": ["States.ALL"], "Output": {"error": query("$states.errorOutput")}, "Next": catch}],
        **after,
    }


def states() -> dict[str, Json]:
    """The states by name, in the order of a sweep."""
    return {
        "PlanSweep": {
            **_call(
                "PlanSweep",
                {"execution": query("$states.context.Execution.Name"), "spec": query("$states.input")},
                next_state="Accepted",
                catch="Failed",
            ),
            "Assign": {"sweep": query("$states.result.Payload.sweep ? $states.result.Payload.sweep : ''")},
        },
        "Accepted": choice({"$states.input.accepted": "Points"}, "Rejected"),
        "Points": {
            "Type": "Map",
            "Items": query("$states.input.points"),
            "MaxConcurrency": query("$states.input.max_concurrency"),
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "INLINE"},
                "StartAt": "Prepare",
                "States": point_states(),
            },
            "Output": {"sweep": query("$sweep")},
            "Next": "Compare",
        },
        "Compare": _call("Compare", {"sweep": query("$sweep")}, next_state="Notify", catch="Failed"),
        "Notify": notify("Outcome"),
        "Outcome": choice({"$states.input.completed > 0": "Compared"}, "NothingCompleted"),
        "Compared": {"Type": "Succeed", "Output": query("$sift($states.input, function($v, $k) {$k != 'message'})")},
        "Rejected": {"Type": "Fail", "Error": "Rejected", "Cause": query("$states.input.cause")},
        "NothingCompleted": {
            "Type": "Fail",
            "Error": "NothingCompleted",
            "Cause": query("$string({'sweep': $sweep, 'report': $states.input.report})"),
        },
        "Failed": {"Type": "Fail", "Error": "workflow_failed", "Cause": query("$string($states.input.error)")},
    }


def point_states() -> dict[str, Json]:
    """The states of one point. Each catches everything: no point can end the others."""
    asked = {name: query(f"$states.input.{name}") for name in ("point", "run")}
    kept = {name: query(f"${name}") for name in ("point", "run")}
    prepare = _call("Prepare", {"do": "prepare", "sweep": query("$sweep"), **asked}, next_state="Needed", catch="Lost")
    prepare["Assign"] = asked
    prepare["Catch"][0]["Output"] = asked
    measure = _call("Measure", {"do": "measure", "sweep": query("$sweep"), **kept}, next_state=None, catch="Lost")
    measure["Catch"][0]["Output"] = kept
    return {
        "Prepare": prepare,
        "Needed": choice({"$states.input.done": "Done"}, "Train"),
        "Done": {"Type": "Pass", "Output": kept, "End": True},
        "Train": {
            "Type": "Task",
            "Resource": "arn:${Partition}:states:::states:startExecution.sync:2",
            "Arguments": {
                "StateMachineArn": "${TrainingStateMachine}",
                "Name": query("$run"),
                "Input": query("$states.input.job"),
            },
            "Output": kept,
            "Retry": [_RETRY_START],
            # a run that failed is measured like any other
            "Catch": [{"ErrorEquals": ["States.ALL"], "Output": kept, "Next": "Measure"}],
            "Next": "Measure",
        },
        "Measure": measure,
        "Lost": {"Type": "Pass", "End": True},
    }


def definition() -> Json:
    """The state machine in Amazon States Language; `${...}` are filled in by CloudFormation."""
    return {
        "Comment": "One sweep spec in, its points' runs and their comparison out",
        "QueryLanguage": "JSONata",
        "StartAt": "PlanSweep",
        "States": states(),
    }


class Sweep(Construct):
    """`state_machine`, and the three functions that it calls."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        encryption: Encryption,
        storage: Storage,
        functions: Functions,
        training: sfn.StateMachine,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, construct_id)
        called = self._functions(storage, functions)
        made = make_machine(
            self,
            settings=settings,
            encryption=encryption,
            name=f"{settings.job_prefix}-sweeps",
            definition=definition(),
            called=called,
            substitutions={"TrainingStateMachine": training.state_machine_arn},
            topic=topic,
            permissions=self._permissions(training),
            log_data=False,  # a spec stands in S3, and a point's states would repeat it
        )
        self.state_machine = made.state_machine

    def _functions(self, storage: Storage, functions: Functions) -> dict[str, PythonFunction]:
        sweeps = storage.artifacts.arn_for_objects(f"{SWEEPS_PREFIX}*")
        reports = storage.artifacts.arn_for_objects(f"{RUNS_PREFIX}*/report.json")
        why = "Sweeps and runs are named by users; only these documents, in the stack's own bucket."

        def documents(*actions: str) -> Permission:
            return Permission("Sweeps", actions, (sweeps,), why=why)

        return {
            "sweep_plan": functions.add(
                "sweep_plan",
                [documents("s3:PutObject")],
                timeout=cdk.Duration.minutes(5),
                memory_size=1024,  # plans up to two hundred jobs
            ),
            "sweep_point": functions.add(
                "sweep_point",
                [
                    documents("s3:GetObject", "s3:PutObject"),
                    Permission("ReadReports", ("s3:GetObject",), (reports,), why=why),
                    functions.table("GetItem", "Query"),
                    *functions.read_job_logs(),
                ],
                timeout=cdk.Duration.minutes(10),
                memory_size=1024,  # reads a run's whole log
            ),
            "sweep_report": functions.add(
                "sweep_report",
                [documents("s3:GetObject", "s3:PutObject")],
                timeout=cdk.Duration.minutes(10),
                memory_size=2048,  # compares up to two hundred runs
            ),
        }

    def _permissions(self, training: sfn.StateMachine) -> list[Permission]:
        stack = cdk.Stack.of(self)
        rule = stack.format_arn(
            service="events", resource="rule", resource_name="StepFunctionsGetEventsForStepFunctionsExecutionRule"
        )
        return [
            Permission("StartRuns", ("states:StartExecution",), (training.state_machine_arn,)),
            Permission(
                "FollowRuns",
                ("states:DescribeExecution", "states:StopExecution"),
                (executions_arn(training),),
                why="Executions of the training state machine; they are stopped when the sweep is.",
            ),
            # the rule that Step Functions itself keeps in every account for nested executions
            Permission("HearOfEnds", ("events:PutTargets", "events:PutRule", "events:DescribeRule"), (rule,)),
        ]
