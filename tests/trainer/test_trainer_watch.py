"""What looks after a run, with clocks handed in: nothing here waits."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch

from blackwell.spec import LossSpikeSpec
from trainer.faults import Faults
from trainer.profiling import ProfileWindow, exposed, kind_of, merge, summarize
from trainer.watch.capacity import ENV_EXPIRATION, plan_end
from trainer.watch.control import Action, ControlFile, Request, parse, reader
from trainer.watch.divergence import LossWatch, not_finite
from trainer.watch.hang import Watchdog
from trainer.watch.memory import is_out_of_memory, out_of_memory_bytes, probe


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_watchdog_ends_a_process_without_progress(capfd: pytest.CaptureFixture[str]) -> None:
    clock, ended, told = Clock(), [], []
    dog = Watchdog(30, lambda phase, s: told.append((phase, s)), ended.append, clock, slow=100)
    clock.now += 90
    assert not dog.check(), "the start may be slow"
    dog.beat("step")
    clock.now += 29
    assert not dog.check()
    with dog.slow("save"):
        clock.now += 90
        assert not dog.check()
    clock.now += 30.5
    assert dog.check()
    assert ended == [66]
    assert told == [("step", 30.5)]
    assert "test_watchdog_ends_a_process_without_progress" in capfd.readouterr().err, "the stacks"


def test_loss_watch_ignores_noise_and_single_spikes_and_sees_a_runaway() -> None:
    watch = LossWatch(LossSpikeSpec(window_steps=16, threshold_sigma=6, patience_steps=3))
    generator = torch.Generator().manual_seed(0)
    for step in range(300):
        noise = 0.05 * torch.randn((), generator=generator).item()
        assert watch.see(5 - step / 100 + noise + (2 if step == 150 else 0)) is None
    assert watch.see(4.0) is None
    assert watch.see(4.5) is None
    state = watch.state()
    assert "3 steps in a row" in str(watch.see(5.0))
    again = LossWatch(LossSpikeSpec(window_steps=16, threshold_sigma=6, patience_steps=3))
    again.load(json.loads(json.dumps(state)))
    assert again.see(5.0) is not None, "the state survives a checkpoint"
    assert LossWatch(None).see(1e9) is None


def test_a_flat_loss_makes_no_noise_a_spike() -> None:
    watch = LossWatch(LossSpikeSpec(window_steps=8, threshold_sigma=6, patience_steps=1))
    assert all(watch.see(2.0) is None for _ in range(8))
    assert watch.see(2.05) is None


@pytest.mark.parametrize(
    ("loss", "norm", "said"), [(math.nan, 1, "loss is nan"), (1, math.inf, "gradient norm is inf")]
)
def test_not_finite(loss: float, norm: float, said: str) -> None:
    assert not_finite(loss, norm) == said
    assert not_finite(1.0, 1.0) is None


def test_control_requests_count_once_and_old_ones_never() -> None:
    text: list[str | None] = ['{"id": "old", "action": "stop_after_step"}']
    notes: list[str] = []
    control = ControlFile(lambda: text[0], notes.append, 1e6)
    control.start()
    control.close()
    assert control.take() is None
    text[0] = '{"id": "1", "action": "stop_after_step", "step": 7}'
    control.poll()
    control.poll()
    assert control.take() == Request("1", Action.STOP_AFTER_STEP, 7)
    assert control.take() is None
    for broken in (None, "", "{", "[]", '{"id": 1}', '{"id": "2", "action": "explode"}'):
        text[0] = broken
        control.poll()
        assert control.take() is None


def test_control_file_that_cannot_be_read_is_said_once() -> None:
    def fail() -> str:
        raise OSError("no route to S3")

    notes: list[str] = []
    control = ControlFile(fail, notes.append, 1e6)
    control.poll()
    control.poll()
    assert len(notes) == 1
    assert "no route to S3" in notes[0]


def test_control_reader_of_a_file(tmp_path: Path) -> None:
    read = reader(f"file://{tmp_path}/control.json")
    assert read() is None
    (tmp_path / "control.json").write_text("x")
    assert read() == "x"
    assert parse('{"id": "a", "action": "checkpoint_now"}') == Request("a", Action.CHECKPOINT_NOW, 0)


def test_the_last_save_of_a_plan_is_safe_before_its_instances_are_taken() -> None:
    clock = Clock()
    plan = plan_end({ENV_EXPIRATION: str(int((clock.now + 3_600) * 1_000))}, clock)
    taken = clock.now + 1_800
    for saving, before in ((0.0, 300), (100.0, 300), (400.0, 800)):
        clock.now = taken - before - 1
        assert not plan.reached(saving)
        clock.now += 1
        assert plan.reached(saving)
    assert not plan.continues
    assert not plan_end({}, clock).reached()
    assert not plan_end({ENV_EXPIRATION: "soon"}, clock).reached()
    assert plan_end({ENV_EXPIRATION: "1", "BLACKWELL_PLAN_HAS_LATER_RESERVATION": "1"}, clock).continues


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity", int(1.5 * 2**30)),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", 20 * 2**20),
        ("CUDA error: out of memory", None),
    ],
)
def test_out_of_memory_errors_are_known_with_their_size(text: str, size: int | None) -> None:
    assert is_out_of_memory(torch.OutOfMemoryError(text))
    assert is_out_of_memory(RuntimeError(text))
    assert out_of_memory_bytes(RuntimeError(text)) == size
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError(text))


def test_memory_probe_takes_real_steps_and_leaves_no_trace() -> None:
    layer = torch.nn.Linear(4, 4)
    before = [p.detach().clone() for p in layer.parameters()]
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5, fused=True)
    taken: list[int] = []

    def step() -> None:
        taken.append(1)
        layer(torch.ones(2, 4)).sum().backward()

    assert probe(step, optimizer, torch.device("cpu")) == {"steps": 2}
    assert len(taken) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_faults_happen_once_across_restarts(tmp_path: Path) -> None:
    def faults(rank: int = 0) -> Faults:
        return Faults([{"kind": "error", "step": 3}], rank, tmp_path)

    faults().before_step(2, 1)
    faults(rank=1).before_step(3, 1)
    with pytest.raises(RuntimeError):
        faults().before_step(3, 1)
    faults().before_step(3, 1)
    assert not Faults([], 0, tmp_path)


# ---------------------------------------------------------------- profile


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("nvjet_sm100_tst_128x256_64x4_2x1_v_bz_TNT", "gemm"),
        ("cutlass3x_sm100_tensorop_gemm", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm100_flash_fprop", "attention"),
        ("void transformer_engine::quantize_mxfp8_kernel<...>", "quantize"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("void at::native::vectorized_elementwise_kernel", "other"),
        ("aten::mm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
    ],
)
def test_kernels_have_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_hidden_communication_is_not_counted_and_gaps_are_idle() -> None:
    kernels = [
        ("gemm", 0.0, 1.0),
        ("ncclKernel", 0.5, 1.5),  # half of it is hidden
        ("flash", 2.0, 2.5),
        ("gemm", 2.25, 3.0),
    ]
    found = summarize(kernels, window=4.0, steps=2)
    assert found["gemm_seconds"] == pytest.approx(1.75 / 2)
    assert found["attention_seconds"] == pytest.approx(0.5 / 2)
    assert found["exposed_communication_seconds"] == pytest.approx(0.5 / 2)
    assert found["idle_seconds"] == pytest.approx(1.5 / 2)
    assert found["step_seconds"] == 2.0
    assert merge([(3, 4), (0, 2), (1, 3)]) == [(0, 4)]
    assert exposed([(0, 1)], []) == 1


def test_profile_window_measures_and_leaves_a_trace(tmp_path: Path) -> None:
    window = ProfileWindow((2, 3), torch.device("cpu"), tmp_path)
    fields = None
    for step in range(1, 5):
        window.before_step(step)
        torch.mm(torch.ones(200, 200), torch.ones(200, 200))
        found = window.after_step(step, 100)
        assert (found is not None) == (step == 3)
        fields = found or fields
    assert fields is not None
    assert (fields["first_step"], fields["last_step"]) == (2, 3)
    assert 0 < fields["gemm_seconds"] < fields["step_seconds"]
    assert json.loads(gzip.decompress((tmp_path / fields["trace"]).read_bytes()))["traceEvents"]


def test_profile_window_ends_with_the_run(tmp_path: Path) -> None:
    window = ProfileWindow(None, torch.device("cpu"), tmp_path, writes=False)
    window.request(5)
    window.before_step(5)
    torch.ones(2).add_(1)
    assert window.after_step(5, last_step=5) is not None
    assert not list(tmp_path.iterdir())
