"""Spec files for people: JSON or YAML, and findings that name line and column. For the command line and Python only;
what travels to AWS is JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from blackwell.findings import Finding, FindingsError
from blackwell.spec import JobSpec, parse_job_spec, parse_json

YAML_SUFFIXES = (".yaml", ".yml")
Spec = TypeVar("Spec")


def load_job_file(path: Path) -> JobSpec:
    """Reads and checks a job spec, JSON or, by its suffix, YAML.

    Raises:
        FindingsError: with line and column wherever the text has the place.
        OSError: the file cannot be read.
    """
    return load_spec_file(path, parse_job_spec)


def load_spec_file(path: Path, parse: Callable[[object], Spec]) -> Spec:
    """Reads a document and gives it to `parse`; raises as `load_job_file`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FindingsError([Finding(id="BTS-002", message=f"not UTF-8 at byte {error.start}")]) from None
    document = _yaml(text) if path.suffix.lower() in YAML_SUFFIXES else parse_json(text)
    try:
        return parse(document)
    except FindingsError as refused:
        raise FindingsError(located(refused.findings, text)) from None


def _yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise _syntax(f"no YAML: {error.problem or error.context}{where}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise _syntax(f"no YAML: {error}") from None


def _syntax(message: str) -> FindingsError:
    return FindingsError([Finding(id="BTS-002", message=message)])


def located(findings: list[Finding], text: str) -> list[Finding]:
    """The findings with line and column of their paths in the text; of what is missing, those of where it belongs."""
    root = _tree(text)
    if root is None:
        return findings
    return [_located(finding, root) if finding.path else finding for finding in findings]


def _tree(text: str) -> Any:
    """The text's nodes with their marks: JSON is YAML, but for tabs, which then cost the line numbers only."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ValueError, RecursionError):
        return None


def _located(finding: Finding, root: Any) -> Finding:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    node, mark = root, root.start_mark
    for part in finding.path.split("."):
        if isinstance(node, MappingNode):
            entry = next(((k, v) for k, v in node.value if str(k.value) == part), None)
        elif isinstance(node, SequenceNode) and part.isdigit() and int(part) < len(node.value):
            entry = (node.value[int(part)], node.value[int(part)])
        else:
            entry = None
        if entry is None:
            break
        mark, node = entry[0].start_mark, entry[1]
    where = f"{finding.message} (line {mark.line + 1}, column {mark.column + 1})"
    return finding.model_copy(update={"message": where})
