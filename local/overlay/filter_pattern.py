"""CloudWatch Logs' filter pattern language: one implementation for FilterLogEvents, metric and subscription filters.

Written from "Filter pattern syntax for metric filters, subscription filters, filter log events" (CloudWatch Logs user
guide). Three forms: terms (`ERROR "out of memory" -ignore`, `?a ?b`), space-delimited fields
(`[host, ..., code = 5* || code = 404, seconds > 1.5]`) and JSON selectors (`{ $.loss > 1 && $.run = "a*" }`), each
with `%regular expressions%`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Values = dict[str, Any]
"""What a metric value or dimension may refer to: `$name` of a field, or `$` for the whole JSON document."""


class PatternError(ValueError):
    """The text is no filter pattern."""


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern; `match` gives the event's values, or None when it does not match."""

    match: Callable[[str], Values | None]


@lru_cache(maxsize=512)
def compile_pattern(text: str) -> Pattern:
    """Compile a pattern; raises `PatternError`."""
    text = text.strip()
    if text.startswith("{"):
        return Pattern(_json_matcher(text))
    if text.startswith("["):
        return Pattern(_fields_matcher(text))
    return Pattern(_terms_matcher(text))


def resolve(reference: str, values: Values) -> Any:
    """The value of `$.path` or `$name` in a matched event, a literal as it is, None when the event lacks it."""
    if not reference.startswith("$"):
        return reference
    if reference.startswith(("$.", "$[")):
        return next(iter(_select(_path(reference), values.get("$"))), None)
    return values.get(reference)


def number(value: Any) -> float | None:
    """The number that a value is or spells, else None; true, NaN and Infinity are no numbers."""
    return float(value) if not isinstance(value, bool) and _NUMBER.fullmatch(str(value)) else None


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


