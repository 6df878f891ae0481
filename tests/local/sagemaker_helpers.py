"""A job for the SageMaker host that needs no torch: a stub container in a recorded image, and requests for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from local.docker_shim.docker import PRIVILEGED_ENV, WORK_DIR_ENV
from local.server import ACCOUNT, PROJECT, REGION, LocalAws

STUB = """
import json, os, pathlib, signal, sys, time

root = pathlib.Path(os.environ["BLACKWELL_ML_ROOT"])
config = root / "input" / "config"
settings = json.loads((config / "hyperparameters.json").read_text())
resources = json.loads((config / "resourceconfig.json").read_text())
stop = False


def on_term(*_):
    global stop
    stop = True
    print("stub: SIGTERM", flush=True)


if settings.get("handles_sigterm", "1") == "1":
    signal.signal(signal.SIGTERM, on_term)
checkpoints = root / "checkpoints"
first = resources["current_host"] == resources["hosts"][0]


def save(step):
    folder = checkpoints / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.bin").write_bytes(bytes([step % 256]) * 1000)
    (folder / "MANIFEST.json").write_text(json.dumps({"step": step}))


done = max((int(p.parent.name[5:]) for p in checkpoints.glob("step-*/MANIFEST.json")), default=0)
data = sorted(p.name for p in (root / "input" / "data").rglob("*") if p.is_file())
print(f"stub: pid {os.getpid()} resumed from {done} data {data} host {resources['current_host']}", flush=True)
print("stub: environment " + json.dumps(sorted(os.environ)), flush=True)
if "child" in settings:  # a process in a session of its own, as torch's elastic agent starts its workers
    import subprocess

    child = subprocess.Popen(["sleep", settings["child"]], start_new_session=True, env={**os.environ, "RANK": "0"})
    print(f"stub: child {child.pid}", flush=True)
for step in range(done + 1, int(settings.get("steps", "5")) + 1):
    time.sleep(float(settings.get("step_seconds", "0.03")))
    if stop:
        save(step - 1)
        sys.exit(75)
    loss = 4.0 / step
    record = json.dumps({"step": step, "time": time.time(), "loss": loss, "learning_rate": 0.1})
    print(f"[rank 0] loss {loss:.6f} tokens_per_second 100.000000 step {step} run stub {record}", flush=True)
    if step % int(settings.get("save_every", "5")) == 0:
        save(step)
        kept = int(settings.get("keep", "2")) * int(settings.get("save_every", "5"))
        old = checkpoints / f"step-{step - kept:08d}"
        if old.is_dir():
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
if "failure" in settings and first:
    (root / "output" / "failure").write_text(settings["failure"])
    sys.exit(int(settings.get("exit_code", "1")))
if "exit_code" in settings:
    sys.exit(int(settings["exit_code"]))
if first:
    (root / "model" / "weights.txt").write_text("trained")
