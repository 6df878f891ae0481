"""Findings: what is wrong with a job, said once, in one shape, all at once.

Every check of a job spec, a plan, a request or a preflight fact answers with `Finding`s. An id is stable (people
search for it, tests name it), and its one-line title stands in `CATALOGUE` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

CATALOGUE: dict[str, str] = {
    # 0xx: the shape of the job spec
    "BTS-001": "the job spec is not a JSON object",
    "BTS-002": "the job spec is not valid JSON",
    "BTS-003": "unknown key",
    "BTS-004": "required key is missing",
    "BTS-005": "wrong type",
    "BTS-006": "value out of range",
    "BTS-007": "value is not one of the legal choices",
    "BTS-008": "keys that exclude or require each other",
    "BTS-009": "number is not finite",
    # 1xx: the planner
    "BTS-101": "does not fit into the memory of the GPU",
    "BTS-102": "dimension is illegal for the precision",
    "BTS-103": "the GPU does not have this precision",
    "BTS-104": "the checkpoint interval does not suit the run",
    "BTS-105": "the training plan ends before the run does",
    "BTS-106": "the expected cost is over the budget",
    "BTS-107": "a budget needs a price",
    "BTS-108": "the instance type is not known to the planner",
    "BTS-109": "the run is longer than the time it is given",
    "BTS-110": "speed is not modelled on this hardware",
    "BTS-111": "the batch cannot be divided over the ranks",
    "BTS-112": "the price is unverified or missing",
    "BTS-113": "spot interruptions are expected to cost time",
    "BTS-120": "the table of measurements is unreadable",
    "BTS-121": "the table of measurements lacks a column",
    "BTS-122": "a cell of the table of measurements is unusable",
    # 2xx: preflight facts that AWS answers
    "BTS-201": "the instance type is not allowed by the stack's settings",
    "BTS-202": "more instances than the stack's settings allow",
    "BTS-203": "the service quota is too small",
    "BTS-204": "the training plan cannot take the job",
    "BTS-205": "the data channel is empty or unreadable",
    "BTS-206": "a preflight fact could not be read",
    "BTS-207": "the budget is above the stack's limit",
    "BTS-208": "the run to resume from was not found",
    "BTS-209": "the run's name is not legal",
    "BTS-210": "the run's name is taken",
    "BTS-211": "longer than the stack's settings allow",
    # 3xx: the request to SageMaker
    "BTS-301": "the request does not match the SageMaker API model",
    "BTS-302": "fields that the SageMaker API excludes from each other",
    # 4xx: data and checkpoints, found by the trainer
    "BTS-401": "the dataset's manifest is missing or unreadable",
    "BTS-402": "the dataset is damaged",
    "BTS-403": "the dataset's vocabulary is larger than the model's",
    "BTS-404": "the dataset has too few tokens",
    "BTS-405": "the tokenizer cannot be used",
    "BTS-406": "an input document cannot be read",
    "BTS-407": "the data is not what the checkpoint was trained on",
    "BTS-411": "checkpoints exist, but none can be loaded",
    "BTS-412": "a checkpoint cannot be written",
    "BTS-413": "there is no checkpoint to resume from",
    "BTS-414": "the checkpoint transport lacks its S3 URI",
    "BTS-421": "the layer backend cannot be used here",
    "BTS-422": "the precision cannot be emulated",
    "BTS-423": "the checkpoint belongs to another model or job",
    "BTS-424": "the model to start from cannot be read",
    # 5xx: sweeps
    "BTS-501": "no point of the sweep can run",
    "BTS-502": "the sweep's baseline cannot run",
    "BTS-503": "the sweep has too many points",
    "BTS-504": "the sweep is running already",
}


class Severity(StrEnum):
    """`error` refuses the job; `warning` is shown and recorded; `advice` says what would be better."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


class Finding(BaseModel):
    """One thing to say about a job.

    `path` is the dotted path in the job spec (`capacity.0.max_wait_seconds`), empty for the whole spec.
    `given` is the value found, `legal` says in words what would do, `nearest` is the nearest legal value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    severity: Severity = Severity.ERROR
    path: str = ""
    message: str
    given: Any = None
    legal: str | None = None
    nearest: Any = None

    @property
    def title(self) -> str:
        """The catalogue's one-line title of this kind of finding."""
        return CATALOGUE[self.id]

    def line(self) -> str:
        """One line for a terminal or a log."""
        parts = [f"{self.id} {self.severity}: {self.path + ': ' if self.path else ''}{self.message}"]
        if self.given is not None:
            parts.append(f"given {self.given!r}")
        if self.legal:
            parts.append(f"legal: {self.legal}")
        if self.nearest is not None:
            parts.append(f"nearest legal value: {self.nearest!r}")
        return "; ".join(parts)


