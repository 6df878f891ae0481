"""`cdk destroy` on the embedded AWS while a real job runs, beside a second stage and foreign jobs, which stay."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from stack_templates import resources

from blackwell.names import RUN_TAG, STACK_NAME, STAGE_TAG
from blackwell.spec import load_job_spec
from blackwell.trainer_config import ENV_RUN
from local.demo.cdk import CdkError, cdk
from local.demo.inventory import Inventory, left_over, take
from local.deployment import Deployment, deployed
from local.server import LocalAws
from stacks.synth import synthesise

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]


FOREIGN = "somebody-elses-bucket"


def _run_cdk(d: Deployment, *words: str) -> None:
    cdk(list(words), root=Path(__file__).parents[2], environment=d.aws.environment, log=d.folder / "cdk.log")


def _foreign_job(d: Deployment, name: str, like: dict[str, Any], tags: dict[str, str]) -> None:
    wanted = (
        "AlgorithmSpecification", "RoleArn", "InputDataConfig", "ResourceConfig", "StoppingCondition",
        "EnableManagedSpotTraining", "HyperParameters",
    )  # fmt: skip
    request = {key: like[key] for key in wanted}
    request["CheckpointConfig"] = {"S3Uri": f"s3://{FOREIGN}/checkpoints/", "LocalPath": "/opt/ml/checkpoints"}
    request["OutputDataConfig"] = {"S3OutputPath": f"s3://{FOREIGN}/out/"}
    request["Environment"] = {ENV_RUN: "other"}
    request["AlgorithmSpecification"].pop("EnableSageMakerMetricsTimeSeries", None)
    d.aws.client("sagemaker").create_training_job(
        TrainingJobName=name, Tags=[{"Key": k, "Value": v} for k, v in tags.items()], **request
    )


def _fill(d: Deployment) -> None:
    """Versions, delete markers and an unfinished upload."""
    s3, bucket = d.aws.client("s3"), d.client.outputs.checkpoint_bucket
    for version, number in itertools.product(range(2), range(30)):
        s3.put_object(Bucket=bucket, Key=f"runs/old/checkpoints/step-00000001/{number}", Body=bytes([version]))
    s3.delete_object(Bucket=bucket, Key="runs/old/checkpoints/step-00000001/0")
    s3.create_multipart_upload(Bucket=bucket, Key="runs/old/output/model.safetensors")


def _of(stack: str, inventory: Inventory) -> set[str]:
    """Everything named after this stack and no longer one (`Stack-prod` is not `Stack`)."""
    return {
        f"{kind}: {name}"
        for kind, names in inventory.items()
        for name in names
        if stack.lower() in name.lower() and f"{stack}-prod".lower() not in name.lower()
    }


def test_destroy_while_a_job_runs(tmp_path: Path, repository_root: Path) -> None:
    prod = synthesise({"stage": "prod"}, into=tmp_path / "prod")
    spec = load_job_spec(repository_root / "examples" / "jobs" / "tiny-scenario.json")
    long = spec.model_copy(update={"training": spec.training.model_copy(update={"steps": 100_000})})
    with deployed(tmp_path / "aws") as d:
        client, sagemaker = d.aws.client, d.aws.client("sagemaker")
        _run_cdk(d, "deploy", STACK_NAME, "--app", str(prod), "--require-approval", "never")
        run = d.client.submit(long, "long-run")
        next(p for p in d.client.follow(run.run) if p.step is not None and p.step.step >= 12)
        (attempt,) = d.client.attempts(run.run)
        described = sagemaker.describe_training_job(TrainingJobName=attempt.job_name)
        client("s3").create_bucket(Bucket=FOREIGN)
        _foreign_job(d, "blackwell-prod-other-a1", described, {STAGE_TAG: "prod", RUN_TAG: "other"})
        _foreign_job(d, "blackwell-dev-by-hand", described, {})
        _fill(d)
        before = take(client)

        _run_cdk(d, "destroy", STACK_NAME, "--app", str(d.folder / "cdk.out"), "--force")

        after = take(client)
        assert _of(STACK_NAME, after) == set()
        assert after["training job"] == {"blackwell-prod-other-a1", "blackwell-dev-by-hand"}
        streams = {s.split("/")[0] for s in after["log stream of a job"]}
        assert attempt.job_name not in streams
        gone = left_over(after, before)  # what was there before and is no more
        assert not [line for line in gone if f"{STACK_NAME}-prod".lower() in line.lower()]
        for name in after["training job"]:
            assert sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] != "Stopping", name
            sagemaker.stop_training_job(TrainingJobName=name)
        # and what was half gone already does not stop a destroy
        _run_cdk(d, "destroy", STACK_NAME, "--app", str(prod), "--force")
        assert not [line for line in left_over({}, take(client)) if STACK_NAME.lower() in line.lower()]


def test_rollback_of_a_failed_deploy_leaves_nothing(tmp_path: Path, repository_root: Path) -> None:
    assembly = synthesise(into=tmp_path / "cdk.out")
    file = assembly / f"{STACK_NAME}.template.json"
    template = json.loads(file.read_text())
    (adopter,) = resources(template, "Custom::TrainingLogGroup").values()
    template["Resources"]["Late"] = {  # made last of all, and answers FAILED for want of its property
        "Type": "Custom::Fails",
        "Properties": {"ServiceToken": adopter["Properties"]["ServiceToken"], "ServiceTimeout": 60},
        "DependsOn": list(template["Resources"]),
    }
    file.write_text(json.dumps(template))
    with LocalAws(tmp_path / "aws") as aws:

        def run(*words: str) -> None:
            cdk(list(words), root=repository_root, environment=aws.environment, log=tmp_path / "cdk.log")

        run("bootstrap", "--app", str(assembly))
        before = take(aws.client)
        with pytest.raises(CdkError):
            run("deploy", STACK_NAME, "--app", str(assembly), "--require-approval", "never")
        left = [line for line in left_over(before, take(aws.client)) if line != f"CloudFormation stack: {STACK_NAME}"]
        assert left == []
        run("destroy", STACK_NAME, "--app", str(assembly), "--force")
        assert left_over(before, take(aws.client)) == []
