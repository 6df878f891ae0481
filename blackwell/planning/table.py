"""Reads tables of measured training configurations: one row, one `Configuration` and what was measured for it.

Only what describes a configuration is read; measured columns are never an input to a prediction. The free-text notes
are searched for named settings (a compiler, a chunked loss, an interleaved pipeline), because the tables say those
nowhere else.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from blackwell.findings import Finding, FindingsError
from blackwell.hardware import GB, GIB, gpu_by_name
from blackwell.model import ModelShape
from blackwell.planning.configuration import Configuration, Layout, Loss
from blackwell.planning.memory import memory
from blackwell.planning.stacks import FALLBACK, STACKS, MemoryConstants
from blackwell.spec import ActivationCheckpointing, Precision

COLUMNS = (
    "source", "url_or_repo_path", "model", "params_B", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gpu",
    "n_gpus", "framework", "parallelism", "precision", "activation_ckpt", "micro_batch_per_gpu", "global_batch",
    "seq_len", "peak_mem_GB", "mem_metric", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "fits", "eval_use",
    "group", "notes",
)  # fmt: skip
REQUIRED = tuple(c for c in COLUMNS if c not in ("url_or_repo_path", "tflops_per_gpu", "mfu", "notes", "params_B"))
USES = frozenset({"mem", "tps", "oom_label", "seed", "context", "exclude"})
SCORED_USES = frozenset({"mem", "tps", "oom_label", "seed"})
METRICS = frozenset({"max_allocated", "max_reserved", "peak_active", "unknown"})
DEFAULT_VOCABULARY = 51_200
"""Megatron's padded GPT-2 vocabulary, where a table of GPT shapes leaves it out."""
FAR_OVER = 1.25
POWER_LIMITED = 0.85
"""Clock where a table says that power was limited but not by how much."""
MAX_TABLE_ROWS = 1_000_000

GIB_PER_GB = 1e9 / 2**30


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    number: int
    """Line in the file, the heading is 1."""
    source: str
    group: str
    uses: frozenset[str]
    configuration: Configuration | None
    skip: str | None
    """Why no prediction can be made; names the missing input."""
    memory_gb: float | None
    metric: str
    tokens_per_second: float | None
    fits: bool | None
    memory_unit: float
    """Predicted decimal GB times this is what the column counts."""

    @property
    def label(self) -> str:
        """Source and line, for messages."""
        return f"{self.source} (line {self.number})"


def read_table(path: Path) -> list[Row]:
    """Reads a CSV file.

    Raises:
        FindingsError: missing columns, a file that is no CSV text, values that are no numbers; all at once.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FindingsError([Finding(id="BTS-120", message=f"the table is not UTF-8 at byte {error.start}")]) from None
    return parse_table(text)


def parse_table(text: str) -> list[Row]:
    """Reads CSV text; raises as `read_table`."""
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        header = reader.fieldnames or []
        missing = [c for c in REQUIRED if c not in header]
        if missing:
            raise FindingsError(
                [
                    Finding(id="BTS-121", path=name, message="the table has no such column", legal=", ".join(COLUMNS))
                    for name in missing
                ]
            )
        raw = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise FindingsError([Finding(id="BTS-120", message=f"the table is no CSV: {error}")]) from None
    findings: list[Finding] = []
    rows = [
        _row(number, {k: (v or "").strip() for k, v in row.items() if isinstance(k, str)}, findings)
        for number, row in raw
    ]
    if findings:
        raise FindingsError(findings)
    return rows


class _Cells:
    """Typed access to a row's cells; collects findings for cells that are no numbers."""

    def __init__(self, number: int, row: dict[str, str], findings: list[Finding]) -> None:
        self.row, self._number, self._findings = row, number, findings

    def text(self, name: str) -> str:
        return self.row.get(name, "")

    def number(self, name: str, *, minimum: float = 0.0, whole: bool = False) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value <= minimum or value > 1e18 or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            self._findings.append(
                Finding(
                    id="BTS-122",
                    path=f"line {self._number}.{name}",
                    message="the cell is not a usable value",
                    given=text,
                    legal=f"{kind} above {minimum:g}, or empty",
                )
            )
            return None
        return value


