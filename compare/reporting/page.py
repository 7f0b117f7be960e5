"""A report as one HTML file: it asks nothing of the network, and nothing in it runs but its own script."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from compare.core import wording
from compare.core.statistics import VERDICT_PAIRS, Ratio, Spread
from compare.judgement.summary import Summary
from compare.reporting import comparison_tables, content, plots, svg, tables
from compare.reporting.content import Report
from compare.reporting.tables import Cell, Column, Table

_TEMPLATES = Path(__file__).parent / "templates"
TONES = {
    **dict.fromkeys(("ok", "passed", "proved", "pays"), "good"),
    **dict.fromkeys(("failed", "diverged", "killed", "not proved", "not run"), "bad"),
    **dict.fromkeys(("not parallel", "not available", "does not pay"), "warn"),
}
"""Words of a cell that a colour helps to find."""
_LONG = 44
"""Characters from which a cell's text is broken into lines."""
_FIRST, _CURVES = ("comparison", "accuracy"), ("loss", "accuracy")
_PROOF, _CLASSES, _FOLDED = ("proof", "claims"), ("classes",), ("seconds", "epochs")


_IN_THE_RUNG = ("mode", "model", "optimizer")
"""Columns of the certificate that its rungs' names and the heading of the page say."""


def to_html(report: Report, folder: Path, drawn: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        report: what it says.
        folder: where the results lie, for the commands.
        drawn: the plots, SVG files by name; confusion stands here as tables.
    """
    comparison = report.stored.comparison
    grids = {table.name: table for table in content.documents(report)}
    folded = [name for name in grids if name in (*_FIRST[:1], *_FOLDED) or name.startswith("epoch_")]
    apart = {*_FIRST, *_PROOF, *_CLASSES, *folded}
    pictures = {name: svg.svg(source, name.replace("_", " ")) for name, source in drawn.items() if name != plots.CONFUSION}
    heats = [_heat(summary, comparison.class_names) for summary in report.summaries if summary.confusion]
    title = wording.one_line(f"{comparison.rows[0].spec.model} on {comparison.data_name}")
    return render(
        "report.html.jinja",
        title=title,
        overline="Comparison of frameworks",
        facts=[wording.one_line(line).removeprefix(f"{title}, ") for line in content.heading(report).splitlines()],
        marks=_marks(report),
        said=[(title, list(map(wording.one_line, sentences))) for title, sentences in content.sections(report)],
        contents=_contents(grids, pictures, heats),
        proof=grid(_without(grids["proof"], _IN_THE_RUNG)) if "proof" in grids else None,
        claims=grid(grids["claims"]) if "claims" in grids else None,
        results=[grid(_narrow(grids[name])) for name in _FIRST if name in grids],
        curves=[pictures[name] for name in _CURVES if name in pictures],
        times=[picture for name, picture in pictures.items() if name not in _CURVES],
        left_out=plots.left_out(report.summaries),
        timed=[grid(table) for name, table in grids.items() if name not in apart],
        heats=heats,
        classes=[grid(grids[name]) for name in _CLASSES if name in grids],
        whole=[grid(grids[name]) for name in folded],
        environment=content.environment(report),
        specs=[(row.id, row.spec.to_json()) for row in comparison.rows],
        commands=content.commands(report, folder),
        run_commands=content.run_commands(report, folder),
    )


def render(template: str, *, scripted: bool = True, **values: Any) -> str:
    """One of the templates as a page whose policy allows its own style and script, and nothing else at all.

    Args:
        template: name of its file; it extends `page.html.jinja`.
        scripted: whether the script that sorts tables is in it.
        values: what it shows; text from outside is escaped.
    """
    style, script = _read("page.css"), _read("page.js") if scripted else ""
    allowed = [("style-src", style), *([("script-src", script)] if script else [])]
    policy = "; ".join(
        [
            "default-src 'none'",
            *(f"{kind} 'sha256-{_digest(text)}'" for kind, text in allowed),
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return _environment().get_template(template).render(policy=policy, style=style, script=script, **values)


def _marks(report: Report) -> list[dict[str, str]]:
    """What a reader wants to know before all else, a few words each."""
    comparison, summaries = report.stored.comparison, report.summaries
    verdict = comparison.proof.verdict if comparison.proof else "not examined"
    whole = sum(summary.status == "ok" for summary in summaries)
    enough = comparison.repeats >= VERDICT_PAIRS
    timed, tone = ("comparable", "good") if report.findings.comparable else ("not comparable", "bad")
    doubtful = sum(summary.in_doubt for summary in summaries)
    if doubtful and report.findings.comparable:
        timed, tone = f"times in doubt in {doubtful} of {len(summaries)} rows", "warn"
    return [
        {"what": "Same training", "said": verdict, "tone": TONES.get(verdict, "warn")},
        {"what": "Timed runs", "said": timed, "tone": tone},
        {
            "what": "Rows that ended well",
            "said": f"{whole} of {len(summaries)}",
            "tone": "good" if whole == len(summaries) else "bad" if report.exit_code else "warn",
        },
        {
            "what": "Repeats",
            "said": f"{comparison.repeats}" if enough else f"{comparison.repeats}, a verdict needs {VERDICT_PAIRS}",
            "tone": "good" if enough else "warn",
        },
    ]


def _contents(
    grids: Mapping[str, Table], pictures: Mapping[str, str], heats: Sequence[dict[str, Any]]
) -> list[tuple[str, str]]:
    parts = [
        ("proof", "Proof", "proof" in grids),
        ("results", "Results", True),
        ("curves", "Curves", any(name in pictures for name in _CURVES)),
        ("times", "Time", True),
        ("confusion", "Confusion", bool(heats)),
        ("details", "Every figure", True),
        ("environment", "Environment", True),
        ("again", "Repeat it", True),
    ]
    return [(anchor, name) for anchor, name, present in parts if present]


def _narrow(table: Table) -> Table:
    return _without(table, [column.key for column in table.columns if not column.terminal])


def _without(table: Table, keys: Collection[str]) -> Table:
    return replace(table, columns=tuple(column for column in table.columns if column.key not in keys))


def grid(table: Table) -> dict[str, Any]:
    """A table as its macro takes it."""
    texts = {column.key: any(isinstance(row.get(column.key), str) for row in table.rows) for column in table.columns}
    return {
        "title": table.title,
        "note": table.note,
        "headings": [{"text": column.heading, "is_text": texts[column.key]} for column in table.columns],
        "rows": [[_cell(row.get(column.key), column, texts[column.key]) for column in table.columns] for row in table.rows],
    }


def _cell(cell: Cell, column: Column, is_text: bool) -> dict[str, Any]:
    value = cell.median if isinstance(cell, Spread) else cell.value if isinstance(cell, Ratio) else cell
    number = _for_script(value) if isinstance(value, int | float) and not math.isnan(value) else None
    text = tables.written(cell, column)
    kinds = ["text"] * is_text + ["long"] * (len(text) > _LONG) + ([TONES[text]] if text in TONES else [])
    return {
        "text": text,
        "value": number,
        "missing": number is None and not isinstance(cell, str),
        "kind": " ".join(kinds),
    }


def _for_script(number: float) -> str:
    """A number as JavaScript reads it."""
    return repr(number) if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


def _heat(summary: Summary, class_names: Sequence[str]) -> dict[str, Any]:
    """A confusion matrix; the share of a row that a cell has, in tenths rounded up, is its colour."""
    counts = summary.confusion or []
    return {
        "title": summary.name,
        "names": comparison_tables.headings(class_names, len(counts)),
        "rows": [[(count, math.ceil(10 * count / max(sum(row), 1))) for count in row] for row in counts],
    }


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
