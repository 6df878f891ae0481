"""Links lead somewhere, commands exist with the options they are shown with, examples are legal."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest
import typer.main
from documents import ROOT, anchors, blocks, commands, links, pages

from blackwell import cli
from blackwell.planning import plan_job
from blackwell.spec import parse_job_spec

COMMANDS = sorted({(command, page.name) for page in pages() for command in commands(page)})
ELSEWHERE = (
    "aws",
    "cdk",
    "cd",
    "git",
    "export",
    "eval",
    "npx",
    "docker",
    "pip",
    "cat",
    "curl",
    "apt-get",
    "source",
    "mkdir",
)
"""Programs that are not ours: only their existence in a document is accepted, not their options."""


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} is not there"
        assert file.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize(("command", "page"), COMMANDS)
def test_command_exists_with_its_options(command: str, page: str) -> None:
    words = [w for w in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", w)]
    program = Path(words[0]).name
    if program in ("python", "python3"):
        assert words[1] == "-m", command
        _module(words[2], words[3:])
    elif program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets
    else:
        assert program in ELSEWHERE, f"{page}: nobody checks {program!r}"


def _module(module: str, arguments: list[str]) -> None:
    if module == "blackwell":
        _blackwell(arguments)
        return
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"no module {module}"


def _blackwell(arguments: list[str]) -> None:
    """Parses the arguments with the command's own parser, which neither runs it nor asks AWS."""
    name, rest = arguments[0], arguments[1:]
    assert name in cli.COMMANDS
    command = typer.main.get_command(import_module(f"blackwell.cli.{name}").app)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        try:
            command.make_context(name, rest)
        except click.exceptions.Exit:  # --help
            pass
        except click.UsageError as error:
            pytest.fail(f"{name} {' '.join(rest)}: {error.format_message()}")


JSON_BLOCKS = [(page.name, text) for page in pages() for language, text in blocks(page) if language == "json"]


@pytest.mark.parametrize(("page", "text"), JSON_BLOCKS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(JSON_BLOCKS)])
def test_job_spec_in_a_document_can_be_planned(page: str, text: str) -> None:
    document = json.loads(text)
    if "capacity" not in document:
        pytest.skip("no job spec")
    plan = plan_job(parse_job_spec(document))
    assert plan.ok, [finding.line() for finding in plan.findings]


def test_no_document_names_the_places_it_was_written_in() -> None:
    for page in pages():
        assert "/work/" not in page.read_text(encoding="utf-8"), page
