"""Names of jobs and places of runs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackwell import names

LEGAL_JOB_NAME = re.compile(r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")  # botocore's TrainingJobName pattern
RUN_IDS = st.from_regex(names.RUN_ID, fullmatch=True)


def test_a_short_legal_run_keeps_its_name() -> None:
    assert names.job_name("blackwell-dev", "my-run", 2) == "blackwell-dev-my-run-a2"
    upper, lower = (names.job_name("blackwell-dev", run, 1) for run in ("My-Run", "my-run"))
    assert upper == upper.lower() != lower


@given(run=RUN_IDS, attempt=st.integers(1, 20), prefix=st.sampled_from(["b", "blackwell-dev", "blackwell-" + "s" * 20]))
def test_every_run_gets_a_legal_job_name(run: str, attempt: int, prefix: str) -> None:
    name = names.job_name(prefix, run, attempt)
    assert LEGAL_JOB_NAME.match(name), name
    assert len(name) <= names.JOB_NAME_MAX
    assert name.startswith(prefix + "-")
    assert name.endswith(f"-a{attempt}")


@given(runs=st.lists(RUN_IDS, min_size=2, max_size=2, unique=True))
def test_two_runs_never_share_a_job_name(runs: list[str]) -> None:
    first, second = (names.job_name("blackwell-dev", run, 1) for run in runs)
    assert first != second


def test_runs_that_differ_only_in_illegal_characters_or_their_tail_stay_apart() -> None:
    long = "r" * 79
    samples = ["a_b", "a-b", "a__b", "a--b", "a-b-", long + "x", long + "y"]
    assert len({names.job_name("blackwell-dev", run, 1) for run in samples}) == len(samples)


def test_places_of_a_run() -> None:
    places = names.RunPlaces("r1")
    assert places.document("report.json") == "runs/r1/report.json"
    assert places.control == "runs/r1/control.json"
    assert places.checkpoints == "runs/r1/checkpoints/"
    assert names.CHECKPOINT_FOLDER.match(names.checkpoint_folder(100))


def test_s3_uris_split_and_join() -> None:
    assert names.split_s3_uri(names.s3_uri("bucket", "a/b")) == ("bucket", "a/b")
    with pytest.raises(ValueError, match="not an S3 URI"):
        names.split_s3_uri("https://bucket/a")
