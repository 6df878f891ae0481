"""The report's page: self-contained, escaped, and as a real browser shows it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from browser import CONTRAST, Page
from pages import HOSTILE, Tags, assert_named, assert_shown, text_in_browser
from synthetic_run import BEGIN, JobLog, eventful_run

from blackwell.findings import Finding
from blackwell.report import AttemptInputs, RunReportInputs, build_run_report, render_html
from blackwell.report.goodput import PARTS
from blackwell.report.style import CSS
from blackwell.report.svg import stacked_bar
from blackwell.verdict import Verdict


def test_page_is_well_formed_and_asks_nobody_for_anything() -> None:
    page = render_html(build_run_report(eventful_run()))
    tags = Tags(page)
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
    tags = Tags(page)
    assert {"script", "img"}.isdisjoint(tags.seen)
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("verdict", list(Verdict))
def test_page_exists_for_every_verdict_without_a_step(verdict: Verdict) -> None:
    page = render_html(build_run_report(RunReportInputs(run="r", verdict=verdict, now=BEGIN)))
    Tags(page)


def test_page_of_a_report_that_names_other_parts() -> None:
    report = build_run_report(eventful_run())
    report.goodput.parts[-1].name = "upload"
    Tags(render_html(report))


def test_page_of_one_step_has_a_chart() -> None:
    log = JobLog("r", 1, BEGIN)
    log.start(None)
    log.steps(1, 1)
    inputs = RunReportInputs(
        run="r", attempts=[AttemptInputs(attempt=1, lines=log.lines)], now=BEGIN + timedelta(hours=1)
    )
    page = render_html(build_run_report(inputs))
    Tags(page)
    assert "<circle" in page
    assert "nan" not in page.lower().replace("finance", "")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with text_in_browser(render_html(build_run_report(eventful_run())), tmp_path_factory.mktemp("page")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True), (320, True)])
def test_browser_shows_the_page_without_fault(page: Page, tmp_path: Path, width: int, phone: bool, dark: bool) -> None:
    assert_shown(page, tmp_path / "page.png", width=width, phone=phone, dark=dark)
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


@pytest.mark.slow
def test_browser_gives_a_screen_reader_names_for_everything(page: Page) -> None:
    assert_named(page, images=5)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_browser_reads_every_bar(tmp_path: Path, dark: bool) -> None:
    parts = [(name, 1 / len(PARTS), f"p{number}") for number, name in enumerate(PARTS)]
    bar = stacked_bar(parts, identity="b", title="t", description="d", width=820, height=40)
    with text_in_browser(f"<!doctype html><style>{CSS}</style><body><main>{bar}</main>", tmp_path) as opened:
        opened.resize(900, 300, dark=dark)
        assert opened.evaluate(CONTRAST) == []


@pytest.mark.slow
def test_browser_prints_the_page(page: Page) -> None:
    page.resize(1280, 900, dark=True)
    document = base64.b64decode(
        page.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
    )
    assert document.startswith(b"%PDF")
    assert 2 <= document.count(b"/Type /Page\n") <= 9
