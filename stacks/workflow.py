"""The state machine: a job spec goes in, a finished and explained run comes out. And the events that serve it.

`states()` reads like a table of contents; docs/architecture.md's drawing is made from it.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from blackwell.names import JOBS_PREFIX
from blackwell.verdict import TERMINAL_STATUSES, Verdict
from stacks.encryption import Encryption
from stacks.functions import Functions
from stacks.permission import Permission, allow
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

AWAIT_SECONDS = 6 * 3600
"""How long one AwaitJob waits before it is entered again: a run of 28 days keeps under 2,000 history events."""

FUNCTION_STATES = {
    "Plan": "plan",
    "EnsureImage": "ensure_image",
    "Launch": "launch",
    "AwaitJob": "await_job",
    "Assess": "assess",
    "Report": "report",
}
"""State -> the function that it calls."""

_RETRY_THROTTLED: Json = {
    "ErrorEquals": ["Throttled"],
    "IntervalSeconds": 5,
    "MaxAttempts": 8,
    "BackoffRate": 2.0,
    "MaxDelaySeconds": 120,
    "JitterStrategy": "FULL",
}
_RETRY_NOT_READY: Json = {"ErrorEquals": ["NotReadyYet"], "IntervalSeconds": 10, "MaxAttempts": 9, "BackoffRate": 1.5}
"""IAM and S3 need a minute or two after a deployment."""


def _optional(field: str) -> str:
    return query(f"$exists($states.input.{field}) ? $states.input.{field} : null")


def _call(state: str, payload: Json, *, next_state: str, retry: list[Json], wait_for_token: bool = False) -> Json:
    """A task that calls the state's function; its answer is the state's output."""
    resource = "arn:${Partition}:states:::lambda:invoke" + (".waitForTaskToken" if wait_for_token else "")
    return {
        "Type": "Task",
        "Resource": resource,
        "Arguments": {"FunctionName": f"${{{state}}}", "Payload": payload},
        "Output": query("$states.result" if wait_for_token else "$states.result.Payload"),
        "Retry": retry,
        "Catch": [{"ErrorEquals": ["States.ALL"], "Output": {"error": query("$states.errorOutput")}, "Next": "Report"}],
        "Next": next_state,
    }


def states() -> dict[str, Json]:
    """The states by name, in the order of a run."""
    return {
        "Plan": _plan(),
        "Accepted": choice({"$states.input.accepted": "EnsureImage"}, "TellRejected"),
        "EnsureImage": _ensure_image(),
        "ImageReady": choice({"$states.input.ready": "Launch"}, "WaitForBuild"),
        "WaitForBuild": {"Type": "Wait", "Seconds": query("$states.input.wait_seconds"), "Next": "EnsureImage"},
        "Launch": _launch(),
        "AwaitJob": _await_job(),
        "Assess": _assess(),
        "Remedy": choice(
            {
                "$states.input.action = 'launch' and $states.input.wait_seconds > 0": "Backoff",
                "$states.input.action = 'launch'": "Launch",
            },
            "Report",
        ),
        "Backoff": {"Type": "Wait", "Seconds": query("$states.input.wait_seconds"), "Next": "Launch"},
        "Report": _report(),
        "Notify": notify("Outcome"),
        "Outcome": choice(
            {
                f"$states.input.verdict = '{Verdict.COMPLETED}'": "Completed",
                f"$states.input.verdict = '{Verdict.STOPPED}'": "Stopped",
            },
            "Failed",
        ),
        "Completed": {"Type": "Succeed", "Output": query("$sift($states.input, function($v, $k) {$k != 'message'})")},
        "TellRejected": notify("Rejected"),
        "Rejected": {"Type": "Fail", "Error": "Rejected", "Cause": query("$states.input.cause")},
        "Stopped": {"Type": "Fail", "Error": Verdict.STOPPED.value, "Cause": _cause()},
        "Failed": {"Type": "Fail", "Error": query("$states.input.verdict"), "Cause": _cause()},
    }


def _plan() -> Json:
    payload = {
        "run": query("$states.context.Execution.Name"),
        "execution_arn": query("$states.context.Execution.Id"),
        "started_at": query("$states.context.Execution.StartTime"),
        "spec": query("$states.input"),
    }
    state = _call("Plan", payload, next_state="Accepted", retry=[RETRY_SERVICE, RETRY_DIED])
    state["Assign"] = {"run": query("$states.context.Execution.Name"), "attempt": 1, "build_id": None}
    # without a plan there is no run that a report could be about
    state["Catch"] = [
        {
            "ErrorEquals": ["States.ALL"],
            "Output": {
                "run": query("$states.context.Execution.Name"),
                "verdict": Verdict.WORKFLOW_FAILED.value,
                "cause": query("$string($states.errorOutput)"),
            },
            "Next": "Failed",
        }
    ]
    return state


def _ensure_image() -> Json:
    payload = {"run": query("$run"), "build_id": query("$build_id")}
    state = _call("EnsureImage", payload, next_state="ImageReady", retry=[RETRY_SERVICE, RETRY_DIED])
    state["Assign"] = {"build_id": query("$states.result.Payload.build_id")}
    return state


def _launch() -> Json:
    payload = {"run": query("$run"), "attempt": query("$attempt")}
    retry = [_RETRY_THROTTLED, _RETRY_NOT_READY, RETRY_SERVICE, RETRY_DIED]
    state = _call("Launch", payload, next_state="AwaitJob", retry=retry)
    # a job that could not be created is an attempt with a verdict like any other
    state["Catch"] = [
        {"ErrorEquals": ["States.ALL"], "Output": {"launch_error": query("$states.errorOutput")}, "Next": "Assess"}
    ]
    return state


def _await_job() -> Json:
    payload = {
        "run": query("$run"),
        "attempt": query("$attempt"),
        "task_token": query("$states.context.Task.Token"),
        "entered_at": query("$states.context.State.EnteredTime"),
    }
    state = _call("AwaitJob", payload, next_state="Assess", retry=[RETRY_SERVICE, RETRY_DIED], wait_for_token=True)
    state["TimeoutSeconds"] = AWAIT_SECONDS
    state["Catch"] = [{"ErrorEquals": ["States.Timeout"], "Output": {}, "Next": "AwaitJob"}, *state["Catch"]]
    return state


def _assess() -> Json:
    payload = {"run": query("$run"), "attempt": query("$attempt"), "launch_error": _optional("launch_error")}
    state = _call("Assess", payload, next_state="Remedy", retry=[RETRY_SERVICE, RETRY_DIED])
    state["Assign"] = {"attempt": query("$states.result.Payload.attempt")}
    return state


def _report() -> Json:
    payload = {"run": query("$run"), "error": _optional("error")}
    state = _call("Report", payload, next_state="Notify", retry=[RETRY_SERVICE, RETRY_DIED])
    state["Catch"] = [
        {
            "ErrorEquals": ["States.ALL"],
            "Output": {
                "run": query("$run"),
                "verdict": Verdict.WORKFLOW_FAILED.value,
                "cause": query("$string($states.errorOutput)"),
            },
            "Next": "Failed",
        }
    ]
    return state


def _cause() -> str:
    fields = ", ".join(f"'{field}': $states.input.{field}" for field in ("run", "verdict", "cause", "report"))
    return query(f"$string({{{fields}}})")


def definition() -> Json:
    """The state machine in Amazon States Language; `${...}` are filled in by CloudFormation."""
    return {
        "Comment": "One job spec in, one finished and explained training run out",
        "QueryLanguage": "JSONata",
        "StartAt": "Plan",
        "States": states(),
    }


class Workflow(Construct):
    """`state_machine`, and the rules that bring it job ends, dropped specs and the guard's rounds."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        encryption: Encryption,
        storage: Storage,
        functions: Functions,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings, self._functions = settings, functions
        called = {state: getattr(functions, name) for state, name in FUNCTION_STATES.items()}
        made = make_machine(
            self,
            settings=settings,
            encryption=encryption,
            name=settings.job_prefix,
            definition=definition(),
            called=called,
            substitutions={},
            topic=topic,
            log_data=False,  # AwaitJob's input holds its task token
        )
        self.state_machine = made.state_machine
        self._later_permissions()
        self._job_ends()
        self._execution_ends()
        self._dropped_specs(storage)
        self._guard_rounds()

    def _later_permissions(self) -> None:
        """What names the state machine, for functions that it calls itself: in policies of their own, made after it."""
        arn = self.state_machine.state_machine_arn
        functions = self._functions
        iam.Policy(
            self,
            "AnswerTokens",
            statements=[iam.PolicyStatement(sid="AnswerTokens", actions=["states:SendTaskSuccess"], resources=[arn])],
            roles=[functions.await_job.role, functions.job_event.role, functions.guard.role],
        )
        functions.spec_drop.function.add_environment("STATE_MACHINE_ARN", arn)
        allow(functions.spec_drop.role, [Permission("StartRuns", ("states:StartExecution",), (arn,))])
        allow(
            functions.guard.role,
            [
                Permission(
                    "ReadExecutions",
                    ("states:DescribeExecution",),
                    (executions_arn(self.state_machine),),
                    why="Executions of this state machine; their names are the runs' names.",
                )
            ],
        )

    def _rule(self, name: str, description: str, function: PythonFunction, **how: Any) -> None:
        rule = events.Rule(self, name, description=description, **how)
        rule.add_target(targets.LambdaFunction(function.function, retry_attempts=20))

    def _job_ends(self) -> None:
        pattern = events.EventPattern(
            source=["aws.sagemaker"],
            detail_type=["SageMaker Training Job State Change"],
            detail={
                "TrainingJobName": [{"prefix": f"{self._settings.job_prefix}-"}],
                "TrainingJobStatus": sorted(TERMINAL_STATUSES),
            },
        )
        self._rule("JobEnds", "A training job of a run has ended", self._functions.job_event, event_pattern=pattern)

    def _execution_ends(self) -> None:
        pattern = events.EventPattern(
            source=["aws.states"],
            detail_type=["Step Functions Execution Status Change"],
            detail={
                "stateMachineArn": [self.state_machine.state_machine_arn],
                "status": ["ABORTED", "FAILED", "TIMED_OUT"],
            },
        )
        function = self._functions.execution_ended
        self._rule("ExecutionEnds", "An execution ended without success", function, event_pattern=pattern)

    def _dropped_specs(self, storage: Storage) -> None:
        pattern = events.EventPattern(
            source=["aws.s3"],
            detail_type=["Object Created"],
            detail={"bucket": {"name": [storage.artifacts.bucket_name]}, "object": {"key": [{"prefix": JOBS_PREFIX}]}},
        )
        self._rule("SpecDropped", "A job spec was put into S3", self._functions.spec_drop, event_pattern=pattern)

    def _guard_rounds(self) -> None:
        every = events.Schedule.rate(cdk.Duration.minutes(self._settings.guard_minutes))
        self._rule("GuardRounds", "The guard looks after every run", self._functions.guard, schedule=every)
