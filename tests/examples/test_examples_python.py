"""The Python examples: the notebook runs as it is, the SDK's objects get everything that our own request says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import blackwell
from blackwell.findings import FindingsError
from blackwell.request import LAUNCHER

OUTPUTS = {
    "JobPrefix": "blackwell-dev",
    "ExecutionRoleArn": "arn:aws:iam::111122223333:role/execution",
    "ArtifactsBucket": "artifacts",
    "CheckpointBucket": "checkpoints",
}
IMAGE = f"111122223333.dkr.ecr.us-west-2.amazonaws.com/images@sha256:{'0' * 64}"

FIELDS: dict[str, set[str]] = {
    "ModelTrainer": {
        "training_mode", "sagemaker_session", "role", "base_job_name", "input_s3_key_prefix", "source_code", "distributed",
        "compute", "networking", "stopping_condition", "training_image", "training_image_config", "algorithm_name",
        "output_data_config", "input_data_config", "checkpoint_config", "training_input_mode", "environment",
        "hyperparameters", "tags", "local_container_root", "model_package_config",
    },
    "Compute": {
        "instance_type", "instance_count", "volume_size_in_gb", "volume_kms_key_id", "keep_alive_period_in_seconds",
        "instance_groups", "training_plan_arn", "instance_placement_config", "instance_preferences",
        "enable_managed_spot_training",
    },
    "Networking": {
        "security_group_ids", "subnets", "enable_network_isolation", "enable_inter_container_traffic_encryption",
    },
    "StoppingCondition": {"max_runtime_in_seconds", "max_wait_time_in_seconds", "max_pending_time_in_seconds"},
    "CheckpointConfig": {"s3_uri", "local_path"},
    "OutputDataConfig": {"s3_output_path", "kms_key_id", "compression_type"},
    "Channel": {
        "channel_name", "data_source", "content_type", "compression_type", "record_wrapper_type", "input_mode",
        "shuffle_config",
    },
    "DataSource": {"s3_data_source", "file_system_data_source", "dataset_source"},
    "S3DataSource": {
        "s3_data_type", "s3_uri", "s3_data_distribution_type", "attribute_names", "instance_group_names",
        "model_access_config", "hub_access_config",
    },
    "RetryStrategy": {"maximum_retry_attempts"},
    "InfraCheckConfig": {"enable_infra_check"},
    "MetricDefinition": {"name", "regex"},
    "Tag": {"key", "value"},
}  # fmt: skip
"""Fields of the SDK's classes, as sagemaker-train 1.27.0 and sagemaker-core 2.27.0 declare them."""