def _row(number: int, raw: dict[str, str], findings: list[Finding]) -> Row:
    cells = _Cells(number, raw, findings)
    uses = frozenset(part.strip() for part in cells.text("eval_use").split("+") if part.strip())
    if unknown := uses - USES:
        findings.append(
            Finding(
                id="BTS-122",
                path=f"line {number}.eval_use",
                message="unknown use",
                given="+".join(sorted(unknown)),
                legal=", ".join(sorted(USES)),
            )
        )
    metric = cells.text("mem_metric") or "unknown"
    if metric not in METRICS:
        findings.append(
            Finding(
                id="BTS-122",
                path=f"line {number}.mem_metric",
                message="unknown metric",
                given=metric,
                legal=", ".join(sorted(METRICS)),
            )
        )
    fits_text = cells.text("fits").lower()
    if fits_text not in ("yes", "no", ""):
        findings.append(
            Finding(
                id="BTS-122",
                path=f"line {number}.fits",
                message="unknown label",
                given=fits_text,
                legal="yes, no or empty",
            )
        )
    before = len(findings)
    configuration, skip = _configuration(cells)
    if len(findings) > before:
        configuration, skip = None, "unreadable cell"
    stack = STACKS[configuration.stack] if configuration else None
    return Row(
        number=number, source=cells.text("source"), group=cells.text("group") or f"line {number}", uses=uses,
        configuration=configuration, skip=skip, memory_gb=cells.number("peak_mem_GB"), metric=metric,
        tokens_per_second=cells.number("tokens_per_s_per_gpu"), fits={"yes": True, "no": False}.get(fits_text),
        memory_unit=GIB_PER_GB if stack is not None and stack.gib_column else 1.0,
    )  # fmt: skip


def _configuration(cells: _Cells) -> tuple[Configuration | None, str | None]:
    """The configuration, or the name of the input that is missing for one."""
    gpu = gpu_by_name(cells.text("gpu"))
    if gpu is None:
        return None, "gpu missing" if not cells.text("gpu") else "gpu not known"
    sizes = {name: cells.number(name, whole=True) for name in ("layers", "hidden", "heads", "seq_len")}
    optional = {name: cells.number(name, whole=True) for name in ("kv_heads", "ffn", "n_gpus")}
    vocabulary = cells.number("vocab", minimum=-1, whole=True)
    billions = cells.number("params_B")
    micro = cells.number("micro_batch_per_gpu")
    batch = cells.number("global_batch")
    for name, value in (*sizes.items(), ("micro_batch_per_gpu", micro)):
        if value is None:
            return None, f"{name} missing"
    hidden, heads = int(sizes["hidden"] or 0), int(sizes["heads"] or 0)
    stack = stack_of(cells.text("framework"), cells.text("notes"), cells.text("url_or_repo_path"), cells.text("model"))
    shape = infer_shape(
        layers=int(sizes["layers"] or 0), hidden=hidden, heads=heads, kv_heads=int(optional["kv_heads"] or heads),
        ffn=int(optional["ffn"] or 0), vocabulary=None if vocabulary is None else int(vocabulary), billions=billions,
    )  # fmt: skip
    if isinstance(shape, str):
        return None, shape
    notes = cells.text("notes")
    layout = parse_layout(cells.text("parallelism"), int(optional["n_gpus"] or 0), stack, notes)
    if isinstance(layout, str):
        return None, layout
    precision = parse_precision(cells.text("precision"))
    if precision is None:
        return None, "precision missing" if not cells.text("precision") else "precision not known"
    if precision not in gpu.peak_tflops:
        return None, f"precision {precision} does not exist on this GPU"
    assert micro is not None
    accumulation = max(1.0, batch / (micro * layout.data)) if batch else 1.0
    if layout.pipeline > 1 and stack.startswith("torchtitan"):
        # torchtitan's local batch is what the pipeline cuts into one micro batch per stage.
        accumulation, micro = float(layout.pipeline), max(1.0, micro / layout.pipeline)
    c = Configuration(
        shape=shape, gpu=gpu, stack=stack, layout=layout, precision=precision, micro_batch=micro, accumulation=accumulation,
        seq_length=int(sizes["seq_len"] or 0), loss="none" if shape.vocab_size == 0 else "full",
        gradient_buckets=layout.data > 1, gpus_per_node=4 if gpu.domain > 8 else 8, dropout=STACKS[stack].name in ("te-fsdp", "megatron-deepspeed"),
    )  # fmt: skip
    c = _settings(c, cells)
    if not cells.text("activation_ckpt") and not stack.startswith("torchtitan"):
        c = lightest_checkpointing(c)
    return c, None


