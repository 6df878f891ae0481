"""Sets one worker up, in the order in which things are cheapest to refuse: settings, hardware, links, data, memory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore

from blackwell.findings import Finding, FindingsError, Severity
from blackwell.spec import Precision
from blackwell.trainer_config import ENV_CHECKPOINT_URI, ENV_CONTROL_URI, ENV_RESUME_URI, ENV_SKIP_DATA
from trainer.build import build_model
from trainer.checkpoint import CheckpointStore, Loaded, Manifest
from trainer.data import Batch, BatchSource, open_dataset
from trainer.export import import_model
from trainer.faults import Faults
from trainer.feed import Feed, RandomFeed, TokenFeed
from trainer.hosts import ENV_STORE_FD
from trainer.log import Log
from trainer.meter import Meter, peak_tflops
from trainer.model.backend import Backend
from trainer.model.transformer import LayerStack
from trainer.optim import LossScale, make_optimizer
from trainer.parallel import make_mesh
from trainer.precision import (
    Hardware,
    backend_name,
    check_precision,
    compute_dtype,
    start_line,
)
from trainer.profiling import ProfileWindow
from trainer.progress import Progress
from trainer.session import Session
from trainer.settings import MODEL_CHANNEL, TRAIN_CHANNEL, VALIDATION_CHANNEL, Job, Places
from trainer.signals import StopFlag
from trainer.state import create_optimizer_state, set_optimizer_step, snapshot
from trainer.status import StatusFile
from trainer.step import forward_backward
from trainer.watch.capacity import plan_end
from trainer.watch.control import ENV_POLL_SECONDS, POLL_SECONDS, ControlFile, reader
from trainer.watch.divergence import LossWatch
from trainer.watch.hang import Watchdog
from trainer.watch.memory import probe
from trainer.watch.selfcheck import self_check

ENV_MEMORY_PROBE = "BLACKWELL_MEMORY_PROBE"
"""`1` runs the memory probe on a CPU too, where it only costs time; `0` leaves it out on a GPU."""
GROUP_TIMEOUT_MARGIN = timedelta(minutes=5)
"""Collectives outlive the watchdog, which says more about a hang than they do."""
PROBE_MICRO_BATCHES = 2
CHECKPOINT_BYTES_PER_PARAMETER = 12
"""FP32 weight and two Adam moments."""
SYNC_LIMIT_BYTES = 12e9
"""`transport: auto` writes straight to S3 above this size per host: what a sync at 0.2 GB/s uploads in 60 s."""


def join_group(hardware: Hardware, hang_timeout: float, environment: Mapping[str, str] = os.environ) -> None:
    """Meets the other ranks: on the launcher's listening socket, or as torchrun's environment says."""
    timeout = timedelta(seconds=max(hang_timeout, 600.0)) + GROUP_TIMEOUT_MARGIN
    backend = "cpu:gloo,cuda:nccl" if hardware.is_gpu else "gloo"
    arguments: dict[str, Any] = {"backend": backend, "timeout": timeout}
    if hardware.is_gpu:
        torch.cuda.set_device(hardware.device)
        arguments["device_id"] = hardware.device
    rank, world = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    if "MASTER_ADDR" not in environment:
        dist.init_process_group(store=HashStore(), rank=0, world_size=1, **arguments)
        return
    if ENV_STORE_FD not in environment:
        dist.init_process_group(init_method="env://", **arguments)
        return
    descriptor = int(environment[ENV_STORE_FD]) if rank == 0 else None
    store = TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        world,
        is_master=descriptor is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )
    dist.init_process_group(store=store, rank=rank, world_size=world, **arguments)


def check_hardware(job: Job, hardware: Hardware) -> str:
    """The name of the layer backend, after every check that needs no memory.

    Raises:
        FindingsError: all reasons at once.
    """
    backend = backend_name(job.training, hardware)
    unavailable: Callable[[str], str | None] | None = None
    if backend == "te" and hardware.is_gpu:
        try:
            from trainer.model.te_backend import unavailable_reason as unavailable
        except (ImportError, RuntimeError, OSError):
            unavailable = None  # building the backend says why
    findings = check_precision(job.training, job.shape, job.micro_batch_size, job.seq_length, hardware, unavailable)
    if findings:
        raise FindingsError(findings)
    return backend


def open_session(
    job: Job, places: Places, hardware: Hardware, rank: int, stop: StopFlag, status: StatusFile
) -> Session:
    """Everything ready for the first step, the newest checkpoint loaded.

    Raises:
        FindingsError: for whatever cannot work, before the time for it is paid.
        HardwareError: this rank computes or communicates wrongly.
    """
    training, log = job.training, Log(job.run, rank)
    backend = check_hardware(job, hardware)
    watchdog = Watchdog(training.hang_timeout_seconds, lambda phase, seconds: _hung(status, phase, seconds))
    watchdog.start()
    join_group(hardware, training.hang_timeout_seconds)
    self_check(hardware.device)
    source, validation = _open_data(job, places, log)
    torch.manual_seed(training.seed)
    mesh = make_mesh(training.parallel, job.shape, hardware.device, _node_memory(hardware))
    model = build_model(job, hardware, backend, mesh)
    optimizer = make_optimizer(model, training)
    parameters = list(model.parameters())
    status.phase = "memory_probe"
    _probe_memory(job, hardware, model, optimizer, rank, log)

    progress, scale, losses = Progress(), LossScale(job.precision is Precision.FP16), LossWatch(training.loss_spike)
    status.phase = "load"
    store = _open_store(job, places, rank, log)
    fingerprint = source.fingerprint() if source else {}
    loaded = _load(job, store, model, optimizer, log, backend)
    if loaded is not None:
        state = loaded.manifest.extra["train"]
        set_optimizer_step(optimizer, state["optimizer_step"])
        progress.load(state["progress"])
        scale.load(state["loss_scale"])
        losses.load(state["losses"])
        if source is not None and state["data"]:
            source.check_fingerprint(state["data"])
    elif (places.channel(MODEL_CHANNEL)).is_dir() and job.is_language_model:
        import_model(model, job.shape, places.channel(MODEL_CHANNEL))
        log.note(f"weights read from {places.channel(MODEL_CHANNEL)}")
    skip = skip_request()
    if skip is not None and progress.skip(*skip):
        log.event("skip_data", before_step=skip[0], sequences=skip[1], position=progress.position)
    status.write(step=progress.step)
    control = _control(log) if rank == 0 else None
    feed: Feed = (
        TokenFeed(source, job, rank, progress.position, hardware.device)
        if source is not None
        else RandomFeed(job, rank, hardware.device, compute_dtype(job.precision))
    )
    peak = peak_tflops(hardware, job.precision)
    _say_start(job, hardware, backend, log, model, progress, loaded, peak, model.backend)
    return Session(
        job=job,
        rank=rank,
        hardware=hardware,
        backend=backend,
        model=model,
        optimizer=optimizer,
        parameters=parameters,
        store=store,
        feed=feed,
        validation=validation,
        log=log,
        status=status,
        stop=stop,
        watchdog=watchdog,
        faults=Faults.from_environment(rank, places.checkpoints),
        progress=progress,
        scale=scale,
        losses=losses,
        control=control,
        plan=plan_end(),
        meter=Meter(job, peak),
        profile=ProfileWindow(
            (training.profile_steps[0], training.profile_steps[1]) if training.profile_steps else None,
            hardware.device,
            places.output_data,
            writes=rank == 0,
        ),
        fingerprint=fingerprint,
        saved_step=progress.step if loaded is not None else -1,
    )


def skip_request(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(before_step, sequences) of BLACKWELL_SKIP_DATA; None without it."""
    text = environment.get(ENV_SKIP_DATA)
    if not text:
        return None
    document = json.loads(text)
    return int(document["before_step"]), int(document["sequences"])


