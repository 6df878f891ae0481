"""AWS as the functions see it in tests: an embedded DynamoDB, S3, ECR and Logs; scripted fakes for what must be steered."""

from __future__ import annotations

import contextlib
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

TAG = "f" * 32
ACCOUNT_ROLE = "arn:aws:iam::000000000000:role/execution"
JOB_PREFIX = "blackwell-dev"
DATA = "datasets/text/"


def client_error(code: str, message: str = "scripted", operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


class _Pages:
    def __init__(self, pages: list[dict[str, Any]]) -> None:
        self._pages = pages

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        return self._pages


class FakeSageMaker:
    """Jobs that end when a test says so."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
        self.created: list[str] = []
        self.errors: list[ClientError] = []
        """Raised by the next CreateTrainingJob calls, in order."""
        self.after_create: Any = None
        self.plans: dict[str, dict[str, Any]] = {}

    def create_training_job(self, **request: Any) -> dict[str, str]:
        if self.errors:
            raise self.errors.pop(0)
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise client_error("ResourceInUse", f"Job name must be unique: {name}")
        arn = f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"
        self.jobs[name] = {
            "TrainingJobName": name,
            "TrainingJobArn": arn,
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Training",
            "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": datetime.now(UTC)}],
            "ResourceConfig": request["ResourceConfig"],
            "_tags": request["Tags"],
            "_request": request,
        }
        self.created.append(name)
        if self.after_create:
            self.after_create()
        return {"TrainingJobArn": arn}

    def end(self, name: str, status: str = "Completed", secondary: str | None = None, **more: Any) -> dict[str, Any]:
        job = self.jobs[name]
        job.update(TrainingJobStatus=status, SecondaryStatus=secondary or status, **more)
        return job

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        if TrainingJobName not in self.jobs:
            raise client_error("ValidationException", "Requested resource not found.")
        return self.jobs[TrainingJobName]

    def stop_training_job(self, TrainingJobName: str) -> None:
        if self.describe_training_job(TrainingJobName)["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
            raise client_error("ValidationException", "The request was rejected because the training job has ended")
        self.stopped.append(TrainingJobName)
        self.jobs[TrainingJobName]["TrainingJobStatus"] = "Stopping"

    def describe_training_plan(self, TrainingPlanName: str) -> dict[str, Any]:
        if TrainingPlanName not in self.plans:
            raise client_error("ResourceNotFound")
        return self.plans[TrainingPlanName]

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_tags"
        fake = self

        class Tags:
            def paginate(self, ResourceArn: str) -> list[dict[str, Any]]:
                return [{"Tags": fake.jobs[ResourceArn.rpartition("/")[2]]["_tags"]}]

        return Tags()


class FakeStepFunctions:
    def __init__(self) -> None:
        self.answered: list[str] = []
        self.closed: set[str] = set()
        self.started: dict[str, str] = {}
        self.executions: dict[str, str] = {}

    def send_task_success(self, taskToken: str, output: str) -> None:
        json.loads(output)
        if taskToken in self.closed:
            raise client_error("TaskTimedOut")
        self.closed.add(taskToken)
        self.answered.append(taskToken)

    def start_execution(self, stateMachineArn: str, name: str, input: str) -> dict[str, str]:  # noqa: A002
        if name in self.started and self.started[name] != input:
            raise client_error("ExecutionAlreadyExists")
        self.started[name] = input
        return {"executionArn": name}

    def describe_execution(self, executionArn: str) -> dict[str, str]:
        if executionArn not in self.executions:
            raise client_error("ExecutionDoesNotExist")
        return {"status": self.executions[executionArn]}


class FakeLambda:
    def __init__(self) -> None:
        self.invoked: list[tuple[str, dict[str, Any]]] = []

    def invoke(self, FunctionName: str, InvocationType: str, Payload: bytes) -> None:
        assert InvocationType == "Event"
        self.invoked.append((FunctionName, json.loads(Payload)))


class FakeTopic:
    def __init__(self) -> None:
        self.published: list[tuple[str, str]] = []

    def publish(self, TopicArn: str, Subject: str, Message: str) -> None:
        assert TopicArn == "arn:topic"
        assert Message
        self.published.append((TopicArn, Subject))


class FakeCodeBuild:
    def __init__(self) -> None:
        self.builds: dict[str, dict[str, Any]] = {}
        self._by_token: dict[str, str] = {}

    def start_build(self, projectName: str, idempotencyToken: str) -> dict[str, Any]:
        build_id = self._by_token.setdefault(idempotencyToken, f"{projectName}:{len(self._by_token) + 1}")
        self.builds.setdefault(
            build_id, {"id": build_id, "buildStatus": "IN_PROGRESS", "startTime": datetime.now(UTC), "logs": {}}
        )
        return {"build": self.builds[build_id]}

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        return {"builds": [self.builds[i] for i in ids if i in self.builds]}


class FakeQuotas:
    def __init__(self) -> None:
        self.values = {
            f"{kind} for {use} job usage": 4.0
            for kind in ("ml.p6-b200.48xlarge", "ml.c7i.2xlarge")
            for use in ("training", "spot training")
        }
        self.error: ClientError | None = None

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_service_quotas"
        if self.error:
            raise self.error
        return _Pages([{"Quotas": [{"QuotaName": n, "Value": v} for n, v in self.values.items()]}])


class FakePrices:
    def get_products(self, ServiceCode: str, Filters: list[dict[str, str]]) -> dict[str, list[str]]:
        wanted = {f["Field"]: f["Value"] for f in Filters}
        assert wanted["component"] == "Training"
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "99.5000000000"}}
        terms = {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}}
        return {"PriceList": [json.dumps({"terms": terms})] if wanted["instanceName"] == "ml.p6-b200.48xlarge" else []}


class Workshop:
    """One test's view: the fakes, and the embedded services' clients."""

    def __init__(self, aws: Any, environment: dict[str, str]) -> None:
        self.aws, self.environment = aws, environment
        self.sagemaker, self.stepfunctions = FakeSageMaker(), FakeStepFunctions()
        self.functions, self.codebuild, self.quotas = FakeLambda(), FakeCodeBuild(), FakeQuotas()
        self.topic = FakeTopic()
        self._fakes: dict[str, Any] = {
            "sagemaker": self.sagemaker,
            "stepfunctions": self.stepfunctions,
            "lambda": self.functions,
            "codebuild": self.codebuild,
            "service-quotas": self.quotas,
            "pricing": FakePrices(),
            "sns": self.topic,
        }

    def client(self, service: str) -> Any:
        return self._fakes.get(service) or self.aws.client(service)

    def push_image(self, tag: str) -> str:
        """Puts an image into the embedded ECR; returns its digest."""
        manifest = json.dumps({"schemaVersion": 2, "tag": tag})
        answer = self.aws.client("ecr").put_image(
            repositoryName=self.environment["REPOSITORY_NAME"], imageManifest=manifest, imageTag=tag
        )
        return str(answer["image"]["imageId"]["imageDigest"])

    def document(self, run: str, name: str) -> Any:
        body = self.aws.client("s3").get_object(Bucket=self.environment["ARTIFACTS_BUCKET"], Key=f"runs/{run}/{name}")
        return json.loads(body["Body"].read())

    def keys(self, bucket: str, prefix: str) -> list[str]:
        listing = self.aws.client("s3").list_objects_v2(Bucket=self.environment[bucket], Prefix=prefix)
        return [item["Key"] for item in listing.get("Contents", [])]

    def put_checkpoint(self, run: str, step: int, *, whole: bool = True) -> None:
        """A checkpoint folder in S3; not whole: a file of the manifest has the wrong size."""
        s3, bucket = self.aws.client("s3"), self.environment["CHECKPOINT_BUCKET"]
        folder = f"runs/{run}/checkpoints/step-{step:08d}/"
        data = b"weights"
        s3.put_object(Bucket=bucket, Key=f"{folder}__0_0.distcp", Body=data if whole else data[:-1])
        files = {"__0_0.distcp": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
        manifest = {"version": 1, "step": step, "world_size": 1, "tokens": step * 100, "files": files}
        s3.put_object(Bucket=bucket, Key=f"{folder}MANIFEST.json", Body=json.dumps(manifest).encode())

    def log(self, job_name: str, lines: list[str], at: datetime | None = None) -> None:
        logs, group, stream = self.aws.client("logs"), "/aws/sagemaker/TrainingJobs", f"{job_name}/algo-1-1"
        moment = int((at or datetime.now(UTC)).timestamp() * 1000)
        for make, name in (
            (logs.create_log_group, {"logGroupName": group}),
            (logs.create_log_stream, {"logGroupName": group, "logStreamName": stream}),
        ):
            with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
                make(**name)
        logs.put_log_events(
            logGroupName=group, logStreamName=stream, logEvents=[{"timestamp": moment, "message": t} for t in lines]
        )


def job_spec(**changes: Any) -> dict[str, Any]:
    """A small legal spec for the rehearsal instance."""
    model = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 512,
    }  # fmt: skip
    training = {
        "precision": "fp32", "micro_batch_size": 4, "global_batch_size": 8, "seq_length": 64, "steps": 20,
        "activation_checkpointing": "none", "checkpoint": {"interval_steps": 5}, "processes_per_instance": 1,
    } | changes.pop("training", {})  # fmt: skip
    capacity = [
        {
            "kind": "on-demand",
            "instance_type": "ml.c7i.2xlarge",
            "max_runtime_seconds": 3600,
            "hourly_price": 1.0,
        }
    ]
    return {"model": model, "data": {"train": DATA}, "training": training, "capacity": capacity} | changes
