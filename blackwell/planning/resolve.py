"""From a job spec to configurations: ranks, layout, the choices that the spec leaves open, and what fits.

The choices are searched, not ruled: every combination of micro batch and checkpointing that divides the batch is
predicted, and the fastest one that fits wins; among equally fast ones the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from blackwell.hardware import ALIGNMENT, GB, GIB, Gpu, Instance
from blackwell.model import ModelShape
from blackwell.planning.configuration import Configuration, Layout
from blackwell.planning.memory import Memory, memory
from blackwell.planning.stacks import STACKS, Constants, constants
from blackwell.planning.throughput import Speed, speed
from blackwell.spec import ActivationCheckpointing, CapacityEntry, JobSpec, Precision, Workload

CONTEXT_GB = 3.0
"""CUDA context and NCCL buffers outside the allocator: an assumption of 2 to 5 GB, to be measured on the image."""
HOST_SHARE = 0.85
"""Share of a CPU instance's memory that training processes may take."""
LARGEST_MARGIN = 0.12
SMALLEST_MARGIN = 0.07
"""Bounds of the margin between the predicted and the usable memory; Fujii et al. (2411.06465) need 20 %."""
WORTH = 1.01
"""A larger micro batch must be this much faster to be chosen."""
LARGEST_MICRO_BATCH = 1024
LADDER = (ActivationCheckpointing.NONE, ActivationCheckpointing.SELECTIVE, ActivationCheckpointing.FULL)


def ladder(c: Configuration) -> tuple[ActivationCheckpointing, ...]:
    """Kinds of checkpointing that differ on the configuration's stack, lightest first."""
    return tuple(
        x
        for x in LADDER
        if x is not ActivationCheckpointing.SELECTIVE or STACKS[c.stack].selective in ("operators", "products")
    )


