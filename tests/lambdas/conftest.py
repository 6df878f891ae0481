"""The functions' surroundings: one embedded AWS per worker, one run name per test."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lambda_helpers import ACCOUNT_ROLE, DATA, JOB_PREFIX, TAG, Workshop, job_spec

from lambdas.assess import handler as assess
from lambdas.common import aws as lambda_aws
from lambdas.common import environment as lambda_environment
from lambdas.launch import handler as launch
from lambdas.plan import handler as plan
from lambdas.plan import preflight
from local.server import LocalAws


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    with LocalAws(tmp_path_factory.mktemp("aws")) as server:
        yield server


@pytest.fixture(scope="session")
def deployed(aws: LocalAws) -> dict[str, str]:
    """Buckets and repository, as the stack would make them; the functions' environment variables."""
    for bucket in ("lambda-artifacts", "lambda-checkpoints"):
        aws.client("s3").create_bucket(Bucket=bucket)
    aws.client("s3").put_object(Bucket="lambda-artifacts", Key=f"{DATA}manifest.json", Body=b"{}")
    uri = aws.client("ecr").create_repository(repositoryName="images")["repository"]["repositoryUri"]
    return {
        "AWS_REGION": "us-east-1",
        "STAGE": "dev",
        "ARTIFACTS_BUCKET": "lambda-artifacts",
        "CHECKPOINT_BUCKET": "lambda-checkpoints",
        "REPOSITORY_URI": uri,
        "REPOSITORY_NAME": "images",
        "BUILD_PROJECT": "project",
        "EXECUTION_ROLE_ARN": ACCOUNT_ROLE,
        "JOB_PREFIX": JOB_PREFIX,
        "IMAGE_TAG": TAG,
        "ALLOWED_INSTANCE_TYPES": "ml.p6-b200.48xlarge,ml.c7i.2xlarge",
        "MAX_INSTANCES": "2",
        "MAX_BUDGET_USD": "100",
        "MAX_RUNTIME_HOURS": "48",
        "REPORT_FUNCTION": "report",
        "TOPIC_ARN": "arn:topic",
        "STATE_MACHINE_ARN": "arn:aws:states:us-east-1:000000000000:stateMachine:machine",
    }


@pytest.fixture
def workshop(aws: LocalAws, deployed: dict[str, str], run: str, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """The functions' AWS, with a run table of this test alone: the guard looks after every run in it."""
    aws.client("dynamodb").create_table(
        TableName=run,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "run", "KeyType": "HASH"}, {"AttributeName": "attempt", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "run", "AttributeType": "S"},
            {"AttributeName": "attempt", "AttributeType": "N"},
        ],
    )
    environment = deployed | {"RUN_TABLE": run}
    found = Workshop(aws, environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lambda_environment.environment.cache_clear()
    monkeypatch.setattr(lambda_aws, "_client", found.client)
    monkeypatch.setattr(preflight, "_quotas", {})
    monkeypatch.setattr(preflight, "_quotas_at", -math.inf)
    return found


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def planned(workshop: Workshop, run: str) -> Callable[..., dict[str, Any]]:
    """Plans the test's run; returns Plan's answer."""

    def make(name: str = run, **changes: Any) -> dict[str, Any]:
        arn = f"arn:aws:states:::execution:machine:{name}"
        workshop.stepfunctions.executions[arn] = "RUNNING"
        event = {"run": name, "execution_arn": arn, "started_at": "2026-12-01T00:00:00Z", "spec": job_spec(**changes)}
        answer = plan.handler(event, None)
        if answer["accepted"]:
            plan.RunStore().update_run(name, image=f"{workshop.environment['REPOSITORY_URI']}@sha256:{'0' * 64}")
        return answer

    return make


@pytest.fixture
def launched(planned: Callable[..., dict[str, Any]], run: str) -> Callable[..., str]:
    """Plans the test's run and launches its first attempt; returns the job's name."""

    def make(**changes: Any) -> str:
        assert planned(**changes)["accepted"]
        return str(launch.handler({"run": run, "attempt": 1}, None)["job_name"])

    return make


@pytest.fixture
def assessed(run: str) -> Callable[..., dict[str, Any]]:
    def make(attempt: int = 1, **error: Any) -> dict[str, Any]:
        event = {"run": run, "attempt": attempt, "launch_error": error or None}
        return assess.handler(event, None)

    return make