class FindingsError(ValueError):
    """Raised where a job cannot go on; carries every finding, not only the first."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = list(findings)
        super().__init__("\n".join(f.line() for f in self.findings))


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that refuse the job."""
    return [f for f in findings if f.severity is Severity.ERROR]


_BY_PYDANTIC_TYPE = {
    "extra_forbidden": "BTS-003",
    "missing": "BTS-004",
    "finite_number": "BTS-009",
    "literal_error": "BTS-007",
    "enum": "BTS-007",
    "union_tag_invalid": "BTS-007",
    "union_tag_not_found": "BTS-004",
    "value_error": "BTS-008",
}
_RANGE_TYPES = ("greater_than", "less_than", "too_short", "too_long", "pattern_mismatch", "multiple_of", "out_of_range")


def from_validation_error(error: ValidationError) -> list[Finding]:
    """Translates pydantic's errors; one finding per place, with the path as the user wrote it."""
    found: dict[tuple[str, str], Finding] = {}
    branches: dict[str, list[Finding]] = {}
    for item in error.errors(include_url=False):
        kind = item["type"]
        context = item.get("ctx", {})
        identity = _BY_PYDANTIC_TYPE.get(kind, "BTS-006" if any(t in kind for t in _RANGE_TYPES) else "BTS-005")
        path = ".".join(str(p) for p in item["loc"] if not (isinstance(p, str) and _is_union_branch(p)))
        inner = context.get("error")
        if isinstance(inner, FindingsError):  # a validator that already speaks in findings
            for finding in inner.findings:
                full = ".".join(p for p in (path, finding.path) if p)
                found.setdefault((full, finding.id + finding.message), finding.model_copy(update={"path": full}))
            continue
        given = item.get("input") if identity not in ("BTS-004",) else None
        if isinstance(given, (dict, list, set, tuple)) or (isinstance(given, float) and given != given):
            given = None if not isinstance(given, float) else str(given)
        legal = context.get("expected")
        finding = Finding(
            id=identity,
            path=path,
            message=item["msg"].removeprefix("Value error, "),
            given=given,
            legal=str(legal) if legal else None,
            nearest=_nearest(kind, context),
        )
        if any(isinstance(p, str) and _is_union_branch(p) for p in item["loc"]):
            branches.setdefault(path, []).append(finding)
        found.setdefault((path, identity), finding)
    for path, alternatives in branches.items():
        if len(alternatives) > 1:
            _merge_alternatives(path, alternatives, found)
    return list(found.values())


_MOST_TELLING = ("BTS-006", "BTS-009", "BTS-008", "BTS-005", "BTS-007")
"""Of the findings about the alternatives of one value, the first of these is shown."""


def _merge_alternatives(path: str, alternatives: list[Finding], found: dict[tuple[str, str], Finding]) -> None:
    """One finding for a value that fits none of its alternatives (a number or `auto`), naming what each would take."""

    def order(finding: Finding) -> int:
        return _MOST_TELLING.index(finding.id) if finding.id in _MOST_TELLING else len(_MOST_TELLING)

    first = min(alternatives, key=order)
    words = [a.legal or a.message.removeprefix("Input should be ") for a in alternatives]
    keys = [key for key, finding in found.items() if key[0] == path and finding in alternatives]
    merged = first.model_copy(update={"legal": " or ".join(dict.fromkeys(words))})
    for index, key in enumerate(keys):
        if index == 0:
            found[key] = merged
        else:
            del found[key]


def _is_union_branch(part: str) -> bool:
    """Pydantic puts the name of the union branch into the path; a user never typed it."""
    return (
        part[:1].isupper()
        or part.startswith(
            ("literal[", "str-enum[", "constrained", "function-", "tagged-union", "lax-or-strict", "json-or")
        )
        or part in ("int", "float", "str", "bool", "list", "dict", "none")
    )


def _nearest(kind: str, context: dict[str, Any]) -> Any:
    if kind == "greater_than_equal":
        return context.get("ge")
    if kind == "less_than_equal":
        return context.get("le")
    return None
