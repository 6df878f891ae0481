"""From a sweep spec to its points: what runs, what is dropped and why, what it costs, who gets which budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blackwell.findings import FindingsError
from blackwell.names import RUN_ID
from blackwell.spec_file import load_spec_file
from blackwell.sweep.expand import Axes, expand
from blackwell.sweep.spec import MAX_POINTS, SweepSpec, parse_sweep_spec
from lambdas.sweep_plan.handler import run_name

BASE: dict[str, Any] = {
    "model": "1b",
    "data": {"train": "datasets/corpus/"},
    "training": {
        "precision": "bf16", "micro_batch_size": 4, "seq_length": 4096, "steps": 100,
        "activation_checkpointing": "none", "global_batch_size": 64,
    },
    "capacity": [{"kind": "on-demand", "instance_type": "ml.p6-b200.48xlarge"}],
}  # fmt: skip


def sweep(*, training: dict[str, Any] | None = None, base: dict[str, Any] | None = None, **changes: Any) -> SweepSpec:
    document = {**BASE, **(base or {}), "training": BASE["training"] | (training or {})}
    return parse_sweep_spec({"base": document, "baseline_repeats": 0, **changes})


def test_baseline_first_then_its_repeats_then_the_grid() -> None:
    spec = sweep(grid={"precision": ["mxfp8", "bf16"], "micro_batch_size": [2, 4]}, baseline_repeats=2)
    plan = expand(spec).plan
    assert plan.ok
    assert [p.axes.seed for p in plan.points if p.axes.precision == "bf16" and p.axes.micro_batch_size == 4] == [
        1234, 1235, 1236,
    ]  # fmt: skip
    assert plan.points[0].id == plan.baseline == "bf16-mb4-none-4096-s1234"
    assert [p.repeat for p in plan.points[:4]] == [False, True, True, False]
    assert len(plan.points) == len({p.id for p in plan.points}) == 6


def test_the_baseline_may_be_any_point_of_the_grid() -> None:
    plan = expand(sweep(grid={"precision": ["bf16", "fp8"]}, baseline={"precision": "fp8"})).plan
    assert plan.baseline.startswith("fp8-")
    with pytest.raises(FindingsError, match=r"BTS-007 error: baseline.precision.*legal: bf16, fp8"):
        sweep(grid={"precision": ["bf16", "fp8"]}, baseline={"precision": "nvfp4"})


def test_what_cannot_run_is_dropped_with_the_reason() -> None:
    plan = expand(sweep(grid={"precision": ["bf16", "nvfp4"], "micro_batch_size": [4, 5], "seq_length": [4096]})).plan
    assert plan.ok
    assert {p.id for p in plan.dropped} == {"bf16-mb5-none-4096-s1234", "nvfp4-mb5-none-4096-s1234"}
    assert {r.id for d in plan.dropped for r in d.reasons} == {"BTS-111"}
    h200 = {"capacity": [{"kind": "on-demand", "instance_type": "ml.p5en.48xlarge"}]}
    plan = expand(sweep(base=h200, grid={"precision": ["bf16", "nvfp4", "fp8"]})).plan
    assert [d.id.split("-")[0] for d in plan.dropped] == ["nvfp4"]
    assert [r.id for r in plan.dropped[0].reasons] == ["BTS-103"]


def test_a_baseline_that_cannot_run_refuses_the_sweep() -> None:
    plan = expand(sweep(grid={"micro_batch_size": [4, 5]}, baseline={"micro_batch_size": 5})).plan
    assert not plan.ok
    assert [f.id for f in plan.findings] == ["BTS-502"]
    assert "BTS-111" in plan.findings[0].message


def test_no_point_left() -> None:
    h200 = {"capacity": [{"kind": "on-demand", "instance_type": "ml.p5en.48xlarge"}]}
    found = expand(sweep(base=h200, training={"precision": "nvfp4"})).plan.findings
    assert [f.id for f in found] == ["BTS-502", "BTS-501"]


def test_every_point_reads_the_same_data() -> None:
    """Without a global batch in the base, the baseline's is everybody's; seed and length stay."""
    spec = sweep(training={"global_batch_size": None}, grid={"precision": ["bf16", "fp8"], "micro_batch_size": [4, 2]})
    expansion = expand(spec)
    assert {p.global_batch_size for p in expansion.plan.points} == {32}
    assert {job.training.global_batch_size for job in expansion.jobs.values()} == {32}
    assert {job.training.seed for job in expansion.jobs.values()} == {1234}


def test_emulation_is_for_the_quantized_formats_only() -> None:
    cpu = {"capacity": [{"kind": "on-demand", "instance_type": "ml.c7i.2xlarge", "hourly_price": 0.5}]}
    model = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 512
    }  # fmt: skip
    training = {"emulate_precision": True, "seq_length": 64, "micro_batch_size": 1, "processes_per_instance": 1}
    spec = sweep(base=cpu | {"model": model}, training=training, grid={"precision": ["bf16", "nvfp4", "fp8"]})
    expansion = expand(spec)
    assert expansion.plan.ok
    assert {p.axes.precision: p.emulated for p in expansion.plan.points} == {"bf16": False, "nvfp4": True, "fp8": True}
    # speed is not modelled there, so the cost is the most that it can be: the time limit
    assert {(p.usd, p.usd_is_ceiling) for p in expansion.plan.points} == {(0.5 * 24, True)}


class TestBudget:
    def test_over_it_nothing_starts(self) -> None:
        plan = expand(sweep(grid={"precision": ["bf16", "fp8"]}, budget={"max_cost_usd": 1})).plan
        assert not plan.ok
        (finding,) = plan.findings
        assert finding.id == "BTS-106"
        assert finding.nearest >= plan.total_usd

    def test_nearest_is_enough(self) -> None:
        refused = expand(sweep(grid={"precision": ["bf16", "fp8"]}, budget={"max_cost_usd": 1})).plan.findings[0]
        assert expand(sweep(grid={"precision": ["bf16", "fp8"]}, budget={"max_cost_usd": refused.nearest})).plan.ok

    def test_runs_together_cannot_spend_more(self) -> None:
        total = expand(sweep(grid={"precision": ["bf16", "fp8", "nvfp4"]})).plan.total_usd
        assert total is not None
        limit = total * 1.3
        expansion = expand(sweep(grid={"precision": ["bf16", "fp8", "nvfp4"]}, budget={"max_cost_usd": limit}))
        shares = [job.budget.max_cost_usd for job in expansion.jobs.values() if job.budget]
        assert len(shares) == 3
        assert sum(shares) == pytest.approx(limit)
        assert all(p.budget_usd > p.usd for p in expansion.plan.points)  # type: ignore[operator]

    def test_a_share_is_never_above_the_stack_s_or_the_job_s_limit(self) -> None:
        spec = sweep(base={"budget": {"max_cost_usd": 50}}, budget={"max_cost_usd": 9_000})
        (job,) = expand(spec).jobs.values()
        assert job.budget is not None
        assert job.budget.max_cost_usd <= 50
        (job,) = expand(spec, max_run_usd=45).jobs.values()
        assert job.budget is not None
        assert job.budget.max_cost_usd <= 45

    def test_without_a_price_a_budget_says_nothing(self) -> None:
        plan_arn = f"arn:aws:sagemaker:us-west-2:111122223333:training-plan/{'x' * 20}"
        prepaid = {"capacity": [{"kind": "training-plan", "training_plan_arn": plan_arn}]}
        plan = expand(sweep(base=prepaid, budget={"max_cost_usd": 1})).plan
        assert plan.ok
        assert plan.total_usd == 0.0


def test_the_digest_is_the_job_s_but_for_the_budget() -> None:
    def digest(**changes: Any) -> str:
        return expand(sweep(**changes)).plan.points[0].digest

    assert digest() == digest(budget={"max_cost_usd": 5_000}) == digest(max_concurrency=7)
    assert digest() != digest(training={"steps": 101})


def test_the_profile_window_is_the_base_s_or_three_steps_after_warm_up() -> None:
    (job,) = expand(sweep()).jobs.values()
    assert job.training.profile_steps == [6, 8]
    (job,) = expand(sweep(training={"profile_steps": [20, 22]})).jobs.values()
    assert job.training.profile_steps == [20, 22]
    (job,) = expand(sweep(profile=False)).jobs.values()
    assert job.training.profile_steps is None


def test_names_are_legal_whatever_the_point() -> None:
    longest = Axes(
        precision="fp8_delayed", micro_batch_size=1024, activation_checkpointing="selective", seq_length=4_194_304,
        seed=2**31 - 1,
    )  # fmt: skip
    assert RUN_ID.match(run_name("a" * 20, longest.name, "some-execution"))
    assert run_name("a", "p", "one") != run_name("a", "p", "two")


def test_a_sweep_without_a_name_is_named_after_what_it_runs() -> None:
    assert sweep().title == sweep(max_concurrency=9).title
    assert sweep().title != sweep(training={"steps": 101}).title
    assert sweep(name="mine").title == "mine"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"grid": {"precision": []}}, "grid.precision"),
        ({"grid": {"precision": ["bf16", "bf16"]}}, "names a value twice"),
        ({"grid": {"precison": ["bf16"]}}, "BTS-003"),
        ({"grid": {"micro_batch_size": list(range(1, MAX_POINTS + 2))}}, f"BTS-503.*given {MAX_POINTS + 1}"),
        ({"name": "No Good"}, "name"),
        ({"base": {"model": "9b"}}, "base.model"),
        ({"convergence": {"tolerance_nats": 0}}, "convergence.tolerance_nats"),
    ],
)
def test_illegal_sweeps_say_where(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FindingsError, match=says):
        sweep(**changes)


def test_two_hundred_points_travel_as_pointers(repository_root: Path) -> None:
    """What the workflow hands from state to state stays far below Step Functions' 256 KiB."""
    spec = sweep(grid={"micro_batch_size": list(range(1, MAX_POINTS + 1))})
    points = [{"point": "x" * 50, "run": run_name("a" * 20, "x" * 50, "e")} for _ in spec.combinations()]
    assert len(points) == MAX_POINTS
    assert len(json.dumps(points).encode()) < 0.2 * 262_144


@pytest.mark.parametrize("name", ["8b-b200-precisions.json", "1b-b200-batch.json", "tiny-cpu.yaml"])
def test_examples_plan(repository_root: Path, name: str) -> None:
    plan = expand(load_spec_file(repository_root / "examples" / "sweeps" / name, parse_sweep_spec)).plan
    assert plan.ok, plan.findings
    assert len(plan.points) >= 4
