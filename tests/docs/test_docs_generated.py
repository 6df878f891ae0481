"""Documents made from code say what the code says."""

from __future__ import annotations

import pytest

from docs.generate import DOCS, DOCUMENTS


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_generated_document_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == DOCUMENTS[name](), "run `python -m docs.generate`"
