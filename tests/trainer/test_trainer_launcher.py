"""The launcher's rules without processes: verdicts, hosts, settings, hyperparameters, checks before all memory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from blackwell.findings import FindingsError
from blackwell.model import PRESETS
from blackwell.spec import Precision, TrainingSpec
from blackwell.trainer_config import ENV_ML_ROOT, from_hyperparameters
from blackwell.verdict import EXIT_CODES, FailureRecord, Verdict
from trainer import hosts as hosts_module
from trainer import launch
from trainer.checkpoint.failure import RankLostError, StorageError
from trainer.hosts import (
    Council,
    HostLostError,
    Hosts,
    count_gpus,
    find_hosts,
    listen,
    network_environment,
    worst,
)
from trainer.judge import classify, first_line, judge
from trainer.launch import Launcher
from trainer.meter import Meter, peak_tflops
from trainer.precision import Hardware, check_precision, make_recipe, start_line
from trainer.settings import Places, decide, read_config, with_overrides
from trainer.setup import resume_warnings, skip_request
from trainer.status import RankStatus, StatusFile, read_statuses
from trainer.watch.selfcheck import HardwareError

# ---------------------------------------------------------------- verdicts


def status(rank: int, verdict: Verdict | None, **fields: Any) -> RankStatus:
    return RankStatus(rank=rank, pid=1, verdict=verdict, time=fields.pop("time", float(rank)), **fields)


def test_first_failure_that_is_its_own_wins() -> None:
    record = judge(
        [
            status(0, Verdict.HARDWARE, secondary=True, cause="gloo: connection closed", time=1),
            status(1, Verdict.OUT_OF_MEMORY, cause="out of memory", step=7, time=2, detail={"bytes": 5}),
            status(2, Verdict.USER_ERROR, cause="later", time=3),
        ],
        range(3),
        {0: 67, 1: 68, 2: 64},
    )
    assert (record.verdict, record.rank, record.step, record.detail) == (Verdict.OUT_OF_MEMORY, 1, 7, {"bytes": 5})


def test_rank_without_a_word_is_lost_hardware() -> None:
    record = judge([status(0, Verdict.HARDWARE, secondary=True), status(1, None, step=9)], range(2), {0: 67, 1: -9})
    assert (record.verdict, record.rank, record.step) == (Verdict.HARDWARE, 1, 9)
    assert "signal 9" in record.cause


def test_rank_that_never_started_is_a_user_error() -> None:
    assert judge([], range(2), {0: 1, 1: 1}).verdict is Verdict.USER_ERROR


def test_broken_links_alone_are_hardware() -> None:
    record = judge(
        [status(r, Verdict.HARDWARE, secondary=True, cause="nccl") for r in (0, 1)], range(2), {0: 67, 1: 67}
    )
    assert (record.verdict, record.rank) == (Verdict.HARDWARE, 0)


@pytest.mark.parametrize("verdict", [Verdict.COMPLETED, Verdict.STOPPED, Verdict.PLAN_ENDED])
def test_agreed_ends(verdict: Verdict) -> None:
    assert judge([status(r, verdict, step=4) for r in (0, 1)], range(2), {0: 0, 1: 0}).verdict is verdict


@pytest.mark.parametrize(
    ("error", "verdict", "secondary"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), Verdict.OUT_OF_MEMORY, False),
        (RuntimeError("Connection closed by peer [10.0.0.2]:29400"), Verdict.HARDWARE, True),
        (dist.DistBackendError("NCCL error: unhandled system error"), Verdict.HARDWARE, True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Verdict.HARDWARE, False),
        (HardwareError("cuda:3 multiplies matrices wrongly"), Verdict.HARDWARE, False),
        (RankLostError("checkpoint of step 8 in /x: Connection closed by peer"), Verdict.HARDWARE, True),
        (StorageError("checkpoint of step 8 in /x: Input/output error"), Verdict.HARDWARE, False),
        (OSError(5, "Input/output error"), Verdict.HARDWARE, False),
        (OSError(28, "No space left on device"), Verdict.USER_ERROR, False),
        (FindingsError([]), Verdict.USER_ERROR, False),
        (KeyError("tokens"), Verdict.USER_ERROR, False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Verdict.USER_ERROR, False),
    ],
)
def test_exceptions_have_verdicts(error: BaseException, verdict: Verdict, secondary: bool) -> None:
    assert classify(error) == (verdict, secondary)
    assert "\n" not in first_line(error)


def test_status_files_are_whole_or_absent(tmp_path: Path) -> None:
    StatusFile(tmp_path, 1).write(step=3, verdict=Verdict.HUNG)
    (tmp_path / "rank-0.json").write_text('{"rank": 0')
    assert [(s.rank, s.step, s.verdict) for s in read_statuses(tmp_path)] == [(1, 3, Verdict.HUNG)]
    StatusFile(None, 0).write(step=1)


# ---------------------------------------------------------------- hosts


def test_hosts_from_resourceconfig(tmp_path: Path) -> None:
    places = Places(tmp_path)
    alone = find_hosts(places, {})
    assert (alone.count, alone.index, alone.address) == (1, 0, "127.0.0.1")
    places.config.mkdir(parents=True)
    document = {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"}
    (places.config / "resourceconfig.json").write_text(json.dumps(document))
    two = find_hosts(places, {})
    assert (two.count, two.index, two.address, two.interface) == (2, 1, "algo-1", "eth0")
    moved = find_hosts(places, {"BLACKWELL_RENDEZVOUS": "127.0.0.1:4321"})
    assert (moved.address, moved.port) == ("127.0.0.1", 4_321)
    assert network_environment(alone) == {}
    variables = network_environment(two, tmp_path)
    assert variables["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "FI_PROVIDER" not in variables
    (tmp_path / "efa_0").mkdir()
    assert network_environment(two, tmp_path)["FI_PROVIDER"] == "efa"


def test_gpus_are_counted_without_torch(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_gpus({}, tmp_path) == 2
    assert count_gpus({"CUDA_VISIBLE_DEVICES": "3"}, tmp_path) == 1
    assert count_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0


def test_listening_socket_is_taken_before_any_worker_starts() -> None:
    with listen(0) as server, pytest.raises(OSError, match=r"[Aa]ddress already in use"):
        listen(server.getsockname()[1])


def test_worst_record_explains_the_others() -> None:
    records = [FailureRecord(verdict=v, cause="") for v in (Verdict.HARDWARE, Verdict.OUT_OF_MEMORY, Verdict.STOPPED)]
    assert worst(records).verdict is Verdict.OUT_OF_MEMORY
    assert worst([*records[2:], FailureRecord(verdict=Verdict.COMPLETED, cause="")]).verdict is Verdict.STOPPED


STORE = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (Verdict.HARDWARE, Verdict.HARDWARE),
        (Verdict.OUT_OF_MEMORY, Verdict.OUT_OF_MEMORY),
        (Verdict.USER_ERROR, Verdict.USER_ERROR),
        (Verdict.STOPPED, Verdict.STOPPED),
        (Verdict.COMPLETED, Verdict.COMPLETED),
    ],
)
def test_the_loss_of_the_first_host_is_a_record_and_no_crash(own: Verdict, expected: Verdict) -> None:
    """Whatever a launcher asks the lost host's store: it learns that the start is over and that no other can follow."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = subprocess.Popen([sys.executable, "-c", STORE, str(port)], stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"up\n"
        council = Council(Hosts(("algo-1", "algo-2"), 1, None, "127.0.0.1", port + 1))
        assert not council.somewhere_ended(0)
    finally:
        first.kill()
        first.wait()
    assert council.somewhere_ended(0)
    council.tell_end(0)
    record = council.agree(0, FailureRecord(verdict=own, cause="mine", detail={"micro_batch_size": 4}))
    assert (record.verdict, record.detail["host_lost"]) == (expected, True)
    assert record.cause.startswith("mine" if own is not Verdict.HARDWARE else ("mine", "host algo-1 is lost"))
    council.leave(0)


