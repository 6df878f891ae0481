"""The formulas behind a plan, with its numbers put in."""

from __future__ import annotations

from collections.abc import Iterator

from blackwell.hardware import GB, instance
from blackwell.planning.memory import logit_bytes, saved_bytes
from blackwell.planning.resolve import CONTEXT_GB, base_configuration, best_choice, evaluate, place_of
from blackwell.planning.stacks import STACKS, constants
from blackwell.planning.throughput import bandwidth
from blackwell.spec import ActivationCheckpointing, JobSpec


def explain_plan(resolved: JobSpec) -> Iterator[str]:
    """Lines for a resolved spec (`plan.resolved`); every line is a formula, its numbers, and its result."""
    entry = resolved.capacity[0]
    place = place_of(resolved, entry, instance(entry.instance_type))
    base = base_configuration(resolved, place)
    chosen = best_choice(resolved, place, base)
    c = chosen.configuration
    stack, k = STACKS[c.stack], constants(c.stack)
    s, m, v = c.shape, chosen.memory, chosen.speed
    n, layer, shards = s.num_parameters, s.layer_parameters, c.layout.shards
    yield f"Memory (stack {c.stack}: {stack.evidence})"
    yield f"  parameters N = {n:,}; of one layer {layer:,}; of embedding {s.embedding_parameters:,}, of head {s.head_parameters:,}"
    yield f"  sharded weights = {stack.weight_bytes:g} B x N / {shards} shards = {m.weights:.3f} GB"
    yield f"  optimizer states = {stack.optimizer_bytes:g} B x N / {shards} = {m.optimizer:.3f} GB"
    yield f"  gradients = {stack.gradient_bytes:g} B x N / {shards} where they are alive at the peak = {m.gradients:.3f} GB"
    none, selective, full = saved_bytes(c, stack)
    yield f"  saved per token and layer: none {k.memory.saved:.3f} x {none:,.0f} B, selective {k.memory.selective:.3f} x {selective:,.0f} B, full {full:,.0f} B"
    tokens = c.tokens
    yield (
        f"  saved activations ({c.checkpointing}) = {tokens:,.0f} tokens x {s.num_hidden_layers} layers = {m.activations:.3f} GB; "
        f"one layer alive {m.live_layer:.3f} GB"
    )
    yield f"  gathered = 2 units x {stack.compute_bytes:g} B x {layer:,} + root = {m.gathered:.3f} GB"
    if m.quantized_weights:
        yield f"  quantized weight copies of {c.precision} = {m.quantized_weights:.3f} GB"
    if s.vocab_size:
        yield f"  logits ({c.loss}) = {tokens:,.0f} x {s.vocab_size:,} x {logit_bytes(c, stack):g} B x {k.memory.logits:.3f} = {m.logits:.3f} GB"
    yield f"  peak at the {m.moment}: allocated {m.allocated:.3f} GB, reserved {m.reserved:.3f} GB (allocator x {k.memory.allocator:.3f}, streams apart)"
    usable = c.gpu.memory_gib_usable * 2**30 / GB
    yield f"  fits where reserved x (1 + margin) <= {usable:.1f} - {CONTEXT_GB if place.on_gpu else 0:g} GB of context"
    if not place.on_gpu:
        return
    yield ""
    yield "Step"
    peak = c.gpu.peak_tflops[c.precision]
    yield f"  model FLOPs per token = 6 x (layers + head) + 6 x layers x attention width x sequence = {v.model_flops_per_token:.4g}"
    yield (
        f"  shares of peak: 16-bit {k.speed.matmul(c.gpu):.3f} of {c.gpu.peak_tflops['bf16']:,.0f}, {c.precision} "  # type: ignore[index]
        f"{(k.speed.quantized_matmul(c.gpu, c.precision) if c.precision.quantized else k.speed.matmul(c.gpu)):.3f} of {peak:,.0f}, attention {k.speed.attention(c.gpu):.3f}, "
        f"memory bandwidth {k.speed.bandwidth:.3f} of {c.gpu.hbm_tb_per_second} TB/s"
    )
    if shards > 1:
        moved = (stack.compute_bytes * (2 if c.reshard else 1) + 2) * n * (shards - 1) / shards
        yield f"  communication per micro batch = {moved / GB:.2f} GB at {bandwidth(c, k.speed, shards, 1) / GB:.0f} GB/s; exposed {v.data_communication:.4f} s"
    for name, seconds in v.terms().items():
        yield f"  {name} = {seconds:.5f} s"
    yield f"  tokens/s per GPU = {v.tokens_per_step:,.0f} tokens / {v.step:.4f} s / {v.ranks} = {v.tokens_per_second_per_gpu:,.0f}"
    yield f"  MFU = {v.tokens_per_second_per_gpu * v.model_flops_per_token / 1e12:,.1f} / {peak:,.0f} TFLOPS"
    if c.checkpointing is not ActivationCheckpointing.FULL:
        other = evaluate(c.with_(checkpointing=ActivationCheckpointing.FULL), place.limit_gb)
        yield f"  with full checkpointing: {other.memory.reserved:.1f} GB, {other.speed.tokens_per_second_per_gpu:,.0f} tokens/s per GPU"
