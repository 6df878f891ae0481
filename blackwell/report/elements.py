"""What the report pages are put together from: frame, tiles, tables, keys, charts for wide and narrow screens.

Every text is escaped here; what comes in is plain text, except the sections of a page, the drawings and the cells of a
`drawn_table`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from html import escape

from blackwell.report.style import CSS
from blackwell.runs import RunStatus
from blackwell.verdict import Verdict

WIDE, NARROW = 820, 360


def policy(css: str = "", script: str = "") -> str:
    """The page's Content-Security-Policy: its own style and script by their digests, data: pictures, nothing else.

    With a script, the page may ask the server that it came from; without one, nobody.
    """
    rules = [f"default-src 'none'; style-src {_digest(CSS + css)}; img-src data:; base-uri 'none'; form-action 'none'"]
    if script:
        rules.append(f"script-src {_digest(script)}; connect-src 'self'")
    return "; ".join(rules)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(
    title: str, sections: Iterable[str], css: str = "", *, script: str = "", every_seconds: float | None = None
) -> str:
    """The whole document from its sections, which are HTML.

    Args:
        title: plain text.
        sections: HTML; empty ones are left out.
        css: added to the common style sheet.
        script: of a page that renews itself; reports have none.
        every_seconds: pause between two renewals, for the script.
    """
    every = f' data-every="{every_seconds:g}"' if every_seconds is not None else ""
    return (
        f'<!doctype html><html lang="en"{every}><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(css, script)}">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{CSS}{css}</style></head><body><main>"
        + "\n".join(section for section in sections if section)
        + f"</main>{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


def badge(status: RunStatus, verdict: Verdict | None) -> tuple[str, str]:
    """(CSS class, word) for how a run stands."""
    if status is RunStatus.COMPLETED:
        return "good", "completed"
    if status is RunStatus.RUNNING:
        return "warn", "running"
    if verdict in (Verdict.STOPPED, Verdict.BUDGET_REACHED):
        return "warn", verdict.value.replace("_", " ")
    return "bad", (verdict.value if verdict else status.value.lower()).replace("_", " ")


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """(name, value, note) each in a box of its own."""
    cells = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>'
        for name, value, note in entries
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def code(text: str) -> str:
    """Escapes; what stands between back-ticks becomes code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))


def both(draw: Callable[[str, int], str], identity: str) -> str:
    """The same chart for a wide and a narrow screen; `draw` takes an id and a width in pixels."""
    wide, narrow = draw(f"{identity}w", WIDE), draw(f"{identity}n", NARROW)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def keys(entries: Iterable[tuple[str, str]]) -> str:
    """A chart's key: (CSS class, text)."""
    return (
        '<ul class="keys">'
        + "".join(f'<li><span class="key {style}"></span>{escape(text)}</li>' for style, text in entries)
        + "</ul>"
    )


def amount(value: float) -> str:
    """Four significant digits, whole numbers from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    label: str,
    numeric: set[int] | None = None,
    wide: set[int] | None = None,
) -> str:
    """A table that scrolls sideways where it must; `numeric` columns stand right, `wide` ones get room for words."""
    drawn = [[escape(cell) for cell in row] for row in rows]
    return drawn_table(head, drawn, label=label, numeric=numeric, wide=wide)


def drawn_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    label: str,
    numeric: set[int] | None = None,
    wide: set[int] | None = None,
) -> str:
    """As `table`, but the cells are HTML already."""
    right, broad = numeric or set(), wide or set()

    def style(column: int) -> str:
        return ' class="n"' if column in right else ' class="w"' if column in broad else ""

    top = "".join(f'<th scope="col"{style(n) if n in right else ""}>{escape(h)}</th>' for n, h in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{style(n)}>{cell}</td>" for n, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
