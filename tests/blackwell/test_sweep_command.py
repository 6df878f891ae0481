"""`python -m blackwell sweep`: plan and refuse without AWS, start, follow, resume and report on an embedded one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import synthetic_sweep
from botocore.exceptions import ClientError

from blackwell import cli
from blackwell.client import RunNotFound, StackNotFound, StackOutputs
from blackwell.findings import Finding, FindingsError
from blackwell.names import SweepPlaces
from blackwell.report.sweep import render_sweep_html
from blackwell.sweep.client import PointEnded, SweepClient
from blackwell.sweep.expand import SweepPlan, expand

MACHINE = "arn:aws:states:us-east-1:000000000000:stateMachine:sweeps"


class FakeAws:
    """Step Functions and S3 as far as a sweep's client uses them; the sweep ends after `polls` looks."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.started: dict[str, dict[str, Any]] = {}
        self.running: list[str] = []
        self.ends: list[dict[str, Any]] = [{"status": "RUNNING"}, {"status": "SUCCEEDED"}]
        self.begun = datetime.now(UTC)

    def client(self, service: str) -> Any:
        return self

    def put(self, key: str, text: str, at: datetime | None = None) -> None:
        self.objects[key] = (text.encode(), at or datetime.now(UTC) + timedelta(seconds=1))

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey", "Message": Key}}, "GetObject")
        body, at = self.objects[Key]
        return {"Body": _Body(body), "LastModified": at}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_executions"
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        return [{"executions": [{"name": name, "executionArn": f"arn:{name}"} for name in self.running]}]

    def start_execution(self, stateMachineArn: str, name: str, input: str) -> dict[str, str]:  # noqa: A002
        assert stateMachineArn == MACHINE
        self.started[name] = json.loads(input)
        return {"executionArn": f"arn:{name}"}

    def stop_execution(self, executionArn: str, cause: str) -> None:
        self.running.remove(executionArn.removeprefix("arn:"))

    def describe_execution(self, executionArn: str) -> dict[str, Any]:
        state = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return {"startDate": self.begun, **state}


class _Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self) -> bytes:
        return self._content


@pytest.fixture
def aws() -> FakeAws:
    return FakeAws()


@pytest.fixture
def client(aws: FakeAws) -> SweepClient:
    outputs = {"SweepStateMachineArn": MACHINE}
    return SweepClient(StackOutputs("m", "artifacts", "checkpoints", "runs", "blackwell-dev", outputs), aws)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackwell.sweep.client.POLL_SECONDS", 0)


@cache
def documents() -> dict[str, str]:
    """Everything that the functions write in a whole sweep, by key."""
    spec, report = synthetic_sweep.spec(), synthetic_sweep.report()
    places, plan = SweepPlaces(spec.title), expand(spec).plan
    return {
        places.document("plan.json"): plan.model_dump_json(),
        places.document("report.json"): report.model_dump_json(),
        places.document("report.html"): render_sweep_html(report),
        **{places.record(i): record.model_dump_json() for i, record in synthetic_sweep.records(plan).items()},
    }


def finished(aws: FakeAws) -> None:
    for key, text in documents().items():
        aws.put(key, text)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", *words])
    return int(ended.value.code or 0)


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.json"
    path.write_text(synthetic_sweep.spec().model_dump_json(by_alias=True, exclude_unset=True))
    return path


