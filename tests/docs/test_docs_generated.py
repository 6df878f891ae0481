"""Documents made from code say what the code says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs import generate
from docs.generators.drawing import workflow_drawing


@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize("page", generate.pages(), ids=lambda p: p.name)
def test_generated_document_is_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == generate.current(page), "run `python -m docs.generate`"


@pytest.mark.xdist_group("docs")
def test_every_generated_part_stands_in_some_page() -> None:
    marked = {match["name"] for page in generate.pages() for match in generate._PART.finditer(page.read_text())}
    assert marked == set(generate.PARTS)


@pytest.mark.xdist_group("docs")
def test_check_names_a_stale_page(tmp_path: Path) -> None:
    for name in ("operations.md", *generate.WHOLE):
        shutil.copy(generate.DOCS / name, tmp_path)
    assert generate.stale(tmp_path) == []
    page = tmp_path / "operations.md"
    page.write_text(page.read_text().replace("a GPU ran out of memory", "a GPU was full"))
    (tmp_path / "job-spec.md").unlink()
    assert {stale.name for stale in generate.stale(tmp_path)} == {"operations.md", "job-spec.md"}


@pytest.mark.xdist_group("docs")
def test_the_drawing_has_every_state_and_every_way() -> None:
    from stacks.workflow import states

    drawing = workflow_drawing()
    for name, state in states().items():
        assert f"\n    {name}" in drawing
        ways = [state.get("Next"), state.get("Default"), *(c["Next"] for c in state.get("Choices", ()))]
        for target in filter(None, ways):
            assert re.search(rf"^    {name} --.*> ?(\|.*\| )?{target}$", drawing, re.MULTILINE), (name, target)
