"""A sweep through the deployed stack: real short runs, emulated formats, a failing point, and a second execution."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackwell.runs import RunStatus
from blackwell.spec import RemediesSpec
from blackwell.spec_file import load_spec_file
from blackwell.sweep.client import PointEnded, SweepClient
from blackwell.sweep.expand import SweepPlan
from blackwell.sweep.spec import parse_sweep_spec
from local.deployment import deployed

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1200)]


def test_sweep(tmp_path: Path, repository_root: Path) -> None:
    found = load_spec_file(repository_root / "examples" / "sweeps" / "tiny-cpu.yaml", parse_sweep_spec)
    base = found.base.model_copy(
        update={
            "remedies": RemediesSpec(max_attempts=1),
            "training": found.base.training.model_copy(update={"in_place_restarts": 0}),
        }
    )
    spec = found.model_copy(update={"base": base})
    with deployed(tmp_path / "aws") as d:
        client = SweepClient(d.client.outputs, d.aws.session())
        # one point's job dies whatever is tried; the others must not notice
        d.aws.set_faults([{"kind": "error", "step": 3, "job": "*-tiny-fp8-*", "once": False}])
        happened = list(client.follow(client.submit(spec)))
        report = client.report("tiny")
        (tmp_path / "report.html").write_bytes(client.page("tiny"))
        (tmp_path / "report.json").write_text(report.model_dump_json(indent=1))

        assert isinstance(happened[0], SweepPlan)
        assert {h.point for h in happened if isinstance(h, PointEnded)} == {p.id for p in happened[0].points}
        by_precision = {point.axes.precision: point for point in report.points}
        assert {p for p, point in by_precision.items() if point.status is not RunStatus.COMPLETED} == {"fp8"}
        assert by_precision["nvfp4"].emulated
        assert all(p.steps == 60 for precision, p in by_precision.items() if precision != "fp8")
        assert all(p.bottleneck for precision, p in by_precision.items() if precision != "fp8")
        judged = {v.precision: v.judgement for v in report.precisions}
        assert judged["fp32"].gap_nats is not None
        assert abs(judged["fp32"].gap_nats) < 0.05  # the same data, the same seed
        assert judged["nvfp4"].gap_nats != judged["fp32"].gap_nats  # truly different curves

        d.aws.set_faults([])
        before = {point.id: point.run for point in report.points}
        for _ in client.follow(client.submit(spec)):
            pass
        again = client.report("tiny")
        assert again.ok
        made_again = {point.id for point in again.points if point.run != before[point.id]}
        assert made_again == {by_precision["fp8"].id}