# ---- tokens of conditions -------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<regex>%(?:[^%\\]|\\.)+%)
        |(?P<symbol>&&|\|\||!=|<=|>=|=|<|>|\(|\)|,)|(?P<word>(?:\[[^\]]*\]|[^\s"&|!=<>(),\[\]])+)|(?P<bracket>[\[\]]))""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
OPERATORS = frozenset({"=", "!=", *_COMPARE})


@dataclass(frozen=True)
class Token:
    kind: str
    text: str


def _tokens(text: str) -> list[Token]:
    found, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise PatternError(f"cannot read the filter pattern from {text[position:]!r}")
        found.append(Token(match.lastgroup, match.group(match.lastgroup)))
        position = match.end()
    return found


def _compare(operator: str, operand: Token) -> Callable[[Any], bool]:
    """A test of one value, which is a JSON scalar or a field's text."""
    if operator in _COMPARE:
        limit = number(operand.text)
        if operand.kind != "word" or limit is None:
            raise PatternError(f"{operator} compares with a number, not with {operand.text}")
        compare = _COMPARE[operator]

        def ordered(value: Any) -> bool:
            found = number(value)
            return found is not None and compare(found, limit)

        return ordered
    equal = _equal(operand)
    return equal if operator == "=" else lambda value: not equal(value)


def _equal(operand: Token) -> Callable[[Any], bool]:
    if operand.kind == "regex":
        expression = re.compile(operand.text[1:-1])
        return lambda value: expression.search(_text(value)) is not None
    if operand.kind not in ("word", "string"):
        raise PatternError(f"a value is expected, not {operand.text!r}")
    wanted = number(operand.text) if operand.kind == "word" else None
    text = json.loads(operand.text) if operand.kind == "string" else operand.text
    wildcard = re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)

    def equal(value: Any) -> bool:
        if wanted is not None:
            return number(value) == wanted
        if not isinstance(value, str) and "*" not in text:
            return False
        return wildcard.fullmatch(_text(value)) is not None

    return equal


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ---- { JSON selectors } ---------------------------------------------------------------------------------------------

Test = Callable[[Any], bool]


def _json_matcher(text: str) -> Callable[[str], Values | None]:
    if not text.endswith("}"):
        raise PatternError("a JSON selector ends with }")
    parser = _JsonConditions(_tokens(text[1:-1]))
    test = parser.parse()

    def match(message: str) -> Values | None:
        # Only an event that is JSON as a whole: a log line that ends with JSON never matches.
        try:
            document = json.loads(message)
        except ValueError:
            return None
        return {"$": document} if isinstance(document, dict | list) and test(document) else None

    return match


class _JsonConditions:
    """conditions := all ("||" all)*;  all := one ("&&" one)*;  one := "(" conditions ")" | selector test."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens

    def parse(self) -> Test:
        test = self._any()
        if self._tokens:
            raise PatternError(f"unexpected {self._tokens[0].text!r} in the JSON selector")
        return test

    def _any(self) -> Test:
        tests = [self._all()]
        while self._take("||"):
            tests.append(self._all())
        return lambda document: any(test(document) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._take("&&"):
            tests.append(self._one())
        return lambda document: all(test(document) for test in tests)

    def _one(self) -> Test:
        if self._take("("):
            test = self._any()
            if not self._take(")"):
                raise PatternError("a parenthesis is not closed in the JSON selector")
            return test
        path = _path(self._next().text)
        operator = self._next().text
        if operator in OPERATORS:
            compare = _compare(operator, self._next())
            return lambda document: any(compare(value) for value in _select(path, document) if _is_scalar(value))
        keyword = f"{operator} {self._next().text}".upper()
        if keyword == "NOT EXISTS":
            return lambda document: not list(_select(path, document))
        wanted = {"IS NULL": None, "IS TRUE": True, "IS FALSE": False}
        if keyword not in wanted:
            raise PatternError(f"{keyword} is no test; legal: = != < <= > >= IS NULL, IS TRUE, IS FALSE, NOT EXISTS")
        return lambda document: any(value is wanted[keyword] for value in _select(path, document))

    def _next(self) -> Token:
        if not self._tokens:
            raise PatternError("the JSON selector ends too early")
        return self._tokens.pop(0)

    def _take(self, symbol: str) -> bool:
        if self._tokens and self._tokens[0] == Token("symbol", symbol):
            self._tokens.pop(0)
            return True
        return False


_STEP = re.compile(r"""\.?\[(?:(?P<index>\d+)|(?P<every>\*)|['"](?P<quoted>[^'"]*)['"])\]|\.(?P<key>[^.\[\]\s]+)""")


@lru_cache(maxsize=512)
def _path(selector: str) -> tuple[str | int | None, ...]:
    """Steps of `$.a.b[0]`: a key, an index, or None for every element."""
    if not selector.startswith("$"):
        raise PatternError(f"a property selector starts with $., not {selector!r}")
    steps: list[str | int | None] = []
    position = 1
    while position < len(selector):
        match = _STEP.match(selector, position)
        if match is None:
            raise PatternError(f"cannot read the property selector {selector!r}")
        if match["index"] is not None:
            steps.append(int(match["index"]))
        else:
            steps.append(None if match["every"] else match["key"] or match["quoted"])
        position = match.end()
    return tuple(steps)


def _select(path: tuple[str | int | None, ...], value: Any) -> Iterator[Any]:
    if not path:
        yield value
        return
    step, rest = path[0], path[1:]
    if step is None and isinstance(value, list):
        for element in value:
            yield from _select(rest, element)
    elif (isinstance(step, int) and isinstance(value, list) and step < len(value)) or (
        isinstance(step, str) and isinstance(value, dict) and step in value
    ):
        yield from _select(rest, value[step])  # type: ignore[index]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


# ---- [ space-delimited fields ] -------------------------------------------------------------------------------------

_FIELD = re.compile(r'\s*(?:"(?P<quoted>[^"]*)"(?=\s|$)|\[(?P<bracketed>[^\]]*)\](?=\s|$)|(?P<plain>\S+))')


@dataclass(frozen=True)
class _Field:
    name: str
    test: Callable[[str], bool]


def split_fields(message: str) -> list[str]:
    """Fields of a log event: separated by white space; text in quotes or brackets is one field, without them."""
    fields = []
    for match in _FIELD.finditer(message):
        quoted, bracketed, plain = match.group("quoted", "bracketed", "plain")
        fields.append(quoted if quoted is not None else bracketed if bracketed is not None else plain)
    return fields


def _fields_matcher(text: str) -> Callable[[str], Values | None]:
    if not text.endswith("]"):
        raise PatternError("a space-delimited pattern ends with ]")
    groups: list[list[Token]] = [[]]
    for token in _tokens(text[1:-1]):
        if token == Token("symbol", ","):
            groups.append([])
        else:
            groups[-1].append(token)
    ellipsis = [index for index, group in enumerate(groups) if [token.text for token in group] == ["..."]]
    if len(ellipsis) > 1:
        raise PatternError("a space-delimited pattern has one ... at most")
    cut = ellipsis[0] if ellipsis else None
    wanted = [_field(group, index) for index, group in enumerate(groups) if index != cut]

    def match(message: str) -> Values | None:
        fields = split_fields(message)
        if len(fields) < len(wanted) or (cut is None and len(fields) != len(wanted)):
            return None
        head = len(wanted) if cut is None else cut
        tail = len(wanted) - head
        taken = fields[:head] + (fields[-tail:] if tail else [])
        if not all(field.test(value) for field, value in zip(wanted, taken, strict=True)):
            return None
        return {f"${field.name}": value for field, value in zip(wanted, taken, strict=True)}

    return match


def _field(group: list[Token], index: int) -> _Field:
    """`name`, `name = value`, or several tests of the same name joined by && or ||."""
    if not group:
        return _Field(str(index + 1), lambda value: True)
    name = group[0].text
    if group[0].kind not in ("word", "string"):
        raise PatternError(f"a field's name is expected, not {name!r}")
    if len(group) == 1:
        return _Field(name, lambda value: True)
    alternatives: list[list[Callable[[str], bool]]] = [[]]
    rest = list(group)
    while rest:
        if len(rest) < 3 or rest[0].text != name or rest[1].text not in OPERATORS:
            raise PatternError(f"cannot read the test of field {name!r}")
        alternatives[-1].append(_compare(rest[1].text, rest[2]))
        joint, rest = (rest[3].text, rest[4:]) if len(rest) > 3 else ("", [])
        if joint == "||":
            alternatives.append([])
        elif joint not in ("", "&&"):
            raise PatternError(f"{joint!r} does not join two tests of field {name!r}")
    return _Field(name, lambda value: any(all(test(value) for test in tests) for tests in alternatives))


# ---- terms ----------------------------------------------------------------------------------------------------------

_TERM = re.compile(
    r'\s*(?P<sign>[?-]?)(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|%(?P<regex>(?:[^%\\]|\\.)+)%|(?P<plain>[^\s"]+))'
)


def _terms_matcher(text: str) -> Callable[[str], Values | None]:
    required: list[Callable[[str], bool]] = []
    excluded: list[Callable[[str], bool]] = []
    optional: list[Callable[[str], bool]] = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise PatternError(f"cannot read the filter pattern from {text[position:]!r}")
        kind = {"?": optional, "-": excluded, "": required}[match["sign"]]
        kind.append(_contains(match))
        position = match.end()

    def matches(message: str) -> Values | None:
        found = all(test(message) for test in required) and not any(test(message) for test in excluded)
        # ?terms count only where no other kind of term is given.
        if optional and not required and not excluded:
            found = any(test(message) for test in optional)
        return {} if found else None

    return matches


def _contains(match: re.Match[str]) -> Callable[[str], bool]:
    if match["regex"] is not None:
        expression = re.compile(match["regex"])
        return lambda message: expression.search(message) is not None
    term = match["plain"] if match["quoted"] is None else json.loads(f'"{match["quoted"]}"')
    return lambda message: term in message
