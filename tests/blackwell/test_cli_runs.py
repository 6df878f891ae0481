"""The commands that talk to a stack, against a stack that is played."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from synthetic_run import BEGIN, SPEC, JobLog, eventful_run

from blackwell import cli
from blackwell.client import Progress, RunHandle, RunNotFound, RunState, StackOutputs
from blackwell.findings import Finding, FindingsError
from blackwell.report import build_run_report
from blackwell.runs import AttemptItem, AttemptStatus, RunItem, RunStatus
from blackwell.spec import JobSpec
from blackwell.telemetry import parse_step
from blackwell.verdict import Verdict

EXAMPLE = Path(__file__).parents[2] / "examples" / "jobs" / "tiny-cpu.json"


def _item(run: str, status: RunStatus, verdict: Verdict | None = None, hour: int = 1) -> RunItem:
    return RunItem(
        run=run,
        status=status,
        verdict=verdict,
        execution_arn=f"arn:aws:states:us-east-1:123456789012:execution:m:{run}",
        started_at=f"2026-11-30T{hour:02d}:00:00+00:00",
        cause="CUDA out of memory" if status is RunStatus.FAILED else None,
        spec={"precision": "bf16"},
    )


@dataclass
class PlayedStack:
    """A client with three runs: one running, one completed, one failed."""

    submitted: list[tuple[JobSpec, str | None]] = field(default_factory=list)
    stopped: list[tuple[str, str]] = field(default_factory=list)
    interrupt_at: int | None = None
    taken: bool = False
    items: dict[str, RunItem] = field(
        default_factory=lambda: {
            "going": _item("going", RunStatus.RUNNING, hour=3),
            "done": _item("done", RunStatus.COMPLETED, Verdict.COMPLETED, hour=2),
            "broken": _item("broken", RunStatus.FAILED, Verdict.OUT_OF_MEMORY, hour=1),
        }
    )

    @property
    def outputs(self) -> StackOutputs:
        names = {"ArtifactsBucket": "the-bucket", "JobPrefix": "blackwell-dev"}
        return StackOutputs("arn", "the-bucket", "c", "t", "blackwell-dev", names)

    def runs(self) -> list[RunItem]:
        return list(self.items.values())

    def status(self, run: str) -> RunState:
        item = self.items.get(run)
        if item is None:
            raise RunNotFound(f"there is no run {run!r}")
        ended = item.status is not RunStatus.RUNNING
        attempt = AttemptItem(
            run=run, attempt=1, status=AttemptStatus.LAUNCHED, job_name=f"blackwell-dev-{run}-a1", verdict=item.verdict
        )
        return RunState(
            run=run,
            status=item.status,
            execution_status="SUCCEEDED" if ended else "RUNNING",
            stage=None if ended else "AwaitJob",
            item=item,
            attempts=(attempt,),
            job_status=None if ended else "Training",
            cause=item.cause,
        )

    def submit(self, spec: JobSpec, run: str | None = None) -> RunHandle:
        if self.taken:
            raise FindingsError([Finding(id="BTS-210", message="there is a run of this name", given=run)])
        self.submitted.append((spec, run))
        name = run or "named-by-time"
        self.items[name] = _item(name, RunStatus.COMPLETED, Verdict.COMPLETED)
        return RunHandle(name, "arn:execution")

    def stop(self, run: str, cause: str) -> None:
        self.stopped.append((run, cause))

    def log_lines(self, run: str, *, follow: bool = False) -> Iterator[str]:
        log = JobLog(run, 1, BEGIN)
        log.start(None)
        log.steps(1, 3)
        for number, (_stamp, text) in enumerate(log.lines):
            if number == self.interrupt_at:
                raise KeyboardInterrupt
            yield text

    def follow(self, run: str) -> Iterator[Progress]:
        yield Progress(run, "stage", "Plan", text="Plan")
        for number, line in enumerate(self.log_lines(run)):
            step = parse_step(line)
            if step is not None:
                yield Progress(run, "step", "AwaitJob", 1, step=step[1])
            elif number == 0:
                yield Progress(run, "event", "AwaitJob", 1, event="start", fields={"world_size": 8})
        yield Progress(run, "end", None, 1, text="completed: the job finished all steps")

    def document(self, run: str, name: str) -> bytes:
        if run == "going":
            raise RunNotFound(f"run {run!r} has no {name}")
        if name == "spec.json":
            return json.dumps(json.loads(EXAMPLE.read_text())).encode()
        return build_run_report(eventful_run(run)).model_dump_json().encode()


Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> PlayedStack:
    played = PlayedStack()
    for name in ("runs", "show", "report", "logs", "stop", "submit", "resume", "outputs"):
        module = __import__(f"blackwell.cli.{name}", fromlist=["connect"])
        monkeypatch.setattr(module, "connect", lambda stage, profile, region: played)
    return played


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


@pytest.mark.usefixtures("stack")
def test_runs_lists_every_run_and_filters(invoke: Invoke) -> None:
    code, out, _ = invoke("runs")
    assert code == 0
    assert [name in out for name in ("going", "done", "broken")] == [True] * 3
    code, out, _ = invoke("runs", "--status", "failed", "--json")
    assert [item["run"] for item in json.loads(out)] == ["broken"]


@pytest.mark.usefixtures("stack")
def test_outputs_prints_one_name_for_scripts(invoke: Invoke) -> None:
    code, out, _ = invoke("outputs", "ArtifactsBucket")
    assert (code, out) == (0, "the-bucket\n")
    assert "JobPrefix" in invoke("outputs")[1]
    code, out, err = invoke("outputs", "ArtifactBucket")
    assert (code, out) == (1, "")
    assert "did you mean 'ArtifactsBucket'" in err


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(("run", "code"), [("going", 0), ("done", 0), ("broken", 3), ("latest", 0)])
def test_show_exits_as_the_run_ended(invoke: Invoke, run: str, code: int) -> None:
    got, out, _ = invoke("show", run)
    assert got == code
    assert ("going" if run == "latest" else run) in out
    got, out, _ = invoke("show", run, "--json")
    assert got == code
    assert "task_token" not in json.loads(out)["attempts"][0]


@pytest.mark.usefixtures("stack")
def test_show_of_an_unknown_run_says_so(invoke: Invoke) -> None:
    code, out, err = invoke("show", "nobody")
    assert (code, out) == (1, "")
    assert err.strip() == "there is no run 'nobody'"


@pytest.mark.usefixtures("stack")
def test_report_in_the_terminal_as_json_and_as_a_page(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke("report", "done")
    assert code == 0
    assert "Continuity" in out
    assert "⣀" in out
    code, out, _ = invoke("report", "done", "--json")
    assert json.loads(out)["steps"] == 1000
    page = tmp_path / "page.html"
    assert invoke("report", "done", "--html", str(page))[0] == 0
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("stack")
def test_report_before_there_is_one(invoke: Invoke) -> None:
    code, _, err = invoke("report", "going")
    assert code == 1
    assert "has no report.json" in err


def test_report_reads_a_file_without_any_stack(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(build_run_report(eventful_run("local-file")).model_dump_json())
    code, out, _ = invoke("report", str(file))
    assert code == 0
    assert "local-file" in out
    file.write_text('{"run": 1}')
    code, _, err = invoke("report", str(file))
    assert code == 1
    assert "holds no run report" in err


@pytest.mark.usefixtures("stack")
def test_logs_prints_lines_or_json_records(invoke: Invoke) -> None:
    code, out, _ = invoke("logs", "done")
    assert code == 0
    assert out.count("[rank 0] loss") == 3
    _, out, _ = invoke("logs", "done", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 3]
    assert records[0]["event"] == "start"


def test_logs_ctrl_c_ends_the_printing_only(invoke: Invoke, stack: PlayedStack) -> None:
    stack.interrupt_at = 2
    code, _, _ = invoke("logs", "-f", "going")
    assert code == 0
    assert stack.stopped == []


def test_stop_stops_a_running_run_only(invoke: Invoke, stack: PlayedStack) -> None:
    code, out, _ = invoke("stop", "going", "--because", "wrong data")
    assert code == 0
    assert "blackwell resume going" in out
    code, out, _ = invoke("stop", "done")
    assert "has ended already" in out
    assert stack.stopped == [("going", "wrong data")]


def test_submit_asks_before_it_spends(invoke: Invoke, stack: PlayedStack, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = invoke("submit", str(EXAMPLE))
    assert code == 2
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, **_: False)
    assert invoke("submit", str(EXAMPLE))[0] == 2
    assert stack.submitted == []
    monkeypatch.setattr("typer.confirm", lambda question, **_: True)
    assert invoke("submit", str(EXAMPLE), "--run", "mine")[0] == 0
    assert [run for _spec, run in stack.submitted] == ["mine"]


def test_submit_follows_to_the_end(invoke: Invoke, stack: PlayedStack) -> None:
    code, out, _ = invoke("submit", str(EXAMPLE), "--yes")
    assert code == 0
    lines = out.splitlines()
    assert "started named-by-time" in lines
    assert lines[-1].startswith("completed")
    assert any(line.startswith("step 1 of 200, loss") for line in lines), lines


def test_submit_as_json_is_one_object_a_line(invoke: Invoke, stack: PlayedStack) -> None:
    _, out, _ = invoke("submit", str(EXAMPLE), "--yes", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert records[0]["run"] == "named-by-time"
    assert [r["kind"] for r in records[1:]] == ["stage", "event", "step", "step", "step", "end"]
    _, out, _ = invoke("submit", str(EXAMPLE), "--yes", "--json", "--detach")
    assert json.loads(out) == {"run": "named-by-time", "execution_arn": "arn:execution"}


def test_submit_ctrl_c_detaches_and_says_how_to_return(invoke: Invoke, stack: PlayedStack) -> None:
    stack.interrupt_at = 3
    code, out, _ = invoke("submit", str(EXAMPLE), "--yes", "--run", "mine")
    assert code == 0
    assert "detached; mine goes on" in out
    assert "blackwell logs -f mine" in out
    assert stack.stopped == []


def test_submit_refuses_a_bad_spec_and_starts_nothing(invoke: Invoke, stack: PlayedStack, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(SPEC | {"training": {"steps": -1, "precison": "bf16"}}))
    code, out, err = invoke("submit", str(bad), "--yes")
    assert (code, out) == (2, "")
    assert {"BTS-003", "BTS-006"} <= {line.split()[0] for line in err.splitlines()}
    code, out, _ = invoke("submit", str(bad), "--yes", "--json")
    assert code == 2
    assert {f["id"] for f in json.loads(out)["findings"]} >= {"BTS-003", "BTS-006"}
    code, _, err = invoke("submit", str(tmp_path / "missing.json"), "--yes")
    assert code == 2
    assert "cannot be read" in err
    assert stack.submitted == []


def test_submit_shows_the_finding_about_a_taken_name(invoke: Invoke, stack: PlayedStack) -> None:
    stack.taken = True
    code, _, err = invoke("submit", str(EXAMPLE), "--yes", "--run", "mine")
    assert code == 2
    assert "BTS-210" in err


def test_resume_goes_on_from_the_run_with_its_own_spec(invoke: Invoke, stack: PlayedStack) -> None:
    code, _, _ = invoke("resume", "done", "--yes", "--steps", "400", "--detach")
    assert code == 0
    ((spec, _run),) = stack.submitted
    assert spec.resume_from == "done"
    assert spec.training.steps == 400


def test_resume_of_a_running_run_is_refused(invoke: Invoke, stack: PlayedStack) -> None:
    code, _, err = invoke("resume", "going", "--yes")
    assert code == 1
    assert "still running" in err
    assert stack.submitted == []


@pytest.mark.parametrize(
    "command",
    [
        name
        for name in cli.COMMANDS
        if name
        in (
            "runs",
            "dashboard",
            "show",
            "logs",
            "stop",
            "resume",
            "report",
            "submit",
            "quotas",
            "offerings",
            "leftovers",
        )
    ],
)
def test_every_command_has_help(invoke: Invoke, command: str) -> None:
    code, out, _ = invoke(command, "--help")
    assert code == 0
    assert "--json" in out


def test_an_unreachable_stack_is_one_clear_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    code, out, err = invoke("runs", "--region", "us-east-1")
    assert (code, out) == (1, "")
    assert err.startswith("AWS cannot be reached")
