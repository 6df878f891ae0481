"""Every function may do what it was seen to do, and nothing that no run needed."""

from __future__ import annotations

import pytest
from policies import actions, role_of
from recorded_calls import needed_actions, recorded
from stack_templates import Template, resources

from stacks import asset

pytestmark = pytest.mark.xdist_group("stacks")

FUNCTIONS = sorted(path.parent.name for path in (asset.ROOT / "lambdas").glob("*/handler.py"))
ROLES = {
    "teardown": "TeardownRemoverRole",
    "training_log_group": "ObservabilityLogGroupAdopterRole",
    "base_image": "BaseImageCheckRole",
}
"""Beginning of the role's logical id, where the function is not one of stacks/functions.py."""

ALWAYS = {"logs:CreateLogStream", "logs:PutLogEvents"}
"""Of Lambda itself, in the function's name."""
_STOPS = "stops a job that outlived its run; in the recorded runs the stopped execution's own function was faster"
_OWNER = "is asked before such a job is stopped: is it ours?"
_KEY_OF_THE_TOPIC = dict.fromkeys(
    ("kms:Decrypt", "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext"),
    "by SNS, in the publisher's name",
)
NOT_SEEN: dict[str, dict[str, str]] = {
    "assess": {"sagemaker:StopTrainingJob": _STOPS, "sagemaker:ListTags": _OWNER},
    "report": {"sagemaker:StopTrainingJob": _STOPS, "sagemaker:ListTags": _OWNER, **_KEY_OF_THE_TOPIC},
    "launch": {"sagemaker:StopTrainingJob": "a run that was stopped between the check and the call leaves no job"},
    "ensure_image": {"logs:GetLogEvents": "reads why a build failed; test_lambda_image.py"},
    "execution_ended": {"lambda:InvokeFunction": "asks for the report where no job is left to end"},
    "guard": {
        "s3:PutObject": "asks through the control file when the budget is nearly used",
        "s3:ListBucket": "then waits until the checkpoint is whole in S3",
    },
    "spec_drop": {"s3:GetObjectVersion": "the dropped version is read by its id, which IAM authorises by this action"},
    "base_image": {
        "sns:Publish": "told when a newer image was found",
        **_KEY_OF_THE_TOPIC,
    },
    "teardown": {
        "codebuild:StopBuild": "a build that runs while the stack is destroyed; test_teardown.py",
        "lambda:InvokeFunction": "goes on in another invocation after 15 minutes; test_teardown.py",
        "sagemaker:StopTrainingJob": "the stopped execution's own function was faster; test_teardown.py",
    },
}
"""Function -> action -> why it is granted though no recorded run called it."""


def _role(template: Template, function: str) -> str:
    camel = "".join(part.capitalize() for part in function.split("_"))
    return role_of(template, ROLES.get(function, f"Functions{camel}Role"))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_it_does_it_may(template: Template, function: str) -> None:
    missing = needed_actions(recorded().get(function, [])) - actions(template, _role(template, function))
    assert missing == set()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_it_may_it_does(template: Template, function: str) -> None:
    granted = actions(template, _role(template, function)) - ALWAYS
    explained = NOT_SEEN.get(function, {})
    seen = needed_actions(recorded().get(function, []))
    assert granted - seen - set(explained) == set()
    assert not set(explained) & seen, "seen now: take it out of NOT_SEEN"
    assert set(explained) <= granted, "not granted any more: take it out of NOT_SEEN"


def test_every_function_of_the_stack_is_looked_at(template: Template) -> None:
    handlers = {f["Properties"]["Handler"].split(".")[1] for f in resources(template, "AWS::Lambda::Function").values()}
    assert handlers == set(FUNCTIONS)
