"""Names and places: where a run keeps its things, what its jobs are called, which keys its table has.

Run id = execution name. Attempt numbers start at 1; the run table's item with attempt 0 is the run itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

JOB_NAME_MAX = 63  # CreateTrainingJob TrainingJobName: 1-63, [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}
RUN_TAG = "blackwell:run"
ATTEMPT_TAG = "blackwell:attempt"
STAGE_TAG = "blackwell:stage"

RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
"""Execution names: what Step Functions takes (80 characters) and what has no white space or slash."""

TABLE_RUN_KEY = "run"
TABLE_ATTEMPT_KEY = "attempt"
RUN_ITEM_ATTEMPT = 0

RUNS_PREFIX = "runs/"
CONTROL_FILE = "control.json"
CHECKPOINTS_FOLDER = "checkpoints"
DATASETS_PREFIX = "datasets/"
JOBS_PREFIX = "jobs/"
"""A job spec put under this prefix of the artifacts bucket starts a run."""

SWEEPS_PREFIX = "sweeps/"


STACK_NAME = "BlackwellTrainingStack"
"""What is typed after `cdk deploy`, whatever the stage."""
DEFAULT_STAGE = "dev"
PRODUCT = "blackwell"
JOB_PREFIX_MAX = JOB_NAME_MAX // 2
"""The other half of a job's name stays for the run."""


def stack_name(stage: str) -> str:
    """CloudFormation's name of the stage's stack: two stages live in one account and region."""
    return STACK_NAME if stage == DEFAULT_STAGE else f"{STACK_NAME}-{stage}"


def job_prefix(stage: str) -> str:
    """First part of the name of every training job of the stage; policies, events and teardown select by it and `-`."""
    plain = f"{PRODUCT}-{stage}"
    if len(plain) <= JOB_PREFIX_MAX:
        return plain
    return f"{plain[: JOB_PREFIX_MAX - 8]}{hashlib.sha256(stage.encode()).hexdigest()[:8]}"


def job_name(prefix: str, run: str, attempt: int) -> str:
    """The training job's name: `<prefix>-<run>-a<attempt>`, at most 63 legal characters, one to one with the run.

    A short hash of the run is added whenever its name had to be changed or shortened. In lower case: SageMaker writes
    some ARNs so, and a lookup by such an ARN must find the job.
    """
    suffix = f"-a{attempt}"
    legal = re.sub(r"-+$", "", re.sub(r"[^a-z0-9-]", "-", run.lower())).lstrip("-")
    room = JOB_NAME_MAX - len(prefix) - 1 - len(suffix)
    if legal != run or len(legal) > room:
        digest = hashlib.sha256(run.encode()).hexdigest()[:8]
        legal = f"{legal[: room - 9].rstrip('-')}-{digest}".lstrip("-")
    return f"{prefix}-{legal}{suffix}"


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """S3 keys of one run: documents in the artifacts bucket, checkpoints in the checkpoint bucket."""

    run: str

    @property
    def prefix(self) -> str:
        return f"{RUNS_PREFIX}{self.run}/"

    def document(self, name: str) -> str:
        """Key of `spec.json`, `plan.json`, `findings.json`, `report.json`, `report.html` in the artifacts bucket."""
        return f"{self.prefix}{name}"

    @property
    def control(self) -> str:
        """Key of the control file in the artifacts bucket, polled by rank 0."""
        return f"{self.prefix}{CONTROL_FILE}"

    @property
    def checkpoints(self) -> str:
        """Key prefix of the checkpoints in the checkpoint bucket."""
        return f"{self.prefix}{CHECKPOINTS_FOLDER}/"

    @property
    def model_output(self) -> str:
        """Key prefix of SageMaker's OutputDataConfig in the checkpoint bucket."""
        return f"{self.prefix}output/"


@dataclass(frozen=True, slots=True)
class SweepPlaces:
    """S3 keys of one sweep, all in the artifacts bucket. Its runs keep their own places."""

    sweep: str

    def document(self, name: str) -> str:
        """Key of `spec.json`, `plan.json`, `findings.json`, `report.json`, `report.html`."""
        return f"{SWEEPS_PREFIX}{self.sweep}/{name}"

    def job(self, point: str) -> str:
        """Key of the point's job spec, which its run starts with."""
        return self.document(f"points/{point}/job.json")

    def record(self, point: str) -> str:
        """Key of what the point's run measured."""
        return self.document(f"points/{point}/record.json")


def checkpoint_folder(step: int) -> str:
    """Folder of the checkpoint after `step` optimizer steps."""
    return f"step-{step:08d}"


CHECKPOINT_FOLDER = re.compile(r"^step-(\d{8,})$")
MANIFEST = "MANIFEST.json"


def s3_uri(bucket: str, key: str) -> str:
    return f"s3://{bucket}/{key}"


def split_s3_uri(uri: str) -> tuple[str, str]:
    """(bucket, key) of an s3:// URI. Raises ValueError for anything else."""
    match = re.match(r"^s3://([^/]+)/?(.*)$", uri)
    if match is None:
        raise ValueError(f"not an S3 URI: {uri!r}")
    return match[1], match[2]
