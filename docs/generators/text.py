"""Markdown tables, and the docstrings that stand under attributes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks in cells are made harmless."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def attribute_docs(owner: type) -> dict[str, str]:
    """Attribute -> the string literal that follows it in the class's source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        literal = after.value if isinstance(after, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            found[target.id] = " ".join(literal.value.split())
    return found
