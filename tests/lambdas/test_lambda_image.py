"""EnsureImage: one build per image, shared, repeatable, and a failure that says why."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from lambda_helpers import Workshop

from lambdas.common.environment import environment
from lambdas.common.errors import ImageFailed
from lambdas.common.store import RunStore
from lambdas.ensure_image import handler as ensure_image


@pytest.fixture
def tag(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> str:
    tag = uuid.uuid4().hex
    monkeypatch.setenv("IMAGE_TAG", tag)
    environment.cache_clear()
    return tag


def call(run: str, build_id: str | None = None) -> dict[str, Any]:
    return ensure_image.handler({"run": run, "build_id": build_id}, None)


def test_an_image_that_is_there_is_taken(workshop: Workshop, planned: Callable[..., Any], run: str, tag: str) -> None:
    planned()
    digest = workshop.push_image(tag)
    answer = call(run)
    assert answer["ready"]
    assert answer["image"].endswith(f"@{digest}")
    assert workshop.codebuild.builds == {}
    record = RunStore().run(run)
    assert record is not None
    assert record.image == answer["image"]


def test_two_executions_share_one_build(workshop: Workshop, planned: Callable[..., Any], run: str, tag: str) -> None:
    planned()
    planned(f"{run}-2")
    first, second = call(run), call(f"{run}-2")
    assert first["build_id"] == second["build_id"] is not None
    assert len(workshop.codebuild.builds) == 1
    workshop.codebuild.builds[first["build_id"]]["buildStatus"] = "SUCCEEDED"
    workshop.push_image(tag)
    assert call(run, first["build_id"])["ready"]
    assert call(f"{run}-2", first["build_id"])["ready"]


def test_a_failed_build_fails_those_who_waited(
    workshop: Workshop, planned: Callable[..., Any], run: str, tag: str
) -> None:
    planned()
    build_id = call(run)["build_id"]
    build = workshop.codebuild.builds[build_id]
    message = "selftest: torch: failed"
    build |= {
        "buildStatus": "FAILED",
        "phases": [{"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": message}]}],
    }
    with pytest.raises(ImageFailed, match=message):
        call(run, build_id)


def test_the_next_execution_builds_again(workshop: Workshop, planned: Callable[..., Any], run: str, tag: str) -> None:
    planned()
    build_id = call(run)["build_id"]
    workshop.codebuild.builds[build_id]["buildStatus"] = "FAILED"
    again = call(run)["build_id"]  # no build was seen before: another execution
    assert again not in (None, build_id)
    assert len(workshop.codebuild.builds) == 2


def test_a_success_without_an_image_is_a_failure(
    workshop: Workshop, planned: Callable[..., Any], run: str, tag: str
) -> None:
    planned()
    build_id = call(run)["build_id"]
    workshop.codebuild.builds[build_id]["buildStatus"] = "SUCCEEDED"
    with pytest.raises(ImageFailed, match="SUCCEEDED"):
        call(run, build_id)


def test_a_dead_holder_is_replaced_by_one_who_gets_the_same_build(
    workshop: Workshop, planned: Callable[..., Any], run: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function died between StartBuild and the lock: within the lease others wait, afterwards they take over."""
    planned()

    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "set_build", die)
        with pytest.raises(SystemExit):
            call(run)
    assert call(run)["build_id"] is None
    later = ensure_image.utc_now() + timedelta(minutes=2)
    monkeypatch.setattr(ensure_image, "utc_now", lambda: later)
    assert call(run)["build_id"] is not None
    assert len(workshop.codebuild.builds) == 1


@pytest.mark.parametrize(("minutes", "seconds"), [(0, 5), (4, 30), (60, 120)])
def test_the_longer_a_build_takes_the_rarer_the_looks(
    workshop: Workshop, planned: Callable[..., Any], run: str, tag: str, minutes: int, seconds: int
) -> None:
    planned()
    build_id = call(run)["build_id"]
    workshop.codebuild.builds[build_id]["startTime"] -= timedelta(minutes=minutes)
    assert call(run, build_id)["wait_seconds"] == seconds
