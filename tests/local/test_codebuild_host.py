"""The CodeBuild host and the docker stand-in: the buildspec really runs, and what was built is what can be run."""

from __future__ import annotations

import io
import json
import time
import uuid
import zipfile
from typing import Any

import pytest

from local.server import ACCOUNT, REGION, LocalAws

pytestmark = [pytest.mark.xdist_group("local-aws"), pytest.mark.timeout(60)]
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"

DOCKERFILE = """\
ARG BASE=other.invalid/image
FROM ${BASE}
ARG FLAVOUR=plain
WORKDIR /opt/app
ENV PYTHONPATH=/opt/app FLAVOUR=${FLAVOUR}
COPY app app
RUN pip install \\
    something
ENTRYPOINT ["python", "-m", "app"]
"""
BUILDSPEC = """\
version: 0.2
env:
  variables: {GREETING: hello}
phases:
  pre_build:
    commands:
      - STATE=kept; cd app
      - test "$STATE" = kept && test "$(basename "$PWD")" = app && cd ..
      - aws ecr get-login-password --region us-east-1 | docker login --username AWS --password-stdin $REGISTRY
  build:
    commands:
      - docker build --build-arg BASE=public.ecr.aws/some/base:1 --build-arg FLAVOUR=$FLAVOUR -t $IMAGE .
      - docker run --rm $IMAGE $GREETING
      - docker push $IMAGE
  post_build:
    commands:
      - echo "succeeding $CODEBUILD_BUILD_SUCCEEDING"
      - aws ecr describe-images --repository-name $REPOSITORY --image-ids imageTag=1 --query 'imageDetails[0].imageDigest' --output text
"""


