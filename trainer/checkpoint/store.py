"""The one thing of this package that the trainer uses: saves, loads, keeps and prunes a run's checkpoints."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from blackwell import telemetry
from blackwell.findings import Finding, FindingsError
from blackwell.names import CHECKPOINT_FOLDER, MANIFEST, checkpoint_folder
from trainer.checkpoint.candidates import Candidate, Search, Skipped
from trainer.checkpoint.durability import METADATA, Emit, Ledger, LocalPlaces, S3Places, delete_folder, silent
from trainer.checkpoint.failure import Cause, RankFailureError, RankLostError, StorageError, cause_of
from trainer.checkpoint.group import Group, describe
from trainer.checkpoint.manifest import FileEntry, Manifest, checkpoint_folders, write_file, write_manifest
from trainer.checkpoint.reader import VerifyingReader
from trainer.checkpoint.writer import CheckpointWriter
from trainer.s3 import S3Folder

State = dict[str, Any]
Transport = Literal["sagemaker_sync", "s3"]

PER_RANK_PREFIX = "rng/"
"""State under such a top-level key belongs to one rank, and may be missing in a checkpoint of fewer ranks."""
DURABILITY_POLL_SECONDS = 10.0
FLUSH_POLL_SECONDS = 2.0


@dataclass(slots=True)
class SaveHandle:
    """One save. `stall_seconds` is what it cost the training loop."""

    step: int
    stall_seconds: float
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded checkpoint."""

    step: int
    state: State
    """What the factory made, filled. Per-rank keys that the checkpoint lacks were taken out."""
    manifest: Manifest
    source: str
    """Where it came from: the local folder, or an S3 URI."""
    skipped: list[Skipped]
    """{folder, reason} of every newer one that could not be used."""

    @property
    def folder(self) -> str:
        return self.manifest.folder


