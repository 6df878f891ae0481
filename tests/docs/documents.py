"""The project's documents as tests see them: pages, headings, links, code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[a-z]*)\n(?P<text>.*?)^(?P=fence)\s*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)


def pages() -> list[Path]:
    """README and everything under docs/."""
    readme = [ROOT / "README.md"] if (ROOT / "README.md").is_file() else []
    return readme + sorted((ROOT / "docs").rglob("*.md"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of the page's fenced code blocks."""
    return [(m["language"], m["text"]) for m in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def links(page: Path) -> list[str]:
    """Targets of the page's links, code left out."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [m["target"] for m in _LINK.finditer(re.sub(r"`[^`\n]*`", "", text))]


def anchors(page: Path) -> set[str]:
    """Anchors of the page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in _HEADING.findall(text):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"[`*_]", "", heading).lower()).replace(" ", "-")
        found.add(plain)
    return found


def commands(page: Path) -> list[str]:
    """Shell commands of the page: lines of `sh` blocks and of `console` blocks after `$ `, comments left out.

    Lines that a backslash continues are joined.
    """
    found: list[str] = []
    for language, text in blocks(page):
        if language not in ("sh", "bash", "console"):
            continue
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if language == "console":
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            line = re.sub(r"\s+#.*$", "", line).strip()
            if line and not line.startswith("#"):
                found.append(line)
    return found
