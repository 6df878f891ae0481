"""container/build.sh: both logins, one push, nothing pushed that did not prove itself, a second build does nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TOOLS = '''#!/usr/bin/env python3
"""A stand-in for docker and the aws command: writes down what it is asked, knows images by their tag."""
import os, sys
from pathlib import Path

here = Path(os.environ["FAKE"])
name, words = Path(sys.argv[0]).name, sys.argv[1:]
with (here / "calls").open("a") as calls:
    print(name, *words, file=calls)
pushed = here / "pushed"
fails = os.environ.get("FAKE_FAILS", "")
if name == "aws" and words[1] == "get-login-password":
    print("secret")
elif name == "aws" and words[1] == "describe-images":
    if fails == "describe":
        sys.exit("An error occurred (AccessDeniedException) when calling the DescribeImages operation")
    if not pushed.exists():
        sys.exit("An error occurred (ImageNotFoundException) when calling the DescribeImages operation")
    print(pushed.read_text())
elif name == "aws" and words[1] == fails:
    sys.exit("An error occurred (AccessDenied)")
elif name == "docker" and words[0] == "login":
    assert sys.stdin.read() == "secret\\n"
elif name == "docker" and words[0] == fails:
    sys.exit(7)
elif name == "docker" and words[0] == "push":
    if pushed.exists():
        sys.exit("tag invalid: The image tag already exists and cannot be overwritten because the repository is immutable.")
    pushed.write_text("sha256:abc")
'''

OWN = "111122223333.dkr.ecr.eu-central-1.amazonaws.com"
AWS_OWN = "763104351884.dkr.ecr.eu-central-1.amazonaws.com"


class Build:
    """Runs the script with the stand-ins."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        tools = folder / "bin"
        tools.mkdir()
        for name in ("docker", "aws"):
            (tools / name).write_text(TOOLS)
            (tools / name).chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        (self._folder / "calls").unlink(missing_ok=True)
        return subprocess.run(
            ["bash", str(self._root / "container" / "build.sh")], cwd=self._folder, capture_output=True, text=True,
            env={
                "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}", "FAKE": str(self._folder),
                "REPOSITORY_URI": f"{OWN}/images", "REPOSITORY_NAME": "images", "IMAGE_TAG": "0123",
                "BASE_REGISTRY": AWS_OWN, "BASE_REPOSITORY": "pytorch", "BASE_TAG": "2.13-cu133-amzn2023-sagemaker",
                "TRANSFORMER_ENGINE": "base", "SBOM_BUCKET": "artifacts", "SBOM_KEY": "images/0123/sbom.json",
                **environment,
            },
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        return (self._folder / "calls").read_text().splitlines()

    @property
    def pushed(self) -> bool:
        return (self._folder / "pushed").exists()


@pytest.fixture
def build(repository_root: Path, tmp_path: Path) -> Build:
    return Build(repository_root, tmp_path)


def test_logs_in_to_both_registries_in_their_region_then_builds_proves_pushes(build: Build) -> None:
    done = build.run()
    assert done.returncode == 0, done.stderr
    assert f"docker login --username AWS --password-stdin {OWN}" in build.calls
    assert f"docker login --username AWS --password-stdin {AWS_OWN}" in build.calls
    assert build.calls.count("aws ecr get-login-password --region eu-central-1") == 2
    order = [c.split()[1] for c in build.calls if c.startswith("docker") and "login" not in c]
    assert order == ["build", "run", "run", "push"]
    contents = "aws s3api put-object --bucket artifacts --key images/0123/sbom.json --body sbom.json"
    assert any(c.startswith(contents) for c in build.calls)
    assert f"--build-arg BASE_REGISTRY={AWS_OWN}" in next(c for c in build.calls if c.startswith("docker build"))
    assert "digest sha256:abc" in done.stdout


def test_second_build_of_the_same_content_does_nothing_and_names_the_same_digest(build: Build) -> None:
    build.run()
    again = build.run()
    assert again.returncode == 0
    assert "digest sha256:abc" in again.stdout
    assert not [c for c in build.calls if c.startswith("docker")]


def test_what_cannot_be_listed_is_not_pushed(build: Build) -> None:
    assert build.run(FAKE_FAILS="put-object").returncode != 0
    assert not build.pushed


@pytest.mark.parametrize("phase", ["build", "run"])
def test_what_did_not_prove_itself_is_never_pushed(build: Build, phase: str) -> None:
    assert build.run(FAKE_FAILS=phase).returncode == 7
    assert not build.pushed
    assert build.run().returncode == 0, "a later build of the same content starts anew"


def test_an_answer_that_is_not_image_not_found_is_an_error(build: Build) -> None:
    done = build.run(FAKE_FAILS="describe")
    assert done.returncode == 2
    assert "AccessDenied" in done.stderr
    assert not [c for c in build.calls if c.startswith("docker")]


@pytest.mark.parametrize(
    ("registry", "region"),
    [
        ("727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("446045086412.dkr.ecr.us-gov-east-1.amazonaws.com", "us-gov-east-1"),
        ("999900001111.dkr.ecr.us-west-2.amazonaws.com", "us-west-2"),
    ],
)
def test_login_follows_the_registry_s_own_region(build: Build, registry: str, region: str) -> None:
    build.run(BASE_REGISTRY=registry)
    assert f"aws ecr get-login-password --region {region}" in build.calls
    assert f"docker login --username AWS --password-stdin {registry}" in build.calls


def test_public_registry_needs_no_login(build: Build) -> None:
    build.run(BASE_REGISTRY="public.ecr.aws/deep-learning-containers")
    assert sum("docker login" in c for c in build.calls) == 1


def test_missing_setting_is_named(build: Build) -> None:
    done = build.run(IMAGE_TAG="")
    assert done.returncode != 0
    assert "IMAGE_TAG" in done.stderr
