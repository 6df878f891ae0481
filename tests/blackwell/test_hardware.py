"""Hardware facts hang together, and an unknown type is named with what is known."""

from __future__ import annotations

import pytest

from blackwell.findings import FindingsError
from blackwell.hardware import ALIGNMENT, GPUS, INSTANCES, gpu_by_name, instance
from blackwell.spec import Precision


def test_every_named_part_is_there() -> None:
    assert {"A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200", "B300", "GB200", "GB300"} <= set(GPUS)
    assert {
        "ml.p6-b200.48xlarge",
        "ml.p6-b300.48xlarge",
        "ml.p5.48xlarge",
        "ml.p5en.48xlarge",
        "ml.p4d.24xlarge",
        "ml.c7i.2xlarge",
    } <= set(INSTANCES)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda g: g.name)
def test_a_gpu_has_a_source_and_plausible_figures(gpu) -> None:
    assert gpu.source
    assert gpu.memory_gib_usable <= gpu.memory_gib_nominal
    assert gpu.peak_tflops[Precision.BF16] >= gpu.peak_tflops[Precision.FP32]


def test_only_blackwell_has_block_scaled_formats() -> None:
    for gpu in GPUS.values():
        blackwell = gpu.compute_capability[0] == 10
        assert gpu.has(Precision.MXFP8) is blackwell
        assert gpu.has(Precision.NVFP4) is blackwell


@pytest.mark.parametrize("item", INSTANCES.values(), ids=lambda i: i.name)
def test_a_price_says_where_it_is_from_and_that_it_is_not_sagemakers(item) -> None:
    if item.price is not None:
        assert item.price.date
        assert item.price.region
        assert item.price.label.startswith("unverified: EC2 list, not SageMaker")


def test_an_unknown_instance_type_is_a_finding_with_the_nearest() -> None:
    with pytest.raises(FindingsError) as refused:
        instance("ml.p6-b200.24xlarge")
    (finding,) = refused.value.findings
    assert finding.id == "BTS-108"
    assert finding.nearest == "ml.p6-b200.48xlarge"


def test_ranks_per_instance() -> None:
    assert instance("ml.p6-b200.48xlarge").default_processes == 8
    assert instance("ml.c7i.2xlarge").default_processes == 1


def test_names_of_tables_are_understood() -> None:
    assert gpu_by_name("H100-96GB(500W)") is GPUS["H100-96GB"]
    assert gpu_by_name("A100") is GPUS["A100-80GB"]
    assert gpu_by_name("TPU-v5") is None


def test_every_precision_has_its_alignment() -> None:
    assert set(ALIGNMENT) == set(Precision)
    assert (ALIGNMENT[Precision.MXFP8].weight, ALIGNMENT[Precision.MXFP8].tokens) == (32, 32)
