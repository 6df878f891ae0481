"""A plan: choices, findings with nearest legal values, cost, checkpoints, facts."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackwell.findings import Finding, FindingsError, Severity
from blackwell.planning import Facts, MeasuredRun, Plan, PriceFact, TrainingPlanFact, plan_job
from blackwell.spec import parse_job_spec

ROOT = Path(__file__).parents[2]
PLAN_ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/example-plan"


def spec_of(**changes: Any) -> dict[str, Any]:
    """A legal 8B job on one B200 node, with dotted changes."""
    document: dict[str, Any] = {
        "model": "8b",
        "data": {"train": "s3://bucket/data/"},
        "training": {"precision": "mxfp8", "steps": 1000, "seq_length": 8192},
        "capacity": [{"kind": "on-demand", "instance_type": "ml.p6-b200.48xlarge", "max_runtime_seconds": 400_000}],
    }
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split("__")
        target: Any = document
        for part in parents:
            key: Any = int(part) if part.isdigit() else part
            target = target[key] if isinstance(target, list) else target.setdefault(key, {})
        target[last] = value
    return document


def plan_of(facts: Facts | None = None, **changes: Any) -> Plan:
    return plan_job(parse_job_spec(spec_of(**changes)), facts)


def findings_of(**changes: Any) -> list[Finding]:
    try:
        return plan_of(**changes).findings
    except FindingsError as refused:
        return refused.findings


def one(findings: list[Finding], identity: str) -> Finding:
    found = [f for f in findings if f.id == identity]
    assert found, [f.line() for f in findings]
    return found[0]


EXAMPLES = sorted((ROOT / "examples/jobs").glob("*.json"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_can_run(path: Path) -> None:
    plan = plan_job(parse_job_spec(json.loads(path.read_text())))
    assert plan.ok, [f.line() for f in plan.findings]


def test_there_are_enough_examples() -> None:
    assert len(EXAMPLES) >= 10


def test_every_choice_is_made_and_stays_made() -> None:
    plan = plan_of(training__precision="auto", training__seq_length="auto")
    training = plan.resolved.training
    assert "auto" not in (
        training.precision, training.micro_batch_size, training.seq_length, training.activation_checkpointing,
        training.backend, training.checkpoint.interval_steps, training.checkpoint.transport, training.parallel.shard_across,
    )  # fmt: skip
    again = plan_job(plan.resolved)
    assert again.resolved == plan.resolved
    assert again.memory == plan.memory


def test_a_plan_survives_its_json() -> None:
    plan = plan_of()
    assert Plan.model_validate_json(plan.model_dump_json(by_alias=True)) == plan


def test_the_context_goal_takes_the_longest_sequence() -> None:
    plan = plan_of(goal="context", training__seq_length="auto")
    assert plan.resolved.training.seq_length > 100_000
    assert plan.memory.fits
    longer = plan_of(training__seq_length=plan.resolved.training.seq_length + 8192, training__micro_batch_size=1)
    assert one(longer.findings, "BTS-101")


def test_mfu_names_its_peak_and_stays_below_two_thirds() -> None:
    plan = plan_of()
    assert plan.throughput is not None
    assert plan.throughput.peak_tflops == 4500
    assert "mxfp8" in plan.throughput.peak_of
    assert 5 < plan.throughput.mfu_percent < 65


def test_a_model_that_does_not_fit_comes_with_what_would() -> None:
    finding = one(
        findings_of(model="64b", training__micro_batch_size=16, training__activation_checkpointing="none"), "BTS-101"
    )
    assert isinstance(finding.nearest, dict)
    changes = {key.replace("training.", "training__"): value for key, value in finding.nearest.items()}
    assert plan_of(model="64b", **changes).memory.fits


@pytest.mark.parametrize(
    ("changes", "path", "nearest"),
    [
        ({"training__seq_length": 8190, "training__micro_batch_size": 1}, "training.seq_length", 8192),
        ({"model": {"preset": "8b", "vocab_size": 50_257}}, "model.vocab_size", 50_272),
        ({"model": {"preset": "8b", "intermediate_size": 14_340}}, "model.intermediate_size", 14_336),
    ],
)
def test_dimensions_that_mxfp8_cannot_take(changes: dict[str, Any], path: str, nearest: int) -> None:
    finding = one(findings_of(**changes), "BTS-102")
    assert finding.path == path
    assert finding.nearest == nearest
    assert finding.severity is Severity.ERROR


def test_all_findings_come_at_once() -> None:
    found = {
        f.id
        for f in findings_of(
            training__seq_length=8190, training__micro_batch_size=3, training__global_batch_size=100 * 3
        )
    }
    assert {"BTS-102", "BTS-111"} <= found


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_hopper_has_no_block_scaled_formats(precision: str) -> None:
    finding = one(findings_of(training__precision=precision, capacity__0__instance_type="ml.p5.48xlarge"), "BTS-103")
    assert finding.given == precision
    assert finding.nearest == "fp8"


def test_emulating_what_the_hardware_has_is_refused() -> None:
    assert one(findings_of(training__emulate_precision=True), "BTS-103").path == "training.emulate_precision"


def test_an_unknown_instance_type_names_the_entry() -> None:
    assert (
        one(findings_of(capacity__0__instance_type="ml.p7-c100.48xlarge"), "BTS-108").path == "capacity.0.instance_type"
    )


def test_a_batch_that_the_ranks_cannot_share() -> None:
    finding = one(findings_of(training__global_batch_size=100, training__micro_batch_size=1), "BTS-111")
    assert finding.nearest in (96, 104)


SPOT = {"capacity__0__kind": "spot", "capacity__0__max_wait_seconds": 800_000}


def test_spot_without_a_checkpoint_before_the_end_is_refused() -> None:
    finding = one(findings_of(training__steps=6, training__checkpoint={"interval_steps": 50}, **SPOT), "BTS-104")
    assert finding.severity is Severity.ERROR
    assert finding.nearest in range(1, 7)
    assert (
        one(findings_of(training__steps=6, training__checkpoint={"interval_steps": 50}), "BTS-104").severity
        is Severity.WARNING
    )


def test_an_interval_too_long_for_spot_says_what_is_lost() -> None:
    finding = one(
        findings_of(training__steps=60_000, training__checkpoint={"interval_steps": 30_000}, **SPOT), "BTS-104"
    )
    assert finding.severity is Severity.WARNING
    assert " h of every instance" in finding.message


def test_the_best_interval_follows_young_and_daly() -> None:
    often = plan_of(Facts(spot_hours_between_interruptions=1.0), training__steps=100_000, **SPOT)
    rarely = plan_of(Facts(spot_hours_between_interruptions=100.0), training__steps=100_000, **SPOT)
    ratio = rarely.checkpointing.optimal_interval_seconds / often.checkpointing.optimal_interval_seconds
    assert ratio == pytest.approx(10, rel=0.01)
    assert rarely.checkpointing.at_risk_seconds > rarely.checkpointing.interval_seconds


def test_a_short_run_still_gets_checkpoints() -> None:
    plan = plan_of(training__steps=20)
    assert 1 <= plan.checkpointing.interval_steps <= 5


def test_a_budget_without_a_price_names_the_field() -> None:
    finding = one(
        findings_of(
            budget__max_cost_usd=100.0, capacity__0__instance_type="ml.p5e.48xlarge", training__precision="bf16"
        ),
        "BTS-107",
    )
    assert finding.path == "capacity.0.hourly_price"


def test_a_budget_that_is_too_small() -> None:
    finding = one(findings_of(budget__max_cost_usd=1.0), "BTS-106")
    assert finding.nearest > 1.0
    assert not plan_of(budget__max_cost_usd=1.0).ok
    assert plan_of(budget__max_cost_usd=finding.nearest).ok


def test_a_shipped_price_is_labelled_and_a_given_one_is_not() -> None:
    assert "unverified" in one(findings_of(), "BTS-112").message
    assert not [f for f in findings_of(capacity__0__hourly_price=100.0) if f.id == "BTS-112"]
    refreshed = plan_of(
        Facts(
            prices={
                "ml.p6-b200.48xlarge": PriceFact(
                    usd_per_hour=99.0, source="AWS price list", region="us-east-1", date="2026-12-01"
                )
            }
        )
    )
    assert refreshed.cost.price_per_instance_hour == 99.0
    assert refreshed.cost.price_verified


def test_spot_is_costed_at_the_ceiling_until_a_price_is_given() -> None:
    plan = plan_of(**SPOT)
    assert plan.cost.basis == "spot"
    assert "on-demand ceiling" in plan.cost.price_source


def plan_entry() -> dict[str, Any]:
    return {
        "kind": "training-plan",
        "instance_type": "ml.p6-b200.48xlarge",
        "training_plan_arn": PLAN_ARN,
        "max_runtime_seconds": 400_000,
    }


def test_a_training_plan_is_prepaid_and_no_budget_stops_it() -> None:
    facts = Facts(training_plans={PLAN_ARN: TrainingPlanFact(upfront_fee=24_000.0, instance_hours=240.0)})
    document = spec_of(budget__max_cost_usd=1.0)
    document["capacity"] = [plan_entry()]
    plan = plan_job(parse_job_spec(document), facts)
    assert plan.ok
    assert plan.cost.basis == "prepaid_plan"
    assert plan.cost.expected_usd == 0
    assert plan.cost.prepaid_share_usd == pytest.approx(100.0 * (plan.cost.expected_seconds or 0) / 3600)


@pytest.mark.parametrize(("minutes", "ends"), [(20, True), (60 * 24, False)])
def test_a_plan_that_ends_too_early(minutes: int, ends: bool) -> None:
    now = datetime(2026, 12, 1, tzinfo=UTC)
    facts = Facts(now=now, training_plans={PLAN_ARN: TrainingPlanFact(end_time=now + timedelta(minutes=minutes))})
    document = spec_of()
    document["capacity"] = [plan_entry()]
    found = [f for f in plan_job(parse_job_spec(document), facts).findings if f.id == "BTS-105"]
    assert bool(found) is ends


def test_a_run_longer_than_its_limit() -> None:
    assert one(findings_of(capacity__0__max_runtime_seconds=60), "BTS-109").severity is Severity.ERROR


def test_cpu_plans_memory_and_says_that_speed_is_not_modelled() -> None:
    plan = plan_of(
        model="1b",
        training__precision="bf16",
        training__seq_length=128,
        training__micro_batch_size=1,
        capacity__0__instance_type="ml.m7i.4xlarge",
    )
    assert plan.throughput is None
    assert one(plan.findings, "BTS-110").severity is Severity.WARNING
    assert plan.cost.expected_usd is None


def test_measured_runs_correct_the_next_plan() -> None:
    before = plan_of()
    assert before.throughput is not None
    run = MeasuredRun(
        instance_type="ml.p6-b200.48xlarge", ranks=8, predicted_memory_gb=100, measured_memory_gb=121, predicted_step_seconds=1.0,
        measured_step_seconds=1.44, startup_seconds=333.0,
    )  # fmt: skip
    after = plan_of(Facts(runs=[run]))
    assert after.throughput is not None
    assert after.memory.peak_gb == pytest.approx(before.memory.peak_gb * 1.1)
    assert after.throughput.step_seconds == pytest.approx(before.throughput.step_seconds * 1.2)
    assert after.cost.startup_seconds == 333.0
    assert "calibrated on 1 runs" in after.calibrated_on
    assert "calibrated on 0 runs" in before.calibrated_on


def test_advice_says_where_the_published_example_disagrees() -> None:
    plan = plan_of(
        model={"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 6144, "vocab_size": 2},
        training={"workload": "layers", "precision": "mxfp8", "seq_length": 8192, "steps": 100, "micro_batch_size": 8, "activation_checkpointing": "none"},
    )  # fmt: skip
    topics = {a.topic: a for a in plan.advice}
    assert topics["activation checkpointing"].text.startswith("not needed")
    assert "warm-up" in (topics["micro batch"].gain or "")
    assert plan.memory.fits


@pytest.mark.parametrize(
    ("goal", "first"),
    [("throughput", "activation checkpointing"), ("communication", "sharding"), ("context", "longest sequence")],
)
def test_advice_starts_with_the_goal(goal: str, first: str) -> None:
    assert plan_of(goal=goal).advice[0].topic == first


def test_sharding_inside_a_node_is_chosen_where_it_fits() -> None:
    small = plan_of(model="1b", capacity__0__instance_count=2)
    large = plan_of(
        model="64b",
        training__seq_length=2048,
        capacity__0__instance_type="ml.p5.48xlarge",
        capacity__0__instance_count=16,
        training__precision="bf16",
    )
    assert small.resolved.training.parallel.shard_across == "node"
    assert large.resolved.training.parallel.shard_across == "all"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PATHS = [
    "model", "data", "training", "capacity", "budget", "goal", "training__precision", "training__micro_batch_size", "training__steps",
    "training__tokens", "training__seq_length", "training__global_batch_size", "training__checkpoint", "training__activation_checkpointing",
    "training__processes_per_instance", "capacity__0__instance_type", "capacity__0__instance_count", "capacity__0__hourly_price",
]  # fmt: skip
LIKELY = st.sampled_from(
    [
        0,
        1,
        3,
        7,
        64,
        4096,
        10**6,
        10**14,
        "auto",
        "full",
        "none",
        "bf16",
        "nvfp4",
        "1b",
        "64b",
        "ml.p4d.24xlarge",
        "ml.m5.large",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(PATHS), LIKELY | JSON, min_size=1, max_size=3))
def test_any_document_gives_a_plan_or_findings(changes: dict[str, Any]) -> None:
    document = spec_of()
    for path, value in changes.items():
        *parents, last = path.split("__")
        target: Any = document
        for part in parents:
            inside = (
                target[int(part)]
                if isinstance(target, list) and target and part.isdigit()
                else target.get(part)
                if isinstance(target, dict)
                else None
            )
            if not isinstance(inside, dict | list):
                break
            target = inside
        if isinstance(target, dict):
            target[last] = value
    try:
        plan = plan_job(parse_job_spec(document))
    except FindingsError as refused:
        assert refused.findings  # noqa: PT017 (either outcome is right)
        return
    json.dumps(plan.model_dump(mode="json"), allow_nan=False)
    assert plan.ok is not any(f.severity is Severity.ERROR for f in plan.findings)


def test_ten_to_the_fifteen_tokens_are_out_of_range() -> None:
    document = spec_of()
    del document["training"]["steps"]
    document["training"]["tokens"] = 10**15
    with pytest.raises(FindingsError) as refused:
        parse_job_spec(document)
    assert one(refused.value.findings, "BTS-006").path == "training.tokens"
