"""Questions to an account: what is left of a stack, quotas by name, offerings of training plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from blackwell import account, cli
from blackwell.names import STAGE_TAG, job_prefix, stack_name
from blackwell.telemetry import TRAINING_LOG_GROUP
from local.server import LocalAws

TAGS = [{"Key": STAGE_TAG, "Value": "dev"}]
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    with LocalAws(tmp_path_factory.mktemp("account")) as server:
        yield server


@pytest.fixture(scope="module")
def client(aws: LocalAws) -> Callable[[str], Any]:
    return aws.client


def _look(client: Callable[[str], Any], stage: str = "dev") -> account.Leftovers:
    return account.leftovers(client, stack_name(stage), stage, job_prefix(stage))


@pytest.mark.xdist_group("account")
def test_leftovers_finds_ours_and_nothing_else(client: Callable[[str], Any]) -> None:
    assert _look(client).found == []
    for stage in ("dev", "prod"):
        stack, prefix = stack_name(stage), job_prefix(stage)
        bucket = f"{stack.lower()}-storageartifacts-abc"
        client("s3").create_bucket(Bucket=bucket)
        client("s3").put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": STAGE_TAG, "Value": stage}]})
        client("logs").create_log_group(logGroupName=f"/aws/lambda/{stack}-FunctionsPlan-xyz")
        client("iam").create_role(RoleName=f"{stack}-RolesExecution-abc", AssumeRolePolicyDocument=TRUST)
        client("sns").create_topic(Name=f"{prefix}-topic")
        client("dynamodb").create_table(
            TableName=f"{stack}-StorageRunTable1A-x",
            KeySchema=[{"AttributeName": "run", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "run", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    client("s3").create_bucket(Bucket="blackwell-of-somebody-else")
    client("iam").create_role(RoleName="blackwell-development-team", AssumeRolePolicyDocument=TRUST)
    client("logs").create_log_group(logGroupName=TRAINING_LOG_GROUP)
    for name in ("blackwell-dev-run-a1/algo-1-1", "blackwell-devel-run-a1/algo-1-1", "blackwell-prod-run-a1/algo-1-1"):
        client("logs").create_log_stream(logGroupName=TRAINING_LOG_GROUP, logStreamName=name)

    client("sqs").create_queue(QueueName="named-by-somebody", tags={STAGE_TAG: "dev"})
    client("dynamodb").tag_resource(
        ResourceArn="arn:aws:dynamodb:us-east-1:000000000000:table/BlackwellTrainingStack-StorageRunTable1A-x",
        Tags=TAGS,
    )
    items = _look(client).found
    tagged = [item.name.rsplit(":", 1)[-1] for item in items if item.kind.endswith(" resource")]
    assert tagged == ["named-by-somebody"]  # what its tag shows is there, what has a lister of its own not twice
    found = {(item.kind, item.name.rsplit(":", 1)[-1]) for item in items if " resource" not in item.kind}
    assert found == {
        ("bucket", "blackwelltrainingstack-storageartifacts-abc"),
        ("log group", "/aws/lambda/BlackwellTrainingStack-FunctionsPlan-xyz"),
        ("log stream of a job", "blackwell-dev-run-a1/algo-1-1"),
        ("role", "BlackwellTrainingStack-RolesExecution-abc"),
        ("table", "BlackwellTrainingStack-StorageRunTable1A-x"),
        ("topic", "blackwell-dev-topic"),
    }
    billing = {item.kind for item in _look(client, "prod").found if item.bills and " resource" not in item.kind}
    assert billing == {"bucket", "table", "log stream of a job"}


def test_a_deleted_table_whose_tag_is_still_known_is_not_left() -> None:
    table = "arn:aws:dynamodb:us-east-1:000000000000:table/BlackwellTrainingStack-StorageRuns-x"
    there = {"Table": {"TableName": "BlackwellTrainingStack-StorageRuns-x", "TableStatus": "ACTIVE"}}

    def found(*, deleted: bool) -> list[str]:
        clients = {
            name: boto3.client(name, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")  # type: ignore[call-overload]
            for name in ("resourcegroupstaggingapi", "dynamodb")
        }
        stubs = {name: Stubber(made) for name, made in clients.items()}
        known = {"ResourceTagMappingList": [{"ResourceARN": table, "Tags": TAGS}], "PaginationToken": ""}
        stubs["resourcegroupstaggingapi"].add_response("get_resources", known)
        if deleted:
            stubs["dynamodb"].add_client_error("describe_table", "ResourceNotFoundException")
        else:
            stubs["dynamodb"].add_response("describe_table", there)
        for stub in stubs.values():
            stub.activate()
        return [item.name for item in account._tagged(clients.__getitem__, "dev")]

    assert found(deleted=False) == [table]
    assert found(deleted=True) == []


@pytest.mark.xdist_group("account")
def test_leftovers_command_exits_1_while_something_is_left(
    aws: LocalAws, client: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["leftovers", *arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    client("iam").create_role(RoleName=f"{stack_name('left')}-Roles1", AssumeRolePolicyDocument=TRUST)
    code, out = call("--stage", "left")
    assert code == 1
    assert out.splitlines() == ["role: BlackwellTrainingStack-left-Roles1"]
    client("iam").delete_role(RoleName=f"{stack_name('left')}-Roles1")
    code, out = call("--stage", "left", "--json")
    assert code == 0
    assert json.loads(out) == {"stage": "left", "found": [], "unread": {}}


def test_leftovers_that_could_not_be_listed_are_no_proof() -> None:
    class Denied:
        def __getattr__(self, operation: str) -> Any:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)

    result = account.leftovers(lambda service: Denied(), stack_name("dev"), "dev", job_prefix("dev"))
    assert result.found == []
    assert not result.clean
    assert {"training job", "bucket", "CloudFormation stack"} <= result.unread.keys()


def _stubbed(service: str) -> tuple[Any, Stubber]:
    made = boto3.client(service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    return made, Stubber(made)


def _quota(name: str, value: float) -> dict[str, Any]:
    return {"QuotaName": name, "QuotaCode": "L-1234ABCD", "Value": value, "Adjustable": True}


def test_quotas_are_found_by_name_and_applied_values_win() -> None:
    made, stub = _stubbed("service-quotas")
    spot = "ml.p6-b200.48xlarge for spot training job usage"
    plain = "ml.p6-b200.48xlarge for training job usage"
    stub.add_response(
        "list_aws_default_service_quotas",
        {"Quotas": [_quota(plain, 0), _quota(spot, 0), _quota("ml.p6-b200.48xlarge for endpoint usage", 9)]},
        {"ServiceCode": "sagemaker"},
    )
    stub.add_response("list_service_quotas", {"Quotas": [_quota(plain, 2)]}, {"ServiceCode": "sagemaker"})
    with stub:
        found, missing = account.quotas(lambda service: made, ["ml.p6-b200.48xlarge"])
    assert [(quota.name, quota.value) for quota in found] == [(plain, 2.0), (spot, 0.0)]
    assert missing == ["ml.p6-b200.48xlarge for training warm pool usage"]


def _offering(identity: str, fee: str, hours: int = 24) -> dict[str, Any]:
    return {
        "TrainingPlanOfferingId": identity,
        "TargetResources": ["training-job"],
        "DurationHours": hours,
        "UpfrontFee": fee,
        "CurrencyCode": "USD",
        "ReservedCapacityOfferings": [
            {
                "InstanceType": "ml.p6-b200.48xlarge",
                "InstanceCount": 2,
                "AvailabilityZone": "us-west-2a",
                "StartTime": datetime(2026, 12, 2, 11, 30, tzinfo=UTC),
                "EndTime": datetime(2026, 12, 3, 11, 30, tzinfo=UTC),
            }
        ],
    }


def test_offerings_are_sorted_by_price_per_plan() -> None:
    made, stub = _stubbed("sagemaker")
    stub.add_response(
        "search_training_plan_offerings",
        {"TrainingPlanOfferings": [_offering("tpo-dear", "5000.00"), _offering("tpo-cheap", "3840.00")]},
        {
            "InstanceType": "ml.p6-b200.48xlarge",
            "InstanceCount": 2,
            "DurationHours": 24,
            "TargetResources": ["training-job"],
        },
    )
    with stub:
        found = account.offerings(lambda service: made, "ml.p6-b200.48xlarge", 2, 24)
    assert [offering.offering_id for offering in found] == ["tpo-cheap", "tpo-dear"]
    assert found[0].per_instance_hour == 80.0
    assert found[0].as_dict()["starts"] == "2026-12-02T11:30:00+00:00"


@pytest.mark.parametrize(("command", "reader"), [("quotas", "quotas"), ("offerings", "offerings")])
def test_account_commands_print_json(
    command: str, reader: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: dict[str, Any] = {
        "quotas": ([account.Quota("ml.p6-b200.48xlarge for training job usage", "L-1", 0.0, True)], ["x"]),
        "offerings": [account._offering(_offering("tpo-1", "100"))],
    }
    monkeypatch.setattr(account, reader, lambda *_, **__: answers[command])
    for options in ([], ["--json"]):
        cli_exit = 0
        try:
            cli.main([command, "--region", "us-east-1", *options])
        except SystemExit as ended:
            cli_exit = int(ended.code or 0)
        out = capsys.readouterr().out
        assert cli_exit == 0
    assert set(json.loads(out)) in ({"quotas", "not_listed"}, {"offerings"})
