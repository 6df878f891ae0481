"""What the ranks of one run do with checkpoints; answers on standard output in JSON lines.

`save` goes through the life of a run of FSDP2-sharded parameters; `load` reads what another world size wrote.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from blackwell.findings import FindingsError
from trainer.checkpoint import CheckpointStore
from trainer.s3 import S3Folder

WIDTH = 48
LAYERS = 3


class Training:
    """A few sharded layers and their optimizer, the same for any number of ranks."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        mesh = init_device_mesh("cpu", (world,))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step = 0

    def train(self) -> None:
        """One step on the same input on every rank."""
        data = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(self.step))
        self.model(data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        rng = {"value": torch.tensor([self.rank * 10 + self.step])}
        return {"model": model, "optim": optimizer, "train": {"step": self.step}, f"rng/{self.rank}": rng}

    def restore(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.step = state["train"]["step"]

    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters and moments, whole."""
        found = {name: p.full_tensor().detach().clone() for name, p in self.model.named_parameters()}
        for number, values in enumerate(self.optimizer.state.values()):
            found |= {f"{number}.{key}": v.full_tensor() for key, v in values.items() if hasattr(v, "full_tensor")}
        return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def tell(**facts: Any) -> None:
    sys.stdout.write("FACT " + json.dumps({"rank": dist.get_rank()} | facts) + "\n")  # one write: ranks share the pipe
    sys.stdout.flush()


def store_of(root: Path, **options: Any) -> CheckpointStore:
    world = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    return CheckpointStore(root, run="ranks", emit=lambda *_, **__: None, **world, **options)


def save(root: Path, s3_uri: str) -> None:
    """Save, damage, fall back, fail on one rank, go on, and the same through S3."""
    training = Training(seed=1)
    store = store_of(root / "local")
    kept = {}
    for _ in range(2):
        training.train()
        store.save(training.step, training.state(), {"position": training.step})
        kept[training.step] = training.weights()
    store.close()

    if training.rank == 0:  # the file of the other rank: only that one reads it
        [file] = (root / "local" / "step-00000002").glob("__1_*.distcp")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    dist.barrier()
    other = Training(seed=2)
    store = store_of(root / "local", asynchronous=False)
    loaded = store.load_newest(other.state)
    assert loaded is not None
    other.restore(loaded.state)
    tell(
        about="fallback",
        step=loaded.step,
        same=equal(other.weights(), kept[1]),
        rng=loaded.state[f"rng/{other.rank}"]["value"].item(),
        skipped=loaded.skipped,
    )

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    other.train()
    if other.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        store.save(other.step, other.state())
    except FindingsError as error:
        tell(
            about="full disk",
            message=error.findings[0].message,
            folders=sorted(p.name for p in (root / "local").iterdir()),
        )
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    other.train()
    store.save(other.step, other.state(), {"position": 3})
    whole = other.weights()
    if other.rank == 0:
        torch.save(whole, root / "weights.pt")

    store = store_of(root / "unused", transport="s3", s3_uri=s3_uri)
    store.save(other.step, other.state())
    store.close()
    fetched: list[str] = []
    real = S3Folder.download
    S3Folder.download = lambda self, name, path: (fetched.append(name), real(self, name, path))[1]  # type: ignore[method-assign]
    fresh = Training(seed=3)
    loaded = store_of(root / f"new-host-{fresh.rank}", transport="s3", s3_uri=s3_uri).load_newest(fresh.state)
    assert loaded is not None
    fresh.restore(loaded.state)
    tell(about="s3", step=loaded.step, same=equal(fresh.weights(), whole), fetched=[name[:4] for name in fetched])


def two_hosts(root: Path, s3_uri: str) -> None:
    """Each rank on a host of its own, with a disk of its own, copied to one place in S3."""
    rank = dist.get_rank()
    disk, name = root / f"host-{rank}", socket.gethostname
    socket.gethostname = lambda: f"host-{rank}"
    os.environ["LOCAL_RANK"] = "0"
    training = Training(seed=4)
    store = store_of(disk, s3_uri=s3_uri, keep=2, asynchronous=False)
    assert store.load_newest(training.state) is None
    for _ in range(4):
        training.train()
        store.save(training.step, training.state())
        for path in sorted(disk.rglob("*.distcp")) + sorted(disk.rglob("M*.json")) + sorted(disk.rglob(".metadata")):
            S3Folder(s3_uri).upload(path, str(path.relative_to(disk)))
        dist.barrier()
        store.flush_durable(0.0)
        dist.barrier()
    files = {p.name: sorted(f.name[:4] for f in p.iterdir()) for p in disk.iterdir()}
    tell(about="host", durable=store.durable_step, files=files)
    alone = store_of(disk, asynchronous=False)
    try:
        alone.load_newest(training.state)
    except FindingsError as error:
        tell(about="alone", message=error.findings[0].message)
    whole = training.weights()
    again = Training(seed=5)
    store = store_of(disk, s3_uri=s3_uri, keep=2, asynchronous=False)
    loaded = store.load_newest(again.state)
    assert loaded is not None
    again.restore(loaded.state)
    tell(about="restart", step=loaded.step, same=equal(again.weights(), whole))
    known = store.durable_step
    again.train()
    store.save(5, again.state())
    beats: list[float] = []
    started = time.monotonic()
    safe = store.flush_durable(time.time() + 2.5 if rank == 0 else 0.0, lambda: beats.append(time.monotonic()))
    tell(about="flush", safe=safe, seconds=time.monotonic() - started, beats=len(beats))
    for path in sorted((disk / "step-00000005").iterdir()):
        S3Folder(s3_uri).upload(path, str(path.relative_to(disk)))
    dist.barrier()
    store.flush_durable(0.0)
    dist.barrier()
    tell(about="after restart", known=known, durable=store.durable_step, folders=sorted(p.name for p in disk.iterdir()))
    socket.gethostname = name


def load(root: Path) -> None:
    """Another world size finds the same values, trains on alike, and its own checkpoint is whole, too."""
    training = Training(seed=9)
    store = store_of(root / "local", asynchronous=False)
    loaded = store.load_newest(training.state)
    assert loaded is not None
    training.restore(loaded.state)
    whole = torch.load(root / "weights.pt")
    training_same = equal(training.weights(), whole)
    has_rng = f"rng/{training.rank}" in loaded.state
    tell(about="load", step=loaded.step, same=training_same, rng=has_rng, saved_by=loaded.manifest.world_size)
    training.train()
    store.save(training.step, training.state())
    again = Training(seed=10)
    reloaded = store.load_newest(again.state)
    assert reloaded is not None
    again.restore(reloaded.state)
    tell(about="again", step=reloaded.step, same=equal(again.weights(), training.weights()))


def rank_main(rank: int, world: int, meeting: Path, arguments: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    if arguments[0] == "save":
        save(Path(arguments[1]), arguments[2])
        two_hosts(Path(arguments[1]), arguments[2].replace("/checkpoints/", "/hosts/"))
    else:
        load(Path(arguments[1]))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Ranks are forks of one process that has imported everything: real processes, one start-up."""
    world, arguments = int(sys.argv[1]), sys.argv[2:]
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=rank_main, args=(r, world, Path(folder) / "meet", arguments)) for r in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
