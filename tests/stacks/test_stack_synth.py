"""The synthesis: offline, byte-identical, without open findings; the template as a whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cfnlint.api import ManualArgs, lint
from stack_templates import EVERYTHING, ISOLATED, Template, resources
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from blackwell import metrics
from blackwell.telemetry import METRIC_DEFINITIONS, METRIC_FILTER_PATTERN, METRIC_FILTERS, TRAINING_LOG_GROUP
from stacks import asset
from stacks.synth import SynthesisError, main, nag_findings, synthesise

pytestmark = pytest.mark.xdist_group("stacks")


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()
    }


def test_twice_the_same_bytes_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthesise(into=tmp_path / "cdk.out")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the synthesis used the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # for the CDK's library, which runs in Node
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    second = synthesise(into=tmp_path / "elsewhere" / "cdk.out")
    assert _digests(second) == _digests(first)


@pytest.mark.parametrize("settings", [{}, EVERYTHING, ISOLATED], ids=["default", "everything", "isolated"])
def test_cdk_nag_and_cfn_lint_find_nothing(assembly_of: Callable[..., Path], settings: dict[str, Any]) -> None:
    folder = assembly_of(**settings)
    assert nag_findings(folder) == []
    (template,) = folder.glob("*.template.json")
    ignored = yaml.safe_load((asset.ROOT / ".cfnlintrc").read_text())["ignore_checks"]
    assert ignored == ["W3005"]
    found = lint(template.read_text(), config=ManualArgs(ignore_checks=ignored, regions=["us-west-2"]))
    assert [f"{m.rule.id} {m.message}" for m in found] == []


def test_nag_findings_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stacks.storage.acknowledge", lambda *_: None)
    with pytest.raises(SynthesisError, match="AwsSolutions-S1: BlackwellTrainingStack/Storage/"):
        synthesise(into=tmp_path / "cdk.out")


def test_template_is_the_one_that_was_reviewed(template: Template, snapshot: SnapshotAssertion) -> None:
    """`pytest --snapshot-update` takes over a wanted change. Content hashes are left out: code is not the template."""
    text = json.dumps(template)
    for found in _content_hashes(template):
        text = text.replace(found, "<content hash>")
    assert json.loads(text) == snapshot(extension_class=JSONSnapshotExtension)


def _content_hashes(template: Template) -> set[str]:
    functions = resources(template, "AWS::Lambda::Function").values()
    (project,) = resources(template, "AWS::CodeBuild::Project").values()
    variables = project["Properties"]["Environment"]["EnvironmentVariables"]
    tag = next(v["Value"] for v in variables if v["Name"] == "IMAGE_TAG")
    source = project["Properties"]["Source"]["Location"]["Fn::Join"][1][-1]
    return {
        tag,
        source.strip("/").removesuffix(".zip"),
        *(f["Properties"]["Code"]["S3Key"].removesuffix(".zip") for f in functions),
    }


def test_partitions(tmp_path: Path, template: Template) -> None:
    """The template fits any region of any partition: no partition, region or domain is written out."""
    text = json.dumps({k: v for k, v in template.items() if k != "Mappings"})
    assert "arn:aws:" not in text
    assert "us-east-1" not in text
    mapping = template["Mappings"]["DeepLearningContainers"]
    accounts = {region: values["account"] for region, values in mapping.items()}
    assert accounts["us-west-2"] == accounts["eu-central-1"] == "763104351884"
    assert accounts["cn-north-1"] == "727897471807"
    assert accounts["us-gov-west-1"] == "442386744353"
    assert accounts["eu-south-2"] == "503227376785"
    (project,) = resources(template, "AWS::CodeBuild::Project").values()
    registry = next(
        v for v in project["Properties"]["Environment"]["EnvironmentVariables"] if v["Name"] == "BASE_REGISTRY"
    )
    assert {"Ref": "AWS::URLSuffix"} in registry["Value"]["Fn::Join"][1]
    assert {"Ref": "AWS::Region"} in registry["Value"]["Fn::Join"][1]


def test_no_function_but_ours(template: Template) -> None:
    """No helper function of the CDK's own: those leave log groups behind, and run Node."""
    for function in resources(template, "AWS::Lambda::Function").values():
        properties = function["Properties"]
        assert properties["Runtime"] == f"python{asset.PYTHON[0]}.{asset.PYTHON[1]}"
        assert properties["Handler"].startswith("lambdas.")
        assert "LogGroup" in properties["LoggingConfig"]


