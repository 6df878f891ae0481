"""DynamoDB tables that CloudFormation makes: time to live, point-in-time recovery and encryption come through.

Stock ministack (1.5.33) drops TimeToLiveSpecification, PointInTimeRecoverySpecification and SSESpecification.
"""

from __future__ import annotations

import json
from typing import Any

from ministack.services import dynamodb
from ministack.services.cloudformation import provisioners

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

Properties = dict[str, Any]


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the handlers of AWS::DynamoDB::Table."""
    handlers = provisioners._RESOURCE_HANDLERS["AWS::DynamoDB::Table"]
    create, update = seams.take(provisioners, "_ddb_create"), seams.take(provisioners, "_ddb_update")
    for name in ("_update_ttl", "_update_continuous_backups", "_update_table", "_sse_description_from_spec"):
        seams.take(dynamodb, name)

    def create_table(logical_id: str, properties: Properties, stack_name: str) -> tuple[str, Properties]:
        name, attributes = create(logical_id, properties, stack_name)
        apply(name, properties)
        return name, attributes

    def update_table(
        physical_id: str, old: Properties, new: Properties, stack_name: str, logical_id: str | None = None
    ) -> tuple[str, Properties]:
        # Encryption is applied below, in the API's words; ministack would pass CloudFormation's on.
        hidden = [{key: value for key, value in given.items() if key != "SSESpecification"} for given in (old, new)]
        name, attributes = update(physical_id, *hidden, stack_name, logical_id)
        apply(name, new)
        return name, attributes

    handlers.update(create=create_table, update=update_table)


def apply(table: str, properties: Properties) -> None:
    """Put what the template says about a table beyond its keys, through the API's own functions."""
    lifetime = properties.get("TimeToLiveSpecification")
    if lifetime:
        enabled = _true(lifetime.get("Enabled"))
        given = {"Enabled": enabled, "AttributeName": lifetime.get("AttributeName", "")}
        _call(dynamodb._update_ttl({"TableName": table, "TimeToLiveSpecification": given}))
    recovery = properties.get("PointInTimeRecoverySpecification")
    if recovery:
        given = {"PointInTimeRecoveryEnabled": _true(recovery.get("PointInTimeRecoveryEnabled"))}
        request = {"TableName": table, "PointInTimeRecoverySpecification": given}
        _call(dynamodb._update_continuous_backups(request))
    encryption = properties.get("SSESpecification")
    if encryption:
        given = {
            "Enabled": _true(encryption.get("SSEEnabled")),
            "SSEType": encryption.get("SSEType", "KMS"),
            **({"KMSMasterKeyId": encryption["KMSMasterKeyId"]} if "KMSMasterKeyId" in encryption else {}),
        }
        dynamodb._tables[table]["SSEDescription"] = dynamodb._sse_description_from_spec(given)


def _call(response: tuple[int, dict[str, str], bytes]) -> None:
    status, _, body = response
    if status >= 400:
        raise ValueError(json.loads(body).get("message", body.decode()))


def _true(value: Any) -> bool:
    """CloudFormation passes booleans as text here and there."""
    return str(value).lower() == "true"
