"""A report of any command: one content for the terminal, Markdown, HTML, CSV, LaTeX and JSON."""

from __future__ import annotations

import base64
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter
from rich.console import Console
from rich.text import Text

from common.artifacts import atomic_files, records
from common.data import cache
from common.machine import machine, plain_file
from common.machine.machine import processors
from compare.core import exits, terminal, wording
from compare.execution import signing, store
from compare.reporting import latex, page, plots, screen, svg, tables
from compare.reporting.plots import Drawing
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import ELSEWHERE, Table

TABLES_FOLDER, PLOTS_FOLDER = "tables", "plots"
LAST_REPORTS = "last_reports"
"""In the cache: all of the last report of each title that no folder holds."""
COMPARE = machine.COMMAND
SET_UP = () if machine.INSTALLED else (("Its environment:", "make setup"),)
"""(purpose, command) of what comes before the commands that repeat a report."""
PYTHON = sys.executable if machine.INSTALLED else ".venv/bin/python"
SUITE_ON_PATH = ("env", f"PYTHONPATH={machine.PROJECT_ROOT}") if machine.INSTALLED else ()
"""Before a command that starts a module of the suite."""

_FORMS: Mapping[str, Callable[[Table], str]] = {"md": tables.to_markdown, "csv": tables.to_csv, "tex": latex.to_latex}
"""Files of a table, by suffix."""

Findings = Sequence[tuple[str, Sequence[str]]]
"""Sentences under headings."""

_MOST_PICTURE_BYTES = 2**26
"""A browser shows no page of more pictures than a few of this size."""

_JSON: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))