class TestWithoutAws:
    def test_plan_shows_points_drops_and_cost(self, spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(str(spec_file), "--plan") == 0
        said = capsys.readouterr().out
        assert "6 points, 2 at a time" in said
        assert "dropped: 4" in said
        assert "BTS-111" in said
        assert "total cost: $" in said

    def test_plan_as_json(self, spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(str(spec_file), "--plan", "--json") == 0
        assert SweepPlan.model_validate_json(capsys.readouterr().out).ok

    def test_over_the_budget_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "sweep.json"
        spec = synthetic_sweep.spec(budget={"max_cost_usd": 1})
        path.write_text(spec.model_dump_json(by_alias=True, exclude_unset=True))
        assert run(str(path), "--yes") == 2
        assert "BTS-106" in capsys.readouterr().err

    def test_findings_name_the_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "sweep.yaml"
        path.write_text("base:\n  model: 8b\ngrid:\n  precision: [bf17]\n")
        assert run(str(path)) == 2
        assert "(line 4, column 15)" in capsys.readouterr().err

    def test_nobody_to_ask(self, spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(str(spec_file)) == 2
        assert "say --yes" in capsys.readouterr().err

    def test_no_such_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("missing.json") == 2
        assert "missing.json" in capsys.readouterr().err


class TestClient:
    def test_follows_to_the_end(self, aws: FakeAws, client: SweepClient) -> None:
        finished(aws)
        handle = client.submit(synthetic_sweep.spec())
        happened = list(client.follow(handle, sleep=lambda seconds: None))
        assert isinstance(happened[0], SweepPlan)
        points = [h.point for h in happened[1:] if isinstance(h, PointEnded)]
        assert points == [p.id for p in happened[0].points]
        (started,) = aws.started
        assert started.startswith("synthetic-")

    def test_the_plan_of_an_earlier_execution_is_not_taken(self, aws: FakeAws, client: SweepClient) -> None:
        finished(aws)
        aws.begun += timedelta(minutes=5)
        assert list(client.follow(client.submit(synthetic_sweep.spec()), sleep=lambda seconds: None)) == []

    def test_a_sweep_that_runs_is_not_started_again(self, aws: FakeAws, client: SweepClient) -> None:
        aws.running = ["synthetic-2-abc123", "synthetic-abc123"]
        with pytest.raises(FindingsError, match=r"BTS-504.*synthetic-abc123"):
            client.submit(synthetic_sweep.spec())
        aws.running = ["synthetic-2-abc123"]
        client.submit(synthetic_sweep.spec())
        assert len(aws.started) == 1

    def test_what_the_stack_refuses_comes_back_as_findings(self, aws: FakeAws, client: SweepClient) -> None:
        finding = Finding(id="BTS-201", path="base.capacity.0.instance_type", message="no")
        aws.put("sweeps/rejected/x/findings.json", json.dumps([finding.model_dump(mode="json")]))
        cause = json.dumps({"s3_uri": "s3://artifacts/sweeps/rejected/x/findings.json"})
        aws.ends = [{"status": "FAILED", "error": "Rejected", "cause": cause}]
        with pytest.raises(FindingsError) as refused:
            list(client.follow(client.submit(synthetic_sweep.spec())))
        assert refused.value.findings == [finding]

    def test_nothing_there(self, client: SweepClient) -> None:
        for read in (client.report, client.page):
            with pytest.raises(RunNotFound, match="no-such"):
                read("no-such")

    def test_a_stack_of_a_release_without_sweeps(self, aws: FakeAws) -> None:
        with pytest.raises(StackNotFound, match="deploy it again"):
            SweepClient(StackOutputs("m", "a", "c", "r", "p", {}), aws)


@pytest.mark.usefixtures("no_waiting")
class TestOnAStack:
    @pytest.fixture(autouse=True)
    def _connected(self, client: SweepClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("blackwell.cli.sweep._client", lambda *_: client)

    def test_starts_and_says_how_to_go_on(
        self, aws: FakeAws, spec_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(str(spec_file), "--yes") == 0
        assert "python -m blackwell sweep synthetic" in capsys.readouterr().out
        (document,) = aws.started.values()
        assert document == json.loads(spec_file.read_text())

    def test_watches_and_compares(
        self, aws: FakeAws, spec_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        finished(aws)
        page = tmp_path / "report.html"
        assert run(str(spec_file), "--yes", "--watch", "--html", str(page)) == 3  # one run of it diverged
        said = capsys.readouterr().out
        assert "[6/6]" in said
        assert "Take fp8" in said
        assert "equivalent" in said
        assert page.read_text().startswith("<!doctype html>")

    def test_json_is_the_report_and_nothing_else(
        self, aws: FakeAws, spec_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        finished(aws)
        assert run(str(spec_file), "--yes", "--watch", "--json") == 3
        assert json.loads(capsys.readouterr().out)["sweep"] == "synthetic"

    def test_a_name_prints_its_report(self, aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
        finished(aws)
        assert run("synthetic") == 3
        assert "Take fp8" in capsys.readouterr().out
        assert run("another") == 1

    def test_follows_one_that_runs(self, aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
        finished(aws)
        aws.running = ["synthetic-abc123"]
        assert run("synthetic", "--watch") == 3
        assert "[6/6]" in capsys.readouterr().out
        assert not aws.started

    def test_stops_one_that_runs(self, aws: FakeAws, spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        aws.running = ["other-abc123", "synthetic-abc123"]
        assert run("synthetic", "--stop") == 0
        assert aws.running == ["other-abc123"]
        assert run("synthetic", "--stop") == 1
        assert "no sweep 'synthetic' is running" in capsys.readouterr().err
        assert run(str(spec_file), "--stop") == 2

    def test_an_execution_that_was_stopped(
        self, aws: FakeAws, spec_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        aws.ends = [{"status": "ABORTED", "cause": "by hand"}]
        assert run(str(spec_file), "--yes", "--watch") == 3
        assert "ABORTED: by hand" in capsys.readouterr().err