def test_a_first_host_that_never_comes_is_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "AGREE_SECONDS", 0.2)
    with pytest.raises(HostLostError, match="host algo-1 is lost"):
        Council(Hosts(("algo-1", "algo-2"), 1, None, "127.0.0.1", 2))
    monkeypatch.setattr(Launcher, "run", lambda _: Council(Hosts(("algo-1", "algo-2"), 1, None, "127.0.0.1", 2)))
    write_hyperparameters(tmp_path)
    assert launch.run(Places(tmp_path), {}).verdict is Verdict.HARDWARE


@pytest.mark.parametrize(
    "document",
    ["{", '{"hosts": ["algo-1"], "current_host": "algo-9"}', '{"hosts": 3}', '{"hosts": ["a", 4]}'],
)
def test_a_resourceconfig_that_is_none_is_a_finding_and_a_record(
    tmp_path: Path, document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(launch.INBOX), "install", lambda _: None)  # the test's process keeps its signals
    write_hyperparameters(tmp_path)
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text(document)
    assert launch.main({ENV_ML_ROOT: str(tmp_path)}) == EXIT_CODES[Verdict.USER_ERROR]
    record = FailureRecord.decode((tmp_path / "output" / "failure").read_text())
    assert record is not None
    assert "BTS-005" in record.cause
    assert "resourceconfig.json" in capsys.readouterr().err


