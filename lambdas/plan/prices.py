"""SageMaker's list price of training instances, from the AWS Price List."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from blackwell.planning import PriceFact
from blackwell.remedy import utc_now
from lambdas.common.aws import client


def on_demand_price(instance_type: str) -> PriceFact | None:
    """US dollars per instance and hour in this region; None where the list has no training price for the type."""
    region = os.environ["AWS_REGION"]
    filters = {"regionCode": region, "instanceName": instance_type, "component": "Training"}
    answer = client("pricing").get_products(
        ServiceCode="AmazonSageMaker",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in filters.items()],
    )
    prices = sorted({price for product in answer["PriceList"] for price in _hourly(json.loads(product))})
    if not prices:
        return None
    return PriceFact(
        usd_per_hour=prices[0], source="AWS Price List, AmazonSageMaker", region=region, date=f"{utc_now():%Y-%m-%d}"
    )


def _hourly(product: dict[str, Any]) -> Iterator[float]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            price = float(dimension.get("pricePerUnit", {}).get("USD", 0))
            if dimension.get("unit") in ("Hrs", "Hours") and price > 0:
                yield price
