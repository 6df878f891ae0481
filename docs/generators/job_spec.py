"""docs/job-spec.md: every key of the job spec, from the model that checks it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from blackwell.cli.schema import document
from blackwell.model import PRESETS
from blackwell.spec import Precision
from docs.generators.text import table

_INTRODUCTION = """# The job spec

One JSON object starts a run. This page is made from `blackwell/spec.py`; editors can check a spec while it is written
against [job-spec.schema.json](job-spec.schema.json) (`"$schema"` is allowed and ignored). `python -m blackwell plan JOB.json` says what a spec
means and what is wrong with it, without touching AWS.

Unknown keys are refused. What is wrong is said all at once, each finding with an id, the path, what was given, what is
legal and the nearest legal value: [operations.md](operations.md#findings) lists the ids.

A small one, complete:

```json
%s
```
"""


def job_spec_page() -> str:
    """The whole page."""
    schema = document("job")
    example = {
        "model": "1b",
        "data": {"train": "s3://my-bucket/shards/"},
        "training": {"precision": "mxfp8", "seq_length": 8192, "tokens": 20_000_000_000},
        "capacity": [{"kind": "spot", "max_runtime_seconds": 86_400, "max_wait_seconds": 172_800}],
        "budget": {"max_cost_usd": 2_000},
    }
    parts = [_INTRODUCTION % json.dumps(example, indent=2)]
    parts += [_section(name, node, path, schema) for name, node, path in _sections(schema)]
    parts.append(_presets())
    parts.append(_precisions())
    return "\n".join(parts)


def _sections(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """(title, object schema, path) of every object in a spec, the whole first, then as they nest."""
    waiting: list[tuple[str, Mapping[str, Any], str]] = [("The whole", schema, "")]
    while waiting:
        title, node, path = waiting.pop(0)
        yield title, node, path
        below = []
        for key, value in node.get("properties", {}).items():
            target, many = _object(value, schema)
            if target is not None:
                inner = f"{path}.{key}" if path else key
                below.append((f"`{inner}`" + (", each entry" if many else ""), target, inner))
        waiting = below + waiting


def _object(value: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """(the object schema that a property holds, whether it is a list of them)."""
    for option in (value, *value.get("anyOf", ())):
        if option.get("type") == "array":
            found, _ = _object(option["items"], schema)
            return found, True
        reference = option.get("$ref")
        if reference:
            target = schema["$defs"][reference.rsplit("/", 1)[1]]
            if target.get("type") == "object":
                return target, False
    return None, False


def _section(title: str, node: Mapping[str, Any], path: str, schema: Mapping[str, Any]) -> str:
    required = set(node.get("required", ()))
    rows = [
        (
            f"`{key}`",
            _type(value, schema),
            "**required**" if key in required else _default(value),
            value.get("description") or _described(value, schema),
        )
        for key, value in node.get("properties", {}).items()
    ]
    about = f"{node['description']}\n\n" if node.get("description") else ""
    return f"## {title}\n\n{about}" + table(("key", "value", "default", "meaning"), rows) + "\n"


def _described(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The description of the type that a property refers to."""
    for option in (value, *value.get("anyOf", ()), *value.get("allOf", ())):
        reference = option.get("$ref")
        if reference:
            return str(schema["$defs"][reference.rsplit("/", 1)[1]].get("description", ""))
    return ""


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{json.dumps(default)}`"


def _type(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    options = value.get("anyOf") or [value]
    return " or ".join(text for text in (_one(option, schema) for option in options) if text)


def _one(option: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in option:
        return _one(schema["$defs"][option["$ref"].rsplit("/", 1)[1]], schema)
    if "const" in option:
        return f"`{json.dumps(option['const'])}`"
    if "enum" in option:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in option["enum"])
    kind = option.get("type")
    if kind == "null":
        return ""
    if kind == "array":
        few, many = option.get("minItems"), option.get("maxItems")
        return (
            f"list of {few} to {many}: {_one(option['items'], schema)}"
            if many
            else f"list: {_one(option['items'], schema)}"
        )
    if kind in ("integer", "number"):
        return f"{kind}{_bounds(option)}"
    if kind == "string":
        return "text" + (f", at most {option['maxLength']:,} characters" if "maxLength" in option else "")
    if kind == "boolean":
        return "`true` or `false`"
    return "object" if kind == "object" else str(kind or "anything")


def _bounds(option: Mapping[str, Any]) -> str:
    parts = []
    for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        if key in option:
            parts.append(f"{sign} {option[key]:,}")
    if "multipleOf" in option:
        parts.append(f"a multiple of {option['multipleOf']}")
    return f", {', '.join(parts)}" if parts else ""


def _presets() -> str:
    rows = [
        (
            f"`{name}`",
            f"{shape.num_parameters / 1e9:.2f} B",
            f"{shape.hidden_size:,}",
            f"{shape.num_hidden_layers}",
            f"{shape.num_attention_heads} / {shape.num_key_value_heads}",
            f"{shape.intermediate_size:,}",
            f"{shape.vocab_size:,}",
            "tied" if shape.tie_word_embeddings else "",
        )
        for name, shape in PRESETS.items()
    ]
    head = ("preset", "parameters", "hidden", "layers", "heads / KV", "feed-forward", "vocabulary", "embeddings")
    return "## Presets\n\n" + table(head, rows) + "\n"


def _precisions() -> str:
    from blackwell.hardware import ALIGNMENT, GPUS

    rows = []
    for precision in Precision:
        need = ALIGNMENT[precision]
        gpus = [gpu.name for gpu in GPUS.values() if gpu.compute_capability >= (9, 0) and gpu.has(precision)]
        dimensions = "any" if need.weight == need.tokens == 1 else f"weights {need.weight}, tokens {need.tokens}"
        rows.append((f"`{precision}`", dimensions, ", ".join(gpus)))
    return (
        "## Precisions\n\nA format that the hardware does not have is refused, never replaced. "
        "The multiples are of every weight dimension, and of micro_batch_size x seq_length.\n\n"
        + table(("precision", "multiples", "GPUs of compute capability 9.0 and later"), rows)
        + "\n"
    )