class Builds:
    """A project on the embedded AWS, and its builds."""

    def __init__(self, aws: LocalAws, buildspec: str = BUILDSPEC, *, privileged: bool = True) -> None:
        self.codebuild, self.logs, self.s3 = aws.client("codebuild"), aws.client("logs"), aws.client("s3")
        self.ecr = aws.client("ecr")
        self.name = f"build-{uuid.uuid4().hex[:8]}"
        self.ecr.create_repository(repositoryName=self.name, imageTagMutability="IMMUTABLE")
        self.s3.create_bucket(Bucket=self.name)
        self.source(
            {
                "Dockerfile": DOCKERFILE,
                "app/__main__.py": "import os, sys; print('app', os.environ['FLAVOUR'], sys.argv[1])",
            }
        )
        variables = {
            "REGISTRY": REGISTRY,
            "REPOSITORY": self.name,
            "IMAGE": f"{REGISTRY}/{self.name}:1",
            "FLAVOUR": "sour",
        }
        self.codebuild.create_project(
            name=self.name,
            source={"type": "S3", "location": f"{self.name}/source.zip", "buildspec": buildspec},
            artifacts={"type": "NO_ARTIFACTS"},
            environment={
                "type": "LINUX_CONTAINER",
                "image": "aws/codebuild/standard:7.0",
                "computeType": "BUILD_GENERAL1_LARGE",
                "privilegedMode": privileged,
                "environmentVariables": [{"name": k, "value": v} for k, v in variables.items()],
            },
            serviceRole=f"arn:aws:iam::{ACCOUNT}:role/build",
        )

    def source(self, files: dict[str, str]) -> None:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        self.s3.put_object(Bucket=self.name, Key="source.zip", Body=data.getvalue())

    def run(self, **overrides: Any) -> dict[str, Any]:
        """One build, to its end."""
        return self.wait(self.codebuild.start_build(projectName=self.name, **overrides)["build"]["id"])

    def wait(self, identity: str, seconds: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (build := self.codebuild.batch_get_builds(ids=[identity])["builds"][0])["buildStatus"] == "IN_PROGRESS":
            assert time.monotonic() < deadline, build
            time.sleep(0.05)
        return dict(build)

    def lines(self, build: dict[str, Any]) -> list[str]:
        place = build["logs"]
        events = self.logs.get_log_events(
            logGroupName=place["groupName"], logStreamName=place["streamName"], startFromHead=True
        )
        return [event["message"] for event in events["events"]]


def _phases(build: dict[str, Any]) -> dict[str, str]:
    return {phase["phaseType"]: phase.get("phaseStatus", "") for phase in build["phases"]}


@pytest.fixture(scope="module")
def builds(aws: LocalAws) -> Builds:
    return Builds(aws)


def test_build_runs_and_pushes_once(builds: Builds) -> None:
    build = builds.run()
    lines = builds.lines(build)
    assert build["buildStatus"] == "SUCCEEDED", lines
    assert "app sour hello" in lines
    assert "succeeding 1" in lines
    images = builds.ecr.describe_images(repositoryName=builds.name)["imageDetails"]
    assert [image["imageTags"] for image in images] == [["1"]]
    assert images[0]["imageDigest"] in lines
    # the same content gives the same digest, but an immutable tag takes no second push
    again = builds.run()
    assert again["buildStatus"] == "FAILED"
    assert any("already exists" in line for line in builds.lines(again))
    assert _phases(again)["BUILD"] == "FAILED"
    assert "succeeding 0" in builds.lines(again)  # POST_BUILD runs after a failed BUILD
    # and under another tag it is the very same image
    other = builds.run(environmentVariablesOverride=[{"name": "IMAGE", "value": f"{REGISTRY}/{builds.name}:2"}])
    assert other["buildStatus"] == "SUCCEEDED", builds.lines(other)
    images = builds.ecr.describe_images(repositoryName=builds.name)["imageDetails"]
    assert [sorted(image["imageTags"]) for image in images] == [["1", "2"]]


@pytest.mark.parametrize(
    ("spec", "status", "ran"),
    [
        ("pre_build: {commands: [exit 3]}\n  build: {commands: [echo built]}", "PRE_BUILD", False),
        ("pre_build: {commands: [exit 3], on-failure: CONTINUE}\n  build: {commands: [echo built]}", "PRE_BUILD", True),
        ("build: {commands: [exit 3], on-failure: ABORT}\n  post_build: {commands: [echo built]}", "BUILD", False),
        ("build: {commands: [exit 3], finally: [echo built]}", "BUILD", True),
    ],
)
def test_failing_phases(builds: Builds, spec: str, status: str, ran: bool) -> None:
    build = builds.run(buildspecOverride=f"version: 0.2\nphases:\n  {spec}\n")
    assert build["buildStatus"] == "FAILED"
    assert _phases(build)[status] == "FAILED"
    assert ("built" in builds.lines(build)) is ran


def test_stop_ends_everything_of_the_build(builds: Builds) -> None:
    spec = "version: 0.2\nphases:\n  build: {commands: [echo started; sleep 600]}\n"
    identity = builds.codebuild.start_build(projectName=builds.name, buildspecOverride=spec)["build"]["id"]
    deadline = time.monotonic() + 10
    while builds.codebuild.batch_get_builds(ids=[identity])["builds"][0]["currentPhase"] != "BUILD":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    builds.codebuild.stop_build(id=identity)
    assert builds.wait(identity)["buildStatus"] == "STOPPED"


def test_each_private_registry_needs_its_own_login(builds: Builds) -> None:
    """The base image's registry is another account's: our own login does not open it."""
    spec = BUILDSPEC.replace("public.ecr.aws/some/base:1", "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch:1")
    build = builds.run(buildspecOverride=spec)
    assert build["buildStatus"] == "FAILED"
    assert any("no basic auth credentials" in line for line in builds.lines(build))


def test_no_docker_without_privileged_mode(aws: LocalAws) -> None:
    builds = Builds(aws, privileged=False)
    build = builds.run()
    assert build["buildStatus"] == "FAILED"
    assert any("Cannot connect to the Docker daemon" in line for line in builds.lines(build))


def test_missing_source_and_wrong_buildspec(builds: Builds) -> None:
    missing = builds.run(sourceLocationOverride=f"{builds.name}/nothing.zip")
    assert (missing["buildStatus"], _phases(missing)["DOWNLOAD_SOURCE"]) == ("FAILED", "FAILED")
    wrong = builds.run(buildspecOverride="version: 0.2\nphases:\n  buidl: {commands: [ls]}\n")
    assert any("unknown in phases: buidl" in line for line in builds.lines(wrong))


def test_events(aws: LocalAws, builds: Builds) -> None:
    sqs, events = aws.client("sqs"), aws.client("events")
    url = sqs.create_queue(QueueName=builds.name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    pattern = {"source": ["aws.codebuild"], "detail": {"project-name": [builds.name]}}
    events.put_rule(Name=builds.name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=builds.name, Targets=[{"Id": "queue", "Arn": arn}])
    builds.run(buildspecOverride="version: 0.2\nphases:\n  build: {commands: [echo]}\n")
    seen: list[str] = []
    deadline = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", []):
            seen.append(json.loads(message["Body"])["detail"]["build-status"])
    assert sorted(seen) == ["IN_PROGRESS", "SUCCEEDED"]
