"""Checkpoints on a local disk: what is saved comes back, what is damaged is passed over, what fails says why."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import resource
import signal
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from botocore.exceptions import ClientError, EndpointConnectionError
from checkpoint_state import (
    DAMAGES,
    HALF_WRITTEN,
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
from s3torchconnector import S3Exception
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from blackwell import telemetry
from blackwell.findings import FindingsError
from blackwell.names import MANIFEST
from trainer.checkpoint import CheckpointStore, Manifest, ManifestError
from trainer.checkpoint.durability import LocalPlaces
from trainer.checkpoint.failure import Cause, RankFailureError, RankLostError, WriteError, cause_of, local_cause
from trainer.checkpoint.group import Group, describe
from trainer.checkpoint.manifest import FileEntry, write_manifest
from trainer.checkpoint.pruning import State
from trainer.s3 import S3Folder


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path, asynchronous: bool) -> None:
    store = open_store(tmp_path / "ck", asynchronous=asynchronous)
    assert store.load_newest(blank_state) is None, "a fresh start"
    extra = {
        "tokens": 700,
        "position": 28,
        "precision": "bf16",
        "backend": "torch",
        "config_hash": "c0ffee",
        "data": {"seed": 1},
    }
    handle = store.save(7, make_state(7), extra)
    store.close()
    assert handle.done.is_set()
    assert handle.stall_seconds > 0
    loaded = open_store(tmp_path / "ck").load_newest(blank_state)
    assert loaded is not None
    assert same(loaded.state, 7)
    assert (loaded.step, loaded.folder, loaded.skipped) == (7, "step-00000007", [])
    assert loaded.source == str(tmp_path / "ck" / "step-00000007")
    manifest = loaded.manifest
    assert (manifest.tokens, manifest.position, manifest.precision, manifest.backend) == (700, 28, "bf16", "torch")
    assert (manifest.world_size, manifest.config_hash, manifest.extra) == (1, "c0ffee", {"data": {"seed": 1}})
    assert manifest.versions["torch"] == torch.__version__


def test_the_files_are_plain_dcp_and_the_manifest_is_exact(tmp_path: Path) -> None:
    import hashlib

    save_steps(open_store(tmp_path), 3)
    folder = tmp_path / "step-00000003"
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    others = {p.name for p in folder.iterdir()} - {"MANIFEST.json"}
    assert manifest["files"].keys() == others
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    dcp_to_torch_save(folder, tmp_path / "plain.pt")
    plain = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(plain["model"]["a"], make_state(3)["model"]["a"])


def test_training_on_does_not_change_what_is_being_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is a real one (pytorch#144657), and so is the second, which reuses its memory."""
    from trainer.checkpoint import writer

    may_write = threading.Event()
    real = writer.CheckpointWriter.write_data

    def late(self: Any, plan: Any, planner: Any) -> Any:
        may_write.wait(20)
        return real(self, plan, planner)

    monkeypatch.setattr(writer.CheckpointWriter, "write_data", late)
    store = open_store(tmp_path, asynchronous=True)
    for step in (1, 2):
        may_write.clear()
        state = make_state(step)
        handle = store.save(step, state)
        for tensor in (*state["model"].values(), state["rng/0"]["torch"]):
            tensor.zero_()
        state["train"]["step"] = -5
        store.poll()
        assert not handle.done.is_set()
        may_write.set()
        store.wait()
        loaded = open_store(tmp_path).load_newest(blank_state)
        assert loaded is not None
        assert same(loaded.state, step)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over_with_its_reason(tmp_path: Path, damage: str) -> None:
    save_steps(open_store(tmp_path), 1, 2, 3)
    DAMAGES[damage](tmp_path / "step-00000003")
    events: Events = []
    store = open_store(tmp_path, events)
    loaded = store.load_newest(blank_state)
    assert loaded is not None
    assert loaded.step == 2
    assert same(loaded.state, 2)
    [skipped] = loaded.skipped
    assert skipped["folder"] == str(tmp_path / "step-00000003")
    assert len(skipped["reason"]) > 10
    [resume] = [e for e in events if e["event"] == "resume"]
    assert (resume["step"], resume["skipped"]) == (2, loaded.skipped)
    assert store.durable_step == 2, "a damaged checkpoint counts as nothing"
    save_steps(store, 3)
    again = open_store(tmp_path).load_newest(blank_state)
    assert again is not None
    assert (again.step, again.skipped) == (3, [])
    assert same(again.state, 3)


