"""`python -m blackwell prices`: what the planner costs with, and fresher prices from AWS's price list.

Nothing here calls AWS: `aws pricing get-products --service-code AmazonSageMaker ... > list.json` fetches the list with the
caller's own credentials, this reads it. The Plan step reads the same list by itself.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from blackwell.findings import Finding, FindingsError
from blackwell.hardware import INSTANCES

app = typer.Typer(add_completion=False)

HOURS = ("Hrs", "Hours")


@app.command()
def prices(
    price_list: Annotated[
        Path | None,
        typer.Option("--from", help="Answer of `aws pricing get-products` for AmazonSageMaker, a JSON file."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --from: facts file for `plan --facts`.")] = None,
) -> None:
    """Print the shipped prices, or read AWS's price list into a facts file."""
    if price_list is None:
        for name, item in INSTANCES.items():
            price = (
                "no public price found"
                if item.price is None
                else f"${item.price.usd_per_hour:,.4f}  {item.price.label}, {item.price.region}, {item.price.date}"
            )
            print(f"{name:<24}{price}")
        return
    found = {"prices": read_price_list(price_list)}
    text = json.dumps(found, indent=2) + "\n"
    if out is not None:
        out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def read_price_list(path: Path) -> dict[str, dict[str, Any]]:
    """Instance type -> the lowest on-demand training price of the list, as a `PriceFact`.

    Raises:
        FindingsError: BTS-002 for a file that is no price list, or has no training price.
    """
    try:
        products = json.loads(path.read_text(encoding="utf-8"))["PriceList"]
        products = [json.loads(p) if isinstance(p, str) else p for p in products]
        found = {
            name: {
                "usd_per_hour": usd,
                "source": "AWS price list, AmazonSageMaker",
                "region": region,
                "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            }
            for name, region, usd in sorted(_training_prices(products), key=lambda x: -x[2])
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FindingsError([Finding(id="BTS-002", message=f"is no price list: {error}", given=str(path))]) from None
    if not found:
        raise FindingsError([Finding(id="BTS-002", message="the list has no hourly training price", given=str(path))])
    return dict(sorted(found.items()))


def _training_prices(products: list[Mapping[str, Any]]) -> Iterator[tuple[str, str, float]]:
    for product in products:
        attributes = product["product"]["attributes"]
        if attributes.get("component") != "Training":
            continue
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term.get("priceDimensions", {}).values():
                usd = float(dimension.get("pricePerUnit", {}).get("USD", 0))
                if dimension.get("unit") in HOURS and usd > 0:
                    yield attributes["instanceName"], attributes.get("regionCode", ""), usd
