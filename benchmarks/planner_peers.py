"""Other public estimators on the same rows as the planner: their formulas, transcribed with their sources.

Each answers in decimal GB per GPU, or None for a row that it does not model. Nothing here is fitted.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from blackwell.hardware import GB
from blackwell.planning.configuration import Configuration
from blackwell.planning.table import Row
from blackwell.spec import ActivationCheckpointing, Precision

MemoryPeer = Callable[[Configuration], float | None]


def deepspeed_states(c: Configuration) -> float | None:
    """DeepSpeed `runtime/zero/stage3.py` and `stage_1_and_2.py`: estimate_zero{2,3}_model_states_mem_needs, on GPU.

    ZeRO-3: 4 bytes x largest layer + 18 bytes x parameters / GPUs; ZeRO-2: 4 x parameters + 16 x parameters / GPUs.
    Model states only, no tensor or pipeline ranks.
    """
    if c.layout.model_parallel:
        return None
    n, gpus = c.shape.num_parameters, c.layout.shards
    if c.layout.zero >= 3:
        return (4 * max(c.shape.layer_parameters, c.shape.embedding_parameters) + 18 * n / gpus) / GB
    return (4 * n + 16 * n / gpus) / GB if c.layout.zero == 2 else 18 * n / GB


def accelerate_training(c: Configuration) -> float | None:
    """Hugging Face `accelerate estimate-memory`: training with Adam is four times the weights, here in float32.

    It knows no sharding; the figure is divided over the data ranks where weights are sharded, in its favour.
    """
    if c.layout.model_parallel:
        return None
    return 4 * 4 * c.shape.num_parameters / (c.layout.shards if c.layout.zero >= 3 else 1) / GB


def megatron_theoretical(c: Configuration) -> float | None:
    """Megatron-LM `megatron/training/theoretical_memory_usage.py`: states, and activations with selective recomputation.

    18 bytes per parameter, 6 + 12 / data ranks with the distributed optimizer; s b h (18 + 4 f / h) per layer over the
    tensor ranks, plus embedding dropout and logits. Sharded weights are divided over the ranks, in its favour.
    """
    s, layout = c.shape, c.layout
    per_stage = s.num_parameters / layout.pipeline / layout.tensor
    if layout.zero >= 3:
        states = 18 * per_stage / layout.shards
    elif layout.zero >= 1:
        states = per_stage * (6 + 12 / layout.shards)
    else:
        states = 18 * per_stage
    sbh = c.tokens * s.hidden_size
    activations = sbh * (18 + 4 * s.intermediate_size / s.hidden_size) * s.num_hidden_layers
    if c.checkpointing is ActivationCheckpointing.FULL:
        activations = 2 * sbh * s.num_hidden_layers  # its report says "not supported"; the paper's figure in its favour
    activations += 8 * c.tokens * layout.pipeline
    if layout.pipeline == 1:
        activations += sbh * 4 * (1 + s.vocab_size / s.hidden_size)
    elif layout.virtual > 1:
        activations *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.virtual)
    elif c.accumulation < layout.pipeline:
        activations *= c.accumulation / layout.pipeline
    return (states + activations / layout.tensor) / GB


def textbook(c: Configuration) -> float | None:
    """16 bytes per parameter over the shards, 34 s b h per layer (Korthikanti et al. with flash attention), 10 b s V."""
    if c.layout.model_parallel:
        return None
    per_layer = 2 if c.checkpointing is ActivationCheckpointing.FULL else 34
    activations = per_layer * c.tokens * c.shape.hidden_size * c.shape.num_hidden_layers
    return (16 * c.shape.num_parameters / c.layout.shards + activations + 10 * c.tokens * c.shape.vocab_size) / GB


MEMORY_PEERS: dict[str, MemoryPeer] = {
    "DeepSpeed model-states estimator": deepspeed_states,
    "accelerate estimate-memory": accelerate_training,
    "Megatron-LM theoretical memory": megatron_theoretical,
    "textbook: 16 N + 34 sbh + 10 bsV": textbook,
}


def forty_percent_of_peak(c: Configuration) -> float:
    """Tokens per second and GPU at 40 % of the dense bf16 peak."""
    return 0.4 * c.gpu.peak_tflops[Precision.BF16] * 1e12 / c.shape.flops_per_token(c.seq_length)


def median_tflops(rows: Sequence[Row], fold: Callable[[Row], int]) -> dict[int, float]:
    """Line -> prediction from the median achieved TFLOPS of rows with the same GPU and precision in other folds."""
    achieved: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    timed = [r for r in rows if r.configuration is not None and r.tokens_per_second and "tps" in r.uses]
    for row in timed:
        c = row.configuration
        assert c is not None
        assert row.tokens_per_second is not None
        achieved[c.gpu.name, c.precision, fold(row)].append(
            row.tokens_per_second * c.shape.flops_per_token(c.seq_length)
        )
    result: dict[int, float] = {}
    for row in timed:
        c = row.configuration
        assert c is not None
        others = [
            x
            for (gpu, precision, f), xs in achieved.items()
            for x in xs
            if (gpu, precision) == (c.gpu.name, c.precision) and f != fold(row)
        ]
        if others:
            result[row.number] = statistics.median(others) / c.shape.flops_per_token(c.seq_length)
    return result