@pytest.mark.parametrize("damage", DAMAGES)
def test_when_all_are_damaged_nothing_starts_from_scratch(tmp_path: Path, damage: str) -> None:
    save_steps(open_store(tmp_path), 1, 2)
    for step in (1, 2):
        DAMAGES[damage](tmp_path / f"step-0000000{step}")
    events: Events = []
    store = open_store(tmp_path, events)
    if damage in HALF_WRITTEN:
        assert store.load_newest(blank_state) is None, "no save was ever finished: a fresh start, and said so"
        assert len(events[0]["skipped"]) == 2
        return
    with pytest.raises(FindingsError) as refused:
        store.load_newest(blank_state)
    assert [f.id for f in refused.value.findings] == ["BTS-411", "BTS-411"]
    assert [Path(f.path).name for f in refused.value.findings] == ["step-00000002", "step-00000001"]
    assert all(f.message for f in refused.value.findings)


def test_checkpoints_that_are_only_too_new_allow_a_fresh_start(tmp_path: Path) -> None:
    """A run that goes back before its first checkpoint. One that is damaged, and old enough, still does not."""
    save_steps(open_store(tmp_path), 10, 20)

    def from_before(step: int) -> Any:
        return lambda manifest: f"is not from before step {step}" if manifest.step >= step else None

    events: Events = []
    assert open_store(tmp_path, events).load_newest(blank_state, from_before(5)) is None
    assert [(e["step"], len(e["skipped"])) for e in events] == [(None, 2)]
    flip_bit(data_file(tmp_path / "step-00000010"))
    with pytest.raises(FindingsError, match="BTS-411") as refused:
        open_store(tmp_path).load_newest(blank_state, from_before(15))
    assert [Path(f.path).name for f in refused.value.findings] == ["step-00000010"]


def test_a_checkpoint_of_another_model_is_no_fresh_start(tmp_path: Path) -> None:
    save_steps(open_store(tmp_path), 1)

    def wider() -> dict[str, Any]:
        state = blank_state()
        state["model"]["a"] = torch.zeros(65, 48)
        return state

    def deeper() -> dict[str, Any]:
        state = blank_state()
        state["model"]["c"] = torch.zeros(2)
        return state

    for factory, said in ((wider, "ize"), (deeper, "model.c")):
        with pytest.raises(FindingsError, match="BTS-411") as refused:
            open_store(tmp_path).load_newest(factory)
        assert said in refused.value.findings[0].message


def test_state_of_ranks_that_did_not_exist_is_left_out(tmp_path: Path) -> None:
    save_steps(open_store(tmp_path), 1)

    def second_rank() -> dict[str, Any]:
        return blank_state() | {"rng/1": {"torch": torch.zeros(4)}}

    loaded = open_store(tmp_path).load_newest(second_rank)
    assert loaded is not None
    assert "rng/1" not in loaded.state
    assert same(loaded.state, 1)