def test_an_error_of_the_launcher_itself_leaves_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Launcher) -> FailureRecord:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(type(launch.INBOX), "install", lambda _: None)
    monkeypatch.setattr(Launcher, "run", broken)
    write_hyperparameters(tmp_path)
    assert launch.main({ENV_ML_ROOT: str(tmp_path)}) == EXIT_CODES[Verdict.USER_ERROR]
    record = FailureRecord.decode((tmp_path / "output" / "failure").read_text())
    assert record is not None
    assert record.cause == "launcher: OSError: [Errno 98] Address already in use"
    assert "Traceback" in capsys.readouterr().err, "the log has the place"


def write_hyperparameters(root: Path) -> None:
    (root / "input" / "config").mkdir(parents=True)
    (root / "input" / "config" / "hyperparameters.json").write_text(
        json.dumps({k: json.dumps(v) for k, v in BASE.items()})
    )


def test_one_host_is_its_own_council(tmp_path: Path) -> None:
    council = Council(find_hosts(Places(tmp_path), {}))
    record = FailureRecord(verdict=Verdict.STOPPED, cause="x")
    assert council.agree(0, record) is record
    assert not council.somewhere_ended(0)


# ---------------------------------------------------------------- settings

BASE = {"model.hidden_size": 64, "model.num_hidden_layers": 2, "model.num_attention_heads": 4,
        "model.intermediate_size": 160, "model.vocab_size": 300, "steps": 100, "seq_length": 32}  # fmt: skip


def config(**changes: Any) -> Any:
    raw = {**BASE, **{k.replace("__", "."): v for k, v in changes.items()}}
    return from_hyperparameters({k: v if isinstance(v, str) else json.dumps(v) for k, v in raw.items()}, {})


@pytest.mark.parametrize("form", [lambda v: v, json.dumps, lambda v: json.dumps(json.dumps(v))])
def test_hyperparameters_read_alike_in_every_form(form: Any, tmp_path: Path) -> None:
    """Plain, quoted or JSON-encoded (the SageMaker SDK encodes once more than the API): one typed result."""
    raw = {"precision": "mxfp8", "run-name": "2026", "tag": "true", "lr": 1e-4, "num-layers": 3, "batch-size": 2,
           "seq-length": 64, "steps": 5, "checkpoint.asynchronous": False, "model.hidden_size": 64,
           "model.num_attention_heads": 4, "model.intermediate_size": 160, "model.vocab_size": 300}  # fmt: skip
    encoded = {
        k: form(v) if isinstance(v, str) else form(v) if form is not json.dumps else json.dumps(v)
        for k, v in raw.items()
    }
    places = Places(tmp_path)
    places.config.mkdir(parents=True)
    (places.config / "hyperparameters.json").write_text(json.dumps(encoded))
    read = read_config(places, {})
    assert (read.run, read.tag) == ("2026", "true")
    assert (read.training.precision, read.training.learning_rate) == (Precision.MXFP8, 1e-4)
    assert (read.model.num_hidden_layers, read.training.micro_batch_size) == (3, 2)
    assert read.training.checkpoint.asynchronous is False


