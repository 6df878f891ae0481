"""Checkpoints and S3, on an emulated one: durability, uploads cut off anywhere, saves straight to S3, other runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from botocore.exceptions import ClientError
from checkpoint_state import (
    DAMAGES,
    Clock,
    Events,
    blank_state,
    data_file,
    flip_bit,
    make_state,
    open_store,
    same,
    save_steps,
)
from trainer_harness import Place, launched

from blackwell.findings import FindingsError
from blackwell.trainer_config import ENV_CHECKPOINT_URI
from local.server import LocalAws
from trainer import s3
from trainer.checkpoint import CheckpointStore, Loaded, writer
from trainer.checkpoint.failure import StorageError
from trainer.checkpoint.manifest import local_sizes
from trainer.s3 import S3Folder

pytestmark = pytest.mark.xdist_group("trainer-s3")

BUCKET = "bucket-of-tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an S3 with one bucket."""
    with LocalAws(tmp_path_factory.mktemp("s3"), overlay=False) as aws:
        yield aws.endpoint


def prepared(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Points AWS clients to the server; the URI of an empty place there."""
    settings = {
        "ENDPOINT_URL": server,
        "ACCESS_KEY_ID": "test",
        "SECRET_ACCESS_KEY": "test",
        "DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3.client().create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/checkpoints/"


@pytest.fixture
def uri(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in S3."""
    return prepared(server, monkeypatch)


class SageMakerSync:
    """What SageMaker does with /opt/ml/checkpoints: copies and deletes file by file, in no promised order."""

    def __init__(self, local: Path, place: S3Folder) -> None:
        self.local, self.place = local, place
        self.objects: dict[str, bytes] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def pending(self) -> list[str]:
        """Names whose object differs from the file."""
        files = {str(p.relative_to(self.local)): p.stat() for p in self.local.rglob("*") if p.is_file()}
        now = {name: (s.st_size, s.st_mtime_ns) for name, s in files.items()}
        return sorted(name for name in {*now, *self._seen} if now.get(name) != self._seen.get(name))

    def do(self, name: str) -> None:
        """One object is written or deleted."""
        path = self.local / name
        if path.exists():
            self._seen[name] = (path.stat().st_size, path.stat().st_mtime_ns)
            self.objects[name] = path.read_bytes()
            self.place.write(name, self.objects[name])
        else:
            del self._seen[name], self.objects[name]
            self.place.delete([name])

    def restore(self, to: Path) -> Path:
        """A new host's folder."""
        for name, data in self.objects.items():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(data)
        return to


def load(store: CheckpointStore) -> Loaded | None:
    """The newest checkpoint; None also for the clear error that there are only damaged ones."""
    try:
        loaded = store.load_newest(blank_state)
    except FindingsError as error:
        if {f.id for f in error.findings} == {"BTS-411"}:
            return None
        raise
    if loaded is not None:
        assert same(loaded.state, loaded.step)
    return loaded


ORDERS: dict[str, Callable[[list[str], random.Random], str]] = {
    "any order": lambda names, chance: chance.choice(names),
    "manifest first": lambda names, _: min(names, key=lambda n: (not n.endswith("MANIFEST.json"), n)),
    "oldest last": lambda names, _: names[-1],
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_host_lost_at_every_file_boundary_of_its_uploads(tmp_path: Path, uri: str, order: str) -> None:
    """With pruning due all the time: what was once called durable is always there, or a newer one is."""
    local, clock, events = tmp_path / "ck", Clock(), Events()
    sync = SageMakerSync(local, S3Folder(uri))
    store = open_store(local, events, keep=2, s3_uri=uri, clock=clock, sleep=clock.sleep)
    store.load_newest(blank_state)
    chance = random.Random(order)
    boundaries = 0

    def check_a_new_host() -> None:
        nonlocal boundaries
        boundaries += 1
        promised = [e["step"] for e in events if e.get("phase") == "durable"]
        with_sync = open_store(sync.restore(tmp_path / f"host-{boundaries}"), s3_uri=uri if boundaries % 2 else None)
        loaded = load(with_sync)
        assert (loaded.step if loaded else 0) >= max(promised, default=0)
        whole = [n for n in {name.split("/")[0] for name in sync.objects} if f"{n}/MANIFEST.json" in sync.objects]
        if len(promised) >= 2:
            assert len(whole) >= 2

    for step in range(1, 5):
        save_steps(store, step)
        for _ in range(chance.randrange(3, 9)):
            if names := sync.pending():
                sync.do(ORDERS[order](names, chance))
                check_a_new_host()
            store.flush_durable(clock.now)
    while names := sync.pending():
        sync.do(ORDERS[order](names, chance))
        store.flush_durable(clock.now)
        check_a_new_host()
    assert store.durable_step == 4
    assert {e["step"] for e in events if e.get("phase") == "pruned"} >= {1, 2}
    assert {n.split("/")[0] for n in sync.objects} == {"step-00000003", "step-00000004"}
    assert boundaries >= 18


def test_durable_is_told_from_complete(tmp_path: Path, uri: str) -> None:
    clock, events = Clock(), Events()
    sync = SageMakerSync(tmp_path / "ck", S3Folder(uri))
    store = open_store(tmp_path / "ck", events, keep=2, s3_uri=uri, clock=clock, sleep=clock.sleep)
    save_steps(store, 1)
    assert (store.complete_step, store.durable_step, store.durable_lag_seconds) == (1, None, None)
    assert store.flush_durable(clock.now + 30) is False
    assert clock.now == 1_000_030.0, "it waited, and no longer than it was told to"
    names = sync.pending()
    for name in names:
        assert store.flush_durable(clock.now) is False
        sync.do(name)
    assert store.flush_durable(clock.now) is True
    assert (store.durable_step, store.durable_lag_seconds) == (1, 30)
    assert [(e["phase"], e["step"]) for e in events] == [("complete", 1), ("durable", 1)]
    assert events[1]["seconds"] == 30


def test_a_deadline_may_come_nearer_while_it_is_waited_for(tmp_path: Path, uri: str) -> None:
    clock = Clock()
    store = open_store(tmp_path / "ck", s3_uri=uri, clock=clock, sleep=clock.sleep)
    save_steps(store, 1)
    began = clock.now
    assert not store.flush_durable(lambda: began + (3_600 if clock.now < began + 10 else 20))
    assert clock.now == began + 20


@pytest.mark.parametrize("end", ["copied", pytest.param("told to stop", marks=pytest.mark.slow)])
def test_the_model_is_there_before_the_last_checkpoint_is_safe(
    place: Callable[..., Place], uri: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow copy to S3 keeps nobody waiting inside a collective, and the run is whole however the wait ends."""
    job = place(steps=2, checkpoint__interval_steps=2)
    with launched(job, extra={ENV_CHECKPOINT_URI: uri}) as run:
        wait_until((job.root / "model" / "model.safetensors.index.json").is_file)
        assert run.process.poll() is None
        if end == "copied":
            sync = SageMakerSync(job.checkpoints, S3Folder(uri))
            for name in sync.pending():
                sync.do(name)
        else:
            run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 0, run.output.read_text()[-3000:]
        finish = run.log().of("finish")[0]
    assert finish["step"] == 2
    assert job.failure() is None


def wait_until(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_polling_looks_after_durability_without_waiting(tmp_path: Path, uri: str) -> None:
    clock, events = Clock(), Events()
    sync = SageMakerSync(tmp_path / "ck", S3Folder(uri))
    store = open_store(tmp_path / "ck", events, s3_uri=uri, clock=clock)
    save_steps(store, 1)
    for name in sync.pending():
        sync.do(name)
    store.poll()
    store.close()  # waits for what poll started
    assert store.durable_step == 1


def test_a_step_saved_again_is_not_durable_by_its_old_objects(tmp_path: Path, uri: str) -> None:
    """A run that went back writes step 2 anew: same names of steps, same sizes, other content in S3."""
    clock = Clock()
    local = tmp_path / "ck"
    sync = SageMakerSync(local, S3Folder(uri))
    save_steps(open_store(local, s3_uri=uri), 1, 2)
    for name in sync.pending():
        sync.do(name)
    flip_bit(data_file(local / "step-00000002"))
    sync.place.write(
        f"step-00000002/{data_file(local / 'step-00000002').name}", data_file(local / "step-00000002").read_bytes()
    )
    store = open_store(local, s3_uri=uri, clock=clock, sleep=clock.sleep)
    loaded = load(store)
    assert loaded is not None
    assert loaded.step == 1
    store.save(2, make_state(2))
    assert local_sizes(local / "step-00000002")[".metadata"] == len(sync.objects["step-00000002/.metadata"])
    assert store.flush_durable(clock.now) is False
    needed = {f"step-00000002/{p.name}" for p in (local / "step-00000002").iterdir()}
    for name in sync.pending():
        assert store.durable_step == (1 if needed else 2)
        sync.do(name)
        needed.discard(name)
        store.flush_durable(clock.now)
    assert store.durable_step == 2


@pytest.mark.parametrize("damage", ["bit flip", "index missing", "truncated"])
def test_a_damaged_local_file_is_taken_from_s3(
    tmp_path: Path, uri: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, scratch = tmp_path / "ck", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    save_steps(open_store(local), 1, 2)
    sync = SageMakerSync(local, S3Folder(uri))
    for name in sync.pending():
        sync.do(name)
    DAMAGES[damage](local / "step-00000002")
    loaded = load(open_store(local, s3_uri=uri))
    assert loaded is not None
    assert loaded.step == 2
    assert not list(scratch.iterdir()), "nothing is left of the download"


def test_a_store_that_cannot_ask_s3_does_not_start_from_scratch(tmp_path: Path, uri: str) -> None:
    elsewhere = uri.replace(BUCKET, "no-such-bucket")
    with pytest.raises(FindingsError, match=r"cannot tell whether there are checkpoints.*NoSuchBucket") as refused:
        open_store(tmp_path / "a", s3_uri=elsewhere).load_newest(blank_state)
    assert refused.value.findings[0].id == "BTS-411"
    save_steps(open_store(tmp_path / "b"), 1)
    loaded = load(open_store(tmp_path / "b", s3_uri=elsewhere))
    assert loaded is not None, "a local one will do"


# ---------------------------------------------------------------------- transport s3


def direct(root: Path, uri: str, events: Events | None = None, **options: Any) -> CheckpointStore:
    return open_store(root, events, transport="s3", s3_uri=uri, **options)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_saves_straight_to_s3(tmp_path: Path, uri: str, asynchronous: bool) -> None:
    events: Events = []
    store = direct(tmp_path / "a", uri, events, asynchronous=asynchronous, keep=2)
    assert store.load_newest(blank_state) is None
    save_steps(store, 1, 2, 3)
    store.close()
    assert store.durable_step == 3
    assert {n.split("/")[0] for n in S3Folder(uri).list()} == {"step-00000002", "step-00000003"}
    assert not list((tmp_path / "a").glob("*")), "the local disk is not needed"
    loaded = load(direct(tmp_path / "b", uri))
    assert loaded is not None
    assert (loaded.step, loaded.source, loaded.manifest.tokens) == (3, f"{uri}step-00000003/", 300)
    assert [(e["step"], e["phase"]) for e in events if e["step"] == 3] == [(3, "complete"), (3, "durable")]


@pytest.mark.parametrize("damage", ["bit flip", "object missing", "no manifest", "manifest damaged"])
def test_a_damaged_checkpoint_in_s3_is_passed_over(tmp_path: Path, uri: str, damage: str) -> None:
    save_steps(direct(tmp_path / "a", uri), 1, 2)
    place = S3Folder(uri)
    [data] = [n for n in place.list("step-00000002/") if n.endswith(".distcp")]
    if damage == "bit flip":
        content = bytearray(place.read(data) or b"")
        content[len(content) // 2] ^= 1
        place.write(data, bytes(content))
    elif damage == "object missing":
        place.delete([data])
    elif damage == "no manifest":
        place.delete(["step-00000002/MANIFEST.json"])
    else:
        place.write("step-00000002/MANIFEST.json", b"{}")
    loaded = load(direct(tmp_path / "b", uri))
    assert loaded is not None
    assert loaded.step == 1
    assert [s["folder"] for s in loaded.skipped] == [f"{uri}step-00000002/"]


def test_a_host_lost_at_every_object_boundary_of_a_save_to_s3(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each object written or deleted, S3 is copied as it is: a host lost there would find exactly this."""
    place = S3Folder(uri)
    copies: list[tuple[int, S3Folder]] = []
    saved = 0

    def boundary() -> None:
        copy = S3Folder(f"{uri.removesuffix('checkpoints/')}lost-{len(copies)}/")
        for name in place.list():
            copy.write(name, place.read(name) or b"")
        copies.append((saved, copy))

    real_stream, real_write, real_delete = writer.HashingFileSystem.create_stream, S3Folder.write, S3Folder.delete

    @contextmanager
    def stream(self: Any, path: Any, mode: str) -> Iterator[Any]:
        with real_stream(self, path, mode) as opened:
            yield opened
        boundary()

    def write(self: S3Folder, name: str, data: bytes) -> None:
        real_write(self, name, data)
        if self.prefix == place.prefix and name.startswith("step-"):
            boundary()

    def delete(self: S3Folder, names: Any) -> None:
        for name in names:
            real_delete(self, [name])
            if self.prefix == place.prefix and name.startswith("step-"):
                boundary()

    store = direct(tmp_path / "a", uri, keep=2)
    with monkeypatch.context() as patched:
        patched.setattr(writer.HashingFileSystem, "create_stream", stream)
        patched.setattr(S3Folder, "write", write)
        patched.setattr(S3Folder, "delete", delete)
        for step in (1, 2, 3):
            save_steps(store, step)
            saved = step
    assert len(copies) > 12
    for number, (promised, copy) in enumerate(copies):
        loaded = load(direct(tmp_path / f"new-{number}", copy.uri))
        assert (loaded.step if loaded else 0) >= promised
        assert loaded is None or loaded.step <= promised + 1


def test_s3_that_refuses_is_said(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FindingsError, match=r"BTS-412.*NoSuchBucket"):
        direct(tmp_path / "a", uri.replace(BUCKET, "no-such-bucket"))
    store = direct(tmp_path / "b", uri)
    save_steps(store, 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(S3Folder, "write", refuse)
        with pytest.raises(FindingsError, match=r"BTS-412.*step 2.*no room"):
            save_steps(store, 2)
    assert {n.split("/")[0] for n in S3Folder(uri).list()} == {"step-00000001"}, "nothing half written is left"


# ---------------------------------------------------------------------- resume from another run


def test_a_run_goes_on_from_another_runs_checkpoints(tmp_path: Path, uri: str) -> None:
    other = uri.replace("checkpoints/", "other/")
    save_steps(direct(tmp_path / "other", other), 4, 5)
    for resume_uri, step in (
        (other, 5),
        (other.rstrip("/"), 5),
        (f"{other}step-00000004", 4),
        (f"{other}step-00000004/", 4),
    ):
        loaded = load(open_store(tmp_path / f"from-{step}", s3_uri=uri, resume_uri=resume_uri))
        assert loaded is not None
        assert loaded.step == step
    ours = open_store(tmp_path / "ours", resume_uri=other)
    assert load(ours) is not None
    save_steps(ours, 6)
    again = load(open_store(tmp_path / "ours", resume_uri=other))
    assert again is not None
    assert again.source == str(tmp_path / "ours" / "step-00000006"), "its own checkpoints come first"


def test_a_run_whose_own_checkpoints_are_all_too_new_goes_back_to_the_other_runs(tmp_path: Path, uri: str) -> None:
    other = uri.replace("checkpoints/", "other/")
    save_steps(direct(tmp_path / "other", other), 4)
    ours, events = tmp_path / "ours", Events()
    save_steps(open_store(ours, s3_uri=uri, resume_uri=other), 5, 6)
    store = open_store(ours, events, s3_uri=uri, resume_uri=other)
    loaded = store.load_newest(blank_state, lambda manifest: "too new" if manifest.step > 4 else None)
    assert loaded is not None
    assert loaded.source == f"{other}step-00000004/"
    assert [s["reason"] for s in loaded.skipped] == ["too new"] * 2
    with pytest.raises(FindingsError, match="BTS-413"):
        open_store(ours, s3_uri=uri, resume_uri=other).load_newest(blank_state, lambda _: "too new")


@pytest.mark.parametrize("refused", [False, True])
def test_s3_that_fails_while_it_is_asked_for_checkpoints(
    tmp_path: Path, uri: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing to mend where S3 is down: the job must come again. Where it refuses, trying again would not help."""
    code, status = ("AccessDenied", 403) if refused else ("SlowDown", 503)
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def fail(*_: object, **__: object) -> None:
        raise ClientError(answer, "ListObjectsV2")

    store = open_store(tmp_path / "ck", s3_uri=uri)
    monkeypatch.setattr(S3Folder, "list", fail)
    with pytest.raises(FindingsError if refused else StorageError, match=code):
        store.load_newest(blank_state)


def test_resuming_from_nothing_is_an_error(tmp_path: Path, uri: str) -> None:
    with pytest.raises(FindingsError, match="BTS-413"):
        open_store(tmp_path, resume_uri=f"{uri}nothing/").load_newest(blank_state)


# ---------------------------------------------------------------------- several ranks


def run_ranks(world: int, root: Path, *arguments: object) -> list[dict[str, Any]]:
    """What the ranks told, sorted by rank."""
    script = Path(__file__).parent / "checkpoint_ranks.py"
    command = [sys.executable, str(script), str(world)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    facts = [json.loads(line.split("FACT ", 1)[1]) for line in done.stdout.splitlines() if "FACT " in line]
    return sorted(facts, key=lambda fact: int(fact["rank"]))


@pytest.fixture(scope="module")
def saved_by_two(server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run of two ranks, and what they told."""
    root = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patched:
        place = prepared(server, patched)
        return root, run_ranks(2, root, "save", root, place)


def told(facts: list[dict[str, Any]], about: str) -> list[dict[str, Any]]:
    return [fact for fact in facts if fact["about"] == about]


def test_two_ranks_agree_on_a_checkpoint_when_one_of_them_finds_damage(
    saved_by_two: tuple[Path, list[dict[str, Any]]],
) -> None:
    facts = told(saved_by_two[1], "fallback")
    assert [(f["step"], f["same"], f["rng"]) for f in facts] == [(1, True, 1), (1, True, 11)]
    for fact in facts:
        [skipped] = fact["skipped"]
        assert skipped["folder"].endswith("step-00000002")
        assert skipped["reason"].startswith("rank 1: __1_")


def test_a_full_disk_of_one_rank_fails_the_save_on_all(saved_by_two: tuple[Path, list[dict[str, Any]]]) -> None:
    facts = told(saved_by_two[1], "full disk")
    assert len(facts) == 2
    for fact in facts:
        assert "step 2" in fact["message"]
        assert "rank 1: [Errno 27] File too large" in fact["message"]
        assert "step-00000001" in fact["folders"]


def test_a_rank_fetches_only_the_files_it_needs(saved_by_two: tuple[Path, list[dict[str, Any]]]) -> None:
    first, second = told(saved_by_two[1], "s3")
    assert first["same"]
    assert second["same"]
    assert sorted(first["fetched"]) == [".met", "__0_"], "not the shards of the other rank"
    assert "__1_" in second["fetched"]


def test_hosts_with_disks_of_their_own_share_a_checkpoint(saved_by_two: tuple[Path, list[dict[str, Any]]]) -> None:
    """Every host can tell a whole checkpoint, prunes as rank 0 does, and fetches from S3 what only others have."""
    first, second = told(saved_by_two[1], "host")
    assert (first["durable"], second["durable"]) == (4, None)
    assert first["files"] == {f"step-0000000{n}": [".met", "MANI", "__0_"] for n in (3, 4)}
    # The other host hears of it with the next save.
    assert second["files"] == {f"step-0000000{n}": [".met", "MANI", "__1_"] for n in (2, 3, 4)}
    for fact in told(saved_by_two[1], "alone"):
        assert "rank 1: __0_" in fact["message"]
        assert "is missing" in fact["message"]
    assert len(told(saved_by_two[1], "alone")) == 2, "not a fresh start"
    assert [(f["step"], f["same"]) for f in told(saved_by_two[1], "restart")] == [(4, True)] * 2
    for waited in told(saved_by_two[1], "flush"):
        assert not waited["safe"]
        assert waited["seconds"] > 2.4, "all ranks wait as long as rank 0, or one would wait in a collective for it"
        assert waited["beats"] >= 2
    after = told(saved_by_two[1], "after restart")[0]
    assert after["durable"] == 5
    assert after["folders"] == ["step-00000004", "step-00000005"], "the good one from before is no broken one"


def test_one_process_reads_what_two_ranks_wrote(saved_by_two: tuple[Path, list[dict[str, Any]]]) -> None:
    root, _ = saved_by_two
    whole = torch.load(root / "weights.pt")

    def state() -> dict[str, Any]:
        return {
            "model": {name: torch.zeros_like(w) for name, w in whole.items() if name[0].isdigit() and "weight" in name}
        }

    loaded = open_store(root / "local").load_newest(state)
    assert loaded is not None
    assert loaded.manifest.world_size == 2
    assert len(loaded.state["model"]) == 3
    for name, weight in loaded.state["model"].items():
        assert torch.equal(weight, whole[name])


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 4])
def test_another_world_size_goes_on(
    saved_by_two: tuple[Path, list[dict[str, Any]]], tmp_path: Path, world: int
) -> None:
    root = shutil.copytree(saved_by_two[0], tmp_path / "copy")
    facts = run_ranks(world, root, "load", root)
    assert [(f["step"], f["same"], f["saved_by"]) for f in told(facts, "load")] == [(3, True, 2)] * world
    assert [f["rng"] for f in told(facts, "load")] == [True, True, False, False][:world]
    assert [(f["step"], f["same"]) for f in told(facts, "again")] == [(4, True)] * world
