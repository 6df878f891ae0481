"""Runs builds: fetches the source, carries out the buildspec phase by phase, keeps record, log and events."""

from __future__ import annotations

import io
import logging
import os
import shlex
import sys
import threading
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local.codebuild.buildspec import Buildspec, BuildspecError, Phase, parse
from local.docker_shim.docker import PRIVILEGED_ENV, WORK_DIR_ENV
from local.overlay.context import OverlayContext
from local.sagemaker.container import Container

log = logging.getLogger("local.codebuild")

PROJECT_ROOT = Path(__file__).resolve().parents[2]
EVENT_TYPE = "CodeBuild Build State Change"
DEFAULT_BUILDSPEC = "buildspec.yml"
_SAVE_STATE = 'trap \'code=$?; export -p > "$LOCAL_STATE/env"; pwd > "$LOCAL_STATE/pwd"; exit $code\' EXIT'


class BuildFailedError(Exception):
    """A phase failed; the message goes into the phase's context."""


class BuildRun:
    """One build from queue to end. `build` is the record that BatchGetBuilds shows."""

    def __init__(self, context: OverlayContext, build: dict[str, Any], project: Mapping[str, Any]) -> None:
        self.context, self.build, self.project = context, build, project
        self.folder = context.work_dir / "builds" / build["id"].replace(":", "-")
        self.source = self.folder / "src"
        self.state = self.folder / "state"
        self.stopped = threading.Event()
        self.timed_out = False
        self._container: Container | None = None
        self._deadline = time.monotonic() + 60.0 * int(build.get("timeoutInMinutes") or 60)

    # ---- record

    def _phase_started(self, name: str) -> None:
        self.build["currentPhase"] = name
        self.build["phases"].append({"phaseType": name, "startTime": time.time()})

    def _phase_ended(self, status: str, message: str = "") -> None:
        phase = self.build["phases"][-1]
        now = time.time()
        phase.update(phaseStatus=status, endTime=now, durationInSeconds=round(now - phase["startTime"]))
        phase["contexts"] = [{"statusCode": "COMMAND_EXECUTION_ERROR" if message else "", "message": message}]
        self._say(f"[Container] Phase complete: {phase['phaseType']} State: {status}")
        if message:
            self._say(f"[Container] Phase context status code: COMMAND_EXECUTION_ERROR Message: {message}")

    def _say(self, *lines: str) -> None:
        logs = self.build["logs"]
        self.context.put_log(logs["groupName"], logs["streamName"], lines)

    def emit(self) -> None:
        """The state change event of the build as it is now."""
        build = self.build
        detail = {
            "build-status": build["buildStatus"],
            "project-name": build["projectName"],
            "build-id": build["arn"],
            "current-phase": build["currentPhase"],
            "additional-information": {
                "initiator": build["initiator"],
                "build-complete": build["buildStatus"] != "IN_PROGRESS",
                "environment": build["environment"],
                "phases": [
                    {"phase-type": p["phaseType"], "phase-status": p.get("phaseStatus")} for p in build["phases"]
                ],
                "logs": {"group-name": build["logs"]["groupName"], "stream-name": build["logs"]["streamName"]},
            },
            "version": "1",
        }
        self.context.emit_event("aws.codebuild", EVENT_TYPE, detail, [build["arn"]])

    def _finish(self, status: str) -> None:
        if self.stopped.is_set():
            status = "STOPPED"
        elif self.timed_out:
            status = "TIMED_OUT"
        for phase in self.build["phases"]:
            phase.setdefault("phaseStatus", status)
            phase.setdefault("endTime", time.time())
        self.build["phases"].append({"phaseType": "COMPLETED", "startTime": time.time()})
        self.build.update(buildStatus=status, currentPhase="COMPLETED", endTime=time.time(), buildComplete=True)
        self.emit()

    # ---- the build

    def run(self) -> None:
        """Never raises: what goes wrong in here ends the build as FAULT."""
        try:
            self._finish("SUCCEEDED" if self._run() else "FAILED")
        except Exception:
            log.exception("build %s", self.build["id"])
            self._finish("FAULT")

    def _run(self) -> bool:
        for name in ("QUEUED", "PROVISIONING"):
            self._phase_started(name)
            self._phase_ended("SUCCEEDED")
        self._phase_started("DOWNLOAD_SOURCE")
        try:
            self._fetch_source()
            spec = self._buildspec()
        except (BuildFailedError, BuildspecError) as error:
            self._phase_ended("FAILED", str(error))
            return False
        self._phase_ended("SUCCEEDED")
        ok = self._phases(spec, self._environment(spec))
        for name in ("UPLOAD_ARTIFACTS", "FINALIZING"):
            self._phase_started(name)
            self._phase_ended("SUCCEEDED")
        return ok

    def _phases(self, spec: Buildspec, environment: dict[str, str]) -> bool:
        """INSTALL and PRE_BUILD end the build when they fail; POST_BUILD follows BUILD whether it failed or not."""
        succeeding = True
        for phase in spec.phases:
            if self.stopped.is_set() or self.timed_out:
                return False
            environment["CODEBUILD_BUILD_SUCCEEDING"] = "1" if succeeding else "0"
            self._phase_started(phase.name.upper())
            failed = self._phase(phase, environment)
            self._phase_ended("FAILED" if failed else "SUCCEEDED", failed or "")
            if failed:
                succeeding = False
                goes_on = phase.name == "build" if phase.on_failure is None else phase.on_failure == "CONTINUE"
                if not goes_on:
                    return False
        return succeeding

    def _phase(self, phase: Phase, environment: dict[str, str]) -> str | None:
        failed: str | None = None
        for command in phase.commands:
            if code := self._command(command, environment):
                failed = f"Error while executing command: {command}. Reason: exit status {code}"
                break
        for command in phase.finally_commands:
            if (code := self._command(command, environment)) and failed is None:
                failed = f"Error while executing command: {command}. Reason: exit status {code}"
        return failed

    def _command(self, command: str, environment: Mapping[str, str]) -> int:
        """One command in a shell of its own, with the variables and folder that the one before left. Its exit code."""
        if self.stopped.is_set() or self.timed_out:
            return 1
        self._say(f"[Container] Running command {command}")
        script = "\n".join(
            [
                'if [ -f "$LOCAL_STATE/env" ]; then . "$LOCAL_STATE/env"; cd "$(cat "$LOCAL_STATE/pwd")"; fi',
                f"export CODEBUILD_BUILD_SUCCEEDING={environment['CODEBUILD_BUILD_SUCCEEDING']}",
                _SAVE_STATE,
                "set -a",  # CodeBuild runs all commands in one shell: plain variables live on as well
                command,
            ]
        )
        ended = threading.Event()
        self._container = Container(
            ["bash", "-c", script],
            cwd=self.source,
            environment=environment,
            on_lines=lambda lines: self._say(*lines),
            on_exit=lambda code: ended.set(),
            spawn=self.context.spawn,
        )
        while not ended.wait(0.1):
            self.timed_out = self.timed_out or time.monotonic() > self._deadline
            if self.stopped.is_set() or self.timed_out:
                self._container.kill()
        return self._container.wait() or 0

    def stop(self) -> None:
        """End the build now."""
        self.stopped.set()
        if self._container is not None:
            self._container.kill()

    # ---- what it works on

    def _fetch_source(self) -> None:
        for folder in (self.source, self.state, self.folder / "home", self.folder / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        source = self.build["source"]
        kind = source.get("type", "NO_SOURCE")
        if kind == "NO_SOURCE":
            return
        if kind != "S3":
            raise BuildFailedError(f"source type {kind}: this server fetches S3 sources")
        bucket, _, key = source["location"].partition("/")
        try:
            body = self.context.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        except Exception as error:
            raise BuildFailedError(f"CLIENT_ERROR: {error} for primary source {source['location']}") from None
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            for item in archive.infolist():
                target = archive.extract(item, self.source)
                if mode := item.external_attr >> 16 & 0o777:
                    Path(target).chmod(mode | 0o600)

    def _buildspec(self) -> Buildspec:
        text = self.build["source"].get("buildspec") or DEFAULT_BUILDSPEC
        if "\n" not in text:
            path = self.source / text
            if not path.is_file():
                raise BuildFailedError(f"YAML_FILE_ERROR: stat {text}: no such file or directory")
            text = path.read_text(encoding="utf-8")
        return parse(text)

    def _environment(self, spec: Buildspec) -> dict[str, str]:
        environment = {
            "PATH": os.pathsep.join(
                [
                    str(command_folder(self.context.work_dir)),
                    str(Path(sys.executable).parent),
                    "/usr/local/bin",
                    "/usr/bin",
                    "/bin",
                ]
            ),
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            **self.context.credentials(),
            "CI": "true",
            "CODEBUILD_BUILD_ID": self.build["id"],
            "CODEBUILD_BUILD_ARN": self.build["arn"],
            "CODEBUILD_BUILD_NUMBER": str(self.build["buildNumber"]),
            "CODEBUILD_INITIATOR": self.build["initiator"],
            "CODEBUILD_SRC_DIR": str(self.source),
            "LOCAL_STATE": str(self.state),
            WORK_DIR_ENV: str(self.context.work_dir),
            PRIVILEGED_ENV: "1" if self.build["environment"].get("privilegedMode") else "0",
            **spec.variables,
        }
        for variable in self.build["environment"].get("environmentVariables") or []:
            if variable.get("type", "PLAINTEXT") != "PLAINTEXT":
                raise BuildspecError(f"variable {variable['name']}: this server knows PLAINTEXT variables")
            environment[variable["name"]] = str(variable["value"])
        return environment


def command_folder(work_dir: Path) -> Path:
    """Folder with the stand-ins `docker` and `aws`, made when missing."""
    folder = work_dir / "bin"
    if not (folder / "aws").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("docker", "aws"):
            path = folder / f"{name}.partial"
            path.write_text(
                "#!/bin/sh\n"
                f"PYTHONPATH={shlex.quote(str(PROJECT_ROOT))} "
                f'exec {shlex.quote(sys.executable)} -m local.docker_shim.{name} "$@"\n'
            )
            path.chmod(0o755)
            path.rename(folder / name)
    return folder
