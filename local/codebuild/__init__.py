"""CodeBuild, which ministack only pretends: builds really run their buildspec, with stand-ins for docker and aws."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from local.overlay.context import OverlayContext

_OVERRIDES = {
    "sourceTypeOverride": ("source", "type"),
    "sourceLocationOverride": ("source", "location"),
    "buildspecOverride": ("source", "buildspec"),
    "imageOverride": ("environment", "image"),
    "computeTypeOverride": ("environment", "computeType"),
    "environmentTypeOverride": ("environment", "type"),
    "privilegedModeOverride": ("environment", "privilegedMode"),
}


def install(context: OverlayContext) -> None:
    """Replaces ministack's StartBuild and StopBuild, and keeps what CloudFormation says about a project's logs."""
    from ministack.services import codebuild, stepfunctions
    from ministack.services.cloudformation import provisioners

    from local.codebuild.host import BuildRun
    from local.faults import engine_of, hooks

    runs: dict[str, BuildRun] = {}
    by_token: dict[tuple[str, str], str] = {}
    faults = engine_of(context)

    def start_build(request: Mapping[str, Any]) -> Any:
        project = codebuild._projects.get(request.get("projectName", ""))
        if project is None:
            return codebuild._start_build_stock(request)
        token = (project["name"], request.get("idempotencyToken") or "")
        known = by_token.get(token) if token[1] else None
        if known is None or known not in codebuild._builds:
            build = new_build(codebuild, project, request)
            codebuild._builds[build["id"]] = build
            by_token[token] = known = build["id"]
            run = runs[known] = BuildRun(context, build, copy.deepcopy(project))
            run.emit()
            context.spawn(run.run, name=f"build-{known}")
        return hooks.after_call(faults, "codebuild", "StartBuild", json.dumps(request)) or codebuild.json_response(
            {"build": copy.deepcopy(codebuild._builds[known])}
        )

    def stop_build(request: Mapping[str, Any]) -> Any:
        run = runs.get(request.get("id", ""))
        if run is None or run.build["buildStatus"] != "IN_PROGRESS":
            return codebuild._stop_build_stock(request)
        run.stop()
        return codebuild.json_response({"build": copy.deepcopy(run.build)})

    codebuild._start_build_stock, codebuild._stop_build_stock = codebuild._start_build, codebuild._stop_build
    codebuild._start_build, codebuild._stop_build = start_build, stop_build
    handlers = provisioners._RESOURCE_HANDLERS["AWS::CodeBuild::Project"]
    handlers["create"] = _with_logs(handlers["create"], codebuild, provisioners)
    handlers["update"] = _with_logs(handlers["update"], codebuild, provisioners)
    stepfunctions._AWS_SDK_SERVICE_MAP["codebuild"] = {"target_prefix": "CodeBuild_20161006", "protocol": "json"}
    stepfunctions._AWS_SDK_ERROR_PREFIX["codebuild"] = "CodeBuild"

    def stop_all() -> None:
        for run in list(runs.values()):
            run.stop()

    context.on_stop(stop_all)


def new_build(codebuild: Any, project: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a build that is about to run: the project's settings with the request's overrides."""
    identity = codebuild._build_id(project["name"])
    build: dict[str, Any] = codebuild._make_build_record(copy.deepcopy(project), identity, request.get("sourceVersion"))
    now = time.time()
    build.pop("endTime", None)
    build.update(
        startTime=now,
        buildStatus="IN_PROGRESS",
        buildComplete=False,
        currentPhase="SUBMITTED",
        phases=[{"phaseType": "SUBMITTED", "phaseStatus": "SUCCEEDED", "startTime": now, "endTime": now}],
    )
    build["timeoutInMinutes"] = request.get("timeoutInMinutesOverride", project.get("timeoutInMinutes", 60))
    for override, (section, name) in _OVERRIDES.items():
        if override in request:
            build.setdefault(section, {})[name] = request[override]
    variables = {v["name"]: v for v in build["environment"].get("environmentVariables") or []}
    variables.update({v["name"]: v for v in request.get("environmentVariablesOverride") or []})
    build["environment"]["environmentVariables"] = list(variables.values())
    configured = (project.get("logsConfig") or {}).get("cloudWatchLogs") or {}
    if configured.get("groupName"):
        stream = identity.partition(":")[2]
        prefix = configured.get("streamName")
        build["logs"].update(groupName=configured["groupName"], streamName=f"{prefix}/{stream}" if prefix else stream)
    return build


def _with_logs(provision: Callable[..., Any], codebuild: Any, provisioners: Any) -> Callable[..., Any]:
    """A CloudFormation handler that also keeps LogsConfig, which ministack drops."""

    def handler(*arguments: Any) -> Any:
        result = provision(*arguments)
        properties = arguments[-2]  # create(logical id, properties, stack), update(id, old, new, stack)
        if "LogsConfig" in properties:
            codebuild._projects[result[0]]["logsConfig"] = provisioners._pascal_to_camel(properties["LogsConfig"])
        return result

    return handler
