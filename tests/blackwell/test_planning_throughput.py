"""The speed model: bounded by the hardware, and moving the right way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_strategies import configurations

from blackwell.hardware import GPUS
from blackwell.model import PRESETS
from blackwell.planning.configuration import Configuration, Layout
from blackwell.planning.stacks import constants
from blackwell.planning.throughput import Speed, bandwidth, speed
from blackwell.spec import ActivationCheckpointing, Precision

FAST = settings(max_examples=60, deadline=None)
B200 = Configuration(
    shape=PRESETS["8b"], gpu=GPUS["B200"], stack="blackwell", layout=Layout(data=8), micro_batch=2, seq_length=8192
)


def of(c: Configuration) -> Speed:
    return speed(c, constants(c.stack).speed)


@FAST
@given(configurations())
def test_terms_sum_to_the_step(c: Configuration) -> None:
    s = of(c)
    assert sum(s.terms().values()) == pytest.approx(s.step)
    assert min(s.terms().values()) >= 0


@FAST
@given(configurations())
def test_no_configuration_beats_two_thirds_of_the_peak(c: Configuration) -> None:
    s = of(c)
    flops = s.tokens_per_second_per_gpu * s.model_flops_per_token
    assert flops <= 0.67 * c.gpu.peak_tflops[c.precision] * 1e12


@FAST
@given(configurations())
def test_recomputing_is_never_faster(c: Configuration) -> None:
    none = of(replace(c, checkpointing=ActivationCheckpointing.NONE))
    full = of(replace(c, checkpointing=ActivationCheckpointing.FULL))
    assert full.step >= none.step * (1 - 1e-9)


@FAST
@given(configurations(), st.sampled_from([2, 8]))
def test_more_tokens_take_longer(c: Configuration, factor: int) -> None:
    assert of(replace(c, micro_batch=c.micro_batch * factor)).step >= of(c).step


def test_larger_batches_pay_until_the_kernels_are_full() -> None:
    rates = [of(replace(B200, micro_batch=m)).tokens_per_second_per_gpu for m in (1, 2, 4, 8)]
    assert rates == sorted(rates)


def test_quantized_formats_are_faster_on_large_layers_in_the_order_of_the_formats() -> None:
    order = [Precision.BF16, Precision.MXFP8, Precision.NVFP4]
    big = replace(B200, shape=PRESETS["64b"], layout=Layout(data=64))
    rates = [of(replace(big, precision=p)).tokens_per_second_per_gpu for p in order]
    assert rates == sorted(rates)


def test_a_collective_across_nodes_uses_every_card_of_a_node() -> None:
    k = constants("blackwell").speed
    all_ranks = bandwidth(replace(B200, layout=Layout(data=16), network_gb_per_second=50.0), k, 16, 1)
    one_per_node = bandwidth(replace(B200, layout=Layout(data=16, tensor=8), network_gb_per_second=50.0), k, 2, 8)
    assert all_ranks == pytest.approx(8 * one_per_node)


def test_a_pipelines_bubble_is_its_stages_less_one_over_the_micro_batches() -> None:
    c = replace(B200, stack="nemo", layout=Layout(pipeline=4, zero=1), accumulation=16, micro_batch=1)
    s = of(c)
    assert s.pipeline_bubble == pytest.approx(
        (s.step - s.pipeline_bubble - s.optimizer - s.data_communication) * 3 / 16, rel=0.05
    )


def test_a_full_allocator_is_slow() -> None:
    c = replace(B200, stack="nanotron", gpu=GPUS["H100-80GB"])
    k = constants("nanotron").speed
    assert speed(c, k, reserved_gb=84.0).step > 1.5 * speed(c, k, reserved_gb=40.0).step
