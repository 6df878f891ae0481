"""Curves in a terminal: as wide as asked, without holes, in braille or in plain characters."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from synthetic_run import eventful_run

from blackwell.cli.plot import plot
from blackwell.cli.report_text import report_text
from blackwell.report import build_run_report


def test_plot_draws_a_falling_line_from_corner_to_corner() -> None:
    lines = plot(range(100), [100 - v for v in range(100)], width=40, height=5, unicode=False)
    columns = [line.index("*") for line in lines[:5]]
    assert columns == sorted(columns)
    assert lines[0].lstrip().startswith("100")
    assert lines[-1].split() == ["0", "99"]


def test_plot_has_no_hole_between_far_points() -> None:
    lines = plot([0, 1], [0, 1], width=30, height=6, unicode=False)
    assert all("*" in line for line in lines[:6])


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=0, max_size=60),
    width=st.integers(20, 120),
    height=st.integers(2, 12),
    unicode=st.booleans(),
)
def test_plot_never_is_wider_than_asked(values: list[float], width: int, height: int, unicode: bool) -> None:
    lines = plot(range(len(values)), values, width=width, height=height, unicode=unicode, y_format="{:.2g}".format)
    if not any(map(math.isfinite, values)):
        assert lines == []
        return
    assert len(lines) == height + 1
    assert max(map(len, lines)) <= max(width, 20)


def test_plot_marks_stand_under_their_x() -> None:
    lines = plot(range(101), [1.0 * v for v in range(101)], width=60, height=3, marks=[0, 100], unicode=False)
    marks = lines[3]
    assert marks.rstrip().endswith("^")
    assert marks.index("^") == lines[2].index("|") + 1


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_report_in_a_terminal_keeps_to_its_width_and_encoding(width: int, encoding: str) -> None:
    report = build_run_report(eventful_run())
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=stream, width=width, no_color=True)
    console.print(report_text(report, console))
    stream.flush()
    text = raw.getvalue().decode(encoding)
    assert report.headline[:20] in text
    assert "Continuity" in text
    assert max(map(len, text.splitlines())) <= width
