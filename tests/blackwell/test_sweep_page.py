"""The sweep report's page: well formed, escaped, and as a real browser shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic_sweep
from browser import Page
from pages import HOSTILE, Tags, assert_shown, text_in_browser

from blackwell.report.sweep import render_sweep_html
from blackwell.sweep.compare import build_sweep_report
from blackwell.sweep.expand import expand
from blackwell.sweep.report import SweepReport


@pytest.fixture(scope="module")
def report() -> SweepReport:
    return synthetic_sweep.report()


def test_page_is_well_formed_and_asks_nobody_for_anything(report: SweepReport) -> None:
    page = render_sweep_html(report)
    tags = Tags(page)
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
    assert not {"script", "img"} & Tags(page).seen


def test_page_of_a_sweep_without_any_record() -> None:
    spec = synthetic_sweep.spec()
    page = render_sweep_html(build_sweep_report(spec, expand(spec).plan, {}, synthetic_sweep.NOW))
    Tags(page)
    assert "No recommendation" in page


@pytest.fixture(scope="module")
def page(report: SweepReport, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with text_in_browser(render_sweep_html(report), tmp_path_factory.mktemp("sweep-page")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True)])
def test_browser_shows_the_page_without_fault(page: Page, tmp_path: Path, width: int, phone: bool, dark: bool) -> None:
    assert_shown(page, tmp_path / "page.png", width=width, phone=phone, dark=dark)
