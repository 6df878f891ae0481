"""Prices: the shipped ones are printed with their sources, a list of AWS becomes facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blackwell.cli.prices import app, read_price_list
from blackwell.findings import FindingsError
from blackwell.hardware import INSTANCES
from blackwell.planning import Facts


def product(name: str, usd: str, component: str = "Training", unit: str = "Hrs") -> str:
    dimension: dict[str, Any] = {"unit": unit, "pricePerUnit": {"USD": usd}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceName": name, "component": component, "regionCode": "us-east-1"}},
            "terms": {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}},
        }
    )


def test_the_shipped_prices_are_printed_with_their_sources() -> None:
    printed = CliRunner().invoke(app, []).stdout
    assert all(name in printed for name in INSTANCES)
    assert "unverified: EC2 list, not SageMaker" in printed
    assert "no public price found" in printed


def test_a_list_becomes_facts(tmp_path: Path) -> None:
    path, out = tmp_path / "list.json", tmp_path / "facts.json"
    products = [
        product("ml.p6-b200.48xlarge", "130.5"),
        product("ml.p6-b200.48xlarge", "9.0", "Hosting"),
        product("ml.c7i.2xlarge", "0.43"),
        product("ml.m5.large", "0"),
    ]
    path.write_text(json.dumps({"PriceList": products}))
    done = CliRunner().invoke(app, ["--from", str(path), "--out", str(out)])
    assert done.exit_code == 0
    facts = Facts.model_validate_json(out.read_text())
    assert {name: fact.usd_per_hour for name, fact in facts.prices.items()} == {
        "ml.p6-b200.48xlarge": 130.5,
        "ml.c7i.2xlarge": 0.43,
    }


@pytest.mark.parametrize("content", ["", "{}", '{"PriceList": []}', '{"PriceList": ["x"]}', '{"PriceList": [1]}', "[]"])
def test_what_is_no_list_is_a_finding(tmp_path: Path, content: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    with pytest.raises(FindingsError) as refused:
        read_price_list(path)
    assert refused.value.findings[0].id == "BTS-002"