def _hung(status: StatusFile, phase: str, seconds: float) -> None:
    from blackwell.verdict import Verdict

    status.write(verdict=Verdict.HUNG, cause=f"no progress for {seconds:.0f} s in phase {phase}")


def _open_data(job: Job, places: Places, log: Log) -> tuple[BatchSource | None, BatchSource | None]:
    if not job.is_language_model:
        return None, None
    root = places.channel(TRAIN_CHANNEL)

    def source(dataset: Any) -> BatchSource:
        dataset.check(vocab_size=job.shape.vocab_size, seq_length=job.seq_length)
        return BatchSource(dataset, job.seq_length, job.global_batch_size, job.training.seed, job.document_mask)

    train = source(open_dataset(root, "train"))
    if job.training.validation_interval_steps is None:
        return train, None
    own = places.channel(VALIDATION_CHANNEL)
    if own.is_dir():
        return train, source(open_dataset(own, "validation") or open_dataset(own, "train"))
    held_out = open_dataset(root, "validation")
    if held_out is None:
        log.note("no validation: the dataset has no validation split and there is no validation channel")
        return train, None
    try:
        return train, source(held_out)
    except FindingsError as error:  # the split was cut by share; a short one is no reason to refuse the job
        log.note(f"no validation: {error}")
        return train, None


