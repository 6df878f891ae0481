"""Evaluates the IAM policies of a synthesised template, as IAM does: explicit deny, then allow, else implicit deny.

Tokens become values of one made-up account; conditions are evaluated against a request's context. A condition operator
that is not known here is an error, never a pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PARTITION, REGION, ACCOUNT = "aws", "us-west-2", "111122223333"
_PSEUDO = {
    "AWS::Partition": PARTITION, "AWS::Region": REGION, "AWS::AccountId": ACCOUNT, "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": "Stack", "AWS::StackId": "stack-id", "AWS::NoValue": "",
}  # fmt: skip
_ARNS = {
    "AWS::S3::Bucket": "arn:aws:s3:::{name}",
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{{name}}",
    "AWS::Lambda::Function": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{name}}",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{{name}}",
    "AWS::ECR::Repository": f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{{name}}",
    "AWS::CodeBuild::Project": f"arn:aws:codebuild:{REGION}:{ACCOUNT}:project/{{name}}",
    "AWS::StepFunctions::StateMachine": f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{{name}}",
    "AWS::SNS::Topic": f"arn:aws:sns:{REGION}:{ACCOUNT}:{{name}}",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{{name}}:*",
    "AWS::KMS::Key": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/{{name}}",
}
_REF_IS_ARN = {"AWS::StepFunctions::StateMachine", "AWS::SNS::Topic"}


def arn(template: Mapping[str, Any], logical_id: str) -> str:
    """ARN of a resource of the template; its physical name is its logical id."""
    return _ARNS[template["Resources"][logical_id]["Type"]].format(name=logical_id)


def resolve(template: Mapping[str, Any], value: Any) -> Any:
    """Text for intrinsic functions; lists and mappings element by element.

    Raises:
        ValueError: for an intrinsic function that is not known here.
    """
    if isinstance(value, list):
        return [resolve(template, item) for item in value]
    if not isinstance(value, dict):
        return value
    if "Ref" in value:
        name = value["Ref"]
        if name in _PSEUDO:
            return _PSEUDO[name]
        return arn(template, name) if template["Resources"][name]["Type"] in _REF_IS_ARN else name
    if "Fn::GetAtt" in value:
        name, attribute = value["Fn::GetAtt"]
        if attribute == "Arn":
            return arn(template, name)
        if attribute == "Name":
            return name
        raise ValueError(f"attribute {attribute} of {name}")
    if "Fn::Join" in value:
        delimiter, items = value["Fn::Join"]
        return delimiter.join(resolve(template, items))
    if "Fn::Sub" in value:
        return re.sub(r"\$\{([\w:]+)\}", lambda m: resolve(template, {"Ref": m[1]}), value["Fn::Sub"])
    if "Fn::FindInMap" in value:
        mapping, *keys = value["Fn::FindInMap"]
        found = template["Mappings"][mapping]
        for key in keys:
            found = found[resolve(template, key)]
        return found
    if "Fn::Select" in value:
        index, items = value["Fn::Select"]
        return resolve(template, items)[int(index)]
    if "Fn::Split" in value:
        delimiter, text = value["Fn::Split"]
        return resolve(template, text).split(delimiter)
    if any(key.startswith("Fn::") for key in value):
        raise ValueError(f"intrinsic function {list(value)}")
    return {key: resolve(template, item) for key, item in value.items()}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements(template: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    """Every statement that is attached to the role with this logical id, resolved."""
    found: list[dict[str, Any]] = []
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        kinds = ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy")
        if resource["Type"] in kinds and {"Ref": role} in properties["Roles"]:
            found += properties["PolicyDocument"]["Statement"]
    own = template["Resources"][role]["Properties"]
    assert "ManagedPolicyArns" not in own, f"{role} uses a policy of AWS's, which grants more than is needed"
    found += [s for policy in own.get("Policies", []) for s in policy["PolicyDocument"]["Statement"]]
    return [resolve(template, s) for s in found]


def role_of(template: Mapping[str, Any], beginning: str) -> str:
    """Logical id of the one role whose logical id begins so."""
    (name,) = [n for n, r in template["Resources"].items() if r["Type"] == "AWS::IAM::Role" and n.startswith(beginning)]
    return str(name)


def _like(pattern: str, text: str) -> bool:
    regex = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(regex, text, re.DOTALL) is not None


@dataclass(frozen=True)
class Request:
    """One call: action, resource, and the condition keys that the service puts into the request's context."""

    action: str
    resource: str
    context: Mapping[str, str | list[str]]


def _holds(operator: str, key: str, wanted: Any, context: Mapping[str, Any]) -> bool:
    given = context.get(key)
    values = [str(w) for w in _list(wanted)]
    if operator == "Null":
        return (given is None) == (values[0] == "true")
    if operator == "ForAllValues:StringEquals":
        return given is None or all(g in values for g in _list(given))
    if given is None:
        return False
    if operator == "StringEquals":
        return given in values
    if operator == "StringLike" or operator == "ArnLike":
        return any(_like(v, given) for v in values)
    if operator == "NumericLessThanEquals":
        return float(given) <= float(values[0])
    if operator == "Bool":
        return str(given).lower() == values[0].lower()
    raise ValueError(f"condition operator {operator}")


def _applies(statement: Mapping[str, Any], request: Request) -> bool:
    return (
        any(_like(a.lower(), request.action.lower()) for a in _list(statement["Action"]))
        and any(_like(r, request.resource) for r in _list(statement["Resource"]))
        and all(
            _holds(operator, key, wanted, request.context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def allowed(
    template: Mapping[str, Any], role: str, action: str, resource: str = "*", **context: str | list[str]
) -> bool:
    """Whether the role may do that. Context keys are written with `__` for `:` (`iam__PassedToService`)."""
    request = Request(action, resource, {k.replace("__", ":", 1): v for k, v in context.items()})
    applying = [s for s in statements(template, role) if _applies(s, request)]
    return bool(applying) and all(s["Effect"] == "Allow" for s in applying)


def actions(template: Mapping[str, Any], role: str) -> set[str]:
    """Every action that any statement of the role allows."""
    return {a for s in statements(template, role) if s["Effect"] == "Allow" for a in _list(s["Action"])}