def test_broken_hyperparameters_are_a_finding(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.config.mkdir(parents=True)
    (places.config / "hyperparameters.json").write_text("{")
    with pytest.raises(FindingsError, match="BTS-002"):
        read_config(places, {})


def test_batches_are_divided_or_refused_with_the_nearest() -> None:
    job = decide(config(micro_batch_size=2, global_batch_size=16), 4, {})
    assert (job.accumulation, job.tokens_per_step, job.steps) == (2, 16 * 32, 100)
    with pytest.raises(FindingsError, match="nearest legal value: 16") as caught:
        decide(config(micro_batch_size=2, global_batch_size=18), 4, {})
    assert caught.value.findings[0].id == "BTS-111"


def test_auto_settings_without_a_planner() -> None:
    job = decide(config(global_batch_size=24), 4, {})
    assert (job.micro_batch_size, job.accumulation) == (6, 1)
    assert (job.checkpoint_interval, job.recompute, job.precision) == (10, "none", "bf16")
    raw = {k: v for k, v in BASE.items() if k != "steps"} | {"tokens": 10_000, "micro_batch_size": 1}
    tokens = from_hyperparameters({k: json.dumps(v) for k, v in raw.items()}, {})
    assert decide(tokens, 2, {}).steps == 157


def test_overrides_of_the_launcher_keep_the_rest() -> None:
    before = config(micro_batch_size=4, global_batch_size=16)
    after = with_overrides(before, {"micro_batch_size": 2, "parallel.accumulate": "sharded"})
    job = decide(after, 2, {})
    assert (job.micro_batch_size, job.accumulation, job.training.parallel.accumulate) == (2, 4, "sharded")
    assert after.training.learning_rate == before.training.learning_rate
    assert after.training.parallel.reshard_after_forward is True


def test_model_hash_tells_models_apart_and_ignores_the_rest() -> None:
    one = decide(config(), 1, {})
    assert one.model_hash == decide(config(learning_rate=0.5, precision="fp16"), 2, {}).model_hash
    assert one.model_hash != decide(config(model__num_hidden_layers=3), 1, {}).model_hash


def test_skip_request() -> None:
    assert skip_request({}) is None
    assert skip_request({"BLACKWELL_SKIP_DATA": '{"before_step": 5, "sequences": 64}'}) == (5, 64)


def test_resume_warnings_name_what_changed() -> None:
    from trainer.checkpoint import Manifest

    manifest = Manifest(step=4, world_size=2, precision="fp32", backend="torch", files={})
    job = decide(config(precision="bf16", micro_batch_size=1), 1, {})
    said = resume_warnings(job, manifest, "torch")
    assert len(said) == 2
    assert resume_warnings(job, manifest.model_copy(update={"precision": "bf16", "world_size": 1}), "torch") == []
    delayed = decide(config(precision="fp8_delayed", micro_batch_size=1), 1, {})
    assert "not bitwise exact" in resume_warnings(delayed, manifest, "te")[-1]


# ---------------------------------------------------------------- hardware and alignment, before all memory

CPU = Hardware(torch.device("cpu"), "cpu")
B200 = Hardware(torch.device("cuda", 0), "NVIDIA B200", (10, 0))
H200 = Hardware(torch.device("cuda", 0), "NVIDIA H200", (9, 0))


def found(
    hardware: Hardware, shape: Any = None, micro: int = 1, seq: int = 8_192, reason: str | None = None, **training: Any
) -> dict[str, Any]:
    settings = TrainingSpec(steps=1, **training)
    findings = check_precision(settings, shape or PRESETS["1b"], micro, seq, hardware, lambda precision: reason)
    return {f.path: f for f in findings}


@pytest.mark.parametrize("precision", list(Precision))
def test_every_precision_of_the_job_spec_is_fine_on_a_b200(precision: Precision) -> None:
    assert found(B200, precision=precision) == {}


def test_unaligned_shapes_are_refused_with_the_nearest_legal_value() -> None:
    shape = replace(PRESETS["1b"], hidden_size=2_056, head_dim=64)
    problems = found(B200, shape, 1, 8_190, precision="mxfp8")
    assert problems["model.hidden_size"].nearest == 2_048
    assert problems["seq_length"].nearest == 8_192
    assert found(B200, replace(PRESETS["1b"], vocab_size=50_257), precision="mxfp8") == {}, "the head is not quantized"
    assert found(B200, None, 32, 8_191, precision="mxfp8") == {}, "32 x any length is a multiple of 32"


def test_hardware_without_the_format_is_refused_in_transformer_engines_words() -> None:
    problem = found(H200, precision="mxfp8", reason="Device compute capability 10.0 or higher required")["precision"]
    assert problem.id == "BTS-103"
    assert "compute capability 10.0" in problem.message
    assert found(CPU, precision="mxfp8")["precision"].id == "BTS-103"
    assert found(CPU, precision="bf16") == {}


def test_emulation_is_refused_where_the_hardware_has_the_format() -> None:
    assert found(CPU, precision="nvfp4", emulate_precision=True) == {}
    assert found(H200, precision="nvfp4", emulate_precision=True) == {}
    assert found(B200, precision="nvfp4", emulate_precision=True)["emulate_precision"].id == "BTS-422"
    assert found(H200, precision="fp8", emulate_precision=True)["emulate_precision"].id == "BTS-422"
    assert found(CPU, precision="fp8_delayed", emulate_precision=True)["precision"].nearest == "fp8"
    assert found(CPU, precision="bf16", emulate_precision=True)["emulate_precision"].id == "BTS-422"


def test_backend_must_fit_the_rest() -> None:
    assert found(CPU, precision="bf16", backend="te")["backend"].nearest == "torch"
    assert found(B200, precision="mxfp8", backend="torch")["backend"].nearest == "te"
    assert found(B200, precision="bf16", compile=True)["compile"].id == "BTS-421"
    assert found(B200, precision="bf16", backend="torch", compile=True) == {}
    assert found(CPU, precision="bf16", quantized_weights=True)["quantized_weights"].id == "BTS-421"


def test_start_lines_are_what_people_look_for() -> None:
    assert start_line(Precision.MXFP8, False) == "MXFP8 enabled"
    assert start_line(Precision.NVFP4, False) == "NVFP4 enabled"
    assert start_line(Precision.FP8, False) == "Using FP8 recipe: Float8CurrentScaling"
    assert start_line(Precision.FP8_DELAYED, False) == "Using FP8 recipe: DelayedScaling"
    assert start_line(Precision.BF16, False) is None
    assert "enabled" not in str(start_line(Precision.MXFP8, True))
    assert make_recipe(Precision.BF16, TrainingSpec(steps=1).nvfp4) is None


def test_mfu_names_its_peak() -> None:
    assert peak_tflops(B200, Precision.BF16) == 2_250
    assert peak_tflops(Hardware(torch.device("cuda", 0), "NVIDIA H200", (9, 0)), Precision.FP8) == 1_979
    assert peak_tflops(Hardware(torch.device("cuda", 0), "NVIDIA H100 80GB HBM3", (9, 0)), Precision.BF16) == 989
    assert peak_tflops(CPU, Precision.BF16) is None
    assert peak_tflops(Hardware(torch.device("cuda", 0), "Some GPU", (1, 0)), Precision.BF16) is None


def test_meter_counts_everything_between_two_steps() -> None:
    now = [0.0]
    job = decide(config(micro_batch_size=1), 2, {})
    meter = Meter(job, 1e-6, lambda: now[0])
    now[0] = 100.0
    meter.start()
    for seconds in (10.0, 4.0, 1.0, 1.0):
        now[0] += seconds
        meter.step(64, 0.25, 0.5)
    interval, fields = meter.take()
    assert (interval.steps, interval.seconds, interval.data_wait, interval.checkpoint_stall) == (4, 16.0, 1.0, 2.0)
    assert fields["tokens_per_second"] == 256 / 16
    assert fields["tokens_per_second_per_gpu"] == 256 / 16 / 2
    assert fields["mfu_percent"] == pytest.approx(100 * job.shape.flops_per_token(32) * 8 / 1e6)
    totals = meter.totals()
    assert (totals["tokens_per_second"], totals["tokens_per_second_with_warm_up"]) == (64.0, 16.0)
    assert totals["first_step_seconds"] == 10.0


def test_a_second_launcher_leaves_the_first_ones_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write the same checkpoints; what the first one leaves for SageMaker to read stays, too."""
    monkeypatch.setattr(type(launch.INBOX), "install", lambda _: None)  # the test's process keeps its signals
    failure = tmp_path / "output" / "failure"
    failure.parent.mkdir()
    failure.write_text("the first one's")
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    try:
        assert launch.main({ENV_ML_ROOT: str(tmp_path)}) == EXIT_CODES[Verdict.USER_ERROR]
    finally:
        os.close(first)
    assert capsys.readouterr().err == f"user_error: another launcher is at work in {tmp_path}\n"
    assert failure.read_text() == "the first one's"
    assert launch.hold(tmp_path), "the end of a launcher, however it ends, lets the next one in"
    assert launch.hold(tmp_path / "nowhere")
