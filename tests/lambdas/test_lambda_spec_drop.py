"""spec_drop: an object under jobs/ starts one run, whatever is in it and however often its event comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lambda_helpers import Workshop, job_spec

from blackwell.names import RUN_ID
from lambdas.spec_drop.handler import S3Object, execution_input, handler, run_name


def drop(workshop: Workshop, run: str, body: bytes) -> dict[str, str]:
    key = f"jobs/{run}.json"
    workshop.aws.client("s3").put_object(Bucket=workshop.environment["ARTIFACTS_BUCKET"], Key=key, Body=body)
    return handler({"detail": {"object": {"key": key, "etag": "e", "sequencer": "1"}}}, None)


def test_a_spec_starts_its_run(workshop: Workshop, run: str) -> None:
    answer = drop(workshop, run, json.dumps(job_spec()).encode())
    assert answer["result"] == "started"
    assert json.loads(workshop.stepfunctions.started[answer["run"]]) == job_spec()


def test_the_same_event_twice_starts_one_run(workshop: Workshop, run: str) -> None:
    first = drop(workshop, run, b"{}")
    second = drop(workshop, run, b"{}")
    assert first["run"] == second["run"]
    assert len(workshop.stepfunctions.started) == 1


@pytest.mark.parametrize(
    "body", [b"no json", b"", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe", b"[" * 5_000, b"x" * 300_000]
)
def test_what_start_execution_would_refuse_travels_as_a_string(workshop: Workshop, run: str, body: bytes) -> None:
    answer = drop(workshop, run, body)
    sent = workshop.stepfunctions.started[answer["run"]]
    assert isinstance(json.loads(sent), str)
    assert len(sent) < 262_144


@given(key=st.text(max_size=300), version=st.none() | st.text(max_size=40))
def test_every_key_makes_a_legal_name(key: str, version: str | None) -> None:
    dropped = S3Object.model_validate({"key": f"jobs/{key}", "version-id": version, "etag": "e"})
    assert RUN_ID.match(run_name(dropped))


def test_another_version_is_another_run() -> None:
    names = {run_name(S3Object.model_validate({"key": "jobs/a.json", "version-id": v})) for v in ("1", "2")}
    assert len(names) == 2


@given(st.text())
def test_inputs_are_always_json(text: str) -> None:
    json.loads(execution_input(text), parse_constant=lambda constant: pytest.fail(constant))
