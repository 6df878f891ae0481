"""Hugging Face names out and in: the same tensors, and the same function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_trainer_numerics import SHAPE, tiny_model
from torch.nn import functional

from blackwell.findings import FindingsError
from trainer.export import export_model, import_model

EVEN = replace(SHAPE, num_hidden_layers=2)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def reference_logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Llama's forward pass as Hugging Face writes it, on its parameter names; independent of ours."""
    s = EVEN

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.rms_norm_eps) * weights[name]

    batch, length = tokens.shape
    x = weights["model.embed_tokens.weight"][tokens]
    frequencies = 1.0 / (s.rope_theta ** (torch.arange(0, s.head_dim, 2).float() / s.head_dim))
    angles = torch.outer(torch.arange(length).float(), frequencies)
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    def turn(t: torch.Tensor) -> torch.Tensor:
        half = s.head_dim // 2
        return t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin

    for i in range(s.num_hidden_layers):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")

        def heads(name: str, count: int, h: torch.Tensor = h, p: str = p) -> torch.Tensor:
            flat = h @ weights[f"{p}self_attn.{name}_proj.weight"].t()
            return flat.view(batch, length, count, s.head_dim).transpose(1, 2)

        repeat = s.num_attention_heads // s.num_key_value_heads
        q = turn(heads("q", s.num_attention_heads))
        k = turn(heads("k", s.num_key_value_heads)).repeat_interleave(repeat, 1)
        v = heads("v", s.num_key_value_heads).repeat_interleave(repeat, 1)
        scores = q @ k.transpose(-1, -2) / s.head_dim**0.5
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + y @ weights[p + "self_attn.o_proj.weight"].t()
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = h @ weights[p + "mlp.gate_proj.weight"].t(), h @ weights[p + "mlp.up_proj.weight"].t()
        x = x + (functional.silu(gate) * up) @ weights[p + "mlp.down_proj.weight"].t()
    return norm(x, "model.norm.weight") @ weights["lm_head.weight"].t()


def test_exported_weights_compute_the_same_logits_in_hugging_faces_form(tmp_path: Path) -> None:
    model = tiny_model(EVEN)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 20).to(torch.bfloat16).float())  # exact in BF16, and not all but zero
    size = export_model(model, EVEN, tmp_path, max_position=16)
    weights = {name: t.float() for name, t in tensors(tmp_path).items()}
    assert size == sum(t.numel() for t in weights.values()) * 2 == EVEN.num_parameters * 2
    tokens = torch.randint(0, EVEN.vocab_size, (2, 16))
    torch.testing.assert_close(model(tokens, None), reference_logits(weights, tokens), atol=1e-3, rtol=1e-3)


def test_import_is_the_inverse_of_export_over_several_files(tmp_path: Path) -> None:
    source, target = tiny_model(EVEN, seed=1), tiny_model(EVEN, seed=2)
    export_model(source, EVEN, tmp_path, max_position=16, shard_bytes=9_000)
    names = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert len(names) > 2
    assert names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    import_model(target, EVEN, tmp_path)
    for (name, a), (_, b) in zip(source.named_parameters(), target.named_parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16).float(), b), name


def test_import_says_everything_that_is_wrong_at_once(tmp_path: Path) -> None:
    export_model(tiny_model(EVEN), EVEN, tmp_path, max_position=16)
    other = replace(EVEN, intermediate_size=96, num_hidden_layers=3)
    with pytest.raises(FindingsError) as caught:
        import_model(tiny_model(other), other, tmp_path)
    messages = [f.message for f in caught.value.findings]
    assert {f.id for f in caught.value.findings} == {"BTS-424"}
    assert sum("has shape" in m for m in messages) == 4
    assert sum("model.layers.2" in m and "missing" in m for m in messages) == 6
    with pytest.raises(FindingsError, match=r"no \*\.safetensors"):
        import_model(tiny_model(EVEN), EVEN, tmp_path / "nothing")
