"""A plan as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from blackwell.planning import Plan


def plan_lines(plan: Plan) -> Iterator[str]:
    """The whole plan, plain text."""
    t, m = plan.resolved.training, plan.memory
    entry = plan.entries[0]
    yield f"{plan.model['num_parameters'] / 1e9:.3g} B parameters on {entry.ranks} ranks of {entry.instance_type} ({entry.kind})"
    yield (
        f"precision {t.precision}, micro batch {t.micro_batch_size}, global batch {t.global_batch_size}, sequence {t.seq_length}, "
        f"checkpointing {t.activation_checkpointing}, shards over {t.parallel.shard_across} ranks, gradients accumulated {t.parallel.accumulate}"
    )
    yield ""
    yield f"Memory per rank, GB (peak at the {m.moment})"
    for term in m.terms:
        if term.value >= 0.005:
            yield f"  {term.name:<32}{term.value:>9.2f}"
    yield f"  {'peak':<32}{m.peak_gb:>9.2f}   between {m.low_gb:.1f} and {m.high_gb:.1f}"
    yield f"  {'usable of ' + m.device:<32}{m.usable_gb:>9.2f}   headroom {m.headroom_gb:.1f}" + (
        "" if m.fits else "   DOES NOT FIT"
    )
    if plan.throughput is not None:
        s = plan.throughput
        yield ""
        yield f"Step, seconds ({s.tokens_per_step:,} tokens)"
        for term in s.terms:
            if term.value >= 0.0005 * s.step_seconds:
                yield f"  {term.name:<32}{term.value:>9.4f}   {100 * term.value / s.step_seconds:4.1f} %"
        yield f"  {'step':<32}{s.step_seconds:>9.4f}"
        yield (
            f"  {s.tokens_per_second_per_gpu:,.0f} tokens/s per GPU, {s.tokens_per_second:,.0f} in all "
            f"(between {s.low_tokens_per_second:,.0f} and {s.high_tokens_per_second:,.0f})"
        )
        yield f"  MFU {s.mfu_percent:.1f} % of {s.peak_tflops:,.0f} TFLOPS ({s.peak_of})"
    c = plan.checkpointing
    yield ""
    yield (
        f"Checkpoints: {c.size_gb:.2f} GB every {c.interval_steps} steps ({c.interval_seconds:.0f} s; best {c.optimal_interval_seconds:.0f} s), "
        f"stall {c.stall_seconds:.1f} s, upload {c.upload_seconds:.0f} s by {c.transport}, at risk {c.at_risk_seconds:.0f} s"
    )
    yield from _cost_lines(plan)
    if plan.advice:
        yield ""
        yield "Advice"
        for advice in plan.advice:
            yield f"  {advice.topic}: {advice.text}"
            yield from (
                f"    {name}: {words}" for name, words in (("gain", advice.gain), ("risk", advice.risk)) if words
            )
    if plan.findings:
        yield ""
        yield "Findings"
        for finding in plan.findings:
            yield f"  {finding.line()}"
    yield ""
    yield plan.calibrated_on


def _cost_lines(plan: Plan) -> Iterator[str]:
    cost = plan.cost
    if cost.expected_seconds is not None:
        yield (
            f"Time: {cost.expected_seconds / 3600:.2f} h billed per instance (compute {(cost.compute_seconds or 0) / 3600:.2f} h, start-up "
            f"{cost.startup_seconds / 3600:.2f} h, checkpoints {cost.checkpoint_seconds / 3600:.2f} h, "
            f"{cost.expected_interruptions:.2f} interruptions {cost.interruption_seconds / 3600:.2f} h)"
        )
    price = (
        "no price"
        if cost.price_per_instance_hour is None
        else f"${cost.price_per_instance_hour:.2f} per instance and hour"
    )
    words = f"Cost ({cost.basis}, {price}: {cost.price_source})"
    if cost.prepaid_share_usd is not None:
        yield f"{words}: ${cost.prepaid_share_usd:,.2f} of the plan's upfront fee, already paid"
    elif cost.expected_usd is not None and cost.low_usd is not None and cost.high_usd is not None:
        budget = "" if cost.budget_usd is None else f", budget ${cost.budget_usd:,.2f}"
        yield f"{words}: ${cost.expected_usd:,.2f} (between ${cost.low_usd:,.2f} and ${cost.high_usd:,.2f}{budget})"
    else:
        yield f"{words}: not known"