class Mark(NamedTuple):
    """What a reader wants to know first, in a few words."""

    what: str
    said: str
    tone: str = ""
    """good, warn, bad or none."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One step of a report on several steps."""

    name: str
    """One word: the step's folder, and its anchor in the page."""
    title: str
    findings: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    """Sentences under headings."""
    tables: list[Table] = field(default_factory=list[Table])
    pictures: list[str] = field(default_factory=list[str])
    """Files under the report's folder, .svg or .png."""
    conclusions: list[str] = field(default_factory=list[str])
    """Sentences for the conclusion of the whole report."""
    first: list[str] = field(default_factory=list[str])
    """Sentences for its first screen. Empty: the conclusions."""
    trouble: list[str] = field(default_factory=list[str])
    """What changes the answer, for its first screen."""
    more: list[str] = field(default_factory=list[str])
    """Files under the report's folder that hold the rest."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a command has found. `write` makes its files, `show` prints it, `deliver` does both.

    A command builds one and lays out nothing itself.
    """

    title: str
    headline: str | None = None
    """Style of the title on the terminal. None: only a report on several steps shows it there."""
    name: str = "report"
    """Stem of its .md and .html files."""
    json_file: str | None = None
    """None: JSON is printed on request and not written, since the folder has a record of its own."""
    overline: str = "Convtwins"
    """Above the title of the page."""
    facts: Sequence[str] = ()
    """A line each: what was measured, on what."""
    first_sentences: Sequence[str] = ()
    """Below the facts: what a reader must know before the tables."""
    marks: Sequence[Mark] = ()
    findings: Findings = ()
    tables: Sequence[Table] = ()
    detail_tables: Sequence[Table] = ()
    """Written as files alone: they are too long for a page."""
    terminal_tables: Sequence[Table] | None = None
    """Narrower ones for the terminal. None: `tables`."""
    elsewhere: str = ELSEWHERE
    """Names the place of columns that do not fit the terminal, if no files were written."""
    drawings: Mapping[str, Drawing] = field(default_factory=dict[str, Drawing])
    """Plots by name."""
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    """Other files by their path under the folder. PNG files are shown."""
    sections: Sequence[Section] = ()
    """Of a report on several steps. `findings` are its conclusion then."""
    environment: Sequence[tuple[str, str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    """(purpose, command line) of each command that repeats it."""
    notes: Sequence[str] = ()
    """Markdown only, below the plots."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON only, besides tables, findings and exit code."""
    template: str = "document.html.jinja"
    page_values: Callable[[Mapping[str, str]], Mapping[str, Any]] | None = None
    """Further values of the template, made from the plots: SVG elements by name."""
    exit_code: int = 0
    failures: Sequence[str] = ()
    """Why the exit code is not 0. They are the last line on stderr."""
    screen: Screen | None = None
    """What is printed first. None: a short report is printed whole, and of a longer one its first sentences and rows."""
    again: str = ""
    """The command that prints a stored report again, or the file that holds all of it."""

    @property
    def markdown_file(self) -> str:
        return f"{self.name}.md"

    @property
    def page_file(self) -> str:
        return f"{self.name}.html"

    @property
    def _left_to_say(self) -> list[str]:
        """The first sentences that are no answers of the first screen, which stand below them."""
        said = {sentence for answer in (self.screen.answers if self.screen else ()) for sentence in answer.sentences}
        return [each for each in self.first_sentences if each not in said]

    def deliver(self, folder: Path | None, *, as_json: bool) -> int:
        """Write the report to its folder, if it has one, and print it. Returns the exit code."""
        unwritten = self.write(folder) if folder else None
        code = self.exit_code or (exits.RUN_FAILED if unwritten else 0)
        found = replace(self, exit_code=code)
        if unwritten and self.screen:
            found = replace(found, screen=self.screen.with_trouble(f"exit code {code}: {unwritten}"))
        found.show(None if unwritten else folder, as_json=as_json)
        if unwritten:
            typer.echo(unwritten, err=True)
        else:
            self.explain()
        return code

    def explain(self) -> None:
        """Say on stderr why the exit code is not 0."""
        if self.failures:
            typer.echo(f"Exit code {self.exit_code}: {', and '.join(self.failures)}. The report says more.", err=True)

    def show(self, folder: Path | None, *, as_json: bool) -> None:
        """Print the report on stdout: for a reader, with the path of its files if it has any, or as one JSON object.

        A reader gets the first screen, or everything with `--full`.
        """
        if as_json:
            typer.echo(self.to_json())
            return
        console = terminal.stdout()
        if self.screen and (folder or self.again) and not terminal.is_full():  # the rest is not printed, nor kept
            typer.echo(self.first_screen(console, folder))
            return
        with console.capture() as captured:
            self._print(console, folder)
        text = _without_blanks(captured.get())
        is_whole = terminal.is_full() or (self.screen is None and text.count("\n") < screen.LINES)
        kept = None if is_whole or folder or self.again else _kept(self.title, text)
        typer.echo(text if is_whole else replace(self, again=self.again or kept or "").first_screen(console, folder))

    def first_screen(self, console: Console, folder: Path | None) -> str:
        """What is printed first, and where the rest is."""
        with console.capture() as captured:
            for line in self._first(folder).lines(console):
                console.print(line, soft_wrap=True)
        return _without_blanks(captured.get())

    def _first(self, folder: Path | None) -> Screen:
        """The first screen, with where the rest is."""
        shown = self.tables if self.terminal_tables is None else self.terminal_tables
        first = self.screen or Screen(
            asked=[self.facts[0]] if self.facts else [self.title],
            answers=[
                Paragraph("", [*self.first_sentences, *(f"{mark.what}: {mark.said}" for mark in self.marks)]),
                *(Paragraph(heading, sentences) for heading, sentences in self.findings),
            ],
            table=next(iter(tables.with_rows(shown)), None),
        )
        rest = [("everything", self.again or "the same command with --full")]
        if folder:
            rest = [("the page", str(folder / self.page_file)), ("everything", self.again or str(folder / self.markdown_file))]
        return replace(first, next=[*first.next, *((what, wording.visible(where)) for what, where in rest)])

    def _print(self, console: Console, folder: Path | None) -> None:
        if self.headline or self.sections:
            console.print(Text(wording.one_line(self.title), style=self.headline or "bold"), soft_wrap=True)
        for line in self.facts:
            console.print(Text(wording.one_line(line)), overflow="ignore", crop=False)  # a path is not broken
        for line in self.first_sentences:
            console.print(Text(wording.one_line(line)))
        shown = self.tables if self.terminal_tables is None else self.terminal_tables
        tables.print_all(console, shown, where=self.markdown_file if folder else self.elsewhere)
        tables.print_findings(console, self.findings)
        console.print()
        if folder:
            made = wording.visible(str(folder / self.markdown_file))
            console.print(Text(f"Report: {made}, {self.page_file}"), soft_wrap=True)

    def write(self, folder: Path) -> str | None:
        """Write page, Markdown, tables, plots and JSON. Tables that only the earlier report had are removed.

        Returns:
            Why that failed, or None.

        Raises:
            FolderError: a folder of its files is a link.
        """
        store.refuse_links(folder, {TABLES_FOLDER, PLOTS_FOLDER, *(Path(path).parts[0] for path in self.files if "/" in path)})
        try:
            written = self._table_files()
            self._remove_tables_of_before(folder, kept={table.name for table in written})
            for table in written:
                for suffix, form in _FORMS.items():
                    atomic_files.write_atomically(folder / TABLES_FOLDER / f"{table.name}.{suffix}", form(table))
            drawn = plots.write_all(self.drawings, folder / PLOTS_FOLDER)
            for path, content in self.files.items():
                atomic_files.write_atomically(folder / path, content)
            pictures = [f"{PLOTS_FOLDER}/{path.name}" for path in drawn if path.suffix == ".svg"]
            pictures += [path for path in self.files if path.endswith(".png")]
            atomic_files.write_atomically(folder / self.page_file, self.to_html(folder, pictures))
            atomic_files.write_atomically(folder / self.markdown_file, self.to_markdown(pictures))
            if self.json_file is not None:
                atomic_files.write_atomically(folder / self.json_file, self.to_json() + "\n")
        except OSError as error:
            advice = atomic_files.remedy(error, "choose another --out")
            return f"The report cannot be written to {folder} ({error}). {advice}"
        return None

    def to_json(self) -> str:
        """Everything. Numbers that JSON lacks (NaN, infinity) become null."""
        found = {heading: list(sentences) for heading, sentences in self.findings}
        common = {"tables": list(map(tables.to_plain, self.tables)), "findings": found, "exit_code": self.exit_code}
        return to_json({**common, **self.values})

    def to_markdown(self, pictures: Sequence[str] = ()) -> str:
        """The report as GitHub-flavoured Markdown.

        Args:
            pictures: files, relative to the report's.
        """
        lines = [
            f"# {tables.escaped(self.title)}",
            "",
            *(f"{tables.escaped(line)}  " for line in (*self.facts, *self._left_to_say)),
            "",
        ]
        if self.screen:
            answers = [(each.label, list(map(wording.one_line, each.sentences))) for each in self.screen.answers]
            lines += [line for label, said in answers for line in _answered(label, said)]
            lines += [""]
        if self.sections:
            lines += [*(f"- {mark.what}: **{tables.escaped(mark.said)}**" for mark in self.marks), "", "## Conclusion", ""]
        lines += findings_to_markdown(self.findings, level=3 if self.sections else 2)
        for section in self.sections:
            lines += [f"## {tables.escaped(section.title)}", "", *findings_to_markdown(section.findings, level=3)]
            lines += [*map(tables.to_markdown, tables.with_rows(section.tables)), *map(_picture, section.pictures)]
            lines += ["", f"More: {', '.join(f'[{each}]({each})' for each in section.more)}"] * bool(section.more)
            lines += [""]
        shown = tables.with_rows(self.tables)
        lines += ["## Tables", "", *map(tables.to_markdown, shown)] * bool(shown)
        lines += ["## Plots", "", *map(_own_picture, pictures), ""] * bool(pictures)
        lines += self.notes
        if self.environment:
            lines += ["", "## Environment", ""]
            lines += [f"- {tables.escaped(name)}: {tables.escaped(value)}" for name, value in self.environment]
        if self.commands:
            lines += ["", "## To repeat it", ""]
            for purpose, command in self.commands:
                lines += [tables.escaped(purpose), "", *(f"    {line}" for line in command.splitlines()), ""]
        return "\n".join(lines).rstrip() + "\n"

    def to_html(self, folder: Path, pictures: Sequence[str] = ()) -> str:
        """The report as one page, which loads nothing from the network.

        Args:
            folder: that holds the pictures.
            pictures: files, relative to it.
        """
        drawn = {Path(each).stem: _drawing(folder / each, Path(each).stem) for each in pictures if _is_drawing(each)}
        values: dict[str, Any] = {
            "title": wording.one_line(self.title),
            "overline": self.overline,
            "facts": list(map(wording.one_line, (*self.facts, *self._left_to_say))),
            "answers": [
                {"label": each.label, "tone": each.tone, "sentences": list(map(wording.one_line, each.sentences))}
                for each in (self.screen.answers if self.screen else ())
                if each.sentences
            ],
            "marks": [Mark(*map(wording.one_line, mark)) for mark in self.marks],
            "said": _on_one_line(self.findings),
            "parts_of_it": [_part(section, folder) for section in self.sections],
            "environment": [(wording.one_line(name), wording.one_line(value)) for name, value in self.environment],
            "commands": [(wording.one_line(purpose), command) for purpose, command in self.commands],
            "beside": f"{self.markdown_file}{f', {self.json_file}' if self.json_file else ''}",
        }
        if self.page_values:
            values |= self.page_values(drawn)
        else:
            values["grids"] = list(map(page.grid, tables.with_rows(self.tables)))
            values["drawings"] = list(drawn.values())
            values["photographs"] = [_photograph(folder, each) for each in pictures if not _is_drawing(each)]
        return page.render(self.template, **values)

    def _table_files(self) -> list[Table]:
        """Every table under the name of its files: two sections may have tables of one name."""
        own = [*self.tables, *self.detail_tables]
        of_sections = [(part.name, each) for part in self.sections for each in part.tables]
        names = Counter(each.name for each in (*own, *(each for _, each in of_sections)))
        return own + [
            each if names[each.name] == 1 else replace(each, name=f"{part}_{each.name}") for part, each in of_sections
        ]

    def _remove_tables_of_before(self, folder: Path, kept: Collection[str]) -> None:
        own = {Path(path).stem for path in self.files}.union(kept)
        there = {path.stem for path in (folder / TABLES_FOLDER).glob("*")}
        if self.json_file is None or not (others := there - own):
            return
        try:
            before = _Before.model_validate_json(plain_file.read(folder / self.json_file, records.MOST_BYTES))
        except (OSError, ValueError):
            return
        for name in {table.name for table in before.tables} & others:
            if Path(name).name == name:  # whoever wrote it: no other folder's files
                for suffix in _FORMS:
                    (folder / TABLES_FOLDER / f"{name}.{suffix}").unlink(missing_ok=True)


def _kept(title: str, text: str) -> str | None:
    """Keep a report that no folder holds, so that nothing is measured again to read the rest. Return its file if that works."""
    try:
        path = cache.folder(None) / LAST_REPORTS / f"{re.sub('[^a-z0-9]+', '_', title.lower())[:60]}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_atomically(path, Text.from_ansi(text).plain + "\n")
    except OSError:
        return None
    return str(path)


def _without_blanks(text: str) -> str:
    """Lines without blanks at their ends."""
    return "\n".join(map(str.rstrip, text.splitlines()))


class _Named(BaseModel):
    name: str


class _Before(BaseModel):
    """The tables of an earlier report's JSON. The rest may be as large as thousands of runs."""

    tables: list[_Named]


def signed(report: Report, folder: Path, records: Collection[str], key: Path | None, again: str) -> Report:
    """The report with who signed the records that it is made from.

    Args:
        folder: that holds them.
        records: paths in it.
        key: signs them first. None: only the signature that is there is judged.
        again: the command that signs them with `--sign KEY`.
    """
    signature, unsigned = signing.of_records(folder, records, key, again)
    if unsigned:
        typer.echo(unsigned, err=True)
    bad = unsigned or (signature is not None and not signature.confirmed)
    return replace(
        report,
        facts=[*report.facts, *([signature.sentence] if signature is not None else [])],
        values={**report.values, "signature": signature},
        exit_code=report.exit_code or (exits.RUN_FAILED if bad else 0),
        screen=report.screen and _with_signature(report.screen, signature, unsigned),
    )


def _with_signature(first: Screen, signature: signing.Signature | None, unsigned: str | None) -> Screen:
    """The first screen with who signed the records, or why they are not signed."""
    if signature is not None and signature.confirmed:
        return replace(first, remarks=[*first.remarks, signature.sentence])
    # Why it failed names the key's file, which no report shows.
    why = [
        *(["The records could not be signed."] if unsigned else []),
        *([signature.sentence] if signature is not None else []),
    ]
    return replace(first, answers=[*first.answers, Paragraph("Signature", why, "bad")] if why else first.answers)


def files_of(name: str = "report") -> tuple[str, ...]:
    """Names that a report which was cut short may leave in its folder. `name` is that of the report."""
    return f"{name}.md", f"{name}.html", TABLES_FOLDER, PLOTS_FOLDER


def ground(machine: Mapping[str, Any], versions: Mapping[str, Mapping[str, str]], *, cores: int | None = None) -> str:
    """`AMD EPYC 7B13, budget of 2 cores; torch 2.14.1, tensorflow 2.21.0`.

    Args:
        machine: see `machine.describe`.
        versions: contestant: {package: version}. What several have alike is said once.
        cores: the budget. None: it is not named.
    """
    budget = "" if cores is None else f", budget of {wording.count(cores, 'core')}"
    packages = dict.fromkeys(f"{package} {version}" for each in versions.values() for package, version in each.items())
    return f"{processors(machine)}{budget}; {', '.join(packages)}"


def to_json(values: Mapping[str, Any]) -> str:
    """Nested plain values and pydantic models as standard JSON. NaN and infinity become null."""
    text = _JSON.dump_json(values, indent=1, ensure_ascii=True)
    if b"NaN" in text or b"Infinity" in text:  # pydantic models write these by their own settings
        text = _JSON.dump_json(_JSON.dump_python(values), indent=1, ensure_ascii=True)
    return text.decode()


def findings_to_markdown(findings: Findings, *, level: int) -> list[str]:
    """Lines of Markdown. A sentence that starts with a space belongs below the one before."""
    lines: list[str] = []
    for heading, sentences in findings:
        if not sentences:
            continue
        lines += [f"{'#' * level} {tables.escaped(heading)}", ""]
        lines += [f"{'  ' if sentence.startswith(' ') else ''}- {tables.escaped(sentence)}" for sentence in sentences]
        lines += [""]
    return lines


def anew(words: Sequence[str]) -> list[str]:
    """The words of a command without its folder, which holds what the command made, and without the key of who signed it."""
    return without(words, "--out", "--sign")


def without(words: Sequence[str], *options: str) -> list[str]:
    """The words of a command without these options and their values."""
    kept = [word for before, word in pairwise(["", *words]) if not {*options} & {before, word}]
    return [word for word in kept if not word.startswith(tuple(f"{option}=" for option in options))]


def _answered(label: str, sentences: Sequence[str]) -> list[str]:
    """Lines of Markdown: an answer of the first screen."""
    said = list(map(tables.escaped, sentences))
    if len(said) < 2:
        return [f"- **{tables.escaped(label)}**: {each}" for each in said]
    return [f"- **{tables.escaped(label)}**:", *(f"  - {each}" for each in said)]


def _part(section: Section, folder: Path) -> dict[str, Any]:
    return {
        "name": section.name,
        "title": wording.one_line(section.title),
        "said": _on_one_line(section.findings),
        "grids": list(map(page.grid, tables.with_rows(section.tables))),
        "drawings": [
            _drawing(folder / each, f"{section.name} {Path(each).stem}") for each in section.pictures if _is_drawing(each)
        ],
        "photographs": [_photograph(folder, each) for each in section.pictures if not _is_drawing(each)],
        "more": section.more,
    }


def _picture(path: str) -> str:
    return f"![{Path(path).stem.replace('_', ' ')}]({path})"


def _own_picture(path: str) -> str:
    """Every plot of a report is there as PNG too, which more readers of Markdown show than SVG."""
    return _picture(f"{path.removesuffix('.svg')}.png" if _is_drawing(path) else path)


def _is_drawing(path: str) -> bool:
    return path.endswith(".svg")


def _drawing(path: Path, name: str) -> str:
    """A plot, and the same with a logarithmic axis in a template, which only a script shows."""
    name = name.replace("_", " ")
    drawn = svg.svg(_picture_of(path).decode(), name)
    if (other := path.with_stem(path.stem + plots.LOGARITHMIC)).exists():
        drawn += f"<template>{svg.svg(_picture_of(other).decode(), f'{name}, logarithmic axis')}</template>"
    return drawn


def _picture_of(path: Path) -> bytes:
    """The content of a picture, which may lie in a folder from somebody else."""
    return plain_file.read(path, _MOST_PICTURE_BYTES)


def _photograph(folder: Path, path: str) -> tuple[str, str]:
    """(what it shows, data URL) of a PNG file."""
    source = base64.b64encode(_picture_of(folder / path)).decode("ascii")
    return Path(path).stem.replace("_", " "), f"data:image/png;base64,{source}"


def _on_one_line(findings: Findings) -> list[tuple[str, list[str]]]:
    return [(wording.one_line(heading), list(map(wording.one_line, sentences))) for heading, sentences in findings if sentences]