def test_keep_and_the_folder_of_a_step_that_comes_again(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep=2)
    save_steps(store, 1, 2, 3, 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    before = {p.name for p in (tmp_path / "step-00000004").iterdir()}
    save_steps(store, 4)
    assert {p.name for p in (tmp_path / "step-00000004").iterdir()} == before, "what is good is not written again"
    flip_bit(data_file(tmp_path / "step-00000004"))
    later = open_store(tmp_path, keep=2)
    assert later.load_newest(blank_state) is not None
    save_steps(later, 4)
    after = {p.name for p in (tmp_path / "step-00000004").iterdir()}
    assert before & after == {".metadata", "MANIFEST.json"}, "every save has its own file names"


def test_events_are_telemetry_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = CheckpointStore(tmp_path, run="my-run", keep=2, asynchronous=True)
    save_steps(store, 10, 20, 30)
    store.close()
    parsed = [telemetry.parse_event(line) for line in capfd.readouterr().out.splitlines()]
    assert all(p is not None and p[:2] == ("my-run", "checkpoint") for p in parsed)
    fields = [p[2] for p in parsed if p is not None]
    assert [(f["step"], f["phase"]) for f in fields] == [
        (10, "complete"), (10, "durable"), (20, "complete"), (20, "durable"),
        (30, "complete"), (30, "durable"), (10, "pruned"),
    ]  # fmt: skip
    size = sum(p.stat().st_size for p in (tmp_path / "step-00000030").iterdir() if p.name != "MANIFEST.json")
    assert fields[4]["bytes"] == size


def test_the_lag_is_the_age_of_the_newest_durable_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    assert (store.durable_lag_seconds, store.durable_step) == (None, None)
    save_steps(store, 1)
    clock.now += 50
    assert (store.durable_lag_seconds, store.durable_step) == (50, 1)
    later = open_store(tmp_path, clock=clock)
    later.load_newest(blank_state)
    clock.now += 5
    assert later.durable_lag_seconds == 55, "also after a restart"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_full_disk_is_said_and_leaves_the_last_good_checkpoint(tmp_path: Path, asynchronous: bool) -> None:
    """The limit on file sizes stands for the disk: writing fails in the middle of a file, as ENOSPC would."""
    events: Events = []
    store = open_store(tmp_path, events, asynchronous=asynchronous)
    save_steps(store, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(FindingsError) as failed:
            save_steps(store, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    [finding] = failed.value.findings
    assert finding.id == "BTS-412"
    assert "step 2" in finding.message
    assert "File too large" in finding.message
    assert str(tmp_path) in finding.message
    assert "GB free" in finding.message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001"], "the space is free again"
    store.poll()
    save_steps(store, 2)
    loaded = open_store(tmp_path).load_newest(blank_state)
    assert loaded is not None
    assert same(loaded.state, 2)


def _open_as_nobody(root: str, answers: Any) -> None:
    if os.getuid() == 0:
        os.setuid(65_534)
    try:
        open_store(Path(root) / "checkpoints")
        answers.send("opened")
    except FindingsError as error:
        answers.send(error.findings[0].model_dump())


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_checkpoint_is_kept_when_a_rank_is_lost_while_its_manifest_goes_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool, committed: bool
) -> None:
    """Lost before the manifest is written, the half-written checkpoint goes; lost after it, all of it stays."""
    store = open_store(tmp_path / "ck", asynchronous=asynchronous)
    save_steps(store, 1)
    folder = tmp_path / "ck" / "step-00000002"
    gather = Group.gather

    def lost(group: Group, value: Any) -> list[Any]:
        if (folder / (MANIFEST if committed else ".metadata")).exists():
            raise RuntimeError("Connection closed by peer")
        return gather(group, value)

    monkeypatch.setattr(Group, "gather", lost)
    with pytest.raises(RankLostError, match="Connection closed by peer"):
        save_steps(store, 2)
    monkeypatch.undo()
    loaded = open_store(tmp_path / "ck").load_newest(blank_state)
    assert loaded is not None
    assert loaded.step == (2 if committed else 1)
    assert loaded.skipped == []


@pytest.mark.parametrize("existed", [False, True])
def test_a_manifest_is_written_whole_or_not_at_all(tmp_path: Path, existed: bool) -> None:
    if existed:
        (tmp_path / MANIFEST).write_bytes(b"before")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_write_on_a_full_disk, args=(tmp_path, theirs))
    child.start()
    assert ours.poll(20)
    assert ours.recv() == errno.EFBIG
    child.join()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({MANIFEST: b"before"} if existed else {})


def _write_on_a_full_disk(folder: Path, answers: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        write_manifest(folder, b"x" * 5_000)
    except OSError as error:
        answers.send(error.errno)
    else:
        answers.send("written")


def wrapped(inner: BaseException) -> BaseException:
    try:
        raise RuntimeError("PytorchStreamWriter failed writing file") from inner
    except RuntimeError as error:
        return error


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), Cause.REFUSED),
        (wrapped(OSError(errno.ENOSPC, "No space left on device")), Cause.REFUSED),
        (PermissionError(errno.EACCES, "Permission denied"), Cause.REFUSED),
        (OSError(errno.EIO, "Input/output error"), Cause.STORAGE),
        (wrapped(OSError(errno.EIO, "Input/output error")), Cause.STORAGE),
        (TimeoutError("timed out"), Cause.STORAGE),
        (client_error("AccessDenied"), Cause.REFUSED),
        (client_error("NoSuchBucket"), Cause.REFUSED),
        (client_error("SlowDown"), Cause.STORAGE),
        (client_error("InternalError"), Cause.STORAGE),
        (EndpointConnectionError(endpoint_url="https://s3"), Cause.STORAGE),
        (S3Exception("Client error: Forbidden: Access Denied"), Cause.REFUSED),
        (S3Exception("Service error: Slow down"), Cause.STORAGE),
        (RuntimeError("Connection closed by peer [10.0.0.2]:29400"), Cause.LINK),
        (ManifestError("__0_x_0.distcp is missing"), Cause.REFUSED),
        (TypeError("cannot pickle this"), Cause.REFUSED),
        (RankFailureError("rank 1: [Errno 5]", Cause.STORAGE), Cause.STORAGE),
    ],
    ids=str,
)
def test_failures_have_causes_also_after_a_journey_to_another_rank(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) is cause
    if cause is Cause.LINK or isinstance(error, RankFailureError):
        return
    write = WriteError(describe(error), local_cause(error))
    arrived = pickle.loads(pickle.dumps(write))
    assert (cause_of(arrived), str(arrived)) == (cause, describe(error))
    assert cause_of(CheckpointException("save", {1: (arrived, traceback.StackSummary())})) is cause


