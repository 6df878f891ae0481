"""The command line `docker`, as far as a build needs it: build, run, tag, push, login, inspect, images, version."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local.docker_shim.dockerfile import Builder, BuildError, parse
from local.docker_shim.store import Image, ImageStore, registry_of, with_tag

WORK_DIR_ENV = "LOCAL_AWS_WORK_DIR"
PRIVILEGED_ENV = "LOCAL_AWS_PRIVILEGED"
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
VERSION = "stand-in 1.0"
SELFTEST_CPU = "BLACKWELL_SELFTEST_CPU"
"""Belongs to this machine as a base image, as the CUDA build belongs to the real one: see container/selftest.py."""


class DockerError(Exception):
    """Refused; the message is docker's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one docker command; exit code 1 with docker's message when it is refused, 125 for unknown commands."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["buildx"] or words[:1] in (["image"], ["container"]):
        words = words[1:]
    name = words[0] if words else "help"
    act = COMMANDS.get(name)
    if act is None:
        print(f"docker: '{name}' is not a command of the docker stand-in: {', '.join(COMMANDS)}", file=sys.stderr)
        return 125
    if os.environ.get(PRIVILEGED_ENV) != "1" and name not in ("version", "--version"):
        print(
            "Cannot connect to the Docker daemon. Is the docker daemon running? (privileged mode is off)",
            file=sys.stderr,
        )
        return 1
    try:
        return act(words[1:])
    except (DockerError, BuildError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1


def _work_dir() -> Path:
    try:
        return Path(os.environ[WORK_DIR_ENV])
    except KeyError:
        raise DockerError(f"{WORK_DIR_ENV} is not set: the docker stand-in runs inside the embedded AWS") from None


def _store() -> ImageStore:
    return ImageStore(_work_dir())


def _image(reference: str) -> Image:
    try:
        return _store().find(reference)
    except KeyError:
        raise DockerError(f"No such image: {reference}") from None


# ---- registries


def _logins() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker"))) / "config.json"


def _logged_in(registry: str) -> bool:
    try:
        return registry in json.loads(_logins().read_text())["auths"]
    except (FileNotFoundError, KeyError, ValueError):
        return False


def _need_login(reference: str) -> None:
    """Private registries ask for a login of their own; public ECR and Docker Hub do not."""
    registry = registry_of(reference)
    if registry and ".dkr.ecr." in registry and not _logged_in(registry):
        raise DockerError(
            f"failed to resolve {reference}: unexpected status: 401 Unauthorized: no basic auth credentials"
        )


def login(words: list[str]) -> int:
    parser = argparse.ArgumentParser("docker login")
    parser.add_argument("-u", "--username", required=True)
    parser.add_argument("-p", "--password")
    parser.add_argument("--password-stdin", action="store_true")
    parser.add_argument("registry")
    options = parser.parse_args(words)
    password = sys.stdin.read().strip() if options.password_stdin else options.password
    if not password:
        raise DockerError("password is empty")
    registry = options.registry.removeprefix("https://").rstrip("/")
    path = _logins()
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {"auths": {}}
    known["auths"][registry] = {}
    path.write_text(json.dumps(known))
    print("Login Succeeded")
    return 0


def logout(words: list[str]) -> int:
    path = _logins()
    if path.exists():
        known = json.loads(path.read_text())
        known["auths"].pop(words[-1] if words else "", None)
        path.write_text(json.dumps(known))
    return 0


# ---- images


def build(words: list[str]) -> int:
    parser = argparse.ArgumentParser("docker build")
    parser.add_argument("-t", "--tag", action="append", default=[])
    parser.add_argument("-f", "--file")
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("--target")
    parser.add_argument("--push", action="store_true")
    parser.add_argument("--iidfile")
    for ignored in ("--platform", "--progress", "--provenance", "--sbom", "--network", "--label", "--cache-from"):
        parser.add_argument(ignored, action="append")
    for ignored in ("--pull", "--no-cache", "--load", "-q", "--quiet"):
        parser.add_argument(ignored, action="store_true")
    parser.add_argument("context")
    options = parser.parse_args(words)
    context = Path(options.context).resolve()
    file = Path(options.file) if options.file else context / "Dockerfile"
    if not file.is_file():
        raise DockerError(f"failed to read dockerfile: open {file}: no such file or directory")
    given = {}
    for word in options.build_arg:
        name, has_value, value = word.partition("=")
        given[name] = value if has_value else os.environ.get(name, "")
    print(f"docker stand-in: recording {file.name}; RUN lines are noted, not executed", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        stage = Builder(context, Path(scratch), given, _need_login).build(parse(file.read_text()), options.target)
        image = _store().add(stage.rootfs, stage.config())
    for tag in options.tag:
        _store().tag(tag, image.digest)
        print(f"naming to {with_tag(tag)}")
    if options.iidfile:
        Path(options.iidfile).write_text(image.digest)
    print(f"writing image {image.digest}")
    return push(options.tag) if options.push else 0


def run(words: list[str]) -> int:
    """Run a command in the recorded content: its files, its ENV, this Python; nothing of the caller's PYTHONPATH."""
    parser = argparse.ArgumentParser("docker run")
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("--entrypoint")
    parser.add_argument("-w", "--workdir")
    parser.add_argument("-v", "--volume", "--mount", action="append", default=[])
    for ignored in (
        "--gpus",
        "--network",
        "--name",
        "--platform",
        "--shm-size",
        "--user",
        "--memory",
        "--ipc",
        "--pull",
    ):
        parser.add_argument(ignored)
    for ignored in ("--rm", "-i", "-t", "-it", "--init", "--privileged", "--read-only"):
        parser.add_argument(ignored, action="store_true")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    image = _image(options.image)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    environment.update({SELFTEST_CPU: "1", **image.environment()})
    for word in options.env:
        name, has_value, value = word.partition("=")
        environment[name] = value if has_value else os.environ.get(name, "")
    entrypoint = [options.entrypoint] if options.entrypoint else None
    command = image.command(entrypoint, options.command)
    folder = image.inside(options.workdir) if options.workdir else image.working_directory
    sys.stdout.flush()
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def tag(words: list[str]) -> int:
    source, target = words
    _store().tag(target, _image(source).digest)
    return 0


def rmi(words: list[str]) -> int:
    for word in words:
        if not word.startswith("-"):
            _store().tag(word, None)
    return 0


def push(words: list[str]) -> int:
    """Put the image's manifest into the emulated ECR; an immutable tag that exists is refused, as ECR does."""
    import boto3
    from botocore.exceptions import ClientError

    for reference in (word for word in words if not word.startswith("-")):
        _need_login(reference)
        image = _image(reference)
        registry = registry_of(reference)
        if registry is None or ".dkr.ecr." not in registry:
            raise DockerError(f"denied: requested access to the resource is denied: {reference}")
        repository, _, name = with_tag(reference)[len(registry) + 1 :].rpartition(":")
        region = registry.split(".")[3]
        try:
            answer = boto3.client("ecr", region_name=region).put_image(
                repositoryName=repository,
                imageManifest=manifest(image),
                imageManifestMediaType=MANIFEST_TYPE,
                imageTag=name,
            )
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
            reason = f"tag invalid: {message}" if code == "ImageTagAlreadyExistsException" else f"{code}: {message}"
            raise DockerError(reason) from None
        print(f"{name}: digest: {answer['image']['imageId']['imageDigest']} size: {len(manifest(image))}")
    return 0


def manifest(image: Image) -> str:
    """The registry's manifest of a recorded image; its config digest leads back to the record."""
    size = sum(path.stat().st_size for path in image.rootfs.rglob("*") if path.is_file())
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "size": len(json.dumps(image.config)), "digest": image.digest},
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": size,
                    "digest": image.digest,
                }
            ],
        },
        indent=3,
    )