def _node_memory(hardware: Hardware) -> float:
    if not hardware.is_gpu:
        return 0.0
    per_gpu = torch.cuda.get_device_properties(hardware.device).total_memory
    return float(per_gpu * int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _probe_memory(
    job: Job, hardware: Hardware, model: LayerStack, optimizer: torch.optim.Optimizer, rank: int, log: Log
) -> None:
    if os.environ.get(ENV_MEMORY_PROBE, "1" if hardware.is_gpu else "0") != "1":
        return
    size = (job.micro_batch_size, job.seq_length)
    if job.is_language_model:
        zeros = torch.zeros(size, dtype=torch.int64, device=hardware.device)
        batch: Any = Batch(zeros, zeros)
        if job.document_mask:
            row = torch.arange(job.seq_length, device=hardware.device).expand(size)
            borders = torch.arange(0, (size[0] + 1) * size[1], size[1], dtype=torch.int32, device=hardware.device)
            batch = Batch(zeros, zeros, row, zeros, borders, job.seq_length)
    else:
        batch = torch.zeros((*size, job.shape.hidden_size), dtype=compute_dtype(job.precision), device=hardware.device)
    batches = [batch] * min(PROBE_MICRO_BATCHES, job.accumulation)
    found = probe(
        lambda: forward_backward(model, batches, job.training.seed, 0, rank, 1.0 / (size[0] * size[1])),
        optimizer,
        hardware.device,
    )
    log.event("memory_probe", micro_batch_size=size[0], recompute=job.recompute.value, **found)


def _open_store(job: Job, places: Places, rank: int, log: Log) -> CheckpointStore:
    settings = job.training.checkpoint
    uri = os.environ.get(ENV_CHECKPOINT_URI) or None
    transport: Any = settings.transport
    if transport == "auto":
        hosts = job.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        size = job.shape.num_parameters * CHECKPOINT_BYTES_PER_PARAMETER / hosts
        transport = "s3" if uri and size > SYNC_LIMIT_BYTES else "sagemaker_sync"
    return CheckpointStore(
        places.checkpoints,
        run=job.run,
        keep=settings.keep,
        asynchronous=settings.asynchronous,
        transport=transport,
        s3_uri=uri,
        rank=rank,
        world_size=job.world_size,
        resume_uri=os.environ.get(ENV_RESUME_URI) or None,
        emit=log.event,
    )


def _load(
    job: Job, store: CheckpointStore, model: LayerStack, optimizer: torch.optim.Optimizer, log: Log, backend: str
) -> Loaded | None:
    def state() -> dict[str, Any]:
        if not optimizer.state:
            create_optimizer_state(optimizer)
        return snapshot(model, optimizer)

    skip = skip_request()

    def accept(manifest: Manifest) -> str | None:
        if manifest.config_hash and manifest.config_hash != job.model_hash:
            raise FindingsError(
                [
                    Finding(
                        id="BTS-423",
                        path="model",
                        message=f"{manifest.folder} was saved by a model of another shape or workload",
                        given=job.model_hash,
                        legal=f"the model of that checkpoint ({manifest.config_hash}), or another run name",
                    )
                ]
            )
        if job.training.quantized_weights and manifest.world_size != job.world_size:
            raise FindingsError(
                [
                    Finding(
                        id="BTS-423",
                        path="quantized_weights",
                        message="quantized weights resume only on the number of ranks that saved them",
                        given=job.world_size,
                        legal=f"{manifest.world_size} ranks",
                        nearest=manifest.world_size,
                    )
                ]
            )
        if skip is not None and manifest.step >= skip[0] and skip[0] not in _skips(manifest):
            return f"is not from before step {skip[0]}, where the run diverged"
        return None

    loaded = store.load_newest(state, accept)
    if loaded is None:
        optimizer.state.clear()
        return None
    for text in resume_warnings(job, loaded.manifest, backend):
        log.note(f"{Severity.WARNING}: {text}")
    return loaded


def resume_warnings(job: Job, manifest: Manifest, backend: str) -> list[str]:
    """What makes a resumed run other than the uninterrupted one; allowed, but said."""
    said = []
    if manifest.precision and manifest.precision != job.precision.value:
        said.append(
            f"{manifest.folder} was trained in {manifest.precision}, this job goes on in {job.precision.value}: the FP32 "
            "weights and optimizer states carry over, the loss may move"
        )
    if manifest.backend and manifest.backend != backend:
        said.append(f"{manifest.folder} was trained by backend {manifest.backend}, this job uses {backend}")
    if manifest.world_size != job.world_size:
        said.append(
            f"{manifest.folder} was saved by {manifest.world_size} ranks, this job has {job.world_size}: the same data "
            "in the same order, sums in another order" + (", other dropout masks" if job.training.dropout else "")
        )
    if job.precision is Precision.FP8_DELAYED:
        said.append("the history of delayed scaling is not saved and starts anew: this resume is not bitwise exact")
    return said


def _skips(manifest: Manifest) -> list[int]:
    skips: list[int] = manifest.extra.get("train", {}).get("progress", {}).get("skips", [])
    return skips


def _control(log: Log) -> ControlFile | None:
    uri = os.environ.get(ENV_CONTROL_URI)
    if not uri:
        return None
    control = ControlFile(reader(uri), log.note, float(os.environ.get(ENV_POLL_SECONDS) or POLL_SECONDS))
    control.start()
    return control


def _say_start(
    job: Job,
    hardware: Hardware,
    backend: str,
    log: Log,
    model: LayerStack,
    progress: Progress,
    loaded: Loaded | None,
    peak: float | None,
    layers: Backend,
) -> None:
    emulated = job.training.emulate_precision
    if (line := start_line(job.precision, emulated)) is not None:
        log.note(line)
    versions = {"torch": torch.__version__}
    if backend == "te":
        import transformer_engine

        versions["transformer_engine"] = transformer_engine.__version__
    log.event(
        "start",
        world_size=job.world_size,
        host=socket.gethostname(),
        device=hardware.name,
        num_parameters=sum(p.numel() for p in model.parameters()),
        precision=job.precision.value,
        emulated=emulated,
        backend=layers.name,
        activation_checkpointing=job.recompute.value,
        resumed_from_step=progress.step if loaded is not None else None,
        micro_batch_size=job.micro_batch_size,
        accumulation_steps=job.accumulation,
        global_batch_size=job.global_batch_size,
        seq_length=job.seq_length,
        tokens_per_step=job.tokens_per_step,
        steps=job.steps,
        checkpoint_interval_steps=job.checkpoint_interval,
        peak_tflops=peak,
        attempt=job.attempt,
        restart=job.restart,
        model_hash=job.model_hash,
        versions=versions,
    )
