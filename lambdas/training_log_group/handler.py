"""Custom resource: makes sure that the account's training log group exists, so that metric filters can stand on it.

The group belongs to the account, not to the stack: it is created where no job has run yet and never deleted.
"""

from __future__ import annotations

from typing import Any

import boto3

from lambdas.teardown import cfn


def handler(event: dict[str, Any], context: Any) -> None:
    """CloudFormation's Create, Update and Delete."""
    physical_id = event.get("PhysicalResourceId") or "training-log-group"
    with cfn.answering(event, physical_id=physical_id):
        if event["RequestType"] != "Delete":
            name = event["ResourceProperties"]["LogGroupName"]
            logs = boto3.client("logs")
            try:
                logs.create_log_group(logGroupName=name)
            except logs.exceptions.ResourceAlreadyExistsException:
                return
