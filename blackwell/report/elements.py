"""What the report pages are put together from: frame, tiles, tables, keys, charts for wide and narrow screens.

Every text is escaped here; what comes in is plain text, except the sections of a page and the drawings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from blackwell.report.style import CSS

WIDE, NARROW = 820, 360


def page(title: str, sections: Iterable[str], css: str = "") -> str:
    """The whole document from its sections, which are HTML; `css` is added to the common style sheet."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{CSS}{css}</style></head><body><main>"
        + "\n".join(section for section in sections if section)
        + "</main></body></html>\n"
    )


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
    right, broad = numeric or set(), wide or set()

    def style(column: int) -> str:
        return ' class="n"' if column in right else ' class="w"' if column in broad else ""

    top = "".join(f'<th scope="col"{style(n) if n in right else ""}>{escape(h)}</th>' for n, h in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{style(n)}>{escape(cell)}</td>" for n, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
