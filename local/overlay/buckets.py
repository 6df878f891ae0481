"""S3 buckets that CloudFormation makes, as AWS makes and deletes them.

Stock ministack (1.5.33) drops Tags, LifecycleConfiguration, BucketEncryption and OwnershipControls of a template,
deletes a bucket with everything in it, which AWS refuses, and refuses a write with aws:kms that names no key, for which
AWS takes the account's own key of S3 (so does the bucket of `cdk bootstrap`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import botocore.serialize
import botocore.session
from ministack.core.responses import get_account_id, get_region
from ministack.services import s3
from ministack.services.cloudformation import provisioners

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

Properties = dict[str, Any]
ENCRYPTION = "x-amz-server-side-encryption"
ENCRYPTION_KEY = f"{ENCRYPTION}-aws-kms-key-id"


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the handlers of AWS::S3::Bucket."""
    handlers = provisioners._RESOURCE_HANDLERS["AWS::S3::Bucket"]
    create, update, delete = (seams.take(provisioners, f"_s3_{name}") for name in ("create", "update", "delete"))
    for name in APPLY:
        seams.take(s3, name)
    seams.take(s3, "_bucket_has_versions")
    resolve_encryption = seams.take(s3, "_resolve_sse_write_headers")
    serialize = _serializer()

    def apply(bucket: str, properties: Properties) -> None:
        for put, (operation, argument, translate) in APPLY.items():
            given = translate(properties)
            if given:
                body = serialize(operation, {"Bucket": bucket, argument: given})
                status, _, answer = getattr(s3, put)(bucket, body)
                if status >= 400:
                    raise ValueError(f"{operation} was refused: {answer.decode()}")

    def create_bucket(logical_id: str, properties: Properties, stack_name: str) -> tuple[str, Properties]:
        name, attributes = create(logical_id, properties, stack_name)
        apply(name, properties)
        return name, attributes

    def update_bucket(physical_id: str, old: Properties, new: Properties, stack_name: str) -> tuple[str, Properties]:
        name, attributes = update(physical_id, old, new, stack_name)
        apply(name, new)
        return name, attributes

    def delete_bucket(physical_id: str, properties: Properties) -> None:
        bucket = s3._buckets.get(physical_id)
        if bucket is not None and (bucket["objects"] or s3._bucket_has_versions(physical_id)):
            raise ValueError(
                "The bucket you tried to delete is not empty. You must delete all versions in the bucket. "
                "(Service: S3, Status Code: 409)"
            )
        delete(physical_id, properties)

    def write_encryption(headers: dict[str, str], bucket: str) -> Any:
        if headers.get(ENCRYPTION) == "aws:kms" and not headers.get(ENCRYPTION_KEY):
            key = f"arn:aws:kms:{get_region()}:{get_account_id()}:alias/aws/s3"
            headers = {**headers, ENCRYPTION_KEY: key}
        return resolve_encryption(headers, bucket)

    handlers.update(create=create_bucket, update=update_bucket, delete=delete_bucket)
    s3._resolve_sse_write_headers = write_encryption


def _serializer() -> Callable[[str, Properties], bytes]:
    """(operation, parameters) -> the request body that boto3 would send."""
    model = botocore.session.get_session().get_service_model("s3")
    protocol = botocore.serialize.create_serializer(model.resolved_protocol, include_validation=True)

    def body(operation: str, parameters: Properties) -> bytes:
        request = protocol.serialize_to_request(parameters, model.operation_model(operation))
        content: bytes = request["body"]
        return content

    return body


def _tags(properties: Properties) -> Properties | None:
    return {"TagSet": properties["Tags"]} if properties.get("Tags") else None


def _encryption(properties: Properties) -> Properties | None:
    given = (properties.get("BucketEncryption") or {}).get("ServerSideEncryptionConfiguration")
    if not given:
        return None
    rules = []
    for rule in given:
        default = rule.get("ServerSideEncryptionByDefault")
        rules.append(
            {
                **({"ApplyServerSideEncryptionByDefault": default} if default else {}),
                **({"BucketKeyEnabled": _true(rule["BucketKeyEnabled"])} if "BucketKeyEnabled" in rule else {}),
            }
        )
    return {"Rules": rules}


def _ownership(properties: Properties) -> Properties | None:
    controls: Properties | None = properties.get("OwnershipControls")
    return controls


def _lifecycle(properties: Properties) -> Properties | None:
    rules = (properties.get("LifecycleConfiguration") or {}).get("Rules")
    return {"Rules": [_lifecycle_rule(rule) for rule in rules]} if rules else None


def _lifecycle_rule(rule: Properties) -> Properties:
    """One CloudFormation rule in the API's words."""
    expiration = {
        "Days": _whole(rule.get("ExpirationInDays")),
        "Date": rule.get("ExpirationDate"),
        "ExpiredObjectDeleteMarker": _true(rule.get("ExpiredObjectDeleteMarker")),
    }
    noncurrent = rule.get("NoncurrentVersionExpiration") or {}
    noncurrent = {
        "NoncurrentDays": _whole(noncurrent.get("NoncurrentDays", rule.get("NoncurrentVersionExpirationInDays"))),
        "NewerNoncurrentVersions": _whole(noncurrent.get("NewerNoncurrentVersions")),
    }
    abort = {
        "DaysAfterInitiation": _whole((rule.get("AbortIncompleteMultipartUpload") or {}).get("DaysAfterInitiation"))
    }
    transitions = [
        _given({"Days": _whole(item.get("TransitionInDays")), "StorageClass": item["StorageClass"]})
        for item in rule.get("Transitions") or []
    ]
    return _given(
        {
            "ID": rule.get("Id"),
            "Status": rule["Status"],
            "Filter": {"Prefix": rule.get("Prefix", "")},
            "Expiration": _given(expiration),
            "NoncurrentVersionExpiration": _given(noncurrent),
            "AbortIncompleteMultipartUpload": _given(abort),
            "Transitions": transitions,
        }
    )


def _given(values: Properties) -> Properties:
    return {key: value for key, value in values.items() if value not in (None, {}, [])}


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _true(value: Any) -> bool | None:
    """CloudFormation passes booleans as text here and there."""
    return None if value is None else str(value).lower() == "true"


APPLY: dict[str, tuple[str, str, Callable[[Properties], Properties | None]]] = {
    "_put_bucket_tagging": ("PutBucketTagging", "Tagging", _tags),
    "_put_bucket_lifecycle": ("PutBucketLifecycleConfiguration", "LifecycleConfiguration", _lifecycle),
    "_put_bucket_encryption": ("PutBucketEncryption", "ServerSideEncryptionConfiguration", _encryption),
    "_put_bucket_ownership_controls": ("PutBucketOwnershipControls", "OwnershipControls", _ownership),
}
"""ministack's function for an API call -> (operation, its argument, template properties -> that argument)."""
