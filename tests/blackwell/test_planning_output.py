"""What the planner prints: command line, explanation, grid, schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from typer.testing import CliRunner

from blackwell.cli import COMMANDS, main
from blackwell.cli.evaluate import app as evaluate_app
from blackwell.cli.plan import app as plan_app
from blackwell.cli.schema import text
from blackwell.planning import plan_job
from blackwell.planning.explain import explain_plan
from blackwell.planning.grid import grid_lines, grid_points, grid_svg
from blackwell.spec import load_job_spec

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples/jobs/8b-b200-bf16.json"
RUN = CliRunner()


def test_plan_prints_the_plan_and_exits_0() -> None:
    done = RUN.invoke(plan_app, [str(JOB)])
    assert done.exit_code == 0, done.output
    for words in (
        "Memory per rank",
        "tokens/s per GPU",
        "MFU",
        "Checkpoints",
        "Cost",
        "Advice",
        "calibrated on 0 runs",
    ):
        assert words in done.output


def test_plan_as_json_matches_its_schema() -> None:
    done = RUN.invoke(plan_app, [str(JOB), "--json"])
    assert done.exit_code == 0
    jsonschema.validate(json.loads(done.stdout), json.loads(text("plan")))


def test_a_refused_job_exits_2_with_the_plan_in_json(tmp_path: Path) -> None:
    document = json.loads(JOB.read_text())
    document["budget"] = {"max_cost_usd": 0.5}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document))
    done = RUN.invoke(plan_app, [str(path), "--json"])
    assert done.exit_code == 2
    assert "BTS-106" in {f["id"] for f in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("content", "identity"),
    [("{", "BTS-002"), ("[]", "BTS-001"), ('{"model": NaN}', "BTS-009"), ('{"modle": "8b"}', "BTS-003")],
)
def test_a_file_that_is_no_job_exits_2_with_findings(tmp_path: Path, content: str, identity: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(content)
    done = RUN.invoke(plan_app, [str(path), "--json"])
    assert done.exit_code == 2
    assert identity in {f["id"] for f in json.loads(done.stdout)["findings"]}


def test_a_missing_file_exits_2_with_a_finding(tmp_path: Path) -> None:
    done = RUN.invoke(plan_app, [str(tmp_path / "none.json"), "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["findings"]


def test_facts_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(
        json.dumps(
            {
                "prices": {
                    "ml.p6-b200.48xlarge": {"usd_per_hour": 50, "source": "price list", "region": "r", "date": "d"}
                }
            }
        )
    )
    done = RUN.invoke(plan_app, [str(JOB), "--json", "--facts", str(path)])
    assert json.loads(done.stdout)["cost"]["price_per_instance_hour"] == 50


def test_the_explanation_puts_the_plans_numbers_in() -> None:
    plan = plan_job(load_job_spec(JOB))
    lines = "\n".join(explain_plan(plan.resolved))
    assert f"{plan.model['num_parameters']:,}" in lines
    assert f"reserved {plan.memory.peak_gb:.3f} GB" in lines
    assert plan.throughput is not None
    assert f"= {plan.throughput.tokens_per_second_per_gpu:,.0f}" in lines


def test_the_grid_ranks_hundreds_and_marks_the_frontier() -> None:
    points = grid_points(load_job_spec(JOB))
    assert len(points) >= 300
    fitting = [p for p in points if p.fits]
    rates = [p.tokens_per_second_per_gpu for p in fitting]
    assert rates == sorted(rates, reverse=True)
    frontier = [p for p in points if p.frontier]
    for p in frontier:
        assert not any(
            q.fits and q.memory_gb < p.memory_gb and q.tokens_per_second_per_gpu > p.tokens_per_second_per_gpu
            for q in points
        )
    lines = list(grid_lines(points))
    assert sum(line.startswith("*") for line in lines[2:]) == len(frontier)


def test_the_grids_picture_is_svg_with_a_dot_for_each_configuration() -> None:
    points = grid_points(load_job_spec(JOB))
    root = ET.fromstring(grid_svg(points))
    dots = [
        e
        for e in root.iter("{http://www.w3.org/2000/svg}circle")
        if e.find("{http://www.w3.org/2000/svg}title") is not None
    ]
    shown = [p for p in points if p.memory_gb <= 1.5 * p.limit_gb]
    assert len(dots) == len(shown)


@pytest.mark.parametrize(("name", "file"), [("job", "job-spec.schema.json"), ("plan", "plan.schema.json")])
def test_published_schemas_are_current(name: str, file: str) -> None:
    assert (ROOT / "docs" / file).read_text(encoding="utf-8") == text(name), (
        f"run `python -m blackwell schema {name} > docs/{file}`"
    )


def test_the_job_schema_takes_every_example_and_describes_its_keys() -> None:
    schema = json.loads(text("job"))
    for path in sorted((ROOT / "examples/jobs").glob("*.json")):
        jsonschema.validate(json.loads(path.read_text()), schema)
    assert "GPU" in schema["$defs"]["TrainingSpec"]["properties"]["micro_batch_size"]["description"]


def test_evaluate_exits_0_whenever_it_scored_and_2_for_no_table(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(",".join(("source", "layers")) + "\n")
    assert RUN.invoke(evaluate_app, [str(path), "--json"]).exit_code == 2
    lines = (ROOT / "blackwell/planning/data/measured.csv").read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[650:660]]))
    done = RUN.invoke(evaluate_app, [str(path), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rows"]["read"] == 10


def test_every_command_that_is_listed_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


def test_an_unknown_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["pln"])
    assert left.value.code == 2
    assert "'plan'" in capsys.readouterr().err


def test_a_cold_plan_loads_neither_the_table_nor_numeric_libraries() -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        "from pathlib import Path; from blackwell.spec import load_job_spec; from blackwell.planning import plan_job\n"
        f"plan_job(load_job_spec(Path({str(JOB)!r})))\n"
        "print(time.process_time() - start, [m for m in sys.modules if m.split('.')[0] in {'numpy', 'scipy', 'torch', 'boto3', 'typer'}])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, loaded = done.stdout.split(maxsplit=1)
    assert loaded.strip() == "[]"
    assert float(seconds) < 1.5  # a gross bound that a loaded machine keeps; benchmarks/planner_speed.py measures


@pytest.mark.parametrize("arguments", [["plan", "examples/jobs/8b-b200-bf16.json", "--grid", "--picture"]])
def test_a_file_that_cannot_be_written_is_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere" / "file"
    with pytest.raises(SystemExit) as left:
        main([*arguments, str(nowhere)])
    assert left.value.code == 1
    assert capsys.readouterr().err == f"{nowhere}: No such file or directory\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "blackwell", "plan", "examples/jobs/8b-b200-bf16.json", "--grid", "--explain"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode == 1