"""

DOCKERFILE = """\
FROM public.ecr.aws/docker/library/python:3.11
WORKDIR /opt/app
ENV PYTHONUNBUFFERED=1
COPY stub.py .
ENTRYPOINT ["python", "stub.py"]
"""
INSTANCE = "ml.c7i.2xlarge"


class StubJobs:
    """Role, buckets, data and image on one server, made once; makes and follows jobs."""

    def __init__(self, aws: LocalAws, folder: Path) -> None:
        self.aws = aws
        self.sagemaker, self.s3, self.logs = aws.client("sagemaker"), aws.client("s3"), aws.client("logs")
        self.bucket = f"stub-{uuid.uuid4().hex[:8]}"
        self.s3.create_bucket(Bucket=self.bucket)
        self.s3.put_object(Bucket=self.bucket, Key="data/a.txt", Body=b"a")
        self.s3.put_object(Bucket=self.bucket, Key="data/sub/b.txt", Body=b"b")
        trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}}]}
        name = f"stub-{uuid.uuid4().hex[:8]}"
        role = aws.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        self.role = role["Role"]["Arn"]
        self.repository = name
        aws.client("ecr").create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")
        self.uri = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{name}"
        (folder / "stub.py").write_text(STUB)
        (folder / "Dockerfile").write_text(DOCKERFILE)
        self.home = folder
        self.docker("login", "-u", "AWS", "--password-stdin", self.uri.partition("/")[0], stdin="token")
        self.docker("build", "-t", f"{self.uri}:stub", str(folder))
        self.docker("push", f"{self.uri}:stub")
        images = aws.client("ecr").describe_images(repositoryName=name)["imageDetails"]
        self.image = f"{self.uri}@{images[0]['imageDigest']}"

    def docker(self, *words: str, stdin: str = "", expect: int = 0) -> str:
        """Run the docker stand-in; returns its output."""
        environment = {**self.aws.child_environment(), WORK_DIR_ENV: str(self.aws.work_dir), PRIVILEGED_ENV: "1"}
        environment |= {"HOME": str(self.home), "PYTHONPATH": str(PROJECT), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-m", "local.docker_shim.docker", *words]
        done = subprocess.run(
            command, env=environment, input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == expect, done.stdout
        return done.stdout

    def request(self, *, spot: bool = True, name: str | None = None, **settings: Any) -> dict[str, Any]:
        """CreateTrainingJob's request for the stub, its behaviour set by `settings`."""
        name = name or f"stub-{uuid.uuid4().hex[:8]}"
        stopping = {"MaxRuntimeInSeconds": 3600} | ({"MaxWaitTimeInSeconds": 7200} if spot else {})
        return {
            "TrainingJobName": name,
            "RoleArn": self.role,
            "AlgorithmSpecification": {
                "TrainingImage": self.image,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python", "stub.py"],
                "MetricDefinitions": [{"Name": "loss", "Regex": r"\[rank 0\] loss ([0-9.]+) "}],
            },
            "HyperParameters": {key: str(value) for key, value in settings.items()},
            "InputDataConfig": [
                {
                    "ChannelName": "train",
                    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{self.bucket}/data/"}},
                }
            ],
            "OutputDataConfig": {"S3OutputPath": f"s3://{self.bucket}/out/", "CompressionType": "NONE"},
            "CheckpointConfig": {"S3Uri": f"s3://{self.bucket}/ck/{name}/", "LocalPath": "/opt/ml/checkpoints"},
            "ResourceConfig": {"InstanceType": INSTANCE, "InstanceCount": 1, "VolumeSizeInGB": 10},
            "StoppingCondition": stopping,
            "EnableManagedSpotTraining": spot,
            "Environment": {"BLACKWELL_RUN": "stub"},
            "Tags": [{"Key": "blackwell:run", "Value": "stub"}],
        }

    def create(self, request: dict[str, Any]) -> str:
        self.sagemaker.create_training_job(**request)
        return str(request["TrainingJobName"])

    def describe(self, name: str) -> dict[str, Any]:
        return dict(self.sagemaker.describe_training_job(TrainingJobName=name))

    def wait(self, name: str, seconds: float = 30) -> dict[str, Any]:
        """The job's description once it has ended."""
        return self.until(name, lambda job: job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"), seconds)

    def until(self, name: str, done: Any, seconds: float = 30) -> dict[str, Any]:
        """The job's description once `done(description)`."""
        deadline = time.monotonic() + seconds
        while not done(job := self.describe(name)):
            assert time.monotonic() < deadline, (job["SecondaryStatusTransitions"], self.lines(name)[-5:])
            time.sleep(0.05)
        return job

    def wait_for_line(self, name: str, text: str, seconds: float = 30) -> str:
        """The first log line of the job that contains `text`."""
        deadline = time.monotonic() + seconds
        while True:
            for line in self.lines(name):
                if text in line:
                    return line
            assert time.monotonic() < deadline, (text, self.secondary(self.describe(name)), self.lines(name)[-5:])
            time.sleep(0.05)

    def streams(self, name: str) -> list[str]:
        try:
            found = self.logs.describe_log_streams(
                logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=f"{name}/"
            )
        except self.logs.exceptions.ResourceNotFoundException:
            return []
        return [stream["logStreamName"] for stream in found["logStreams"]]

    def lines(self, name: str) -> list[str]:
        """Every log line of the job, stream by stream."""
        found = []
        for stream in self.streams(name):
            events = self.logs.get_log_events(
                logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=stream, startFromHead=True
            )
            found += [event["message"] for event in events["events"]]
        return found

    def keys(self, prefix: str) -> set[str]:
        """Keys below a prefix of the bucket, without the prefix."""
        listed = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", [])
        return {item["Key"].removeprefix(prefix) for item in listed}

    def stop_all(self) -> None:
        """Nothing of a failed test may run into the next one."""
        for row in self.sagemaker.list_training_jobs(StatusEquals="InProgress")["TrainingJobSummaries"]:
            self.sagemaker.stop_training_job(TrainingJobName=row["TrainingJobName"])
            self.wait(row["TrainingJobName"])

    @staticmethod
    def secondary(job: dict[str, Any]) -> list[str]:
        """The secondary statuses that the job went through."""
        return [transition["Status"] for transition in job["SecondaryStatusTransitions"]]
