"""Service Quotas and the Price List, which ministack lacks: what the planner's preflight asks an account.

Quotas are those of SageMaker training jobs; `POST /_local/sagemaker/limit` sets one. Prices are `blackwell.hardware`'s.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from blackwell.account import QUOTA_USES, quota_name
from blackwell.hardware import INSTANCES
from local.identity import REGION
from local.overlay.context import DEFAULT_INSTANCE_LIMIT, OverlayContext, Response, refuse, reply
from local.overlay.seams import Seams

Request = dict[str, Any]


def install(context: OverlayContext, seams: Seams) -> None:
    """Add both services."""

    def quotas(request: Request) -> list[Request]:
        if request.get("ServiceCode") != "sagemaker":
            return []
        names = [quota_name(instance, use) for instance in INSTANCES for use in QUOTA_USES]
        return [_quota(name, context.limits.get(name, DEFAULT_INSTANCE_LIMIT)) for name in names]

    def list_quotas(request: Request) -> Response:
        found = quotas(request)
        start, size = int(request.get("NextToken") or 0), int(request.get("MaxResults") or 100)
        more = {"NextToken": str(start + size)} if start + size < len(found) else {}
        return reply({"Quotas": found[start : start + size], **more})

    def get_quota(request: Request) -> Response:
        for quota in quotas(request):
            if quota["QuotaCode"] == request.get("QuotaCode"):
                return reply({"Quota": quota})
        return refuse("NoSuchResourceException", "The request failed because the specified service does not exist.")

    operations = {
        "ListServiceQuotas": list_quotas,
        "ListAWSDefaultServiceQuotas": list_quotas,
        "GetServiceQuota": get_quota,
        "GetAWSDefaultServiceQuota": get_quota,
    }
    _register(context, "servicequotas", "ServiceQuotasV20190624", operations)
    _register(context, "pricing", "AWSPriceListService", {"GetProducts": get_products})


def get_products(request: Request) -> Response:
    """GetProducts of AmazonSageMaker: one on-demand price per instance type, filtered by TERM_MATCH."""
    if request.get("ServiceCode") != "AmazonSageMaker":
        return reply({"FormatVersion": "aws_v1", "PriceList": []})
    found = []
    for instance in INSTANCES.values():
        attributes = {
            "servicecode": "AmazonSageMaker",
            "component": "Training",
            "instanceName": instance.name,
            "instanceType": f"{instance.name}-Training",
            "regionCode": REGION,
            "usagetype": f"USE1-Train:{instance.name}",
            "operation": "Training",
        }
        wanted = {item["Field"]: item["Value"] for item in request.get("Filters", [])}
        if instance.price is not None and all(attributes.get(key) == value for key, value in wanted.items()):
            found.append(json.dumps(_product(attributes, instance.price.usd_per_hour)))
    return reply({"FormatVersion": "aws_v1", "PriceList": found})


def _product(attributes: dict[str, str], usd_per_hour: float) -> Request:
    sku = f"{zlib.crc32(attributes['instanceName'].encode()):08X}"
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd_per_hour:.10f}"}, "beginRange": "0", "endRange": "Inf"}
    return {
        "product": {"productFamily": "ML Instance", "sku": sku, "attributes": attributes},
        "serviceCode": "AmazonSageMaker",
        "terms": {"OnDemand": {f"{sku}.T": {"sku": sku, "priceDimensions": {f"{sku}.T.D": dimension}}}},
    }


def _quota(name: str, value: int) -> Request:
    return {
        "ServiceCode": "sagemaker",
        "ServiceName": "Amazon SageMaker",
        "QuotaName": name,
        "QuotaCode": f"L-{zlib.crc32(name.encode()):08X}",
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _register(
    context: OverlayContext, service: str, target: str, operations: Mapping[str, Callable[[Request], Response]]
) -> None:
    async def handle(
        method: str, path: str, headers: dict[str, str], body: bytes, query_params: dict[str, Any]
    ) -> Response:
        operation = operations.get(headers.get("x-amz-target", "").rpartition(".")[2])
        if operation is None:
            return refuse("UnknownOperationException", f"this AWS knows {', '.join(operations)} of {service}")
        return operation(json.loads(body or b"{}"))

    context.register_service(
        service, handle, target_prefixes=[target], host_pattern=rf"{service}\.", credential_scope=service
    )
