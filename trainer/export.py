"""Hugging Face safetensors, Llama names: the final model out, and a model to start from in.

The fused query-key-value weight is taken apart by group, the fused gate-and-up weight in halves; rotary embedding is
the same half rotation as Hugging Face's, so nothing is permuted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from blackwell.findings import Finding, FindingsError
from blackwell.model import ModelShape
from trainer.model.initialize import local_rows

SHARD_BYTES = 5 * 10**9
"""Largest size of one safetensors file; the Hub's habit."""


def split(name: str, weight: Tensor, shape: ModelShape) -> dict[str, Tensor]:
    """One parameter of ours as Hugging Face's parameters."""
    if name == "embedding.weight":
        return {"model.embed_tokens.weight": weight}
    if name == "head.weight":
        return {"lm_head.weight": weight}
    if name == "head.norm_weight":
        return {"model.norm.weight": weight}
    _, index, part = name.split(".", 2)
    prefix = f"model.layers.{index}."
    if part == "self_attention.layernorm_qkv.weight":
        groups, queries = shape.num_key_value_heads, shape.num_attention_heads // shape.num_key_value_heads
        fused = weight.view(groups, queries + 2, shape.head_dim, shape.hidden_size)
        q, k, v = torch.split(fused, [queries, 1, 1], dim=1)
        parts = {"q": q, "k": k, "v": v}
        return {f"{prefix}self_attn.{n}_proj.weight": t.reshape(-1, shape.hidden_size) for n, t in parts.items()}
    if part == "layernorm_mlp.fc1_weight":
        gate, up = weight.chunk(2)
        return {f"{prefix}mlp.gate_proj.weight": gate, f"{prefix}mlp.up_proj.weight": up}
    return {prefix + _PLAIN[part]: weight}


_PLAIN = {
    "self_attention.layernorm_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.proj.weight": "self_attn.o_proj.weight",
    "layernorm_mlp.layer_norm_weight": "post_attention_layernorm.weight",
    "layernorm_mlp.fc2_weight": "mlp.down_proj.weight",
}


def join(name: str, read: Callable[[str], Tensor], shape: ModelShape) -> Tensor:
    """The inverse of `split`: one parameter of ours out of Hugging Face's, read by name."""
    if name == "embedding.weight":
        return read("model.embed_tokens.weight")
    if name == "head.weight":
        return read("lm_head.weight")
    if name == "head.norm_weight":
        return read("model.norm.weight")
    _, index, part = name.split(".", 2)
    prefix = f"model.layers.{index}."
    if part == "self_attention.layernorm_qkv.weight":
        groups, queries = shape.num_key_value_heads, shape.num_attention_heads // shape.num_key_value_heads
        parts = [
            read(f"{prefix}self_attn.{n}_proj.weight").view(groups, -1, shape.head_dim, shape.hidden_size)
            for n in "qkv"
        ]
        assert parts[0].shape[1] == queries
        return torch.cat(parts, dim=1).reshape(-1, shape.hidden_size)
    if part == "layernorm_mlp.fc1_weight":
        return torch.cat([read(f"{prefix}mlp.gate_proj.weight"), read(f"{prefix}mlp.up_proj.weight")])
    return read(prefix + _PLAIN[part])


def hugging_face_config(shape: ModelShape, max_position: int, eos_id: int | None) -> dict[str, Any]:
    """config.json of the exported model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": max_position,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **({"eos_token_id": eos_id, "bos_token_id": eos_id} if eos_id is not None else {}),
    }


@torch.no_grad()
def export_model(
    model: nn.Module,
    shape: ModelShape,
    folder: Path,
    *,
    max_position: int,
    eos_id: int | None = None,
    tokenizer: Path | None = None,
    beat: Callable[[], None] = lambda: None,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Writes the model in BF16. Collective: every rank calls it, rank 0 writes, one parameter is whole at a time.

    Args:
        beat: called after every parameter; a sign of life.

    Returns:
        Bytes of all parameters.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, str] = {}
    files = 0
    pending: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        nonlocal files, pending
        if pending:
            files += 1
            save_file(pending, folder / f"model-{files:05d}.safetensors", metadata={"format": "pt"})
            index.update(dict.fromkeys(pending, f"model-{files:05d}.safetensors"))
            pending = {}

    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        beat()
        if rank:
            continue
        parts = split(name, whole.to(torch.bfloat16).cpu(), shape)
        size = sum(t.nbytes for t in parts.values())
        if pending and sum(t.nbytes for t in pending.values()) + size > shard_bytes:
            flush()
        pending |= {key: tensor.contiguous() for key, tensor in parts.items()}
        total += size
    if rank == 0:
        flush()
        _name_by_count(folder, files, index)
        document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document, indent=1))
        (folder / "config.json").write_text(json.dumps(hugging_face_config(shape, max_position, eos_id), indent=1))
        if tokenizer is not None and tokenizer.is_file():
            shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return total


def _name_by_count(folder: Path, files: int, index: dict[str, str]) -> None:
    """Hugging Face's names hold the number of files, which is known only at the end."""
    names = {f"model-{i:05d}.safetensors": f"model-{i:05d}-of-{files:05d}.safetensors" for i in range(1, files + 1)}
    for before, after in names.items():
        (folder / before).replace(folder / after)
    for key, value in index.items():
        index[key] = names[value]


@torch.no_grad()
def import_model(model: nn.Module, shape: ModelShape, folder: Path) -> None:
    """Sets the model's weights from a folder of safetensors files. Each rank reads what it needs.

    Raises:
        FindingsError: BTS-424 for a missing tensor, one of another shape, or no safetensors at all; all at once.
    """
    reader = _Reader(folder)
    findings: list[Finding] = []
    for name, parameter in model.named_parameters():
        try:
            whole = join(name, reader.read, shape)
            if whole.shape != parameter.shape:
                raise ValueError(f"has shape {list(whole.shape)}, the job's model {list(parameter.shape)}")
        except (KeyError, ValueError, RuntimeError) as error:
            text = f"{error.args[0]} is missing" if isinstance(error, KeyError) else f"{name}: {error}"
            findings.append(Finding(id="BTS-424", path="model", message=text))
            continue
        local, first = local_rows(parameter)
        local.copy_(whole[first : first + local.shape[0]])
    if findings:
        raise FindingsError(findings)


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._where: dict[str, Any] = {}
        for name, file in _tensors(folder):
            self._where[name] = file
        if not self._where:
            raise FindingsError([Finding(id="BTS-424", path="model", message=f"no *.safetensors in {folder}")])

    def read(self, name: str) -> Tensor:
        if name == "lm_head.weight" and name not in self._where:
            name = "model.embed_tokens.weight"  # tied in the source
        tensor: Tensor = self._where[name].get_tensor(name)
        return tensor


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.glob("*.safetensors")):
        file = safe_open(path, framework="pt")
        for name in file.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118 (safe_open is no dict)
            yield name, file
