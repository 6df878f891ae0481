"""The sweep report's page: well formed, escaped, and as a real browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic_sweep
from browser import CHROMIUM, CONTRAST, Page

from blackwell.report.sweep import render_sweep_html
from blackwell.sweep.compare import build_sweep_report
from blackwell.sweep.expand import expand
from blackwell.sweep.report import SweepReport

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"&'"


@pytest.fixture(scope="module")
def report() -> SweepReport:
    return synthetic_sweep.report()


class _Tags(HTMLParser):
    VOID = ("meta", "link", "br", "line", "rect", "path", "circle", "polyline")

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
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_page_is_well_formed_and_asks_nobody_for_anything(report: SweepReport) -> None:
    page = render_sweep_html(report)
    tags = _Tags(page)
    assert not {"script", "img", "iframe"} & tags.seen
    assert len(tags.ids) == len(set(tags.ids))
    assert "http" not in page.replace("http-equiv", "")


def test_page_shows_what_the_report_says(report: SweepReport) -> None:
    page = render_sweep_html(report)
    for text in ("Take fp8", "equivalent", "worse", "1.47 x", "compute-bound", "BTS-111", "Saved on the full run"):
        assert text in page, text


def test_page_escapes_what_comes_from_the_runs(report: SweepReport) -> None:
    points = [p.model_copy(update={"axes": p.axes.model_copy(update={"precision": HOSTILE})}) for p in report.points]
    page = render_sweep_html(report.model_copy(update={"sweep": HOSTILE, "headline": HOSTILE, "points": points}))
    assert not {"script", "img"} & _Tags(page).seen


def test_page_of_a_sweep_without_any_record() -> None:
    spec = synthetic_sweep.spec()
    page = render_sweep_html(build_sweep_report(spec, expand(spec).plan, {}, synthetic_sweep.NOW))
    _Tags(page)
    assert "No recommendation" in page


@pytest.fixture(scope="module")
def page(report: SweepReport, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    folder = tmp_path_factory.mktemp("sweep-page")
    file = folder / "report.html"
    file.write_text(render_sweep_html(report), encoding="utf-8")
    opened = Page(file.as_uri(), folder / "profile")
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True)])
def test_browser_shows_the_page_without_fault(page: Page, tmp_path: Path, width: int, phone: bool, dark: bool) -> None:
    page.resize(width, 900, dark=dark, phone=phone)
    page.screenshot(tmp_path / "page.png")
    assert page.messages == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
