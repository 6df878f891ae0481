"""The report's page: self-contained, escaped, and as a real browser shows it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from browser import CHROMIUM, CONTRAST, Page
from synthetic_run import BEGIN, JobLog, eventful_run

from blackwell.findings import Finding
from blackwell.report import AttemptInputs, RunReportInputs, build_run_report, render_html
from blackwell.report.goodput import PARTS
from blackwell.report.style import CSS
from blackwell.report.svg import stacked_bar
from blackwell.verdict import Verdict

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"&'"


class _Tags(HTMLParser):
    VOID = {"meta", "link", "br", "img", "line", "rect", "path", "circle", "polyline"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        assert not [name for name, _value in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def _parse(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


def test_page_is_well_formed_and_asks_nobody_for_anything() -> None:
    page = render_html(build_run_report(eventful_run()))
    tags = _parse(page)
    assert "script" not in tags.seen
    assert "img" not in tags.seen
    assert len(tags.ids) == len(set(tags.ids))
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", page)
    assert not re.search(r"url\(|@import|https?://", page)


def test_page_shows_what_the_report_says() -> None:
    report = build_run_report(eventful_run())
    page = render_html(report)
    for text in (report.headline, report.continuity.statement, f"{report.final_loss:.4f}", "Saved by spot"):
        assert text in page
    assert page.count("<polyline") >= 4


def test_page_escapes_what_comes_from_the_run() -> None:
    inputs = RunReportInputs(
        run="r",
        spec={"training": {"precision": "bf16"}},
        verdict=Verdict.USER_ERROR,
        attempts=[
            AttemptInputs(
                attempt=1,
                job={"TrainingJobName": HOSTILE, "TrainingJobStatus": "Failed", "FailureReason": HOSTILE},
                item={"overrides": {HOSTILE: HOSTILE}},
            )
        ],
        findings=[Finding(id="BTS-003", path=HOSTILE, message=HOSTILE, given=HOSTILE)],
        now=BEGIN,
    )
    page = render_html(build_run_report(inputs))
    tags = _parse(page)
    assert {"script", "img"}.isdisjoint(tags.seen)
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("verdict", list(Verdict))
def test_page_exists_for_every_verdict_without_a_step(verdict: Verdict) -> None:
    page = render_html(build_run_report(RunReportInputs(run="r", verdict=verdict, now=BEGIN)))
    _parse(page)


def test_page_of_a_report_that_names_other_parts() -> None:
    report = build_run_report(eventful_run())
    report.goodput.parts[-1].name = "upload"
    _parse(render_html(report))


def test_page_of_one_step_has_a_chart() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 1)
    inputs = RunReportInputs(
        run="r", attempts=[AttemptInputs(attempt=1, lines=log.lines)], now=BEGIN + timedelta(hours=1)
    )
    page = render_html(build_run_report(inputs))
    _parse(page)
    assert "<circle" in page
    assert "nan" not in page.lower().replace("finance", "")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    folder = tmp_path_factory.mktemp("page")
    file = folder / "report.html"
    file.write_text(render_html(build_run_report(eventful_run())), encoding="utf-8")
    opened = Page(file.as_uri(), folder / "profile")
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True), (320, True)])
def test_browser_shows_the_page_without_fault(page: Page, tmp_path: Path, width: int, phone: bool, dark: bool) -> None:
    page.resize(width, 900, dark=dark, phone=phone)
    page.screenshot(tmp_path / "page.png")
    assert page.messages == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.evaluate(
        "[...document.querySelectorAll('svg')].filter(s => s.getClientRects().length).map(s => s.viewBox.baseVal.width)"
    )
    assert len(shown) == 5
    assert all((view < 500) == (width <= 600) for view in shown)
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length)"
        ".map(t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getBoundingClientRect().width"
        " / t.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert smallest >= 9
    assert page.evaluate(CONTRAST) == []


@pytest.mark.slow
def test_browser_gives_a_screen_reader_names_for_everything(page: Page) -> None:
    page.resize(1280, 900, dark=False)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    by_role: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            by_role.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    images = by_role.get("image", []) + by_role.get("img", [])
    assert len(images) == 5
    for name in images + by_role["region"] + by_role["heading"]:
        assert name
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_browser_reads_every_bar(tmp_path: Path, dark: bool) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    parts = [(name, 1 / len(PARTS), f"p{number}") for number, name in enumerate(PARTS)]
    bar = stacked_bar(parts, identity="b", title="t", description="d", width=820, height=40)
    (tmp_path / "bar.html").write_text(f"<!doctype html><style>{CSS}</style><body><main>{bar}</main>")
    opened = Page((tmp_path / "bar.html").as_uri(), tmp_path / "profile")
    try:
        opened.resize(900, 300, dark=dark)
        assert opened.evaluate(CONTRAST) == []
    finally:
        opened.close()


@pytest.mark.slow
def test_browser_prints_the_page(page: Page) -> None:
    page.resize(1280, 900, dark=True)
    document = base64.b64decode(
        page.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
    )
    assert document.startswith(b"%PDF")
    assert 2 <= document.count(b"/Type /Page\n") <= 9
