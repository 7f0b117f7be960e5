"""HTML pages. They load nothing from the network, and only their own script runs."""

from __future__ import annotations

import base64
import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from compare.judgement.row_figures import DISTURBED, GUESSING, NOT_COMPARABLE
from compare.reporting import tables
from compare.reporting.tables import Cell, Column, Table
from compare.statistics.statistics import Ratio, Spread

_TEMPLATES = Path(__file__).parent / "templates"
TONES = {
    **dict.fromkeys(("ok", "passed", "proved", "pays"), "good"),
    **dict.fromkeys(("failed", "diverged", "killed", "not proved", "not run", "incomplete"), "bad"),
    **dict.fromkeys(("not parallel", "not available", "does not pay", DISTURBED, NOT_COMPARABLE, GUESSING), "warn"),
}
"""Tone of a cell, by its text."""
_LONG_TEXT = 44
"""Characters of a cell's text above which it is broken into lines."""


def render(template: str, *, scripted: bool = True, **values: Any) -> str:
    """Render a template as a page. Its policy allows its own style and script, and nothing else.

    Args:
        template: name of a file that extends `page.html.jinja`.
        scripted: whether the page has the script that sorts tables.
        values: values of the template. All text is escaped.
    """
    style, script = _read("page.css"), _read("page.js") if scripted else ""
    sources = [("style-src", style), *([("script-src", script)] if script else [])]
    policy = "; ".join(
        [
            "default-src 'none'",
            *(f"{kind} 'sha256-{_digest(text)}'" for kind, text in sources),
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return _environment().get_template(template).render(policy=policy, style=style, script=script, **values)


def grid(table: Table) -> dict[str, Any]:
    """A table in the form that the template's macro takes."""
    table = tables.with_interval_headings(table)
    texts = {column.key: any(isinstance(row.get(column.key), str) for row in table.rows) for column in table.columns}
    return {
        "title": table.title,
        "note": table.whole_note,
        "headings": [{"text": column.heading, "is_text": texts[column.key]} for column in table.columns],
        "rows": [[_cell(row.get(column.key), column, texts[column.key]) for column in table.columns] for row in table.rows],
    }


def _cell(cell: Cell, column: Column, is_text: bool) -> dict[str, Any]:
    value = cell.median if isinstance(cell, Spread) else cell.value if isinstance(cell, Ratio) else cell
    number = _to_javascript(value) if isinstance(value, int | float) and not math.isnan(value) else None
    text = tables.cell_text(cell, column)
    kinds = ["text"] * is_text + ["long"] * (len(text) > _LONG_TEXT) + ([TONES[text]] if text in TONES else [])
    return {
        "text": text,
        "value": number,
        "missing": number is None and not isinstance(cell, str),
        "kind": " ".join(kinds),
        "link": text if column.link else None,
    }


def _to_javascript(number: float) -> str:
    """A number as JavaScript reads it."""
    return repr(number) if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
