"""Custom resource: makes sure that the account's training log group exists, so that metric filters can stand on it.

The group belongs to the account, not to the stack: it is created where no job has run yet and never deleted.
"""

from __future__ import annotations

from typing import Any

import boto3

from lambdas.teardown import cfn


def handler(event: dict[str, Any], context: Any) -> None:
    """CloudFormation's Create, Update and Delete."""
    with cfn.answering(event, physical_id=event["ResourceProperties"]["LogGroupName"]):
        if event["RequestType"] != "Delete":
            logs = boto3.client("logs")
            try:
                logs.create_log_group(logGroupName=event["ResourceProperties"]["LogGroupName"])
            except logs.exceptions.ResourceAlreadyExistsException:
                return
