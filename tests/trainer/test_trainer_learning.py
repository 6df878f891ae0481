"""Whole runs on two ranks: they learn, and what must not change their numbers does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from trainer_harness import ForkServer, Place, numbers

from blackwell.telemetry import StepRecord
from blackwell.verdict import EXIT_CODES, Verdict

pytestmark = pytest.mark.xdist_group("trainer-learning")


def test_loss_falls_on_real_text(forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(steps=60, learning_rate=0.01, validation_interval_steps=30, validation_steps=2, precision="bf16")
    log = forks.run(job)
    start = log.of("start")[0]
    assert start["num_parameters"] > 100_000
    first = log.steps[0].loss
    assert first is not None
    assert abs(first - math.log(272)) < 0.3, "an untrained model is as good as guessing"
    assert log.steps[-1].loss < first - 2
    validations = log.of("validation")
    assert [v["step"] for v in validations] == [30, 60]
    assert validations[1]["validation_loss"] < validations[0]["validation_loss"] < first - 1
    finish = log.of("finish")[0]
    assert finish["tokens"] == 60 * 8 * 64
    assert finish["tokens_per_second"] > 0
    assert finish["first_step_seconds"] > 0
    check_export(job, log.steps[-1].step)


def check_export(job: Place, step: int) -> None:
    """The exported model is the checkpoint's, under Hugging Face's names."""
    index = json.loads((job.root / "model" / "model.safetensors.index.json").read_text())
    config = json.loads((job.root / "model" / "config.json").read_text())
    names = {
        "self_attn.q_proj": [64, 64],
        "self_attn.k_proj": [32, 64],
        "self_attn.v_proj": [32, 64],
        "self_attn.o_proj": [64, 64],
        "mlp.gate_proj": [160, 64],
        "mlp.up_proj": [160, 64],
        "mlp.down_proj": [64, 160],
        "input_layernorm": [64],
        "post_attention_layernorm": [64],
    }
    expected = {f"model.layers.{i}.{n}.weight": s for i in range(2) for n, s in names.items()}
    expected |= {"model.embed_tokens.weight": [272, 64], "lm_head.weight": [272, 64], "model.norm.weight": [64]}
    assert index["weight_map"].keys() == expected.keys()
    for name, shape in expected.items():
        with safe_open(job.root / "model" / index["weight_map"][name], framework="pt") as file:
            tensor = file.get_tensor(name)
            assert (list(tensor.shape), tensor.dtype) == (shape, torch.bfloat16)
    assert (config["num_key_value_heads"], config["head_dim"], config["model_type"]) == (2, 16, "llama")
    assert (job.root / "model" / "tokenizer.json").is_file()


def test_start_from_an_exported_model(forks: ForkServer, place: Callable[..., Place], tmp_path: Path) -> None:
    first = place("first", steps=30, learning_rate=0.01)
    trained = forks.run(first).steps[-1].loss
    second = place("second", steps=2, learning_rate=1e-5, seed=99)
    (second.root / "input" / "data" / "model").symlink_to(first.root / "model")
    log = forks.run(second)
    assert log.steps[0].loss < trained + 0.4

    wrong = place("wrong", steps=2, model__intermediate_size=176)
    (wrong.root / "input" / "data" / "model").symlink_to(first.root / "model")
    workers = forks.start(wrong)
    assert workers.wait() == [EXIT_CODES[Verdict.USER_ERROR]] * 2
    assert "BTS-424" in workers.statuses()[0].cause


def test_accumulation_and_world_size_change_no_loss(forks: ForkServer, place: Callable[..., Place]) -> None:
    def losses(name: str, world: int, **changes: Any) -> list[float]:
        return [r.loss for r in forks.run(place(name, steps=5, **changes), world=world).steps]  # type: ignore[misc]

    whole = losses("whole", 1, micro_batch_size=8)
    for name, world, micro in (("accumulated", 1, 2), ("two", 2, 4), ("two-accumulated", 2, 1)):
        assert losses(name, world, micro_batch_size=micro) == pytest.approx(whole, abs=1e-5)
    every = losses("reduced-every-time", 2, micro_batch_size=1, parallel__accumulate="sharded")
    assert every == pytest.approx(whole, abs=1e-5)
    sharded = losses("two-sharded", 2, micro_batch_size=1, parallel__accumulate="sharded")
    assert sharded == pytest.approx(whole, abs=1e-5)


def test_resume_on_other_world_sizes_reads_every_token_once(forks: ForkServer, place: Callable[..., Place]) -> None:
    """2 -> 1 -> 4 -> 2 ranks against 2 ranks throughout."""
    expected = forks.run(place("expected", steps=8, micro_batch_size=2)).by_step()
    job = place("job", steps=2, micro_batch_size=2, checkpoint__interval_steps=2)
    seen: dict[int, Any] = {}
    for steps, world in ((2, 2), (4, 1), (6, 4), (8, 2)):
        # The schedule is a function of the whole run's steps; stopping early is what changes here, not the length.
        job.configure({**job.hyperparameters, "steps": 8})
        faults = [{"kind": "stop", "step": steps}]
        workers = forks.start(job, world=world, faults=faults)
        assert workers.wait() == [0] * world, workers.output.read_text()[-3000:]
        seen |= workers.log().by_step()
    assert sorted(seen) == list(range(1, 9))
    for step, record in seen.items():
        assert (record.tokens, record.data_order_hash) == (expected[step].tokens, expected[step].data_order_hash)
        assert record.learning_rate == expected[step].learning_rate
        assert record.loss == pytest.approx(expected[step].loss, abs=1e-5)


def test_another_precision_resumes_with_a_warning(forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(steps=4, checkpoint__interval_steps=4)
    before = forks.run(job).steps[-1].loss
    job.configure({**job.hyperparameters, "steps": 6, "precision": "bf16"})
    log = forks.run(job)
    assert log.of("start")[0]["resumed_from_step"] == 4
    assert "was trained in fp32, this job goes on in bf16" in log.text
    assert log.steps[0].loss == pytest.approx(before, abs=0.3)


def test_another_model_is_refused(forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(steps=2, checkpoint__interval_steps=2)
    forks.run(job)
    job.configure({**job.hyperparameters, "steps": 4, "model.num_hidden_layers": 3})
    workers = forks.start(job)
    assert workers.wait() == [EXIT_CODES[Verdict.USER_ERROR]] * 2
    assert "BTS-423" in workers.statuses()[0].cause
    assert job.complete_steps() == [2]


def test_skip_data_resumes_before_the_divergence_and_past_its_data(
    forks: ForkServer, place: Callable[..., Place]
) -> None:
    job = place(steps=6, checkpoint__interval_steps=2)
    first = forks.run(job).by_step()
    extra = {"BLACKWELL_SKIP_DATA": json.dumps({"before_step": 4, "sequences": 16})}
    log = forks.run(job, extra=extra)
    assert log.of("start")[0]["resumed_from_step"] == 2
    assert log.steps[0].step == 3
    assert log.steps[0].data_order_hash == first[5].data_order_hash, "two batches of 8 sequences were left out"
    again = forks.run(job, extra=extra)  # the same attempt, restarted: its own checkpoints count
    assert again.of("start")[0]["resumed_from_step"] == 6


_PLAIN: list[StepRecord] = []
"""The BF16 run that the emulated ones are compared with; the same in every test."""


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("mxfp8", {"precision": "mxfp8", "emulate_precision": True}, "MXFP8 emulated"),
        ("nvfp4", {"precision": "nvfp4", "emulate_precision": True}, "NVFP4 emulated"),
        ("fp8", {"precision": "fp8", "emulate_precision": True}, "Using FP8 recipe: Float8CurrentScaling emulated"),
        ("fp16", {"precision": "fp16"}, "fp16"),
    ],
)
def test_emulated_formats_and_fp16_learn(
    name: str, changes: dict[str, Any], line: str, forks: ForkServer, place: Callable[..., Place]
) -> None:
    """Rounding costs a little, never everything; the numbers differ from BF16's, so the emulation is no pretence."""
    if not _PLAIN:
        _PLAIN.extend(forks.run(place("plain", steps=12, learning_rate=0.01, precision="bf16")).steps)
    plain = _PLAIN
    log = forks.run(place(name, steps=12, learning_rate=0.01, **changes))
    assert line in log.text
    assert log.steps[-1].loss == pytest.approx(plain[-1].loss, abs=0.35)
    assert log.steps[-1].loss < log.steps[0].loss - 0.8
    assert numbers(log.steps[-1])[0] != numbers(plain[-1])[0]