def test_nothing_is_left_behind_and_nothing_may_bring_it_back(template: Template) -> None:
    kept = {n: r.get("DeletionPolicy") for n, r in template["Resources"].items() if r.get("DeletionPolicy") == "Retain"}
    assert kept == {}
    for name in resources(template, "AWS::Logs::LogGroup"):
        assert template["Resources"][name]["DeletionPolicy"] == "Delete"
    may_create = {
        name
        for name, policy in resources(template, "AWS::IAM::Policy").items()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "logs:CreateLogGroup" in statement["Action"]
    }
    # the jobs' shared group only, which is not the stack's
    assert {n for n in may_create if not n.startswith(("RolesExecution", "ObservabilityLogGroupAdopter"))} == set()


def test_retain_data_keeps_the_buckets_and_nothing_else(template_of: Callable[..., Template]) -> None:
    template = template_of(**EVERYTHING)
    kept = {r["Type"] for r in template["Resources"].values() if r.get("DeletionPolicy") == "Retain"}
    assert kept == {"AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::KMS::Key"} or kept == {
        "AWS::S3::Bucket",
        "AWS::KMS::Key",
    }


def test_buckets(template: Template) -> None:
    buckets = resources(template, "AWS::S3::Bucket").values()
    assert len(buckets) == 2
    for bucket in (b["Properties"] for b in buckets):
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        rules = {r["Id"]: r for r in bucket["LifecycleConfiguration"]["Rules"]}
        assert rules["incomplete-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
        assert rules["replaced-versions"]["NoncurrentVersionExpiration"]["NoncurrentDays"] == 30
    notified = [b["Properties"].get("NotificationConfiguration") for b in buckets]
    assert {"EventBridgeConfiguration": {"EventBridgeEnabled": True}} in notified
    for policy in resources(template, "AWS::S3::BucketPolicy").values():
        denied = [s for s in policy["Properties"]["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in [s["Condition"] for s in denied]


def test_repository_and_build(template: Template) -> None:
    (repository,) = resources(template, "AWS::ECR::Repository").values()
    assert repository["Properties"]["ImageTagMutability"] == "IMMUTABLE"
    assert repository["Properties"]["EmptyOnDelete"] is True
    assert repository["Properties"]["ImageScanningConfiguration"] == {"ScanOnPush": True}
    (project,) = resources(template, "AWS::CodeBuild::Project").values()
    assert project["Properties"]["LogsConfig"]["CloudWatchLogs"]["Status"] == "ENABLED"


def test_teardown_is_deleted_before_everything_else(template: Template) -> None:
    (resource,) = resources(template, "Custom::Teardown").values()
    (name,) = resources(template, "Custom::Teardown")
    assert set(resource["DependsOn"]) == set(template["Resources"]) - {name}
    assert int(resource["Properties"]["ServiceTimeout"]) == int(resource["Properties"]["ServiceTimeoutSeconds"]) == 3600


def test_outputs_that_clients_rely_on(template: Template) -> None:
    assert set(template["Outputs"]) == {
        "StateMachineArn", "SweepStateMachineArn", "ArtifactsBucket", "CheckpointBucket", "RepositoryUri", "RunTable", "BuildProject",
        "ExecutionRoleArn", "TopicArn", "DashboardName", "JobPrefix",
    }  # fmt: skip


def test_topic_is_encrypted_and_alarms_and_rules_may_publish(template: Template) -> None:
    (topic,) = resources(template, "AWS::SNS::Topic").values()
    (key,) = resources(template, "AWS::KMS::Key")
    assert topic["Properties"]["KmsMasterKeyId"] == {"Fn::GetAtt": [key, "Arn"]}
    policy = template["Resources"][key]["Properties"]["KeyPolicy"]["Statement"]
    users = [s["Principal"].get("Service", []) for s in policy]
    assert ["cloudwatch.amazonaws.com", "events.amazonaws.com"] in users
    (topic_policy,) = resources(template, "AWS::SNS::TopicPolicy").values()
    statements = topic_policy["Properties"]["PolicyDocument"]["Statement"]
    publishers = {
        s["Principal"]["Service"] for s in statements if s["Effect"] == "Allow" and "Service" in s["Principal"]
    }
    assert {"cloudwatch.amazonaws.com", "events.amazonaws.com"} <= publishers


def test_alarms_of_everything_that_a_person_should_know(template: Template) -> None:
    alarms = resources(template, "AWS::CloudWatch::Alarm")
    names = {n.removeprefix("Alarms")[:-8] for n in alarms}
    assert {"RunFailed", "Silence", "CheckpointNotDurable", "ThroughputDrop", "BudgetNearlySpent", "ExecutionTimedOut",
            "ImageBuildFailed"} <= names  # fmt: skip
    # not of the CDK's own function; Launch's and EnsureImage's errors are ordinary outcomes with alarms of their own
    assert len([n for n in names if n.endswith("Errors")]) == len(resources(template, "AWS::Lambda::Function")) - 3
    for alarm in (a["Properties"] for a in alarms.values()):
        assert alarm["TreatMissingData"] == "notBreaching"
        assert alarm["AlarmActions"]
        assert len(alarm["AlarmDescription"]) > 20


def test_metric_filters_stand_on_a_group_that_is_there_and_not_ours(template: Template) -> None:
    (adopted,) = resources(template, "Custom::TrainingLogGroup")
    filters = resources(template, "AWS::Logs::MetricFilter")
    assert len(filters) == len(METRIC_FILTERS)
    for made in filters.values():
        assert made["Properties"]["FilterPattern"] == METRIC_FILTER_PATTERN
        assert made["Properties"]["LogGroupName"] == TRAINING_LOG_GROUP
        assert adopted in made["DependsOn"]
    assert TRAINING_LOG_GROUP not in [
        g["Properties"].get("LogGroupName") for g in resources(template, "AWS::Logs::LogGroup").values()
    ]


def test_dashboard_shows_what_is_published(template: Template) -> None:
    (dashboard,) = resources(template, "AWS::CloudWatch::Dashboard").values()
    body = json.dumps(dashboard["Properties"]["DashboardBody"])
    for metric in (*METRIC_FILTERS, "mfu_percent", "memory_reserved_peak_gb", "GPUUtilization", *metrics.UNITS):
        if metric not in ("Step", metrics.THROUGHPUT_RATIO):
            assert metric in body, metric
    defined = {d["Name"] for d in METRIC_DEFINITIONS}
    assert {"mfu_percent", "memory_reserved_peak_gb"} <= defined


def test_kms_encrypts_all_that_can_be(template_of: Callable[..., Template]) -> None:
    template = template_of(**EVERYTHING)
    (key,) = resources(template, "AWS::KMS::Key").values()
    assert key["Properties"]["EnableKeyRotation"] is True
    for group in resources(template, "AWS::Logs::LogGroup").values():
        assert "KmsKeyId" in group["Properties"]
    (topic,) = resources(template, "AWS::SNS::Topic").values()
    assert "KmsMasterKeyId" in topic["Properties"]
    (table,) = resources(template, "AWS::DynamoDB::Table").values()
    assert table["Properties"]["SSESpecification"]["SSEType"] == "KMS"


def test_jobs_may_use_the_key_for_what_they_write_and_for_their_volumes(template_of: Callable[..., Template]) -> None:
    """SageMaker asks kms:Encrypt of the execution role for outputs, and kms:CreateGrant for an instance's volume."""
    template = template_of(**EVERYTHING)
    policy = next(v for k, v in resources(template, "AWS::IAM::Policy").items() if k.startswith("RolesExecution"))
    statements = {s["Sid"]: s for s in policy["Properties"]["PolicyDocument"]["Statement"] if "Sid" in s}
    assert set(statements["KeyOfOutputs"]["Action"]) == {"kms:Encrypt", "kms:DescribeKey"}
    assert statements["KeyOfVolumes"]["Action"] == "kms:CreateGrant"
    assert statements["KeyOfVolumes"]["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}


def test_a_named_zone_is_the_network_s_only_one(template_of: Callable[..., Template]) -> None:
    """An instance type and a training plan are in one zone; the first two of a region need not be among them."""
    template = template_of(vpc={"availability_zones": ["us-east-1d"]})
    (subnet,) = resources(template, "AWS::EC2::Subnet").values()
    assert subnet["Properties"]["AvailabilityZone"] == "us-east-1d"


def test_logs_of_state_machines_hold_no_data(template: Template) -> None:
    """AwaitJob's input holds the task token, and a spec may hold what its owner does not want in a log."""
    for machine in resources(template, "AWS::StepFunctions::StateMachine").values():
        assert machine["Properties"]["LoggingConfiguration"]["IncludeExecutionData"] is False


def test_ordinary_outcomes_page_nobody(template: Template) -> None:
    """Capacity waits and failed builds are errors of Launch and EnsureImage, with verdicts and alarms of their own."""
    names = [name for name in resources(template, "AWS::CloudWatch::Alarm") if "Errors" in name]
    assert not [name for name in names if "Launch" in name or "EnsureImage" in name]
    assert {"Plan", "Assess", "Guard", "Report"} <= {
        n for n in ("Plan", "Assess", "Guard", "Report") if any(n in a for a in names)
    }


def test_vpc_has_no_way_out_but_endpoints(template_of: Callable[..., Template]) -> None:
    template = template_of(**EVERYTHING)
    assert resources(template, "AWS::EC2::InternetGateway") == {}
    assert resources(template, "AWS::EC2::NatGateway") == {}
    assert len(resources(template, "AWS::EC2::VPCEndpoint")) == 6
    launch = next(v for k, v in resources(template, "AWS::Lambda::Function").items() if k.startswith("FunctionsLaunch"))
    assert launch["Properties"]["Environment"]["Variables"]["SUBNETS"]
    launch_group = launch["Properties"]["Environment"]["Variables"]["SECURITY_GROUPS"]["Fn::GetAtt"][0]
    (teardown,) = resources(template, "Custom::Teardown").values()
    assert teardown["Properties"]["SecurityGroup"] == {"Fn::GetAtt": [launch_group, "GroupId"]}
    # EFA: everything, both ways, within the group
    rules = [r["Properties"] for r in resources(template, "AWS::EC2::SecurityGroupIngress").values()]
    assert any(r["IpProtocol"] == "-1" and r.get("SourceSecurityGroupId") == r["GroupId"] for r in rules)
    rules = [r["Properties"] for r in resources(template, "AWS::EC2::SecurityGroupEgress").values()]
    assert any(r["IpProtocol"] == "-1" and r.get("DestinationSecurityGroupId") == r["GroupId"] for r in rules)


@pytest.mark.parametrize("which", ["Workflow", "Sweep"])
def test_state_machine_passes_both_validators(
    template: Template, repository_root: Path, tmp_path: Path, which: str
) -> None:
    machines = resources(template, "AWS::StepFunctions::StateMachine")
    assert len(machines) == 2
    (machine,) = (m for name, m in machines.items() if name.startswith(which))
    definition = machine["Properties"]["DefinitionString"]
    parts = definition["Fn::Join"][1] if isinstance(definition, dict) else [definition]
    text = "".join(p if isinstance(p, str) else "aws" for p in parts)
    for name in machine["Properties"]["DefinitionSubstitutions"]:
        text = text.replace(f"${{{name}}}", f"arn:aws:lambda:us-east-1:123456789012:function:{name}")
    file = tmp_path / "machine.asl.json"
    file.write_text(text)
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}

    def run(*command: Path | str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)

    done = run(bin_folder / "statelint", file)
    # statelint 3.1.0 does not know that these fields may be a JSONata expression, as the language's specification says
    wrong = [
        line
        for line in done.stdout.splitlines()[1:]
        if not re.search(r'\.(Seconds|MaxConcurrency) is "{%.*%}" but should be', line)
    ]
    assert [line for line in wrong if line.strip()] == []
    assert done.stderr == ""
    done = run(repository_root / "node_modules/.bin/asl-validator", "--json-path", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_bad_settings_end_the_synthesis_with_every_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["synth", "max_instances=0", "stagge=prod"])
    assert main() == 1
    said = capsys.readouterr().err
    assert "max_instances" in said
    assert "stagge" in said


def test_missing_or_stale_asset_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repository_root: Path
) -> None:
    monkeypatch.setattr(asset, "WHEELS", tmp_path / "none")
    with pytest.raises(asset.AssetError, match="make setup"):
        asset.stage()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / asset.STAMP).write_text("another lock file")
    monkeypatch.setattr(asset, "WHEELS", tmp_path / "old")
    with pytest.raises(asset.AssetError, match=r"python -m stacks\.asset"):
        asset.stage()