def cpu_device(instance: Instance, processes: int) -> Gpu:
    """A CPU instance's share for one process, in the shape of a GPU. Its speed is not modelled."""
    memory_gib = instance.host_memory_gib / processes
    peaks = dict.fromkeys((Precision.FP32, Precision.FP16, Precision.BF16), 1.0)
    return Gpu(
        f"{instance.name} process", (0, 0), memory_gib, memory_gib * HOST_SHARE, peaks, 0.05, 10, processes,
        "host memory of the instance over its processes",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The ranks that one capacity entry gives a job."""

    instance: Instance
    instances: int
    processes: int
    """Ranks per instance."""

    @property
    def ranks(self) -> int:
        return self.instances * self.processes

    @property
    def gpu(self) -> Gpu:
        """The GPU of a rank; for CPU instances the process's share of the host."""
        return self.instance.gpu or cpu_device(self.instance, self.processes)

    @property
    def on_gpu(self) -> bool:
        return self.instance.gpu is not None

    @property
    def limit_gb(self) -> float:
        """What the allocator of one rank may take, decimal GB."""
        return self.gpu.memory_gib_usable * GIB / GB - (CONTEXT_GB if self.on_gpu else 0.0)


def place_of(spec: JobSpec, entry: CapacityEntry, found: Instance) -> Place:
    """The ranks of a capacity entry."""
    return Place(found, entry.instance_count, spec.training.processes_per_instance or found.default_processes)


def margin(c: Configuration) -> float:
    """Relative distance that the prediction must keep from the limit."""
    return min(LARGEST_MARGIN, max(SMALLEST_MARGIN, constants(c.stack).memory_margin))


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration with its predictions."""

    configuration: Configuration
    memory: Memory
    speed: Speed
    fits: bool


def evaluate(c: Configuration, limit_gb: float, known: Constants | None = None) -> Choice:
    """Predicts one configuration."""
    k = known or constants(c.stack)
    m = memory(c, k.memory)
    return Choice(c, m, speed(c, k.speed, m.reserved), m.reserved * (1 + margin(c)) <= limit_gb)


def base_configuration(spec: JobSpec, place: Place) -> Configuration:
    """The configuration of a spec with every choice that it makes, and stand-ins for the choices it leaves open."""
    training = spec.training
    shape = spec.shape()
    layers = training.workload is Workload.LAYERS
    across = training.parallel.shard_across
    shard = place.processes if across == "node" and place.instances > 1 else 0
    precision = training.precision if training.precision != "auto" else first_precision(shape, place)
    tail = training.nvfp4.high_precision_tail_fraction if precision is Precision.NVFP4 else 0.0
    known = place.instance
    return Configuration(
        shape=shape, gpu=place.gpu, stack=stack_of(spec, place),
        layout=Layout(data=place.ranks, zero=3, shard=shard), precision=Precision(precision),
        checkpointing=ActivationCheckpointing.NONE, seq_length=training.seq_length if training.seq_length != "auto" else 4096,
        loss="none" if layers else "chunked" if training.cross_entropy == "chunked" else "full",
        compiled=training.compile, accumulate_locally=training.parallel.accumulate != "sharded", reshard=training.parallel.reshard_after_forward, quantized_layers=1.0 - tail,
        recipe="current" if precision is Precision.FP8 else "delayed" if precision is Precision.FP8_DELAYED else "",
        attention_bytes=2 if place.on_gpu else 4, gpus_per_node=place.processes, dropout=training.dropout > 0 or layers,
        network_gb_per_second=known.network_gb_per_second_per_gpu if known.gpus else known.network_gbps / 8 / place.processes,
    )  # fmt: skip


def stack_of(spec: JobSpec, place: Place) -> str:
    """Which of our trainer's variants runs: layers of Transformer Engine, of PyTorch, or the bare layers workload."""
    training = spec.training
    if training.workload is Workload.LAYERS:
        return "te-fsdp"
    if training.backend == "torch" or not place.on_gpu or training.emulate_precision:
        return "blackwell-torch"
    return "blackwell"


def first_precision(shape: ModelShape, place: Place) -> Precision:
    """The precision to start with: the fastest 8-bit format of the GPU whose blocks fit the shape, else bf16."""
    for precision in (Precision.MXFP8, Precision.FP8):
        if place.on_gpu and place.gpu.has(precision) and not illegal_dimensions(shape, precision):
            return precision
    return Precision.BF16


def illegal_dimensions(shape: ModelShape, precision: Precision) -> list[tuple[str, int, int]]:
    """Weight dimensions that the precision cannot take: name, value, required multiple."""
    multiple = ALIGNMENT[precision].weight
    if multiple == 1:
        return []
    named = {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.attention_width,
        "num_key_value_heads": shape.key_value_width,
        "vocab_size": shape.vocab_size,
    }
    return [(name, value, multiple) for name, value in named.items() if value % multiple]


def micro_batches(spec: JobSpec, place: Place, seq_length: int, precision: Precision) -> list[int]:
    """Micro batches to try, ascending: all that divide the global batch and align with the precision."""
    given, batch = spec.training.micro_batch_size, spec.training.global_batch_size
    if given != "auto":
        return [given]
    multiple = ALIGNMENT[precision].tokens
    if batch is not None:
        each = batch // place.ranks if batch % place.ranks == 0 else batch
        tried = [m for m in range(1, min(each, LARGEST_MICRO_BATCH) + 1) if each % m == 0]
    else:
        tried = [2**i for i in range(11)]
    aligned = [m for m in tried if m * seq_length % multiple == 0]
    return aligned or tried[:1]


def choices(spec: JobSpec, place: Place, base: Configuration) -> Iterator[Choice]:
    """Every combination of the choices that the spec leaves open, predicted."""
    training = spec.training
    given = training.activation_checkpointing
    kinds = ladder(base) if given == "auto" else (ActivationCheckpointing(given),)
    batch = training.global_batch_size
    limit = place.limit_gb
    known = constants(base.stack)
    for checkpointing in kinds:
        for micro in micro_batches(spec, place, base.seq_length, base.precision):
            accumulation = max(1, batch // (micro * place.ranks)) if batch else 1
            c = replace(base, checkpointing=checkpointing, micro_batch=micro, accumulation=accumulation)
            choice = evaluate(c, limit, known)
            yield choice
            if not choice.fits and c.accumulate_locally and accumulation > 1 and training.parallel.accumulate == "auto":
                choice = evaluate(replace(c, accumulate_locally=False), limit, known)
                yield choice
            if not choice.fits and accumulation == 1:
                break  # with accumulation a larger micro batch may need no whole gradients any more


def best_choice(spec: JobSpec, place: Place, base: Configuration) -> Choice:
    """The fastest choice that fits; among equally fast ones the smallest. Where none fits, the smallest of all."""
    fitting: list[Choice] = []
    smallest: Choice | None = None
    for choice in choices(spec, place, base):
        if choice.fits:
            fitting.append(choice)
        elif smallest is None or choice.memory.reserved < smallest.memory.reserved:
            smallest = choice
    if not fitting:
        assert smallest is not None
        return smallest
    if not place.on_gpu:  # speed is not modelled: least recomputation, then the smallest micro batch
        return min(fitting, key=lambda x: (LADDER.index(x.configuration.checkpointing), x.configuration.micro_batch))
    fastest = max(x.speed.tokens_per_second_per_gpu for x in fitting)
    return min(
        (x for x in fitting if x.speed.tokens_per_second_per_gpu * WORTH >= fastest),
        key=lambda x: (x.memory.reserved, x.configuration.micro_batch),
    )


def longest_sequence(
    spec: JobSpec, place: Place, base: Configuration, *, limit: int = 4_194_304
) -> tuple[int, Choice] | None:
    """The longest sequence that fits with one sequence per rank, to a step of 1,024 tokens; None where none does."""
    asked = spec.training.activation_checkpointing
    checkpointing = ActivationCheckpointing.FULL if asked == "auto" else ActivationCheckpointing(asked)
    given = spec.training.micro_batch_size
    micro = 1 if given == "auto" else given
    known = constants(base.stack)

    def at(length: int) -> Choice:
        return evaluate(
            replace(base, seq_length=length, micro_batch=micro, checkpointing=checkpointing), place.limit_gb, known
        )

    step = 1024
    if not at(step).fits:
        return None
    low, high = 1, limit // step
    while low < high:
        middle = (low + high + 1) // 2
        if at(middle * step).fits:
            low = middle
        else:
            high = middle - 1
    return low * step, at(low * step)