def test_layers_workload_runs_and_times_with_and_without_warm_up(
    forks: ForkServer, place: Callable[..., Place]
) -> None:
    job = place(
        workload="layers",
        precision="bf16",
        steps=5,
        dropout=0.1,
        micro_batch_size=2,
        global_batch_size=4,
        seq_length=32,
    )
    log = forks.run(job)
    start, finish = log.of("start")[0], log.of("finish")[0]
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 2 * 64 * 160 + (64 + 64 + 160 + 64 + 64) + 4 * 64
    assert start["num_parameters"] == 2 * layer
    assert finish["tokens_per_second"] > finish["tokens_per_second_with_warm_up"] * 0.5
    assert finish["warm_up_steps"] == 2
    assert not (job.root / "model").exists()


def test_memory_probe_changes_nothing(forks: ForkServer, place: Callable[..., Place]) -> None:
    plain = forks.run(place("plain", steps=3))
    probed = forks.run(place("probed", steps=3), extra={"BLACKWELL_MEMORY_PROBE": "1"})
    assert probed.of("memory_probe")[0]["steps"] == 2
    assert [numbers(r) for r in probed.steps] == [numbers(r) for r in plain.steps]


def test_document_mask_tied_embeddings_and_wsd_run(forks: ForkServer, place: Callable[..., Place]) -> None:
    job = place(
        data__document_mask=True, model__tie_word_embeddings=True, lr_schedule="wsd", cross_entropy="full", steps=8,
        checkpoint__interval_steps=5,
    )  # fmt: skip
    first = forks.run(job)
    assert first.steps[-1].loss < first.steps[0].loss
    job.configure({**job.hyperparameters, "steps": 10})
    assert forks.run(job).of("start")[0]["resumed_from_step"] == 8
    index = json.loads((job.root / "model" / "model.safetensors.index.json").read_text())
    assert "lm_head.weight" not in index["weight_map"]


@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile's linker line takes no path with a space in it")
def test_compiled_layers_learn(forks: ForkServer, place: Callable[..., Place]) -> None:
    log = forks.run(place(steps=6, compile=True, activation_checkpointing="full"))
    plain = forks.run(place("plain", steps=6))
    assert [r.loss for r in log.steps] == pytest.approx([r.loss for r in plain.steps], abs=1e-4)


@pytest.mark.slow
def test_sharding_inside_a_node_gives_the_same_losses(forks: ForkServer, place: Callable[..., Place]) -> None:
    expected = [r.loss for r in forks.run(place("one", steps=4, micro_batch_size=2), world=4).steps]
    nodes = place("nodes", steps=4, micro_batch_size=2, parallel__shard_across="node", checkpoint__interval_steps=2)
    extra = {"LOCAL_WORLD_SIZE": "2"}
    log = forks.run(nodes, world=4, extra=extra)
    assert [r.loss for r in log.steps] == pytest.approx(expected, abs=1e-5)
