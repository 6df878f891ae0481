"""What goes into the training image, and the tag that follows from it.

The content is container/, trainer/ and those modules of blackwell/ that trainer/ and container/ import, directly or
through each other. Line endings and file modes are made the same on every machine, so equal sources give equal tags.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stacks.asset import ROOT

STAGED = ROOT / "build" / "image"
FOLDERS = ("container", "trainer")
CORE = "blackwell"
TEXT_SUFFIXES = {".py", ".sh", ".txt", ".yml", ".yaml", ".json", ".toml", ".in", ""}
"""Files whose line endings are normalised; `""` is the Dockerfile."""
_SKIP_PARTS = {"__pycache__", "tests", ".git"}
_SKIP_SUFFIXES = {".pyc", ".md", ".in"}
TAG_LENGTH = 32


@dataclass(frozen=True, slots=True)
class ImageContent:
    """A folder ready to be the build context, and the tag of the image that it gives."""

    path: Path
    tag: str


def image_files(root: Path = ROOT) -> dict[str, Path]:
    """Path in the build context -> file; sorted."""
    files = {
        file.relative_to(root).as_posix(): file
        for folder in FOLDERS
        for file in (root / folder).rglob("*")
        if file.is_file() and not _SKIP_PARTS & set(file.relative_to(root).parts) and file.suffix not in _SKIP_SUFFIXES
    }
    for file in _core_modules(root, [f for f in files.values() if f.suffix == ".py"]):
        files[file.relative_to(root).as_posix()] = file
    return dict(sorted(files.items()))


def _core_modules(root: Path, importers: list[Path]) -> set[Path]:
    """Files of blackwell/ that the importers need, through each other too."""
    found: set[Path] = set()
    queue = list(importers)
    while queue:
        for name in _imported(queue.pop(), root):
            for file in _module_files(root, name):
                if file not in found:
                    found.add(file)
                    queue.append(file)
    return found


def _imported(file: Path, root: Path) -> Iterator[str]:
    """Names that may be modules of blackwell, as absolute dotted names."""
    package = file.relative_to(root).with_suffix("").parts[:-1]
    for node in _that_run(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which never runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from _that_run(other)
            continue
        yield node
        yield from _that_run(node)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that may run: not what stands under `if TYPE_CHECKING`."""
    yield node
    skipped = node.body if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") else []
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from _run(child)


def _module_files(root: Path, name: str) -> Iterator[Path]:
    parts = name.split(".")
    if parts[0] != CORE:
        return
    for depth in range(1, len(parts) + 1):  # importing a.b.c runs a/__init__ and a/b/__init__ too
        stem = root.joinpath(*parts[:depth])
        for candidate in (stem / "__init__.py", stem.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


def _content(file: Path) -> bytes:
    data = file.read_bytes()
    return data.replace(b"\r\n", b"\n") if file.suffix in TEXT_SUFFIXES else data


def content_tag(files: Mapping[str, Path], arguments: Mapping[str, str]) -> str:
    """Tag over every path, its normalised content and every build argument: hex digits, legal for ECR."""
    digest = hashlib.sha256()
    for name, value in sorted(arguments.items()):
        digest.update(f"{name}={value}\0".encode())
    for name, file in sorted(files.items()):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(_content(file)).digest())
    return digest.hexdigest()[:TAG_LENGTH]


def stage(arguments: Mapping[str, str], root: Path = ROOT, into: Path = STAGED) -> ImageContent:
    """Writes the build context to `into/<tag>`; the same content is written once."""
    files = image_files(root)
    tag = content_tag(files, arguments)
    content = ImageContent(into / tag, tag)
    if content.path.exists():
        return content
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as fresh:
        target = Path(fresh) / "context"
        for name, file in files.items():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_content(file))
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.suffix == ".sh" else 0o644)
        with contextlib.suppress(OSError):  # another process was faster; the content is the same
            target.rename(content.path)
        shutil.rmtree(target, ignore_errors=True)
    return content
