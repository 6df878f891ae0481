"""The memory model: monotone where physics is, and right about what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_strategies import configurations

from blackwell.hardware import GPUS
from blackwell.model import PRESETS, ModelShape
from blackwell.planning.configuration import Configuration, Layout
from blackwell.planning.memory import logit_bytes, memory, saved_bytes
from blackwell.planning.stacks import STACKS, constants
from blackwell.spec import ActivationCheckpointing, Precision

FAST = settings(max_examples=60, deadline=None)


def reserved(c: Configuration) -> float:
    return memory(c, constants(c.stack).memory).reserved


@FAST
@given(configurations(), st.integers(1, 64))
def test_memory_grows_with_the_batch(c: Configuration, more: int) -> None:
    assert reserved(replace(c, micro_batch=c.micro_batch + more)) >= reserved(c)


@FAST
@given(configurations(), st.integers(1, 100_000))
def test_memory_grows_with_the_sequence(c: Configuration, more: int) -> None:
    assert reserved(replace(c, seq_length=c.seq_length + more)) >= reserved(c)


@FAST
@given(configurations(), st.integers(1, 16))
def test_memory_grows_with_the_layers(c: Configuration, more: int) -> None:
    # a pipeline deals layers out in whole stages, so it may only grow by whole rounds
    step = more * c.layout.pipeline
    base = replace(c, shape=replace(c.shape, num_hidden_layers=c.shape.num_hidden_layers * c.layout.pipeline))
    larger = replace(base, shape=replace(base.shape, num_hidden_layers=base.shape.num_hidden_layers + step))
    assert reserved(larger) >= reserved(base) * (1 - 1e-9)


@FAST
@given(configurations(), st.sampled_from([2, 4, 16]))
def test_memory_does_not_grow_with_the_shards(c: Configuration, factor: int) -> None:
    wider = replace(c, layout=replace(c.layout, data=c.layout.data * factor))
    assert reserved(wider) <= reserved(c) * (1 + 1e-9)


@FAST
@given(configurations())
def test_checkpointing_never_costs_memory_of_saved_activations(c: Configuration) -> None:
    c = replace(c, layout=replace(c.layout, pipeline=1))  # which stage is the fullest may change with it
    none = memory(replace(c, checkpointing=ActivationCheckpointing.NONE), constants(c.stack).memory)
    full = memory(replace(c, checkpointing=ActivationCheckpointing.FULL), constants(c.stack).memory)
    assume(none.moment != "end")  # at the end of the backward pass nothing saved is alive
    assert full.activations <= none.activations * (1 + 1e-9)


@FAST
@given(configurations())
def test_terms_sum_to_the_peak(c: Configuration) -> None:
    m = memory(c, constants(c.stack).memory)
    assert sum(m.terms().values()) == pytest.approx(m.reserved)
    assert m.reserved >= m.allocated > 0


SEED_SHAPE = ModelShape(2048, 24, 16, 16, 6144, 0, 128, gated=False, bias=True)


@pytest.mark.parametrize(
    ("checkpointing", "micro_batch", "published_gb"),
    [
        (ActivationCheckpointing.NONE, 1, 15.5),
        (ActivationCheckpointing.FULL, 1, 2.3),
        (ActivationCheckpointing.FULL, 16, 22.8),
    ],
)
def test_the_published_figures_of_the_1b_example(
    checkpointing: ActivationCheckpointing, micro_batch: int, published_gb: float
) -> None:
    c = Configuration(
        shape=SEED_SHAPE, gpu=GPUS["B200"], stack="te-fsdp", layout=Layout(data=8), precision=Precision.MXFP8,
        checkpointing=checkpointing, micro_batch=micro_batch, seq_length=8192, loss="none", dropout=True,
    )  # fmt: skip
    assert memory(c, constants("te-fsdp").memory).allocated == pytest.approx(published_gb, rel=0.10)


def test_states_of_fsdp_are_sixteen_bytes_per_parameter_over_the_shards() -> None:
    shape = PRESETS["8b"]
    c = Configuration(
        shape=shape, gpu=GPUS["B200"], stack="blackwell", layout=Layout(data=8), accumulation=4, seq_length=128
    )
    m = memory(c, constants("blackwell").memory)
    assert m.weights + m.optimizer + m.gradients == pytest.approx(16 * shape.num_parameters / 8 / 1e9)


def test_tensor_ranks_divide_activations_and_weights() -> None:
    c = Configuration(
        shape=PRESETS["8b"], gpu=GPUS["H100-80GB"], stack="nemo", layout=Layout(data=1, zero=1), seq_length=8192
    )
    whole = memory(c, constants("nemo").memory)
    half = memory(replace(c, layout=Layout(data=1, tensor=2, zero=1)), constants("nemo").memory)
    assert half.weights == pytest.approx(whole.weights / 2, rel=1e-6)
    assert half.activations == pytest.approx(whole.activations / 2, rel=0.01)


def test_a_pipeline_holds_as_many_micro_batches_as_it_has_stages() -> None:
    c = Configuration(
        shape=PRESETS["8b"],
        gpu=GPUS["H100-80GB"],
        stack="nemo",
        layout=Layout(pipeline=4, zero=1),
        accumulation=16,
        seq_length=4096,
    )
    one = memory(replace(c, accumulation=1), constants("nemo").memory)
    many = memory(c, constants("nemo").memory)
    assert many.activations == pytest.approx(4 * one.activations)


TENSOR = Configuration(
    shape=PRESETS["8b"], gpu=GPUS["H100-80GB"], stack="nanotron", layout=Layout(data=2, tensor=8, zero=1), accumulation=64,
    seq_length=4096,
)  # fmt: skip


def reserved_beyond_allocated(c: Configuration) -> float:
    m = memory(c, constants(c.stack).memory)
    return m.reserved - constants(c.stack).memory.allocator * m.allocated


def test_whole_tensors_wait_for_collectives_only_between_tensor_ranks_and_never_past_the_gpu() -> None:
    assert reserved_beyond_allocated(TENSOR) > 1.0
    assert reserved_beyond_allocated(replace(TENSOR, layout=Layout(data=16, zero=1))) == pytest.approx(0.0, abs=1e-9)
    full = memory(replace(TENSOR, micro_batch=12), constants("nanotron").memory)
    usable = GPUS["H100-80GB"].memory_gib_usable * 2**30 / 1e9
    assert full.reserved == pytest.approx(max(usable, constants("nanotron").memory.allocator * full.allocated))


def test_a_host_of_two_stages_gets_ahead_only_when_layers_are_long() -> None:
    two = replace(TENSOR, layout=Layout(data=2, tensor=8, pipeline=2, zero=1))
    small, large = reserved_beyond_allocated(two), reserved_beyond_allocated(replace(two, micro_batch=8))
    assert large > 50 * small


def test_gradient_buckets_are_two_bytes_per_parameter() -> None:
    k = constants("nanotron").memory
    wrapped = memory(TENSOR, k)
    alone = memory(replace(TENSOR, gradient_buckets=False), k)
    count = TENSOR.shape.num_parameters / 8 / 1e9
    assert wrapped.gradients - alone.gradients == pytest.approx(2 * count, rel=0.01)


def test_the_loss_of_tensor_ranks_is_written_out_in_steps() -> None:
    c = Configuration(shape=PRESETS["8b"], gpu=GPUS["H100-80GB"], stack="torchtitan", layout=Layout(data=8))
    assert logit_bytes(c, STACKS["torchtitan"]) == 12
    assert logit_bytes(replace(c, layout=Layout(data=4, tensor=2)), STACKS["torchtitan"]) == 16
    # torchtune's chunks are of logits that exist whole in 16 bit
    assert logit_bytes(replace(c, loss="chunked"), STACKS["torchtune"]) == 2 + 12 / 8


def test_compiled_selective_checkpointing_drops_the_down_projections_output() -> None:
    c = Configuration(shape=PRESETS["8b"], gpu=GPUS["H100-80GB"], stack="torchtitan", layout=Layout(data=8))
    eager, compiled = (saved_bytes(replace(c, compiled=x), STACKS["torchtitan"])[1] for x in (False, True))
    assert eager - compiled == pytest.approx(2 * c.shape.hidden_size)
