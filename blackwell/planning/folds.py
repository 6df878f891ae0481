"""Groups of near-duplicate rows and the folds that cross-validation deals them to.

The constants fitted without each fold are stored by the calibration, so that a table's score on unseen groups can be
told at any time without fitting again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources

from blackwell.planning.stacks import FOLDS_FILE, Constants, constants_from
from blackwell.planning.table import Row, scored

FOLDS = 5


def fold_of(group: str, folds: int = FOLDS) -> int:
    """The fold of a group: by hash, so that it never depends on order or on other rows."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % folds


def unseen_constants(rows: Sequence[Row], folds: Sequence[Mapping[str, Constants]]) -> dict[int, Constants]:
    """Line number -> the constants that were fitted without that row's group."""
    return {
        row.number: folds[fold_of(row.group, len(folds))][row.configuration.stack]
        for row in scored(rows)
        if row.configuration is not None
    }


def stored_folds() -> list[Mapping[str, Constants]]:
    """The folds' constants as the last calibration left them."""
    text = resources.files("blackwell.planning.data").joinpath(FOLDS_FILE).read_text(encoding="utf-8")
    return [constants_from(document) for document in json.loads(text)["folds"]]
