"""The trainer's loop against a bare PyTorch loop: same model, same FSDP2, same data, two ranks on this CPU.

`python -m benchmarks.trainer_loop`. The bare loop is what a tutorial has: batch, forward, backward, clip, step. Ours
adds the vote, the non-finite guard, the watchdog, spike detection, telemetry lines and the prefetching reader. Both
take turns in the same two processes, so that the machine's other work hits both alike.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.rounds import interleave, ratio, record
from trainer.build import build_model
from trainer.data import BatchSource, TokenDataset
from trainer.data.documents import Piece, Problems
from trainer.data.prepare import prepare, train_tokenizer
from trainer.optim import make_optimizer
from trainer.parallel import make_mesh, set_gradient_sync
from trainer.precision import find_hardware
from trainer.settings import Places, decide, read_config
from trainer.setup import open_session
from trainer.signals import StopFlag
from trainer.status import StatusFile
from trainer.train import train

RANKS = 2
STEPS = 2
ROUNDS = 120
GOAL = 0.97
HYPERPARAMETERS = {
    "model.hidden_size": "160",
    "model.num_hidden_layers": "6",
    "model.num_attention_heads": "5",
    "model.intermediate_size": "448",
    "model.vocab_size": "4096",
    "precision": "bf16",
    "micro_batch_size": "4",
    "global_batch_size": "8",
    "seq_length": "128",
    "steps": "100000",
    "checkpoint.interval_steps": "100000",
    "lr_schedule": "constant",
}
"""The tiny example's model: 3.2 million parameters."""


def worker(folder: Path) -> None:
    """One rank: both loops, in turns."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    places = Places(folder / "ml")
    job = decide(read_config(places, {}), RANKS, {})
    printed = io.StringIO()
    with redirect_stdout(printed):
        session = open_session(job, places, find_hardware(0), rank, StopFlag(None), StatusFile(None, rank))

    mesh = make_mesh(job.training.parallel, job.shape, torch.device("cpu"), 0.0)
    model = build_model(job, session.hardware, "torch", mesh)
    optimizer = make_optimizer(model, job.training)
    dataset: TokenDataset | None = _open(places)
    assert dataset is not None
    source = BatchSource(dataset, job.seq_length, job.global_batch_size, job.training.seed)
    position = 0

    def ours() -> float:
        session.job = replace(job, steps=session.progress.step + STEPS)
        dist.barrier()
        started = time.perf_counter()
        with redirect_stdout(printed):
            train(session)
        return STEPS * job.tokens_per_step / (time.perf_counter() - started)

    def bare() -> float:
        nonlocal position
        dist.barrier()
        started = time.perf_counter()
        for _ in range(STEPS):
            batch = source.batch(position, rank, RANKS, job.micro_batch_size, 0)
            position += job.global_batch_size
            set_gradient_sync(model, last=True)
            loss, _ = model(batch.inputs, batch.labels, 1.0 / batch.labels.numel())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(loss.item(), file=printed)
        return STEPS * job.tokens_per_step / (time.perf_counter() - started)

    measured = interleave({"ours": ours, "bare": bare}, ROUNDS, warm_up=2)
    holds = True
    if rank == 0:
        lines = printed.getvalue().count("[rank 0] loss")
        assert lines == (ROUNDS + 2) * STEPS, "every step was logged"
        holds = record(
            "trainer_loop",
            measured,
            [ratio(measured, "ours", "bare", ">=", GOAL)],
            unit="tokens per second",
            packages=["torch"],
            notes="two ranks over gloo, one thread each, bf16, 3.2 M parameters, every step logged by our loop",
            facts={"ranks": RANKS, "steps_per_round": STEPS, "parameters": job.shape.num_parameters},
        )
    session.close()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0 if holds else 1)


def _open(places: Places) -> TokenDataset | None:
    from trainer.data import open_dataset

    return open_dataset(places.channel("train"), "train")


def _prepare(folder: Path) -> None:
    import json
    import sysconfig

    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    texts = [path.read_text(errors="replace") for path in library]
    train_tokenizer([Piece(t) for t in texts], 4_096, folder / "tokenizer.json", Problems())
    channel = folder / "ml" / "input" / "data" / "train"
    channel.parent.mkdir(parents=True)
    prepare([Piece(t) for t in texts], channel, folder / "tokenizer.json", Problems())
    config = folder / "ml" / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text(json.dumps(HYPERPARAMETERS))


def main() -> int:
    """Makes a data set and starts the two ranks."""
    with tempfile.TemporaryDirectory(prefix="trainer-loop-") as name:
        folder = Path(name)
        _prepare(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
        common |= {"LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.trainer_loop", str(folder)],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]
        return max(process.wait() for process in ranks)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(Path(sys.argv[1]))
    sys.exit(main())