def pull(words: list[str]) -> int:
    for reference in (word for word in words if not word.startswith("-")):
        _need_login(reference)
        print(f"docker stand-in: {reference} is not pulled, this machine's Python takes its place")
    return 0


def inspect(words: list[str]) -> int:
    parser = argparse.ArgumentParser("docker inspect")
    parser.add_argument("-f", "--format")
    parser.add_argument("--type")
    parser.add_argument("references", nargs="+")
    options = parser.parse_args([w for w in words if w != "inspect"])
    rows: list[dict[str, Any]] = []
    for reference in options.references:
        image = _image(reference)
        config = {
            "Env": [f"{k}={v}" for k, v in image.config["env"].items()],
            "WorkingDir": image.config["workdir"],
            "Entrypoint": image.config["entrypoint"] or None,
            "Cmd": image.config["cmd"] or None,
        }
        tags = [tag for tag, digest in _store().tags().items() if digest == image.digest]
        rows.append({"Id": image.digest, "RepoTags": tags, "Config": config, "Size": len(manifest(image))})
    if options.format is None:
        print(json.dumps(rows, indent=4))
        return 0
    for row in rows:
        value: Any = row
        for part in options.format.strip("{} ").removeprefix("json ").strip(".").split("."):
            value = value[part] if part else value
        print(value if isinstance(value, str) else json.dumps(value))
    return 0


def images(words: list[str]) -> int:
    for name, digest in sorted(_store().tags().items()):
        print(f"{name}\t{digest}")
    return 0


def version(words: list[str]) -> int:
    print(f"Docker version {VERSION}")
    return 0


COMMANDS = {
    "build": build,
    "run": run,
    "tag": tag,
    "rmi": rmi,
    "push": push,
    "pull": pull,
    "login": login,
    "logout": logout,
    "inspect": inspect,
    "images": images,
    "ls": images,
    "version": version,
    "--version": version,
    "info": version,
}

if __name__ == "__main__":
    sys.exit(main())
