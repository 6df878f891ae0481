"""What the tests of pages share: a strict parser, hostile text, a browser, and what it must find in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from browser import CHROMIUM, CONTRAST, Page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"&'"


class Tags(HTMLParser):
    """The tags of a well-formed page; fails on one that is not, and on a handler in an attribute."""

    VOID = {"meta", "link", "br", "img", "line", "rect", "path", "circle", "polyline"}

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        assert not [name for name, _value in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@contextmanager
def in_browser(address: str, folder: Path) -> Iterator[Page]:
    """The page in a browser of its own; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    opened = Page(address, folder / "profile")
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def text_in_browser(page: str, folder: Path) -> Iterator[Page]:
    """As `in_browser`, of a page's text, which becomes a file in `folder`."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    with in_browser(file.as_uri(), folder) as opened:
        yield opened


def assert_shown(
    page: Page, screenshot: Path, *, width: int, phone: bool, dark: bool, asks: tuple[str, ...] = ("file:", "data:")
) -> None:
    """No message in the console, no request elsewhere, nothing wider than the screen, every text readable."""
    page.resize(width, 900, dark=dark, phone=phone)
    page.screenshot(screenshot)
    assert page.messages == []
    assert [url for url in page.requests if not url.startswith(asks)] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []


def assert_named(page: Page, *, images: int) -> None:
    """A screen reader finds a name for everything, a language, and headings in order."""
    page.resize(1280, 900, dark=False)
    by_role: dict[str, list[str]] = {}
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored"):
            by_role.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    pictures = by_role.get("image", []) + by_role.get("img", [])
    assert len(pictures) == images
    for name in pictures + by_role["region"] + by_role["heading"] + by_role.get("button", []):
        assert name
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