class CheckpointStore:
    """A run's checkpoints. Made on every rank, at the same time; rank 0 decides, counts and prunes.

    Args:
        local_root: folder of the checkpoints on this host (/opt/ml/checkpoints).
        run: run id, for the telemetry lines.
        keep: durable checkpoints kept, at least two.
        asynchronous: write in the background from a snapshot in host memory.
        transport: `sagemaker_sync` writes to local_root, which SageMaker copies to s3_uri; `s3` writes to s3_uri.
        s3_uri: the run's checkpoints in S3. Without it a complete checkpoint counts as durable.
        process_group: a gloo group of all ranks for this store alone; made here when None.
        resume_uri: checkpoints of another run, or one checkpoint folder of it, to start from when this run has none.
        emit: called as emit(event, **fields) on rank 0, from several threads; prints telemetry lines when None.
        clock: Unix time.
        sleep: waits that many seconds.

    Raises:
        FindingsError: BTS-412 where nothing can be written, BTS-414 where a URI is missing.
        StorageError: disk or S3 failed.
    """

    def __init__(
        self,
        local_root: Path,
        *,
        run: str,
        keep: int = 3,
        asynchronous: bool = True,
        transport: Transport = "sagemaker_sync",
        s3_uri: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        process_group: dist.ProcessGroup | None = None,
        resume_uri: str | None = None,
        emit: Emit | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if transport == "s3" and not s3_uri:
            raise FindingsError([Finding(
                id="BTS-414", path="training.checkpoint.transport", message="transport s3 needs the run's S3 URI",
                given="s3", legal="sagemaker_sync, or a checkpoint URI", nearest="sagemaker_sync",
            )])  # fmt: skip
        self._root = local_root
        self._run = run
        self._asynchronous = asynchronous
        self._remote = S3Folder(s3_uri) if s3_uri else None
        self._direct = transport == "s3"
        self._resume = S3Folder(resume_uri) if resume_uri else None
        self._clock, self._sleep = clock, sleep
        self._group = Group(rank, world_size, process_group)
        self._emit: Emit = silent if rank else emit or self._print
        if self._direct:
            assert self._remote is not None
            places: LocalPlaces | S3Places = S3Places(self._remote)
        else:
            places = LocalPlaces(local_root, self._remote, self._group)
        self._ledger = Ledger(places, keep, self._emit, clock)
        self._stager: DefaultStager | None = None
        self._saving: tuple[SaveHandle, threading.Thread] | None = None
        self._failure: Exception | None = None
        self._saved_step: int | None = None
        self._save_seconds = 0.0
        self._committing = False
        """The manifest of the save that goes on may be written."""
        self._settler = ThreadPoolExecutor(1, "checkpoint-settle")
        self._settling: Future[None] | None = None
        self._next_settle = 0.0
        self._probe()

    # ------------------------------------------------------------------ saving

    def save(self, step: int, state: State, extra: dict[str, Any] | None = None, *, block: bool = False) -> SaveHandle:
        """Saves the state after `step` optimizer steps. All ranks call it, with the same step.

        An asynchronous save returns as soon as the state was copied; a save that is still going on is waited for
        first. `block` waits until the checkpoint is complete. A step that this store saved last is not saved again.

        Args:
            state: what DCP saves: sharded tensors, and values that rank 0 holds for all.
            extra: manifest fields by name (tokens, position, config_hash, precision, backend); others are kept, too.

        Raises, of this save or of the one before:
            FindingsError: BTS-412 when the place takes nothing more.
            StorageError: disk or S3 failed this time.
            RankLostError: another rank was lost.
        """
        started = time.perf_counter()
        self.wait()
        handle = SaveHandle(step, 0.0)
        if step == self._saved_step:  # a stop right after an interval: never delete what is good to write it again
            handle.done.set()
            handle.stall_seconds = time.perf_counter() - started
            return handle
        self._saved_step = None
        if self._group.rank == 0:
            self._ledger.begin(step)
        if self._asynchronous and not block:
            snapshot = self._snapshot(state)
            work = threading.Thread(
                target=self._write_in_background, args=(handle, snapshot, dict(extra or {})), name="checkpoint-save"
            )
            self._saving = (handle, work)
            work.start()
        else:
            self._write(handle, state, dict(extra or {}), block=True)
        handle.stall_seconds = time.perf_counter() - started
        return handle

    def poll(self) -> None:
        """Call after every step: costs nothing, finishes saves, and lets rank 0 look after durability and pruning.

        Raises what `save` raises when the last asynchronous save failed.
        """
        if self._saving is not None and self._saving[0].done.is_set():
            self._finish()
        if self._group.rank == 0:
            self._settle_when_due()

    def wait(self) -> None:
        """Waits for the save that is going on. Raises as `poll`."""
        if self._saving is not None:
            self._finish()

    def close(self) -> None:
        """Waits for everything and ends the threads. Raises as `poll`."""
        try:
            self.wait()
        finally:
            self._settler.shutdown(wait=True)
            if self._stager is not None:
                self._stager.close()

    def _finish(self) -> None:
        assert self._saving is not None
        self._saving[1].join()
        self._saving = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _snapshot(self, state: State) -> State:
        if self._stager is None:
            cuda = torch.cuda.is_available()
            self._stager = DefaultStager(StagingOptions(
                use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda,
            ))  # fmt: skip
        staged = self._stager.stage(state)
        assert isinstance(staged, dict)
        return staged

    def _write_in_background(self, handle: SaveHandle, state: State, extra: dict[str, Any]) -> None:
        try:
            self._write(handle, state, extra, block=False)
        except (FindingsError, StorageError, RankLostError) as error:
            self._failure = error
        except BaseException as error:
            self._failure = self._write_error(handle.step, error)
        finally:
            handle.done.set()

    def _write(self, handle: SaveHandle, state: State, extra: dict[str, Any], *, block: bool) -> None:
        started = time.perf_counter()
        folder = self._root / checkpoint_folder(handle.step)
        try:
            manifest = self._write_files(handle.step, state, extra, folder)
        except (Exception, CheckpointException) as error:
            # a rank that was lost while the manifest went around: the checkpoint may be whole, on the next start it is
            if not self._committing or isinstance(error, RankFailureError):
                self._discard(handle.step, folder)
            if self._group.rank == 0:
                self._ledger.end(None)
            raise self._write_error(handle.step, error) from error
        self._save_seconds = time.perf_counter() - started
        if self._group.rank == 0:
            self._ledger.end(manifest)
            self._emit("checkpoint", step=handle.step, phase="complete", seconds=round(self._save_seconds, 3),
                       bytes=manifest.total_bytes, asynchronous=not block)  # fmt: skip
            if self._direct or self._remote is None:
                self._settling = self._settler.submit(self._ledger.settle)  # deleting may take longer than saving
            else:
                self._next_settle = 0.0
        self._saved_step = handle.step
        handle.done.set()

    def _write_files(self, step: int, state: State, extra: dict[str, Any], folder: Path) -> Manifest:
        group, self._committing = self._group, False
        group.agree(lambda: self._clear(step, folder))
        writer = CheckpointWriter(f"{self._remote.uri}{folder.name}/" if self._direct and self._remote else folder)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            # What several ranks hold alike goes into the lowest one's file: a rank then reads its own file and rank 0's.
            planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
            dcp_save(
                state, storage_writer=writer, planner=planner, process_group=group.process_group,
                no_dist=not group.distributed,
            )  # fmt: skip
        files: dict[str, FileEntry] = {}
        for entries in group.gather(writer.hashing.entries):
            files |= entries
        manifest = self._manifest(step, files, extra)
        self._committing = True
        encoded = group.from_first(lambda: self._commit(folder, manifest))
        if group.hosts > 1 and not self._direct:
            index = group.from_first(lambda: (folder / METADATA).read_bytes())
            retained = group.from_first(lambda: self._ledger.retained)
            group.agree(lambda: self._mirror_to_host(folder, index, encoded, retained))
        return Manifest.decode(encoded)

    def _manifest(self, step: int, files: dict[str, FileEntry], extra: dict[str, Any]) -> Manifest:
        known = Manifest.model_fields.keys() - {
            "version",
            "step",
            "world_size",
            "created",
            "files",
            "versions",
            "extra",
        }
        named = {key: extra.pop(key) for key in list(extra) if key in known}
        return Manifest(
            step=step, world_size=self._group.world_size, created=self._clock(), files=dict(sorted(files.items())),
            versions={"torch": torch.__version__, "python": platform.python_version()}, extra=extra, **named,
        )  # fmt: skip

    def _commit(self, folder: Path, manifest: Manifest) -> bytes:
        encoded = manifest.encode()
        if self._direct:
            assert self._remote is not None
            self._remote.write(f"{folder.name}/{MANIFEST}", encoded)
        else:
            write_manifest(folder, encoded)
        return encoded

    def _clear(self, step: int, folder: Path) -> None:
        """Removes what an earlier save of this step left, and makes the folder."""
        if self._direct:
            if self._group.rank == 0:
                assert self._remote is not None
                S3Places(self._remote).delete(step)
        elif self._group.host_leader:
            if folder.exists():
                delete_folder(folder)
            folder.mkdir(parents=True)

    def _discard(self, step: int, folder: Path) -> None:
        """Frees the space that a failed save took; best effort, the failure itself is what counts."""
        try:
            if self._direct:
                if self._group.rank == 0 and self._remote is not None:
                    S3Places(self._remote).delete(step)
            elif self._group.host_leader and folder.exists():
                delete_folder(folder)
        except Exception as error:
            self._emit("checkpoint", step=step, phase="discard_failed", reason=describe(error)[:300])

    def _mirror_to_host(self, folder: Path, index: bytes, encoded: bytes, retained: list[int]) -> None:
        """Gives every host the small files, so that each can tell a whole checkpoint, and prunes as rank 0 does."""
        if not self._group.host_leader or self._group.rank == 0 or (folder / MANIFEST).exists():
            return
        write_file(folder / METADATA, index)
        write_manifest(folder, encoded)
        for step, old in checkpoint_folders(self._root).items():
            if step not in retained:
                delete_folder(old)

    def _write_error(self, step: int | None, error: BaseException) -> FindingsError | StorageError | RankLostError:
        where = self._remote.uri if self._direct and self._remote else str(self._root)
        free = "" if self._direct else _free_space(self._root)
        what = "checkpoints" if step is None else f"checkpoint of step {step}"
        message = f"{what} in {where}: {describe(error)}{free}"
        match cause_of(error):
            case Cause.LINK:
                return RankLostError(message)
            case Cause.STORAGE:
                return StorageError(message)
        return FindingsError([Finding(
            id="BTS-412", path="training.checkpoint", message=message, legal="a place with room that may be written to"
        )])  # fmt: skip

    def _probe(self) -> None:
        """Finds out now, not after the first interval of a paid job, that nothing can be written."""
        name = f".write-probe-{self._group.rank}"

        def write() -> None:
            if self._direct:
                if self._group.rank == 0:
                    assert self._remote is not None
                    self._remote.write(name, b"")
                    self._remote.delete([name])
            elif self._group.host_leader:
                self._root.mkdir(parents=True, exist_ok=True)
                (self._root / name).write_bytes(b"")
                (self._root / name).unlink()

        try:
            self._group.agree(write)
        except RankFailureError as error:
            raise self._write_error(None, error) from None

    # ------------------------------------------------------------------ durability

    def _settle_when_due(self) -> None:
        if self._settling is not None:
            if not self._settling.done():
                return
            self._settling.result()
            self._settling = None
        now = self._clock()
        if self._ledger.unsettled and now >= self._next_settle:
            self._next_settle = now + DURABILITY_POLL_SECONDS
            self._settling = self._settler.submit(self._ledger.settle)

    @property
    def durable_step(self) -> int | None:
        """Step of the newest durable checkpoint; None before the first, and on other ranks than 0."""
        return self._ledger.durable_step

    @property
    def complete_step(self) -> int | None:
        """Step of the newest complete checkpoint; None before the first, and on other ranks than 0."""
        return self._ledger.complete_step

    @property
    def durable_lag_seconds(self) -> float | None:
        """Age of the newest durable checkpoint in seconds; None before the first, and on other ranks than 0."""
        return self._ledger.durable_lag_seconds

    @property
    def seconds_to_safety(self) -> float:
        """Seconds from the start of a save to its durability, of the last ones; 0 before, and on other ranks than 0."""
        return self._save_seconds + self._ledger.upload_seconds

    def flush_durable(self, deadline: float | Callable[[], float], beat: Callable[[], None] = lambda: None) -> bool:
        """Waits until the newest complete checkpoint is durable, on all ranks alike: none runs ahead into a collective.

        Args:
            deadline: Unix time at which it is given up; rank 0's counts, a function is asked anew each time.
            beat: called every few seconds; a sign of life.
        """
        self.wait()
        while True:
            beat()
            safe, wait_seconds = self._group.from_first(lambda: self._look(deadline))
            if safe or not wait_seconds:
                return safe
            self._sleep(wait_seconds)

    def _look(self, deadline: float | Callable[[], float]) -> tuple[bool, float]:
        """(whether the newest complete checkpoint is durable, seconds until the next look; 0 for none)."""
        self._settler.submit(self._ledger.settle).result()
        left = (deadline() if callable(deadline) else deadline) - self._clock()
        return self._ledger.complete_step == self._ledger.durable_step, min(FLUSH_POLL_SECONDS, max(0.0, left))

    # ------------------------------------------------------------------ loading

    def load_newest(
        self, state_factory: Callable[[], State], accept: Callable[[Manifest], str | None] | None = None
    ) -> Loaded | None:
        """Loads the newest checkpoint that is whole, the same one on all ranks.

        Looks at this run's own checkpoints, local and in S3, then at `resume_uri`. A damaged one is passed over with
        its reason printed. None means a fresh start: nothing there was ever complete.

        Args:
            state_factory: makes a state to load into; called anew for each candidate.
            accept: why a checkpoint is passed over, from its manifest alone; may raise to refuse the job. It must
                answer alike on all ranks.

        Raises:
            FindingsError: BTS-411 when there are checkpoints but none can be loaded, or when S3 refuses to tell;
                BTS-413 when `resume_uri` has none.
            StorageError: S3 or the disk failed, so that none could be loaded.
        """
        search = Search(self._root, self._remote, self._resume, direct=self._direct)
        tried = _Tried()
        loaded = self._load_first(self._found(search.candidates, tried), state_factory, accept, tried)
        if loaded is None and not tried.damaged and self._resume is not None:
            loaded = self._load_first(self._found(search.elsewhere, tried), state_factory, accept, tried)
        if self._group.rank == 0:
            self._after_load(loaded, tried.skipped)
        if loaded is not None:
            return loaded
        if tried.damaged:
            raise StorageError(tried.text) if tried.storage_failed else _none_loads(tried.damaged)
        if self._resume is not None:
            raise FindingsError([Finding(
                id="BTS-413", path="resume_from", message="no complete checkpoint there", given=self._resume.uri,
                legal="the S3 URI of a run's checkpoints, or of one checkpoint folder",
            )])  # fmt: skip
        return None

    def _found(self, search: Callable[[], tuple[list[Candidate], list[Skipped]]], tried: _Tried) -> list[Candidate]:
        try:
            candidates, unfit = self._group.from_first(search)
        except RankFailureError as error:
            message = f"cannot tell whether there are checkpoints: {error}"
            if error.cause is Cause.STORAGE:
                raise StorageError(message) from None
            raise FindingsError([Finding(id="BTS-411", path="training.checkpoint", message=message)]) from None
        tried.add(unfit)
        return candidates

    def _load_first(
        self,
        candidates: list[Candidate],
        state_factory: Callable[[], State],
        accept: Callable[[Manifest], str | None] | None,
        tried: _Tried,
    ) -> Loaded | None:
        for candidate in candidates:
            if accept is not None and (reason := accept(candidate.manifest)):
                tried.skipped.append({"folder": candidate.place, "reason": reason})
                continue
            try:
                state = self._load(candidate, state_factory)
            except (RankFailureError, CheckpointException) as error:
                tried.add([{"folder": candidate.place, "reason": describe(error)[:500]}])
                tried.storage_failed |= cause_of(error) is Cause.STORAGE
                continue
            newer = [s for s in tried.skipped if _step(s["folder"]) >= candidate.manifest.step]
            return Loaded(candidate.manifest.step, state, candidate.manifest, candidate.place, _said(newer))
        return None

    def _load(self, candidate: Candidate, state_factory: Callable[[], State]) -> State:
        group = self._group
        # /tmp is SageMaker's scratch space, on the same volume as the rest; the ranks of a host share the folder.
        place = hashlib.sha256(f"{self._run} {self._root.resolve()}".encode()).hexdigest()[:16]
        scratch = Path(tempfile.gettempdir()) / f"checkpoint-{place}"
        files = candidate.files(self._root, scratch / candidate.manifest.folder)
        reader = VerifyingReader(files)
        state = state_factory()
        try:
            group.agree(lambda: self._drop_other_ranks(state, reader))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                dcp_load(state, storage_reader=reader, process_group=group.process_group, no_dist=not group.distributed)
        finally:
            group.barrier()
            if group.host_leader:
                shutil.rmtree(scratch, ignore_errors=True)
        return state

    @staticmethod
    def _drop_other_ranks(state: State, reader: VerifyingReader) -> None:
        metadata = reader.read_metadata()
        saved = {path[0] for path in (metadata.planner_data or {}).values()}
        for key in [k for k in state if k.startswith(PER_RANK_PREFIX) and k not in saved]:
            del state[key]

    def _after_load(self, loaded: Loaded | None, skipped: list[Skipped]) -> None:
        newer = loaded.skipped if loaded else _said(skipped)
        self._ledger.scan()
        self._ledger.distrust([_step(s["folder"]) for s in newer])
        if loaded or newer:
            step, folder = (loaded.step, loaded.source) if loaded else (None, None)
            self._emit("resume", step=step, folder=folder, skipped=newer)

    def _print(self, event: str, **fields: Any) -> None:
        sys.stdout.write(telemetry.format_event(event, self._run, 0, **fields) + "\n")  # one write: threads share it
        sys.stdout.flush()


@dataclass(slots=True)
class _Tried:
    """The checkpoints that were looked at and not loaded."""

    skipped: list[Skipped] = field(default_factory=list)
    """All of them, with the reason."""
    damaged: list[Skipped] = field(default_factory=list)
    """Those that were complete once, and that the caller would have taken."""
    storage_failed: bool = False

    def add(self, unfit: list[Skipped]) -> None:
        self.skipped += unfit
        self.damaged += [s for s in unfit if "half_written" not in s]

    @property
    def text(self) -> str:
        return "no checkpoint could be loaded: " + "; ".join(f"{s['folder']}: {s['reason']}" for s in self.damaged)


def _step(place: str) -> int:
    match = CHECKPOINT_FOLDER.match(place.rstrip("/").rpartition("/")[2])
    return int(match[1]) if match else -1


def _said(skipped: list[Skipped]) -> list[Skipped]:
    return [{"folder": s["folder"], "reason": s["reason"]} for s in sorted(skipped, key=lambda s: -_step(s["folder"]))]


def _none_loads(skipped: list[Skipped]) -> FindingsError:
    legal = "mend or delete the folders; a run never starts from scratch over checkpoints that it cannot read"
    return FindingsError([
        Finding(id="BTS-411", path=s["folder"], message=s["reason"], legal=legal) for s in skipped
    ])  # fmt: skip


def _free_space(root: Path) -> str:
    try:
        usage = shutil.disk_usage(root)
    except OSError:
        return ""
    return f" ({usage.free / 1e9:.3f} GB free of {usage.total / 1e9:.3f} GB)"
