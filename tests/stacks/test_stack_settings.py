"""Settings: where a value comes from, and every illegal one named at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blackwell.findings import FindingsError
from blackwell.names import JOB_NAME_MAX, job_name
from stacks.settings import PUBLISHED_PAIR, load_settings
from stacks.synth import context_of_cdk_json


def test_defaults_of_cdk_json_are_legal() -> None:
    settings = load_settings(context_of_cdk_json())
    assert settings.stage == "dev"
    assert settings.instance_types == ("ml.p6-b200.48xlarge", "ml.p6-b300.48xlarge", "ml.c7i.2xlarge")


def test_rehearsal_type_is_for_stage_dev_only() -> None:
    assert "ml.c7i.2xlarge" not in load_settings({"stage": "prod"}).instance_types


def test_command_line_beats_stage_beats_default() -> None:
    context = {"stages": {"prod": {"max_instances": 8, "retain_data": True}}, "stage": "prod", "max_instances": "2"}
    settings = load_settings(context)
    assert (settings.max_instances, settings.retain_data, settings.guard_minutes) == (2, True, 5)


def test_text_of_the_command_line_becomes_typed() -> None:
    settings = load_settings(
        {"allowed_instance_types": "ml.p6-b200.48xlarge, ml.p5.48xlarge", "vpc": "true", "base_image": "published"}
    )
    assert settings.instance_types == ("ml.p6-b200.48xlarge", "ml.p5.48xlarge")
    assert settings.vpc is not None
    assert settings.base_image == PUBLISHED_PAIR


@pytest.mark.parametrize("zones", [3, [], ["b"], ["us-east-1"]])
def test_zones_are_two_at_most_or_named(zones: Any) -> None:
    with pytest.raises(FindingsError) as refused:
        load_settings({"vpc": {"availability_zones": zones}})
    assert {f.path.split(".")[:2] == ["vpc", "availability_zones"] for f in refused.value.findings} == {True}
    named = load_settings({"vpc": '{"availability_zones": ["us-gov-west-1a", "us-gov-west-1c"]}'})
    assert named.vpc is not None
    assert named.vpc.availability_zones == ("us-gov-west-1a", "us-gov-west-1c")


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(FindingsError) as refused:
        load_settings(
            {"stage": "Prod-1", "max_instances": "0", "retain_dat": True, "allowed_instance_types": "p6-b200"}
        )
    said = {(f.path, f.id) for f in refused.value.findings}
    assert {("stage", "BTS-006"), ("max_instances", "BTS-006"), ("retain_dat", "BTS-003")} <= said


def test_instance_type_without_prefix_names_the_nearest() -> None:
    with pytest.raises(FindingsError) as refused:
        load_settings({"allowed_instance_types": "p6-b200.48xlarge"})
    assert [f.nearest for f in refused.value.findings] == ["ml.p6-b200.48xlarge"]


def test_cdk_s_own_context_is_not_ours() -> None:
    load_settings({"@aws-cdk/core:x": True, "aws:cdk:enable-path-metadata": True, "aws-cdk:x": 1})


@pytest.mark.parametrize("stage", ["a", "dev", "x" * 22, "x" * 23, "x" * 40])
def test_no_stage_name_breaks_a_job_name(stage: str) -> None:
    prefix = load_settings({"stage": stage}).job_prefix
    name = job_name(prefix, "r" * 80, 99)
    assert len(name) <= JOB_NAME_MAX
    assert name.startswith(f"{prefix}-r")


def test_long_stage_names_stay_apart() -> None:
    one, other = (load_settings({"stage": "x" * 39 + last}).job_prefix for last in "ab")
    assert one != other


def test_no_stage_s_jobs_look_like_another_s() -> None:
    """`blackwell-dev-` must not begin a job name of any other legal stage."""
    with pytest.raises(FindingsError):
        load_settings({"stage": "dev-2"})
    assert not job_name(load_settings({"stage": "dev2"}).job_prefix, "x", 1).startswith("blackwell-dev-")


def test_default_stage_keeps_the_typed_name_and_others_carry_theirs() -> None:
    assert load_settings({}).stack_name == "BlackwellTrainingStack"
    assert load_settings({"stage": "prod"}).stack_name == "BlackwellTrainingStack-prod"


def test_cdk_json_sets_every_recommended_flag() -> None:
    """`cdk flags --set --recommended --all` wrote them; a value that was changed by hand shows here."""
    flags = {k: v for k, v in context_of_cdk_json().items() if k.startswith("@aws-cdk")}
    assert len(flags) > 90
    json.dumps(flags)
