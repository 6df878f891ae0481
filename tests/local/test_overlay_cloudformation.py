"""CloudFormation: what a template says of buckets, tables and machines, and how stacks go; beside stock ministack."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError
from overlay_helpers import ROLE, describe, ended, eventually, function, start, unique

from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("overlay")


def _settled(aws: LocalAws, stack: str) -> str:
    """The stack's status once nothing is in progress."""

    def look() -> str | None:
        status = str(aws.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"])
        return None if status.endswith("IN_PROGRESS") else status

    return eventually(look)


def _create(aws: LocalAws, resources: dict[str, Any]) -> str:
    """Deploy a template of these resources; returns the stack's id."""
    stack: str = aws.client("cloudformation").create_stack(
        StackName=unique("stack"), TemplateBody=json.dumps({"Resources": resources})
    )["StackId"]
    assert _settled(aws, stack) == "CREATE_COMPLETE"
    return stack


def _update(aws: LocalAws, stack: str, resources: dict[str, Any]) -> None:
    aws.client("cloudformation").update_stack(StackName=stack, TemplateBody=json.dumps({"Resources": resources}))
    assert _settled(aws, stack) == "UPDATE_COMPLETE"


def _physical(aws: LocalAws, stack: str, logical: str) -> str:
    detail = aws.client("cloudformation").describe_stack_resource(StackName=stack, LogicalResourceId=logical)
    return str(detail["StackResourceDetail"]["PhysicalResourceId"])


def _delete(aws: LocalAws, stack: str) -> str:
    aws.client("cloudformation").delete_stack(StackName=stack)
    return _settled(aws, stack)


def _error_or(call: Any, **arguments: Any) -> Any:
    try:
        answer = call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]
    answer.pop("ResponseMetadata")
    return answer


BUCKET = {
    "Bucket": {
        "Type": "AWS::S3::Bucket",
        "Properties": {
            "Tags": [{"Key": "stage", "Value": "dev"}],
            "VersioningConfiguration": {"Status": "Enabled"},
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [
                    {
                        "BucketKeyEnabled": True,
                        "ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "alias/data"},
                    }
                ]
            },
            "LifecycleConfiguration": {
                "Rules": [
                    {
                        "Id": "uploads",
                        "Status": "Enabled",
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3},
                        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
                    },
                    {
                        "Id": "old",
                        "Status": "Enabled",
                        "Prefix": "runs/",
                        "ExpirationInDays": 365,
                        "Transitions": [{"StorageClass": "STANDARD_IA", "TransitionInDays": 60}],
                    },
                ]
            },
        },
    }
}


