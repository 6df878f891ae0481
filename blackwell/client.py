"""The Python API to a deployed stack, and the only module in here that calls AWS: submit, follow, stop, read.

    client = Client.from_stack()
    run = client.submit(load_job_spec(Path("job.json"))).run
    for progress in client.follow(run):
        print(progress.line())
    report = client.report(run)

It works the same against AWS and the embedded one; which of the two, the boto3 session decides.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from blackwell.findings import Finding, FindingsError
from blackwell.names import JOBS_PREFIX, RUN_ID, RUN_ITEM_ATTEMPT, STACK_NAME, RunPlaces
from blackwell.runs import AttemptItem, RunItem, RunStatus, encode, key
from blackwell.spec import JobSpec
from blackwell.telemetry import TRAINING_LOG_GROUP, StepRecord, parse_event, parse_step

POLL_SECONDS = 2.0
SILENT_STATES = frozenset({"Accepted", "ImageReady", "Remedy", "Outcome"})
"""States that take no time: choices, which nobody needs to read."""


class StackNotFound(LookupError):  # noqa: N818  reads as what it says
    """There is no such stack in this account and region, or it is not deployed completely."""


class RunNotFound(LookupError):  # noqa: N818
    """The stack knows no run of this name."""


@dataclass(frozen=True, slots=True)
class StackOutputs:
    """The deployed stack's outputs, by their logical ids."""

    state_machine_arn: str
    artifacts_bucket: str
    checkpoint_bucket: str
    run_table: str
    job_prefix: str
    all: Mapping[str, str]

    @classmethod
    def read(cls, session: Any, stack_name: str) -> StackOutputs:
        """Reads them from CloudFormation. Raises StackNotFound."""
        try:
            stack = session.client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"][0]
        except (ClientError, IndexError) as error:
            raise StackNotFound(f"no stack {stack_name!r} here; deploy it with `cdk deploy {stack_name}`") from error
        values = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
        try:
            return cls(
                state_machine_arn=values["StateMachineArn"],
                artifacts_bucket=values["ArtifactsBucket"],
                checkpoint_bucket=values["CheckpointBucket"],
                run_table=values["RunTable"],
                job_prefix=values["JobPrefix"],
                all=values,
            )
        except KeyError as missing:
            raise StackNotFound(f"stack {stack_name!r} is {stack['StackStatus']} and has no output {missing}") from None


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run that was started."""

    run: str
    execution_arn: str


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known about a run now."""

    run: str
    status: RunStatus | None
    """None in the first moments, before the run table knows the run."""
    execution_status: str
    stage: str | None
    """The state that the execution is in."""
    item: RunItem | None
    attempts: tuple[AttemptItem, ...]
    job_status: str | None = None
    """SecondaryStatus of the newest attempt's job."""
    cause: str | None = None
    """Why it ended, where it did not end well."""
    findings: tuple[Mapping[str, Any], ...] = ()
    """The first findings, where the spec was rejected."""

    @property
    def ended(self) -> bool:
        """True once the execution runs no more."""
        return self.execution_status != "RUNNING"

    @property
    def final_status(self) -> RunStatus | None:
        """How it ended, None while it runs; the execution's word where the run table has none, or not yet."""
        if not self.ended:
            return None
        if self.status is not None and self.status is not RunStatus.RUNNING:
            return self.status
        if self.findings:
            return RunStatus.REJECTED
        return {"SUCCEEDED": RunStatus.COMPLETED, "ABORTED": RunStatus.STOPPED}.get(
            self.execution_status, RunStatus.FAILED
        )

    @property
    def verdict(self) -> str | None:
        """How it ended; `rejected` and `stopped` also where the run table does not know it."""
        if self.item is not None and self.item.verdict is not None and self.ended:
            return self.item.verdict.value
        return None


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened: the run reached another stage, took a step, reported an event, or ended."""

    run: str
    kind: str
    """`stage`, `step`, `event` or `end`."""
    stage: str | None
    attempt: int = 0
    step: StepRecord | None = None
    event: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def line(self) -> str:
        """One line for a terminal."""
        if self.step is not None:
            loss = f"{self.step.loss:.4f}" if self.step.loss is not None else "not finite"
            return f"step {self.step.step} loss {loss} {self.step.tokens_per_second:.0f} tokens/s"
        if self.kind == "event":
            shown = ", ".join(f"{name} {value}" for name, value in self.fields.items() if _plain(value))
            return f"{self.event}: {shown}" if shown else str(self.event)
        return self.text


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


class Client:
    """One deployed stack."""

    def __init__(self, outputs: StackOutputs, session: Any) -> None:
        self.outputs = outputs
        self._session = session
        self._clients: dict[str, Any] = {}

    @classmethod
    def from_stack(cls, stack_name: str = STACK_NAME, session: Any = None) -> Client:
        """The client of a deployed stack; `session` is a boto3 session, by default the environment's.

        Raises:
            StackNotFound: there is no such stack, or it is not complete.
        """
        session = session or boto3.Session()
        return cls(StackOutputs.read(session, stack_name), session)

    def _aws(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._session.client(service)
        return self._clients[service]

    # --- start and stop ------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, run: str | None = None) -> RunHandle:
        """Starts a run. The same name and spec while it runs answers with the run that is there.

        Raises:
            FindingsError: the name is not legal, or taken.
        """
        name = run or new_run_name()
        if RUN_ID.match(name) is None:
            legal = "1 to 80 letters, digits, hyphens, underscores and dots, beginning with a letter or digit"
            raise FindingsError([Finding(id="BTS-209", message="not a legal name for a run", given=name, legal=legal)])
        document = spec.model_dump(mode="json", exclude_unset=True, by_alias=True)
        try:
            answer = self._aws("stepfunctions").start_execution(
                stateMachineArn=self.outputs.state_machine_arn, name=name, input=json.dumps(document)
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ExecutionAlreadyExists":
                raise
            raise FindingsError([Finding(id="BTS-210", message="there is a run of this name", given=name)]) from None
        return RunHandle(name, str(answer["executionArn"]))

    def stop(self, run: str, cause: str = "stopped by the user") -> None:
        """Stops the execution; its job then gets two minutes to save a checkpoint. Raises RunNotFound."""
        try:
            self._aws("stepfunctions").stop_execution(executionArn=self.execution_arn(run), cause=cause)
        except ClientError as error:
            raise self._not_found(error, run) from None

    def drop(self, path: Path) -> str:
        """Puts a job spec under jobs/, which starts a run as well; returns the key."""
        name = f"{JOBS_PREFIX}{path.name}"
        self.upload(path, name)
        return name

    def upload(self, path: Path, name: str) -> None:
        """Puts a file into the artifacts bucket, for instance under datasets/."""
        self._aws("s3").upload_file(str(path), self.outputs.artifacts_bucket, name)

    # --- read ----------------------------------------------------------------------------------------------------

    def execution_arn(self, run: str) -> str:
        """ARN of the run's execution: the run's name is the execution's."""
        return f"{self.outputs.state_machine_arn.replace(':stateMachine:', ':execution:')}:{run}"

    def status(self, run: str) -> RunState:
        """What is known about the run now. Raises RunNotFound."""
        try:
            execution = self._aws("stepfunctions").describe_execution(executionArn=self.execution_arn(run))
        except ClientError as error:
            raise self._not_found(error, run) from None
        item, attempts = self.item(run), self.attempts(run)
        running = execution["status"] == "RUNNING"
        cause, findings = _cause(execution)
        return RunState(
            run=run,
            status=item.status if item else None,
            execution_status=execution["status"],
            stage=self._stage(run) if running else None,
            item=item,
            attempts=tuple(attempts),
            job_status=self._job_status(attempts) if running else None,
            cause=cause,
            findings=findings,
        )

    def runs(self) -> list[RunItem]:
        """All runs of the run table, newest first."""
        pages = (
            self._aws("dynamodb")
            .get_paginator("scan")
            .paginate(
                TableName=self.outputs.run_table,
                FilterExpression="#attempt = :zero AND attribute_exists(execution_arn)",
                ExpressionAttributeNames={"#attempt": "attempt"},
                ExpressionAttributeValues=encode({":zero": RUN_ITEM_ATTEMPT}),
            )
        )
        items = [RunItem.from_attributes(item) for page in pages for item in page["Items"]]
        return sorted(items, key=lambda item: _time(item.started_at), reverse=True)

    def item(self, run: str) -> RunItem | None:
        """The run's own item of the run table; None before Plan wrote it."""
        answer = self._aws("dynamodb").get_item(
            TableName=self.outputs.run_table, Key=key(run, RUN_ITEM_ATTEMPT), ConsistentRead=True
        )
        return RunItem.from_attributes(answer["Item"]) if answer.get("Item") else None

    def attempts(self, run: str) -> list[AttemptItem]:
        """The run's attempts in order."""
        pages = (
            self._aws("dynamodb")
            .get_paginator("query")
            .paginate(
                TableName=self.outputs.run_table,
                ConsistentRead=True,
                KeyConditionExpression="#run = :run AND #attempt > :zero",
                ExpressionAttributeNames={"#run": "run", "#attempt": "attempt"},
                ExpressionAttributeValues=encode({":run": run, ":zero": RUN_ITEM_ATTEMPT}),
            )
        )
        return [AttemptItem.from_attributes(item) for page in pages for item in page["Items"]]

    def job(self, attempt: AttemptItem) -> dict[str, Any] | None:
        """DescribeTrainingJob of the attempt; None where it has no job."""
        try:
            return dict(self._aws("sagemaker").describe_training_job(TrainingJobName=attempt.job_name))
        except ClientError:
            return None

    def document(self, run: str, name: str) -> bytes:
        """One of the run's documents: report.json, report.html, spec.json, plan.json, findings.json.

        Raises:
            RunNotFound: the run has no such document (yet).
        """
        try:
            answer = self._aws("s3").get_object(Bucket=self.outputs.artifacts_bucket, Key=RunPlaces(run).document(name))
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("NoSuchKey", "404"):
                raise
            raise RunNotFound(f"run {run!r} has no {name}") from None
        return bytes(answer["Body"].read())

    def report(self, run: str) -> dict[str, Any]:
        """The run's report. Raises RunNotFound where there is none yet."""
        return dict(json.loads(self.document(run, "report.json")))

    def findings(self, run: str) -> list[Finding]:
        """All findings about the run's spec."""
        return [Finding.model_validate(f) for f in json.loads(self.document(run, "findings.json"))]

    def log_reader(self) -> LogReader:
        """Reads logs of jobs, each line once."""
        return LogReader(self._aws("logs"))

    # --- follow --------------------------------------------------------------------------------------------------

    def log_lines(
        self, run: str, *, follow: bool = False, sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[str]:
        """The raw log of all the run's jobs, attempt by attempt; with `follow` until the run ends."""
        reader = self.log_reader()
        while True:
            ended = self.status(run).ended
            for attempt in self.attempts(run):
                for _, line in reader.new_lines(attempt.job_name):
                    yield line
            if ended or not follow:
                return
            sleep(POLL_SECONDS)

    def follow(self, run: str, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[Progress]:
        """What happens in the run, as it happens, until it ends. Stopping the iteration does not stop the run."""
        reader = self.log_reader()
        stage: tuple[str | None, str | None] = (None, None)
        while True:
            state = self.status(run)
            attempt = state.attempts[-1].attempt if state.attempts else 0
            for item in state.attempts:
                for _, line in reader.new_lines(item.job_name):
                    progress = _progress(line, run, state.stage, item.attempt)
                    if progress is not None:
                        yield progress
            if state.ended:
                yield Progress(run, "end", None, attempt, text=_ending(state))
                return
            now = (state.stage, state.job_status)
            if now != stage and state.stage is not None and state.stage not in SILENT_STATES:
                stage = now
                words = state.stage if state.job_status is None else f"{state.stage}: {state.job_status}"
                yield Progress(run, "stage", state.stage, attempt, text=words)
            sleep(POLL_SECONDS)

    def _stage(self, run: str) -> str | None:
        history = self._aws("stepfunctions").get_execution_history(
            executionArn=self.execution_arn(run), reverseOrder=True, maxResults=20
        )
        for event in history["events"]:
            details = event.get("stateEnteredEventDetails")
            if details:
                return str(details["name"])
        return None

    def _job_status(self, attempts: list[AttemptItem]) -> str | None:
        if not attempts or attempts[-1].job_arn is None:
            return None
        job = self.job(attempts[-1])
        return str(job["SecondaryStatus"]) if job else None

    def _not_found(self, error: ClientError, run: str) -> Exception:
        if error.response["Error"]["Code"] in ("ExecutionDoesNotExist", "InvalidArn"):
            return RunNotFound(f"there is no run {run!r}")
        return error


class LogReader:
    """Reads each stream of each job from where it stopped."""

    def __init__(self, logs: Any) -> None:
        self._logs = logs
        self._tokens: dict[str, str] = {}

    def new_lines(self, job_name: str) -> Iterator[tuple[int, str]]:
        """(milliseconds since 1970, line) of what the job's streams have gained; nothing where there is no log yet."""
        try:
            pages = self._logs.get_paginator("describe_log_streams").paginate(
                logGroupName=TRAINING_LOG_GROUP, logStreamNamePrefix=f"{job_name}/"
            )
            streams = sorted(stream["logStreamName"] for page in pages for stream in page["logStreams"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return
            raise
        for stream in streams:
            yield from self._stream(stream)

    def _stream(self, stream: str) -> Iterator[tuple[int, str]]:
        while True:
            token = self._tokens.get(stream)
            more = {"nextToken": token} if token else {}
            page = self._logs.get_log_events(
                logGroupName=TRAINING_LOG_GROUP, logStreamName=stream, startFromHead=True, **more
            )
            for event in page["events"]:
                yield event["timestamp"], event["message"]
            following = page.get("nextForwardToken")
            if following is None or following == token:
                return
            self._tokens[stream] = following


def _progress(line: str, run: str, stage: str | None, attempt: int) -> Progress | None:
    step = parse_step(line)
    if step is not None:
        return Progress(run, "step", stage, attempt, step=step[1])
    event = parse_event(line)
    if event is not None:
        return Progress(run, "event", stage, attempt, event=event[1], fields=event[2])
    return None


def _ending(state: RunState) -> str:
    if state.findings:
        return "rejected: " + "; ".join(str(f.get("message")) for f in state.findings)
    verdict = state.verdict or state.execution_status.lower()
    cause = state.item.cause if state.item is not None else state.cause
    return f"{verdict}: {cause}" if cause else verdict


def _cause(execution: Mapping[str, Any]) -> tuple[str | None, tuple[Mapping[str, Any], ...]]:
    text = execution.get("cause")
    if execution.get("error") != "Rejected" or not text:
        return text, ()
    try:
        findings = json.loads(text)["findings"]
    except (ValueError, KeyError, TypeError):
        return text, ()
    return text, tuple(findings)


def _time(text: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(float(text), UTC)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def new_run_name(now: datetime | None = None) -> str:
    """A name for a run that nobody named: the time, and four random characters."""
    return f"run-{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
