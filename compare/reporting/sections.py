"""What one step adds to a report on several: sentences, tables and pictures, and the report as Markdown and as one page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.core import wording
from compare.reporting import page, svg, tables
from compare.reporting.tables import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """One step of a report."""

    name: str
    """One word, of the step's folder and of its anchor in the page."""
    title: str
    sections: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    tables: list[Table] = field(default_factory=list[Table])
    pictures: list[str] = field(default_factory=list[str])
    """Files under the report's folder, .svg or .png."""
    conclusions: list[str] = field(default_factory=list[str])
    """What of all this belongs to the conclusion of the whole, no stronger than its figures."""
    more: list[str] = field(default_factory=list[str])
    """Files under the report's folder that hold the rest."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A report of several parts."""

    title: str
    overline: str
    facts: list[str]
    marks: list[tuple[str, str, str]]
    """(what, words, tone) that a reader wants to know before all else; tone: good, warn or bad."""
    conclusions: list[tuple[str, list[str]]]
    parts: list[Section]
    commands: list[tuple[str, str]]
    """What each is for, and the line that does it again."""


def to_markdown(whole: Whole) -> str:
    """The report for a file in the folder whose pictures it shows."""
    lines = [f"# {tables.escaped(whole.title)}", "", *(f"{tables.escaped(fact)}  " for fact in whole.facts), ""]
    lines += [f"- {what}: **{tables.escaped(said)}**" for what, said, _ in whole.marks]
    lines += ["", "## Conclusion", ""]
    lines += _sections(whole.conclusions)
    for part in whole.parts:
        lines += [f"## {tables.escaped(part.title)}", "", *_sections(part.sections)]
        lines += map(tables.to_markdown, part.tables)
        lines += [f"![{Path(picture).stem.replace('_', ' ')}]({picture})" for picture in part.pictures]
        if part.more:
            lines += ["", f"More: {', '.join(f'[{each}]({each})' for each in part.more)}"]
        lines += [""]
    lines += ["## To repeat it", ""]
    for what, line in whole.commands:
        lines += [tables.escaped(what), "", f"    {line}", ""]
    return "\n".join(lines).rstrip() + "\n"


def to_html(whole: Whole, folder: Path) -> str:
    """The report as one page, which asks nothing of the network.

    Args:
        whole: what it says.
        folder: that holds the pictures.
    """
    return page.render(
        "study.html.jinja",
        title=wording.one_line(whole.title),
        overline=whole.overline,
        facts=list(map(wording.one_line, whole.facts)),
        marks=[{"what": what, "said": said, "tone": tone} for what, said, tone in whole.marks],
        said=_on_one_line(whole.conclusions),
        parts_of_it=[_part(part, folder) for part in whole.parts],
        commands=whole.commands,
    )


def _part(part: Section, folder: Path) -> dict[str, Any]:
    return {
        "name": part.name,
        "title": wording.one_line(part.title),
        "said": _on_one_line(part.sections),
        "grids": list(map(page.grid, part.tables)),
        "drawings": [_drawing(folder / each, f"{part.name} {Path(each).stem}") for each in part.pictures if _is_drawing(each)],
        "photographs": [
            (Path(each).stem.replace("_", " "), _photograph(folder / each)) for each in part.pictures if not _is_drawing(each)
        ],
        "more": part.more,
    }


def _is_drawing(path: str) -> bool:
    return path.endswith(".svg")


def _drawing(path: Path, name: str) -> str:
    return svg.svg(path.read_text("utf-8"), name.replace("_", " "))


def _photograph(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _sections(sections: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    lines: list[str] = []
    for title, sentences in sections:
        lines += [f"### {tables.escaped(title)}", "", *(f"- {tables.escaped(sentence)}" for sentence in sentences), ""]
    return lines


def _on_one_line(sections: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, list[str]]]:
    return [(title, list(map(wording.one_line, sentences))) for title, sentences in sections]