def _stub(name: str) -> type:
    def make(self: Any, **given: Any) -> None:
        unknown = set(given) - FIELDS[name]
        assert not unknown, f"{name} has no {unknown}"
        self.given = given

    def keep(key: str) -> Any:
        return lambda self, value: self.given.update({key: value}) or self

    methods = {f"with_{key}": keep(key) for key in ("metric_definitions", "retry_strategy", "infra_check_config")}
    return type(name, (), {"__init__": make, **(methods if name == "ModelTrainer" else {})})


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the SDK's names, whose classes take what the real ones take and nothing else."""
    made = {name: _stub(name) for name in FIELDS}
    shapes = types.SimpleNamespace(
        **{n: c for n, c in made.items() if n not in ("ModelTrainer", "Compute", "Networking")}
    )
    for name, content in {
        "sagemaker": {},
        "sagemaker.core": {"shapes": shapes},
        "sagemaker.core.training": {},
        "sagemaker.core.training.configs": {"Compute": made["Compute"], "Networking": made["Networking"]},
        "sagemaker.train": {},
        "sagemaker.train.model_trainer": {"ModelTrainer": made["ModelTrainer"]},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def _load(path: Path) -> Any:
    described = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return _plain(value.given) if hasattr(value, "given") else value


@pytest.fixture(scope="module")
def example(repository_root: Path) -> Any:
    return _load(repository_root / "examples" / "sagemaker_sdk.py")


@pytest.mark.parametrize("job", ["8b-b200-bf16", "1b-b200-spot", "3b-b200-plan", "tiny-cpu"])
@pytest.mark.usefixtures("sdk")
def test_model_trainer_gets_the_whole_request(example: Any, repository_root: Path, job: str) -> None:
    request = example.request_for(repository_root / "examples" / "jobs" / f"{job}.json", "my-run", IMAGE, OUTPUTS)
    given = _plain(example.model_trainer(request))
    algorithm = request["AlgorithmSpecification"]
    spot = given["compute"].pop("enable_managed_spot_training")
    assert spot == request["EnableManagedSpotTraining"]
    snake = example.snake
    assert given["compute"] == snake(request["ResourceConfig"])
    for ours, theirs in {
        "StoppingCondition": "stopping_condition", "OutputDataConfig": "output_data_config", "Tags": "tags",
        "CheckpointConfig": "checkpoint_config", "RetryStrategy": "retry_strategy", "InputDataConfig": "input_data_config",
    }.items():  # fmt: skip
        assert given[theirs] == snake(request[ours]), ours
    assert given["hyperparameters"] == request["HyperParameters"]
    assert given["environment"] == request["Environment"]
    assert given["role"] == request["RoleArn"]
    assert given["metric_definitions"] == snake(algorithm["MetricDefinitions"])
    passed = {
        "StoppingCondition", "OutputDataConfig", "Tags", "CheckpointConfig", "RetryStrategy", "InputDataConfig",
        "HyperParameters", "Environment", "RoleArn", "ResourceConfig", "EnableManagedSpotTraining",
        "AlgorithmSpecification", "InfraCheckConfig",
    }  # fmt: skip
    assert set(request) - passed == set(example.LEFT_OUT)
    assert ("infra_check_config" in given) == ("InfraCheckConfig" in request)


def test_the_image_s_own_entry_point_is_the_launcher(repository_root: Path) -> None:
    """ModelTrainer sends no entry point without source code of its own."""
    dockerfile = (repository_root / "container" / "Dockerfile").read_text()
    assert re.search(r'^ENTRYPOINT .*train\.sh"\]$', dockerfile, re.MULTILINE)
    assert " ".join(LAUNCHER[1:]) in (repository_root / "container" / "train.sh").read_text()


def test_what_the_plan_refuses_is_refused_here(example: Any, tmp_path: Path, repository_root: Path) -> None:
    text = (repository_root / "examples" / "jobs" / "8b-b200-bf16.json").read_text()
    job = tmp_path / "job.json"
    job.write_text(text.replace('"seq_length": 8192', '"micro_batch_size": 128, "seq_length": 65536'))
    with pytest.raises(FindingsError, match="BTS-1"):
        example.request_for(job, "my-run", IMAGE, OUTPUTS)


def test_the_notebook_runs(repository_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/first_look.py"], cwd=repository_root, capture_output=True, text=True,
        env={"PATH": "", "PYTHONPATH": str(repository_root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nvfp4" in done.stdout
    assert "BTS-003" in done.stdout
    assert "BTS-006" in done.stdout


class TestApi:
    def test_names_are_there_and_cost_nothing_before_they_are_used(self, repository_root: Path) -> None:
        code = (
            "import sys, blackwell; before = [m for m in sys.modules if m.startswith('blackwell.')];"
            "from blackwell import JobSpec; print(before, 'boto3' in sys.modules, JobSpec.__name__)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=repository_root, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["[]", "False", "JobSpec"]
        for name in blackwell.__all__:
            assert getattr(blackwell, name).__name__ == name
            assert name in dir(blackwell)

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'pln'"):
            blackwell.pln  # noqa: B018

    def test_plan_takes_a_spec_a_document_or_a_file(self, repository_root: Path) -> None:
        path = repository_root / "examples" / "jobs" / "8b-b200-bf16.json"
        job = blackwell.JobSpec.model_validate_json(path.read_text())
        figures = {
            blackwell.plan(given).memory.peak_gb
            for given in (job, job.model_dump(mode="json", by_alias=True), path, str(path))
        }
        assert len(figures) == 1

    def test_submit_starts_what_the_plan_accepts_and_nothing_else(
        self, repository_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[tuple[str | None, str]] = []

        class FakeClient:
            @classmethod
            def from_stack(cls, name: str, session: Any) -> FakeClient:
                assert name == "BlackwellTrainingStack-prod"
                return cls()

            def submit(self, spec: blackwell.JobSpec, run: str | None) -> Any:
                started.append((run, str(spec.training.precision)))
                return types.SimpleNamespace(run=run)

            def report(self, run: str) -> dict[str, Any]:
                return {"run": run}

        monkeypatch.setattr("blackwell.client.Client", FakeClient)
        path = repository_root / "examples" / "jobs" / "8b-b200-bf16.json"
        run = blackwell.submit(path, "mine", stage="prod")
        assert (run.name, run.report()) == ("mine", {"run": "mine"})
        document = blackwell.JobSpec.model_validate_json(path.read_text()).model_dump(mode="json", by_alias=True)
        with pytest.raises(FindingsError, match="BTS-106"):
            blackwell.submit(document | {"budget": {"max_cost_usd": 1}}, "mine", stage="prod")
        assert started == [("mine", "bf16")]
