"""The sweeps' state machine: no point can end the others, and its roles reach no further than the sweep."""

from __future__ import annotations

import pytest
from policies import ACCOUNT, REGION, actions, allowed, arn, role_of
from stack_templates import Template, resources

from stacks.sweep import point_states, states

pytestmark = pytest.mark.xdist_group("stacks")


def machine(template: Template, which: str) -> str:
    (name,) = [n for n in resources(template, "AWS::StepFunctions::StateMachine") if n.startswith(which)]
    return name


def test_every_task_of_a_point_catches_everything() -> None:
    for name, state in point_states().items():
        if state["Type"] == "Task":
            assert any(catch["ErrorEquals"] == ["States.ALL"] for catch in state["Catch"]), name
        assert state["Type"] != "Fail", name


def test_points_are_an_inline_map_with_a_limit() -> None:
    points = states()["Points"]
    assert points["ItemProcessor"]["ProcessorConfig"] == {"Mode": "INLINE"}
    assert "max_concurrency" in points["MaxConcurrency"]


def test_what_a_point_leaves_behind_is_a_pointer() -> None:
    """The job itself is in no state's output but Prepare's, which ends with the point."""
    ends = [state for state in point_states().values() if state.get("End")]
    assert len(ends) == 3
    for state in point_states().values():
        if state["Type"] == "Task" and "startExecution" in state["Resource"]:
            assert set(state["Output"]) == {"point", "run"}


class TestRoles:
    def test_starts_and_stops_training_runs_and_nothing_else(self, template: Template) -> None:
        role = role_of(template, "SweepRole")
        training, own = machine(template, "Workflow"), machine(template, "Sweep")
        assert allowed(template, role, "states:StartExecution", arn(template, training))
        assert not allowed(template, role, "states:StartExecution", arn(template, own))
        assert not allowed(template, role, "states:StartExecution", f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:x")
        execution = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:"
        names = resources(template, "AWS::StepFunctions::StateMachine")
        assert training in names
        for action in ("states:DescribeExecution", "states:StopExecution"):
            assert allowed(template, role, action, f"{execution}{training}:my-run")
            assert not allowed(template, role, action, f"{execution}somebody-elses:x")

    def test_hears_of_ends_by_step_functions_own_rule_only(self, template: Template) -> None:
        role = role_of(template, "SweepRole")
        rule = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/"
        ours = f"{rule}StepFunctionsGetEventsForStepFunctionsExecutionRule"
        for action in ("events:PutTargets", "events:PutRule", "events:DescribeRule"):
            assert allowed(template, role, action, ours)
            assert not allowed(template, role, action, f"{rule}another")

    @pytest.mark.parametrize("function", ["SweepPlan", "SweepPoint", "SweepReport"])
    def test_functions_write_sweeps_only(self, template: Template, function: str) -> None:
        role = role_of(template, f"Functions{function}Role")
        (artifacts,) = [arn(template, n) for n in resources(template, "AWS::S3::Bucket") if "Artifacts" in n]
        assert allowed(template, role, "s3:PutObject", f"{artifacts}/sweeps/mine/report.json")
        for key in ("runs/x/report.json", "datasets/x", "jobs/x.json"):
            assert not allowed(template, role, "s3:PutObject", f"{artifacts}/{key}")
        assert not {"dynamodb:PutItem", "dynamodb:UpdateItem", "states:StartExecution"} & actions(template, role)

    def test_only_a_point_reads_reports_and_logs(self, template: Template) -> None:
        (artifacts,) = [arn(template, n) for n in resources(template, "AWS::S3::Bucket") if "Artifacts" in n]
        role = role_of(template, "FunctionsSweepPointRole")
        assert allowed(template, role, "s3:GetObject", f"{artifacts}/runs/my-run/report.json")
        assert not allowed(template, role, "s3:GetObject", f"{artifacts}/runs/my-run/spec.json")
        assert "logs:GetLogEvents" in actions(template, role)
        for other in ("SweepPlan", "SweepReport"):
            assert "logs:GetLogEvents" not in actions(template, role_of(template, f"Functions{other}Role"))


def test_teardown_stops_sweeps_before_runs(template: Template) -> None:
    """A sweep that still runs would start the next point."""
    (resource,) = resources(template, "Custom::Teardown").values()
    listed = [value["Ref"] for value in resource["Properties"]["StateMachines"]]
    assert listed == [machine(template, "Sweep"), machine(template, "Workflow")]
    role = role_of(template, "TeardownRemover")
    for name in listed:
        assert allowed(template, role, "states:ListExecutions", arn(template, name))
        execution = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:{name}:x"
        assert allowed(template, role, "states:StopExecution", execution)