@dataclass
class HostOf:
    """What a folder's host knows of the ranks."""

    hosts: int
    world_size: int
    ranks_of_host: frozenset[int]


@pytest.mark.parametrize(
    ("missing", "cut", "state"),
    [
        ((), None, State.COMPLETE),
        (("__2_a_0.distcp", "__3_a_0.distcp"), None, State.COMPLETE),
        (("__1_a_0.distcp",), None, State.BROKEN),
        ((), "__0_a_0.distcp", State.BROKEN),
        ((), "__3_a_0.distcp", State.BROKEN),
    ],
    ids=["all", "another host's", "its own", "its own, short", "another host's, short"],
)
def test_of_several_hosts_each_answers_for_its_own_ranks_files(
    tmp_path: Path, missing: tuple[str, ...], cut: str | None, state: State
) -> None:
    names = [f"__{rank}_a_0.distcp" for rank in range(4)]
    folder = tmp_path / "step-00000010"
    folder.mkdir()
    for name in set(names) - set(missing):
        (folder / name).write_bytes(b"x" * (9 if name == cut else 10))
    files = {name: FileEntry(bytes=10, sha256="0" * 64) for name in names}
    write_manifest(folder, Manifest(step=10, world_size=4, files=files).encode())
    host: Any = HostOf(2, 4, frozenset({0, 1}))
    assert LocalPlaces(tmp_path, S3Folder("s3://bucket/run/"), host).scan()[10][0] is state
    alone: Any = HostOf(1, 4, frozenset(range(4)))
    whole = not missing and cut is None
    assert (LocalPlaces(tmp_path, S3Folder("s3://bucket/run/"), alone).scan()[10][0] is State.COMPLETE) is whole


def test_a_directory_that_may_not_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    for parent in (tmp_path.parent, tmp_path.parent.parent, tmp_path.parent.parent.parent):
        if parent.stat().st_uid == os.getuid() and parent.name.startswith(("pytest", "popen")):
            parent.chmod(0o755)
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_open_as_nobody, args=(str(tmp_path), theirs))
    child.start()
    assert ours.poll(20)
    answer = ours.recv()
    child.join()
    assert answer["id"] == "BTS-412"
    assert "Permission denied" in answer["message"]
    assert str(tmp_path) in answer["message"]


def test_transport_s3_needs_its_uri(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="BTS-414"):
        open_store(tmp_path, transport="s3")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version"),
        ({"files": {"a": {"bytes": -1, "sha256": "0" * 64}}}, "bytes"),
        ({"files": {"a": {"bytes": 1, "sha256": "xyz"}}}, "sha256"),
        ({"step": None}, "step"),
    ],
)
def test_manifests_that_are_refused(change: dict[str, Any], said: str) -> None:
    good = {"version": 1, "step": 1, "world_size": 1, "files": {}}
    Manifest.decode(json.dumps(good).encode())
    with pytest.raises(OSError, match=said):
        Manifest.decode(json.dumps(good | change).encode())
