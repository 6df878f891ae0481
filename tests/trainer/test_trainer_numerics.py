"""The parts that make the numbers: loss, masks, initial weights, quantized formats, schedule, clipping."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from blackwell.model import PRESETS, ModelShape
from blackwell.spec import TrainingSpec
from trainer.loss import IGNORED, chunked_cross_entropy, full_cross_entropy
from trainer.model.backend import Documents
from trainer.model.initialize import initialize, local_rows
from trainer.model.quantize import QuantizedMatMul, mxfp8, nvfp4, operands, per_tensor_fp8, rotate
from trainer.model.torch_backend import TorchBackend
from trainer.model.transformer import LanguageModel
from trainer.optim import LossScale, clip_factor, learning_rate, scale_gradients
from trainer.parallel import adapt_layers
from trainer.precision import quantized_layers

SHAPE = ModelShape(32, 2, 4, 2, 64, 40, head_dim=8)


def tiny_model(shape: ModelShape = SHAPE, seed: int = 3, cross_entropy: str = "chunked") -> LanguageModel:
    from blackwell.spec import ActivationCheckpointing

    model = LanguageModel(shape, TorchBackend(), 0.0, cross_entropy)
    adapt_layers(model, ActivationCheckpointing.NONE, compiled=False)
    initialize(model, seed, shape.num_hidden_layers)
    return model


@pytest.mark.parametrize("chunk", [1, 40, 120, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunked_loss_and_gradients_equal_the_full_ones(chunk: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(23, 32, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(40, 32, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, 40, (23,), generator=generator)
    labels[::5] = IGNORED
    results = []
    for function in (full_cross_entropy, lambda *a: chunked_cross_entropy(*a, chunk_logits=chunk)):
        hidden.grad = weight.grad = None
        scaled, total = function(hidden, weight, labels, 0.25)
        scaled.backward()
        results.append((scaled.detach(), total, hidden.grad.float(), weight.grad.float()))
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    for full, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, full, atol=tolerance, rtol=tolerance)


def test_loss_scale_reaches_the_gradients_before_they_are_cast() -> None:
    """FP16 gradients of single logits underflow unscaled; the factor must be inside."""
    hidden = torch.randn(4_096, 16).half().requires_grad_()
    weight = (torch.randn(32, 16) * 0.02).half().requires_grad_()
    labels = torch.randint(0, 32, (4_096,))
    chunked_cross_entropy(hidden, weight, labels, 65_536.0 / 4_096)[0].backward()
    expected = torch.autograd.grad(
        functional.cross_entropy(hidden.float() @ weight.float().t(), labels), hidden, retain_graph=False
    )[0]
    torch.testing.assert_close(hidden.grad.float() / 65_536, expected.float(), atol=1e-7, rtol=0.05)


def test_document_mask_makes_packed_documents_independent() -> None:
    model = tiny_model()
    tokens = torch.randint(0, 40, (1, 24))
    lengths = (5, 12, 7)
    starts = [0, 5, 17]
    ids = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    borders = torch.tensor([0, 5, 17, 24], dtype=torch.int32)
    packed = model(tokens, None, documents=Documents(positions, ids, borders, 12))
    for start, length in zip(starts, lengths, strict=True):
        alone = model(tokens[:, start : start + length], None)
        torch.testing.assert_close(packed[:, start : start + length], alone, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(tokens, None)[:, 5:], packed[:, 5:], atol=1e-3)


def test_attention_is_causal() -> None:
    model = tiny_model()
    tokens = torch.randint(0, 40, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 40
    before, after = model(tokens, None), model(changed, None)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = tiny_model(), tiny_model(), tiny_model(seed=4)
    for (name, a), (_, b), (_, c) in zip(
        first.named_parameters(), again.named_parameters(), other.named_parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (a.ndim == 1), name
    deeper = tiny_model(replace(SHAPE, num_hidden_layers=3))
    assert torch.equal(
        deeper.layers[0].self_attention.layernorm_qkv.weight, first.layers[0].self_attention.layernorm_qkv.weight
    )
    weight = first.layers[0].layernorm_mlp.fc1_weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    projection = first.layers[0].self_attention.proj.weight
    assert projection.std().item() == pytest.approx(0.02 / 2, rel=0.15)


def test_initial_weights_come_in_blocks_that_a_rank_draws_alone() -> None:
    """Rows 700 to 1,400 of a matrix of three blocks are the same, drawn alone."""
    from trainer.model import initialize as module

    whole = torch.empty(1_500, 512)
    module._fill_rows(whole, 0, 1_500, 5, "embedding.weight", 0.02)
    part = torch.empty(700, 512)
    module._fill_rows(part, 700, 1_500, 5, "embedding.weight", 0.02)
    assert torch.equal(part, whole[700:1_400])
    assert local_rows(whole) == (whole, 0)


def test_shape_counts_the_parameters_of_the_model() -> None:
    for shape in (SHAPE, replace(SHAPE, tie_word_embeddings=True)):
        assert sum(p.numel() for p in tiny_model(shape).parameters()) == shape.num_parameters
    with torch.device("meta"):
        model = LanguageModel(PRESETS["8b"], TorchBackend(), 0.0, "chunked")
    assert sum(p.numel() for p in model.parameters()) == PRESETS["8b"].num_parameters == 8_030_261_248


# ---------------------------------------------------------------- quantized formats


def test_mxfp8_keeps_what_it_can_represent_and_scales_by_powers_of_two() -> None:
    exact = torch.tensor([448.0, -0.015625, 1.0, 1.125, 0.0, -208.0] + [0.5] * 26)
    assert torch.equal(mxfp8(exact), exact)
    assert torch.equal(mxfp8(exact * 2**-40), exact * 2**-40)
    rounded = mxfp8(torch.tensor([1.0625 + 1e-4] + [448.0] * 31))
    assert rounded[0] == 1.125, "three mantissa bits"


def test_blocks_are_independent() -> None:
    x = torch.cat((torch.full((32,), 1e-3), torch.full((32,), 1e3)))
    torch.testing.assert_close(mxfp8(x), x, rtol=0.07, atol=0)
    assert (mxfp8(torch.cat((x[:1], x[33:], x[:32]))) != mxfp8(x)[: 1 + 31 + 32]).any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1e-6, 1.0, 1e6]))
def test_relative_error_of_each_format_is_bounded(seed: int, size: float) -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)) * size
    largest = x.abs().unflatten(-1, (-1, 32)).amax(-1, keepdim=True).expand(-1, -1, 32).flatten(1)
    assert ((mxfp8(x) - x).abs() <= 2**-4 * x.abs() + 2**-9 * largest).all(), "E4M3: half an ulp of 2^-3"
    blocks = x.abs().unflatten(-1, (-1, 16)).amax(-1, keepdim=True).expand(-1, -1, 16).flatten(1)
    assert ((nvfp4(x) - x).abs() <= 0.22 * blocks).all(), "E2M1: half the widest step, 4 to 6, and the scale's rounding"
    top = x.abs().amax()
    assert ((per_tensor_fp8(x, False) - x).abs() <= 2**-4 * x.abs() + 2**-9 * top).all()


def test_zeros_stay_zero_in_every_format() -> None:
    zeros = torch.zeros(16, 32)
    for quantize in (mxfp8, nvfp4, lambda x: per_tensor_fp8(x, True), lambda x: nvfp4(x, two_dimensional=True)):
        assert torch.equal(quantize(zeros), zeros)


def test_e2m1_rounds_to_nearest_even() -> None:
    scale = 6.0 * 448.0
    x = torch.tensor([scale, 0.25 * scale / 6, 0.75 * scale / 6, 2.5 * scale / 6, 5.0 * scale / 6] + [0.0] * 11)
    assert (nvfp4(x)[:5] * 6 / scale).tolist() == [6.0, 0.0, 1.0, 2.0, 4.0]


def test_two_dimensional_scaling_quantizes_a_weight_and_its_transpose_alike() -> None:
    w = torch.randn(64, 48)
    assert torch.equal(nvfp4(w, two_dimensional=True).t(), nvfp4(w.t().contiguous(), two_dimensional=True))
    assert not torch.equal(nvfp4(w).t(), nvfp4(w.t().contiguous()))


def test_stochastic_rounding_has_no_bias() -> None:
    torch.manual_seed(0)
    x = torch.full((4_000, 16), 0.3)
    x[:, 0] = 6.0
    assert nvfp4(x, stochastic=True)[:, 1:].mean().item() == pytest.approx(0.3, abs=0.01)
    assert nvfp4(x)[:, 1:].mean().item() == pytest.approx(0.5, abs=0.02)


def test_hadamard_rotation_cancels_in_the_product() -> None:
    a, b = torch.randn(8, 64, dtype=torch.float64), torch.randn(12, 64, dtype=torch.float64)
    torch.testing.assert_close(rotate(a) @ rotate(b).t(), a @ b.t())
    assert not torch.allclose(rotate(a), a)


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_quantized_product_and_its_gradients_are_near_the_exact_ones(precision: str) -> None:
    torch.manual_seed(2)
    x, w = torch.randn(64, 128, requires_grad=True), torch.randn(96, 128, requires_grad=True)
    upstream = torch.randn(64, 96)
    exact = torch.autograd.grad(x @ w.t(), (x, w), upstream)
    y = QuantizedMatMul(operands(precision))(x, w)
    found = torch.autograd.grad(y, (x, w), upstream)
    limit = 0.25 if precision == "nvfp4" else 0.08
    for ours, theirs in ((y, x @ w.t()), *zip(found, exact, strict=True)):
        error = (ours - theirs).norm() / theirs.norm()
        assert 1e-4 < error < limit


def test_nvfp4_keeps_the_last_layers_in_bf16() -> None:
    nvfp4_settings = TrainingSpec(steps=1).nvfp4
    from blackwell.spec import Precision

    assert quantized_layers(Precision.NVFP4, nvfp4_settings, 40) == 34
    assert quantized_layers(Precision.NVFP4, nvfp4_settings, 2) == 1
    assert quantized_layers(Precision.MXFP8, nvfp4_settings, 40) == 40
    assert quantized_layers(Precision.BF16, nvfp4_settings, 40) == 0


# ---------------------------------------------------------------- schedule, clipping, loss scale


def test_schedules_warm_up_and_end_where_they_should() -> None:
    base = {"steps": 100, "learning_rate": 1.0, "warmup_steps": 10, "min_learning_rate_ratio": 0.1}
    for kind in ("cosine", "linear", "wsd", "constant"):
        training = TrainingSpec(**base, lr_schedule=kind)
        rates = [learning_rate(training, step, 100) for step in range(1, 101)]
        assert rates[0] == pytest.approx(0.1)
        assert rates[9] == 1.0
        assert rates[-1] == pytest.approx(1.0 if kind == "constant" else 0.1)
        assert all(a >= b for a, b in itertools.pairwise(rates[9:])), kind
    wsd = TrainingSpec(**base, lr_schedule="wsd", decay_fraction=0.2)
    assert learning_rate(wsd, 80, 100) == 1.0
    assert learning_rate(wsd, 90, 100) == pytest.approx(0.55)
    cosine = TrainingSpec(**base)
    assert learning_rate(cosine, 55, 100) == pytest.approx(0.1 + 0.9 * 0.5)


def test_clipping_keeps_direction_and_limits_length() -> None:
    assert clip_factor(0.5, 1.0) == 1.0
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([3.0, 0.0, 4.0])
    scale_gradients([parameter], clip_factor(5.0, 1.0))
    assert parameter.grad.norm().item() == pytest.approx(1.0, abs=1e-5)
    untouched = parameter.grad.clone()
    scale_gradients([parameter], 1.0)
    assert torch.equal(parameter.grad, untouched)


def test_loss_scale_halves_doubles_and_gives_up() -> None:
    scale = LossScale(enabled=True, growth_steps=2)
    scale.update(False)
    assert scale.value == 32_768
    scale.update(True)
    scale.update(True)
    assert scale.value == 65_536
    other = LossScale(enabled=True)
    other.load(scale.state())
    assert other.state() == scale.state()
    for _ in range(17):
        scale.update(False)
    assert scale.exhausted
    off = LossScale(enabled=False)
    off.update(False)
    assert (off.value, off.exhausted) == (1.0, False)
    assert math.isfinite(off.value)
