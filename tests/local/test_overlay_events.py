"""EventBridge deliveries, Service Quotas and prices; beside stock ministack."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from overlay_helpers import eventually, function, unique

from blackwell.account import quota_name, quotas
from blackwell.hardware import INSTANCES
from local.overlay.context import DEFAULT_INSTANCE_LIMIT
from local.server import LocalAws

pytestmark = pytest.mark.xdist_group("overlay")


def _queue(aws: LocalAws) -> tuple[str, str]:
    url = aws.client("sqs").create_queue(QueueName=unique("queue"))["QueueUrl"]
    attributes = aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    return url, attributes["QueueArn"]


def _rule(aws: LocalAws, target: dict[str, Any]) -> str:
    """A rule for events of a source of its own; returns the source."""
    source = unique("test.source")
    aws.client("events").put_rule(Name=source, EventPattern=json.dumps({"source": [source]}))
    aws.client("events").put_targets(Rule=source, Targets=[{"Id": "target", **target}])
    return source


def _put(aws: LocalAws, source: str) -> None:
    entry = {"Source": source, "DetailType": "Test", "Detail": json.dumps({"n": 1})}
    assert aws.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0


@pytest.mark.parametrize(
    "target",
    [
        "arn:aws:lambda:us-east-1:000000000000:function:gone",
        "arn:aws:states:us-east-1:000000000000:stateMachine:gone",
        "arn:aws:sqs:us-east-1:000000000000:gone",
        "arn:aws:sns:us-east-1:000000000000:gone",
    ],
)
def test_undeliverable_event_goes_to_the_dead_letter_queue(aws: LocalAws, stock: LocalAws, target: str) -> None:
    for server, expected in ((aws, 1), (stock, 0)):
        url, arn = _queue(server)
        source = _rule(server, {"Arn": target, "DeadLetterConfig": {"Arn": arn}, "Input": '{"other": 1}'})
        _put(server, source)
        time.sleep(0.1)
        answer = server.client("sqs").receive_message(QueueUrl=url, MessageAttributeNames=["All"])
        messages = answer.get("Messages", [])
        assert len(messages) == expected
        for message in messages:
            assert json.loads(message["Body"])["detail"] == {"n": 1}
            assert message["MessageAttributes"]["ERROR_CODE"]["StringValue"] == "RESOURCE_NOT_FOUND"
            assert message["MessageAttributes"]["TARGET_ARN"]["StringValue"] == target


def test_failing_target_function_is_tried_again(aws: LocalAws, stock: LocalAws) -> None:
    calls = {}
    for server in (aws, stock):
        name = function(server, "def handler(event, context):\n    raise ValueError(event['source'])\n")
        arn = server.client("lambda").get_function(FunctionName=name)["Configuration"]["FunctionArn"]
        _put(server, _rule(server, {"Arn": arn}))

        def starts(server: LocalAws = server, name: str = name) -> int:
            try:
                events = server.client("logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
            except ClientError:
                return 0
            return sum(event["message"].startswith("START ") for event in events)

        if server is aws:
            eventually(lambda: starts() == 3)
        calls[server] = starts
    time.sleep(0.5)
    assert (calls[aws](), calls[stock]()) == (3, 1)


def test_schedule_goes_by_the_clock(aws: LocalAws) -> None:
    name, (url, arn) = unique("schedule"), _queue(aws)
    aws.client("events").put_rule(Name=name, ScheduleExpression="rate(5 minutes)")
    aws.client("events").put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])
    assert "Messages" not in aws.client("sqs").receive_message(QueueUrl=url)
    aws.advance_clock(301)
    message = eventually(lambda: aws.client("sqs").receive_message(QueueUrl=url).get("Messages"))[0]
    assert json.loads(message["Body"])["detail-type"] == "Scheduled Event"


def test_quotas_of_training_jobs(aws: LocalAws, stock: LocalAws) -> None:
    spot = quota_name("ml.p6-b200.48xlarge", "spot training job usage")
    aws.control("sagemaker/limit", {"quota": spot, "value": 3})
    found, missing = quotas(aws.client, ["ml.p6-b200.48xlarge"])
    assert missing == []
    values = {quota.name: quota.value for quota in found}
    assert values[spot] == 3
    assert values[quota_name("ml.p6-b200.48xlarge", "training job usage")] == DEFAULT_INSTANCE_LIMIT
    code = next(quota.code for quota in found if quota.name == spot)
    client = aws.client("service-quotas")
    assert client.get_service_quota(ServiceCode="sagemaker", QuotaCode=code)["Quota"]["Value"] == 3
    with pytest.raises(ClientError, match="NoSuchResourceException"):
        client.get_service_quota(ServiceCode="sagemaker", QuotaCode="L-0")
    with pytest.raises(ClientError):
        stock.client("service-quotas").list_service_quotas(ServiceCode="sagemaker")


def test_price_of_an_instance(aws: LocalAws) -> None:
    name = "ml.p6-b200.48xlarge"
    answer = aws.client("pricing").get_products(
        ServiceCode="AmazonSageMaker",
        Filters=[{"Type": "TERM_MATCH", "Field": "instanceName", "Value": name}],
    )
    (product,) = map(json.loads, answer["PriceList"])
    (term,) = product["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    price = INSTANCES[name].price
    assert price is not None
    assert float(dimension["pricePerUnit"]["USD"]) == price.usd_per_hour