def infer_shape(
    *, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int | None, billions: float | None
) -> ModelShape | str:
    """The shape, with what the table leaves out (gating, tied embeddings) inferred from the number of parameters."""
    if kv_heads > heads or heads % kv_heads:
        return "kv_heads does not divide heads"
    head_dim = max(1, hidden // heads) if hidden % heads == 0 else None
    if head_dim is None:
        return "hidden is not a multiple of heads"
    if billions is not None and hidden >= 2048 and head_dim < 128 and kv_heads < heads:
        head_dim = 128 if hidden // heads in (64, 80) and heads * 128 != hidden and hidden // heads == 80 else head_dim
    candidates = []
    for gated in (True, False):
        width = ffn or (int(8 * hidden / 3) if gated else 4 * hidden)
        for tied in (False, True):
            base = ModelShape(
                hidden, layers, heads, kv_heads, width, DEFAULT_VOCABULARY if vocabulary is None else vocabulary, head_dim,
                tie_word_embeddings=tied, gated=gated, bias=vocabulary == 0,
            )  # fmt: skip
            candidates.append(base)
    if billions is not None:
        return min(candidates, key=lambda s: abs(math.log(s.num_parameters / (billions * 1e9))))
    plain = ffn == 4 * hidden
    return next(s for s in candidates if s.gated is not plain and not s.tie_word_embeddings)


def lightest_checkpointing(c: Configuration) -> Configuration:
    """No checkpointing unless that is far over the GPU's memory, else full: what somebody who ran it must have used."""
    usable = c.gpu.memory_gib_usable * GIB / GB
    if memory(c, MemoryConstants()).allocated <= FAR_OVER * usable:
        return c
    return replace(c, checkpointing=ActivationCheckpointing.FULL)


_STACKS_BY_WORD = (
    ("fsdp.py", "te-fsdp"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("nanotron", "nanotron"),
    ("torchtune", "torchtune"),
    ("automodel", "torchtitan"),
    ("megatron-lm", "megatron"),
    ("nemo", "nemo"),
    ("megatron", "nemo"),
    ("llm-foundry", "fsdp1"),
    ("fms-fsdp fsdp2", "torchtitan"),
    ("fms-fsdp", "fsdp1"),
    ("torchtitan", "torchtitan"),
    ("transformerlayer", "transformer-engine"),
    ("accelerate", "torchtitan"),
    ("blackwell", "blackwell"),
)


def stack_of(framework: str, notes: str = "", path: str = "", model: str = "") -> str:
    """Key of the stack that a framework's name stands for."""
    name = framework.lower()
    stack = next((key for word, key in _STACKS_BY_WORD if word in name), FALLBACK)
    if stack == "torchtitan" and re.search(
        r"graph_trainer|graph SAC|SimpleFSDP|\bILP\b|full recompute baseline", notes
    ):
        return "torchtitan-graph"
    return stack


def parse_layout(text: str, ranks: int, stack: str, notes: str = "") -> Layout | str:
    """The layout behind words such as `fsdp32+tp8`, `dp2+tp4+pp2/zero1` or `cp2+dp`."""
    words = text.lower()
    if not words or words.startswith("best"):
        return "parallelism missing"

    def degree(name: str) -> int:
        found = re.search(rf"(?<![a-z]){name}(\d+)", words)
        return int(found[1]) if found else 1

    tensor, pipeline, context, expert = degree("tp"), degree("pp"), degree("cp"), degree("ep")
    if expert > 1:
        return "mixture of experts is not modelled"
    fsdp, dp = re.search(r"fsdp(\d+)", words), re.search(r"(?<![a-z])dp(\d+)", words)
    model_ranks = tensor * pipeline * context
    if not ranks:
        if "single" in words:
            ranks = 1
        elif fsdp or dp:
            ranks = model_ranks * int((fsdp or dp)[1])  # type: ignore[index]
        else:
            return "n_gpus missing"
    if ranks % model_ranks:
        return "parallelism does not divide n_gpus"
    data = ranks // model_ranks
    zero = 1
    if found := re.search(r"zero(\d)", words):
        zero = int(found[1])
    elif "fsdp" in words:
        zero = 3
    elif "single" in words or (stack == "megatron" and re.fullmatch(r"dp\d+", words)) or stack == "nanotron":
        zero = 0
    shard = 0
    if fsdp and zero >= 3:
        shard = int(fsdp[1]) * context
    virtual = 1
    if found := re.search(r"\bVP\s?(\d+)", notes):
        virtual = max(1, int(found[1]))
    elif "interleaved" in words:
        virtual = 2
    if pipeline == 1:
        virtual = 1
    return Layout(
        data=data, tensor=tensor, pipeline=pipeline, context=context, zero=zero, shard=shard,
        # Megatron-LM's own tables name sequence parallelism where it is on; the others turn it on with tensor ranks.
        sequence_parallel=stack != "megatron-deepspeed" and (stack != "megatron" or "sp" in words.split("+")),
        virtual=virtual,
    )  # fmt: skip


def parse_precision(text: str) -> Precision | None:
    """The precision behind words such as `fp8(current-scaling)` or `nvfp4(bf16 tail)`."""
    word = re.split(r"[(\s/]", text.lower().strip(), maxsplit=1)[0]
    if word == "fp8" and "delayed" in text:
        return Precision.FP8_DELAYED
    return Precision(word) if word in set(Precision) else None


def _settings(c: Configuration, cells: _Cells) -> Configuration:
    """Adds what the notes and the spelling of precision and checkpointing say."""
    notes, precision = cells.text("notes"), cells.text("precision").lower()
    stack, changes = c.stack, cast("dict[str, Any]", {})
    checkpointing = cells.text("activation_ckpt").lower()
    if checkpointing.startswith(("full", "auto")):
        changes["checkpointing"] = ActivationCheckpointing.FULL
    elif "every 2nd" in checkpointing:
        changes |= {"checkpointing": ActivationCheckpointing.FULL, "checkpointed_layers": 0.5}
    elif checkpointing.startswith("selective"):
        changes["checkpointing"] = ActivationCheckpointing.SELECTIVE
    elif not checkpointing and stack.startswith("torchtitan"):
        changes["checkpointing"] = ActivationCheckpointing.SELECTIVE  # the default of its llama3 configurations

    lowered = notes.lower()
    compiled = "compile" in lowered and "before compile" not in lowered
    if stack == "torchtune":
        # torchtune's list is cumulative: every row keeps what the rows above it turned on.
        order = (
            "packed+compile",
            "chunked cross-entropy",
            "activation checkpointing",
            "optimizer-in-backward",
            "activation offloading",
            "8-bit adamw",
        )
        reached = max((i for i, word in enumerate(order) if word in lowered), default=-1)
        compiled = reached >= 0
        changes["loss"] = "chunked" if reached >= 1 else "full"
        changes["gradients_freed"] = reached >= 3
        changes["activations_offloaded"] = reached >= 4
        if reached >= 5:
            changes["optimizer_bytes"] = 2.0
    changes["compiled"] = compiled or STACKS[stack].compiled_by_default or "+compile" in cells.text("framework")
    if "chunked" in lowered and stack != "torchtune":
        changes["loss"] = "chunked"
    elif stack == "torchtitan-graph" and re.search(r"\bILP\b|full recompute baseline", notes):
        changes["loss"] = "chunked"  # torchtitan's default by the time it planned its own memory
    elif stack == "torchtitan" and c.gpu.name.split("-")[0] not in ("A100", "H100"):
        changes["loss"] = "chunked"  # tables of newer GPUs are from versions with that default
    # The graph trainer captures one graph but runs it operator by operator unless a full compilation is asked for.
    fused = changes["compiled"] and "graph_trainer" not in lowered
    if changes.get("loss", c.loss) == "full" and fused:
        changes["loss"] = "compiled"
    if c.loss == "none":
        changes["loss"] = "none"
    if "never" in lowered and "reshard" not in lowered.split("never")[0][-0:] and "params stay unsharded" in lowered:
        changes["reshard"] = False
    if c.layout.pipeline > 1 and c.layout.zero >= 3:
        changes["reshard"] = False  # gathering again for every micro batch would cost more than it saves
    if "asynctp" in cells.text("parallelism").lower() or "asynctp" in lowered:
        changes["asynchronous_tensor"] = True
    for word in ("tensorwise", "rowwise", "current", "delayed", "blockwise"):
        if word in precision:
            changes["recipe"] = word
    if "power-limited" in lowered:
        changes["gpu"] = replace(c.gpu, sustained=c.gpu.sustained * POWER_LIMITED)
    if "bf16 tail" in precision:
        changes["quantized_layers"] = 0.85
    if (found := re.search(r"layers 0-(\d+) NVFP4", notes)) and c.precision is Precision.NVFP4:
        changes["quantized_layers"] = min(1.0, (int(found[1]) + 1) / c.shape.num_hidden_layers)
    return replace(c, **changes)


def scored(rows: Iterable[Row]) -> list[Row]:
    """The rows that an evaluation scores."""
    return [row for row in rows if row.uses & SCORED_USES]


LOSSES: tuple[Loss, ...] = ("full", "compiled", "chunked", "none")