def test_bucket_properties_come_through(aws: LocalAws, stock: LocalAws) -> None:
    def seen(server: LocalAws) -> tuple[Any, ...]:
        s3, name = server.client("s3"), _physical(server, _create(server, BUCKET), "Bucket")
        return (
            _error_or(s3.get_bucket_tagging, Bucket=name),
            _error_or(s3.get_bucket_lifecycle_configuration, Bucket=name),
            _error_or(s3.get_bucket_encryption, Bucket=name),
            _error_or(s3.get_bucket_ownership_controls, Bucket=name),
        )

    tags, lifecycle, encryption, ownership = seen(aws)
    assert tags["TagSet"] == [{"Key": "stage", "Value": "dev"}]
    rules = {rule["ID"]: rule for rule in lifecycle["Rules"]}
    assert rules["uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 3}
    assert rules["uploads"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    assert rules["old"]["Filter"] == {"Prefix": "runs/"}
    assert rules["old"]["Expiration"] == {"Days": 365}
    assert rules["old"]["Transitions"] == [{"Days": 60, "StorageClass": "STANDARD_IA"}]
    default = encryption["ServerSideEncryptionConfiguration"]["Rules"][0]["ApplyServerSideEncryptionByDefault"]
    assert default == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "alias/data"}
    assert ownership["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    tags, lifecycle, encryption, _ = seen(stock)
    assert (tags, lifecycle) == ("NoSuchTagSet", "NoSuchLifecycleConfiguration")
    assert "alias/data" not in json.dumps(encryption)


def test_bucket_that_is_not_empty_stays(aws: LocalAws, stock: LocalAws) -> None:
    for server, status in ((aws, "DELETE_FAILED"), (stock, "DELETE_COMPLETE")):
        stack = _create(server, BUCKET)
        name = _physical(server, stack, "Bucket")
        server.client("s3").put_object(Bucket=name, Key="a", Body=b"x")
        server.client("s3").delete_object(Bucket=name, Key="a")  # a version and a delete marker are left
        assert _delete(server, stack) == status
    stack = _create(aws, BUCKET)
    assert _delete(aws, stack) == "DELETE_COMPLETE"


def test_write_with_the_key_of_the_account(aws: LocalAws, stock: LocalAws) -> None:
    for server, expected in ((aws, "aws:kms"), (stock, "InvalidArgument")):
        bucket = unique("kms")
        server.client("s3").create_bucket(Bucket=bucket)
        write = {"Bucket": bucket, "Key": "a", "Body": b"x", "ServerSideEncryption": "aws:kms"}
        answer = _error_or(server.client("s3").put_object, **write)
        assert (answer if server is stock else answer["ServerSideEncryption"]) == expected


TABLE = {
    "Table": {
        "Type": "AWS::DynamoDB::Table",
        "Properties": {
            "AttributeDefinitions": [{"AttributeName": "run", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "run", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
            "TimeToLiveSpecification": {"AttributeName": "expires", "Enabled": True},
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
            "SSESpecification": {"SSEEnabled": True},
        },
    }
}


def _table(aws: LocalAws, name: str) -> tuple[str, str, str | None]:
    client = aws.client("dynamodb")
    backups = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    return (
        client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]["TimeToLiveStatus"],
        backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"],
        client.describe_table(TableName=name)["Table"].get("SSEDescription", {}).get("Status"),
    )


def test_table_properties_come_through(aws: LocalAws, stock: LocalAws) -> None:
    stack = _create(aws, TABLE)
    name = _physical(aws, stack, "Table")
    assert _table(aws, name) == ("ENABLED", "ENABLED", "ENABLED")
    changed = json.loads(json.dumps(TABLE))
    changed["Table"]["Properties"]["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] = False
    _update(aws, stack, changed)
    assert _table(aws, name) == ("ENABLED", "DISABLED", "ENABLED")
    assert _table(stock, _physical(stock, _create(stock, TABLE), "Table")) == ("DISABLED", "DISABLED", None)


TEARDOWN = """
import json, urllib.request
def handler(event, context):
    wanted = event["ResourceProperties"].get("fails") if event["RequestType"] == "Delete" else "no"
    body = {"Status": "FAILED" if wanted == "yes" else "SUCCESS", "Reason": "asked to", "Data": {},
            "PhysicalResourceId": "teardown", **{k: event[k] for k in ("StackId", "RequestId", "LogicalResourceId")}}
    urllib.request.urlopen(urllib.request.Request(event["ResponseURL"], json.dumps(body).encode(), method="PUT"))
"""


def _guarded(aws: LocalAws, fails: str) -> dict[str, Any]:
    arn = aws.client("lambda").get_function(FunctionName=function(aws, TEARDOWN))["Configuration"]["FunctionArn"]
    teardown = {
        "Type": "Custom::Teardown",
        "DependsOn": ["Table"],
        "Properties": {"ServiceToken": arn, "fails": fails},
    }
    return {"Teardown": teardown, "Other": {"Type": "AWS::SQS::Queue"}, **TABLE}


def test_what_a_failed_teardown_depends_on_stays(aws: LocalAws, stock: LocalAws) -> None:
    left = {}
    for server in (aws, stock):
        stack = _create(server, _guarded(server, "yes"))
        assert _delete(server, stack) == "DELETE_FAILED"
        resources = server.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
        left[server] = {item["LogicalResourceId"] for item in resources if item["ResourceStatus"] != "DELETE_COMPLETE"}
    assert left[aws] == {"Teardown", "Table"}
    assert left[stock] == {"Teardown"}


def test_teardown_goes_first(aws: LocalAws) -> None:
    stack = _create(aws, _guarded(aws, "no"))
    assert _delete(aws, stack) == "DELETE_COMPLETE"
    events = aws.client("cloudformation").describe_stack_events(StackName=stack)["StackEvents"]
    deleted = [event["LogicalResourceId"] for event in reversed(events) if event["ResourceStatus"] == "DELETE_COMPLETE"]
    assert deleted.index("Teardown") < deleted.index("Table")


def _machine_with_logs(level: str, group: str) -> dict[str, Any]:
    definition = {
        "QueryLanguage": "JSONata",
        "StartAt": "Choose",
        "States": {
            "Choose": {
                "Type": "Choice",
                "Choices": [{"Condition": "{% $states.input.fail %}", "Next": "Fail"}],
                "Default": "Done",
            },
            "Fail": {"Type": "Fail", "Error": "Asked", "Cause": "why"},
            "Done": {"Type": "Succeed"},
        },
    }
    return {
        "Group": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": group}},
        "Machine": {
            "Type": "AWS::StepFunctions::StateMachine",
            "Properties": {
                "DefinitionString": json.dumps(definition),
                "RoleArn": ROLE,
                "LoggingConfiguration": {
                    "Level": level,
                    "IncludeExecutionData": level == "ALL",
                    "Destinations": [{"CloudWatchLogsLogGroup": {"LogGroupArn": {"Fn::GetAtt": ["Group", "Arn"]}}}],
                },
            },
        },
    }


@pytest.mark.parametrize(
    ("level", "fail", "expected"),
    [
        ("ALL", False, ["ExecutionStarted", "ChoiceStateEntered", "ChoiceStateExited", "SucceedStateEntered"]),
        ("ERROR", True, ["ExecutionFailed"]),
        ("ERROR", False, []),
    ],
)
def test_machine_writes_its_history(
    aws: LocalAws, stock: LocalAws, level: str, fail: bool, expected: list[str]
) -> None:
    def lines(server: LocalAws) -> list[dict[str, Any]]:
        group = unique("/aws/vendedlogs/states/test")
        stack = _create(server, _machine_with_logs(level, group))
        execution = start(server, _physical(server, stack, "Machine"), {"fail": fail})
        ended(server, execution)
        events = server.client("logs").filter_log_events(logGroupName=group)["events"]
        return [json.loads(event["message"]) for event in events]

    found = lines(aws)
    assert [line["type"] for line in found][: len(expected)] == expected
    if level == "ALL":
        assert found[-1]["type"] == "ExecutionSucceeded"
        assert json.loads(found[0]["details"]["input"]) == {"fail": False}
        assert lines(stock) == []
    elif fail:
        assert "cause" not in found[0]["details"]


def test_describe_shows_the_logging_of_a_template(aws: LocalAws) -> None:
    stack = _create(aws, _machine_with_logs("ERROR", unique("/aws/vendedlogs/states/test")))
    described = aws.client("stepfunctions").describe_state_machine(stateMachineArn=_physical(aws, stack, "Machine"))
    assert described["loggingConfiguration"]["level"] == "ERROR"
    assert described["loggingConfiguration"]["destinations"]


def test_execution_description_is_not_touched_by_logging(aws: LocalAws) -> None:
    stack = _create(aws, _machine_with_logs("ALL", unique("/aws/vendedlogs/states/test")))
    execution = start(aws, _physical(aws, stack, "Machine"), {"fail": True})
    ended(aws, execution)
    assert describe(aws, execution)["error"] == "Asked"
