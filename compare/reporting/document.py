"""A report of any command: one content for the terminal, Markdown, HTML, CSV, LaTeX and JSON."""

from __future__ import annotations

import base64
import html
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
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
from common.errors import UserError
from common.machine import machine, plain_file
from common.machine.machine import processors
from compare.cli import exits, terminal, wording
from compare.cli.wording import Sentence
from compare.reporting import latex, page, plots, screen, svg, tables
from compare.reporting.plots import Drawing
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import ELSEWHERE, Table
from compare.results import signing, store

TABLES_FOLDER, PLOTS_FOLDER = "tables", "plots"
LAST_REPORTS = "last_reports"
"""Folder in the cache that holds the last report of each title that was written to no folder."""
COMPARE = machine.COMMAND
SET_UP = () if machine.INSTALLED else (("Its environment:", "make setup"),)
"""(purpose, command) of the steps before the commands that repeat a report."""
PYTHON = sys.executable if machine.INSTALLED else ".venv/bin/python"
SUITE_ON_PATH = ("env", f"PYTHONPATH={machine.PROJECT_ROOT}") if machine.INSTALLED else ()
"""Words before a command that starts a module of the suite."""

_TABLE_WRITERS: Mapping[str, Callable[[Table], str]] = {"md": tables.to_markdown, "csv": tables.to_csv, "tex": latex.to_latex}
"""Functions that write a table, by suffix of its file."""

SentenceGroups = Sequence[tuple[str, Sequence[str]]]
"""Sentences by heading."""

_MOST_PICTURE_BYTES = 2**26
"""Most bytes of a picture on a page. A browser shows only a few of this size."""

_JSON: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))


class Mark(NamedTuple):
    """A short fact at the top of a report: its label, its value and its tone."""

    label: str
    value: str
    tone: str = ""
    """good, warn, bad, or empty."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One step of a report on several steps."""

    name: str
    """One word: name of the step's folder, and of its anchor in the page."""
    title: str
    findings: list[tuple[str, list[Sentence]]] = field(default_factory=list[tuple[str, list[Sentence]]])
    """Sentences by heading."""
    tables: list[Table] = field(default_factory=list[Table])
    pictures: list[str] = field(default_factory=list[str])
    """Files under the report's folder, .svg or .png."""
    conclusions: list[str] = field(default_factory=list[str])
    """Sentences for the conclusion of the whole report."""
    first: list[str] = field(default_factory=list[str])
    """Sentences for the first screen of the whole report. Empty: the conclusions."""
    trouble: list[str] = field(default_factory=list[str])
    """Sentences on what changes the answer, for the first screen of the whole report."""
    more: list[str] = field(default_factory=list[str])
    """Files under the report's folder that hold the rest."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a command. `write` makes its files, `show` prints it, `deliver` does both.

    A command builds one and lays out nothing itself.
    """

    title: str
    headline: str | None = None
    """Style of the title on the terminal. None: only a report on several steps shows it there."""
    name: str = "report"
    """Stem of its .md and .html files."""
    json_file: str | None = None
    """File of the JSON. None: JSON is printed on request and not written, since the folder has a record of its own."""
    overline: str = "Convtwins"
    """Line above the title of the page."""
    facts: Sequence[str] = ()
    """Lines that say what was measured, and where."""
    first_sentences: Sequence[str] = ()
    """Sentences below the facts: what a reader must know before the tables."""
    marks: Sequence[Mark] = ()
    findings: SentenceGroups = ()
    tables: Sequence[Table] = ()
    detail_tables: Sequence[Table] = ()
    """Tables that are only written as files, because they are too long for a page."""
    terminal_tables: Sequence[Table] | None = None
    """Narrower tables for the terminal. None: `tables`."""
    elsewhere: str = ELSEWHERE
    """Place of columns that do not fit the terminal, in words, if no files were written."""
    drawings: Mapping[str, Drawing] = field(default_factory=dict[str, Drawing])
    """Plots by name."""
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    """Contents of other files, by path under the folder. PNG files are shown."""
    sections: Sequence[Section] = ()
    """Steps of a report on several steps. Then `findings` are its conclusion."""
    environment: Sequence[tuple[str, str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    """(purpose, command line) of each command that repeats the report."""
    notes: Sequence[str] = ()
    """Lines of Markdown below the plots."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the JSON besides tables, findings and exit code."""
    template: str = "document.html.jinja"
    page_values: Callable[[Mapping[str, str]], Mapping[str, Any]] | None = None
    """Function that makes further values of the template from the plots, which are SVG elements by name."""
    exit_code: int = 0
    failures: Sequence[str] = ()
    """Reasons why the exit code is not 0. They are the last line on stderr."""
    screen: Screen | None = None
    """First screen. None: a short report is printed whole, and the first sentences and rows of a longer one."""
    again: str = ""
    """Command that prints the whole stored report, or the file that holds it."""

    @property
    def markdown_file(self) -> str:
        return f"{self.name}.md"

    @property
    def page_file(self) -> str:
        return f"{self.name}.html"

    @property
    def _unanswered_sentences(self) -> list[str]:
        """First sentences that are not among the answers of the first screen."""
        answered = {sentence for answer in (self.screen.answers if self.screen else ()) for sentence in answer.sentences}
        return [sentence for sentence in self.first_sentences if sentence not in answered]

    def as_section(
        self, folder: Path, name: str, title: str, conclusions: Sequence[str], *, only: Collection[str] | None = None
    ) -> Section:
        """Return the report, written to `folder`, as a section of a report on several steps.

        Args:
            name: name of the step.
            conclusions: sentences of the report for the conclusion of the whole.
            only: names of its tables to show. None: all.
        """
        answers = self.screen.answers if self.screen else ()
        conditions = [("Under which conditions?", [*self.first_sentences])] if self.first_sentences else []
        return Section(
            name=name,
            title=title,
            findings=[*conditions, *((heading, [*sentences]) for heading, sentences in self.findings)],
            tables=[table for table in self.tables if only is None or table.name in only],
            pictures=sorted(f"{PLOTS_FOLDER}/{path.name}" for path in (folder / PLOTS_FOLDER).glob("*.svg")),
            conclusions=[*conclusions],
            first=[sentence for answer in answers if answer.tone != "bad" for sentence in answer.sentences],
            trouble=[sentence for answer in answers if answer.tone == "bad" for sentence in answer.sentences],
            more=[self.markdown_file, self.page_file],
        )

    def deliver(self, folder: Path | None, *, as_json: bool) -> int:
        """Write the report to its folder, if it has one, and print it. Returns the exit code."""
        unwritten = self.write(folder) if folder else None
        code = self.exit_code or (exits.RUN_FAILED if unwritten else 0)
        report = replace(self, exit_code=code)
        if unwritten and self.screen:
            report = replace(report, screen=self.screen.with_trouble(f"exit code {code}: {unwritten}"))
        report.show(None if unwritten else folder, as_json=as_json)
        if unwritten:
            typer.echo(unwritten, err=True)
        else:
            self.explain()
        return code

    def append_to(self, markdown: Path | None, code: int) -> int:
        """Append the report to the file of `--markdown`, if there is one. Returns the exit code: not 0 if that failed."""
        if markdown is None or not (unwritten := _append(markdown, self.to_markdown())):
            return code
        typer.echo(unwritten, err=True)
        return code or exits.RUN_FAILED

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
        is_whole = terminal.is_full() or (self.screen is None and text.count("\n") < screen.MAX_LINES)
        saved_file = None if is_whole or folder or self.again else _save_last_report(self.title, text)
        typer.echo(text if is_whole else replace(self, again=self.again or saved_file or "").first_screen(console, folder))

    def first_screen(self, console: Console, folder: Path | None) -> str:
        """The text that is printed first, with the paths of the rest."""
        with console.capture() as captured:
            for line in self._first_screen_with_paths(folder).lines(console):
                console.print(line, soft_wrap=True)
        return _without_blanks(captured.get())

    def _first_screen_with_paths(self, folder: Path | None) -> Screen:
        """The first screen, with the paths of the rest."""
        candidates = self.tables if self.terminal_tables is None else self.terminal_tables
        first = self.screen or Screen(
            subject=[self.facts[0]] if self.facts else [self.title],
            answers=[
                Paragraph("", [*self.first_sentences, *(f"{mark.label}: {mark.value}" for mark in self.marks)]),
                *(Paragraph(heading, sentences) for heading, sentences in self.findings),
            ],
            table=next(iter(tables.with_rows(candidates)), None),
        )
        paths = [("everything", self.again or "the same command with --full")]
        if folder:
            paths = [("the page", str(folder / self.page_file)), ("everything", self.again or str(folder / self.markdown_file))]
        return replace(first, next=[*first.next, *((purpose, wording.visible(path)) for purpose, path in paths)])

    def _print(self, console: Console, folder: Path | None) -> None:
        if self.headline or self.sections:
            console.print(Text(wording.one_line(self.title), style=self.headline or "bold"), soft_wrap=True)
        for line in self.facts:
            console.print(Text(wording.one_line(line)), overflow="ignore", crop=False)  # a path is not broken
        for line in self.first_sentences:
            console.print(Text(wording.one_line(line)))
        visible_tables = self.tables if self.terminal_tables is None else self.terminal_tables
        tables.print_tables(console, visible_tables, where=self.markdown_file if folder else self.elsewhere)
        tables.print_findings(console, self.findings)
        console.print()
        if folder:
            markdown_path = wording.visible(str(folder / self.markdown_file))
            console.print(Text(f"Report: {markdown_path}, {self.page_file}"), soft_wrap=True)

    def write(self, folder: Path) -> str | None:
        """Write page, Markdown, tables, plots and JSON. Tables that only the earlier report had are removed.

        Returns:
            Why that failed, or None.
        """
        store.refuse_links(folder, {TABLES_FOLDER, PLOTS_FOLDER, *(Path(path).parts[0] for path in self.files if "/" in path)})
        try:
            written = self._table_files()
            self._remove_stale_tables(folder, current={table.name for table in written})
            for table in written:
                for suffix, writer in _TABLE_WRITERS.items():
                    atomic_files.write_atomically(folder / TABLES_FOLDER / f"{table.name}.{suffix}", writer(table))
            drawn = plots.write_all(self.drawings, folder / PLOTS_FOLDER)
            for path, content in self.files.items():
                atomic_files.write_atomically(folder / path, content)
            pictures = [f"{PLOTS_FOLDER}/{path.name}" for path in drawn if path.suffix == ".svg"]
            pictures += [path for path in self.files if path.endswith(".png")]
            atomic_files.write_atomically(folder / self.page_file, machine.with_short_command(self.to_html(folder, pictures)))
            atomic_files.write_atomically(folder / self.markdown_file, machine.with_short_command(self.to_markdown(pictures)))
            if self.json_file is not None:
                atomic_files.write_atomically(folder / self.json_file, machine.with_short_command(self.to_json()) + "\n")
        except OSError as error:
            advice = atomic_files.remedy(error, "choose another --out")
            return f"The report cannot be written to {folder} ({error}). {advice}"
        return None

    def to_json(self) -> str:
        """The whole report as JSON. Numbers that JSON lacks (NaN, infinity) become null."""
        findings = {heading: list(sentences) for heading, sentences in self.findings}
        common = {"tables": list(map(tables.to_plain, self.tables)), "findings": findings, "exit_code": self.exit_code}
        return to_json({**common, **self.values})

    def to_markdown(self, pictures: Sequence[str] = ()) -> str:
        """The report as GitHub-flavoured Markdown.

        Args:
            pictures: paths of files, relative to the report's folder.
        """
        lines = [
            f"# {tables.escaped(self.title)}",
            "",
            *(f"{tables.escaped(line)}  " for line in (*self.facts, *self._unanswered_sentences)),
            "",
        ]
        if self.screen:
            answers = [(answer.label, list(map(wording.one_line, answer.sentences))) for answer in self.screen.answers]
            lines += [line for label, sentences in answers for line in _answer_to_markdown(label, sentences)]
            lines += [""]
        if self.sections:
            lines += [*(f"- {mark.label}: **{tables.escaped(mark.value)}**" for mark in self.marks), "", "## Conclusion", ""]
        lines += findings_to_markdown(self.findings, level=3 if self.sections else 2)
        for section in self.sections:
            lines += [f"## {tables.escaped(section.title)}", "", *findings_to_markdown(section.findings, level=3)]
            lines += [*map(tables.to_markdown, tables.with_rows(section.tables)), *map(_picture, section.pictures)]
            lines += ["", f"More: {', '.join(f'[{path}]({path})' for path in section.more)}"] * bool(section.more)
            lines += [""]
        visible_tables = tables.with_rows(self.tables)
        lines += ["## Tables", "", *map(_table_to_markdown, visible_tables)] * bool(visible_tables)
        lines += ["## Plots", "", *map(_plot_picture, pictures), ""] * bool(pictures)
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
            folder: folder that holds the pictures.
            pictures: paths of files, relative to `folder`.
        """
        plot_elements = {
            Path(picture).stem: _drawing(folder / picture, Path(picture).stem) for picture in pictures if _is_drawing(picture)
        }
        values: dict[str, Any] = {
            "title": wording.one_line(self.title),
            "overline": self.overline,
            "facts": list(map(wording.one_line, (*self.facts, *self._unanswered_sentences))),
            "answers": [
                {"label": answer.label, "tone": answer.tone, "sentences": list(map(wording.one_line, answer.sentences))}
                for answer in (self.screen.answers if self.screen else ())
            ],
            "marks": [Mark(*map(wording.one_line, mark)) for mark in self.marks],
            "findings": _on_one_line(self.findings),
            "sections": [_section_values(section, folder) for section in self.sections],
            "environment": [(wording.one_line(name), wording.one_line(value)) for name, value in self.environment],
            "commands": [(wording.one_line(purpose), command) for purpose, command in self.commands],
            "beside": f"{self.markdown_file}{f', {self.json_file}' if self.json_file else ''}",
        }
        if self.page_values:
            values |= self.page_values(plot_elements)
        else:
            values["grids"] = list(map(page.grid, tables.with_rows(self.tables)))
            values["drawings"] = list(plot_elements.values())
            values["photographs"] = [_photograph(folder, picture) for picture in pictures if not _is_drawing(picture)]
        return page.render(self.template, **values)

    def _table_files(self) -> list[Table]:
        """Every table, named after its files. Two sections may have tables of the same name."""
        report_tables = [*self.tables, *self.detail_tables]
        section_tables = [(section.name, table) for section in self.sections for table in section.tables]
        names = Counter(table.name for table in (*report_tables, *(table for _, table in section_tables)))
        return report_tables + [
            table if names[table.name] == 1 else replace(table, name=f"{section_name}_{table.name}")
            for section_name, table in section_tables
        ]

    def _remove_stale_tables(self, folder: Path, current: Collection[str]) -> None:
        own_stems = {Path(path).stem for path in self.files}.union(current)
        existing = {path.stem for path in (folder / TABLES_FOLDER).glob("*")}
        if self.json_file is None or not (stale := existing - own_stems):
            return
        try:
            earlier = _EarlierReport.model_validate_json(plain_file.read(folder / self.json_file, records.MOST_BYTES))
        except (OSError, ValueError):
            return
        for name in {table.name for table in earlier.tables} & stale:
            if Path(name).name == name:  # whoever wrote it: no other folder's files
                for suffix in _TABLE_WRITERS:
                    (folder / TABLES_FOLDER / f"{name}.{suffix}").unlink(missing_ok=True)


@dataclass(frozen=True)
class WrittenReport:
    """A report whose files are written already. Its delivery only prints it."""

    report: Report

    def deliver(self, folder: Path | None, *, as_json: bool) -> int:
        """Print the report. Returns its exit code."""
        self.report.show(folder, as_json=as_json)
        self.report.explain()
        return self.report.exit_code


def _save_last_report(title: str, text: str) -> str | None:
    """Save a report that no folder holds, so that nothing is measured again to read the rest.

    Returns:
        Path of the file. None if it could not be written.
    """
    try:
        path = cache.folder(None) / LAST_REPORTS / f"{re.sub('[^a-z0-9]+', '_', title.lower())[:60].strip('_')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_atomically(path, Text.from_ansi(text).plain + "\n")
    except OSError:
        return None
    return str(path)


def _without_blanks(text: str) -> str:
    """Strip blanks from the ends of lines."""
    return "\n".join(map(str.rstrip, text.splitlines()))


class _TableName(BaseModel):
    name: str


class _EarlierReport(BaseModel):
    """The tables of an earlier report's JSON. Its other values may be large, so they are not kept."""

    tables: list[_TableName]


def with_signature(report: Report, folder: Path, records: Collection[str], key: Path | None, again: str) -> Report:
    """Add to the report who signed the records that it is made from.

    Args:
        folder: folder of the records.
        records: paths of the records, relative to `folder`.
        key: private key that signs the records first. None: only an existing signature is judged.
        again: command that signs the records with `--sign KEY`.
    """
    signature, signing_failure = signing.sign_and_verify(folder, records, key, again)
    if signing_failure:
        typer.echo(signing_failure, err=True)
    has_failed = signing_failure or (signature is not None and not signature.confirmed)
    return replace(
        report,
        facts=[*report.facts, *([signature.sentence] if signature is not None else [])],
        values={**report.values, "signature": signature},
        exit_code=report.exit_code or (exits.RUN_FAILED if has_failed else 0),
        screen=report.screen and _screen_with_signature(report.screen, signature, signing_failure),
    )


def _screen_with_signature(screen: Screen, signature: signing.Signature | None, signing_failure: str | None) -> Screen:
    """The first screen with who signed the records, or why they are not signed."""
    if signature is not None and signature.confirmed:
        return replace(screen, remarks=[*screen.remarks, signature.sentence])
    # Why it failed names the key's file, which no report shows.
    sentences = [
        *(["The records could not be signed."] if signing_failure else []),
        *([signature.sentence] if signature is not None else []),
    ]
    return replace(screen, answers=[*screen.answers, Paragraph("Signature", sentences, "bad")] if sentences else screen.answers)


def report_files(name: str = "report") -> tuple[str, ...]:
    """Names of files that an interrupted report may leave in its folder. `name` is that of the report."""
    return f"{name}.md", f"{name}.html", TABLES_FOLDER, PLOTS_FOLDER


def hardware_and_versions(
    machine: Mapping[str, Any], versions: Mapping[str, Mapping[str, str]], *, cores: int | None = None
) -> str:
    """Processor, core budget and versions: `AMD EPYC 7B13, budget of 2 cores; torch 2.14.1, tensorflow 2.21.0`.

    Args:
        machine: facts, see `machine.describe`.
        versions: contestant: {package: version}. Versions that several share are listed once.
        cores: core budget. None: it is left out.
    """
    budget = "" if cores is None else f", budget of {wording.count(cores, 'core')}"
    packages = dict.fromkeys(
        f"{package} {version}" for contestant_versions in versions.values() for package, version in contestant_versions.items()
    )
    return f"{processors(machine)}{budget}; {', '.join(packages)}"


def to_json(values: Mapping[str, Any]) -> str:
    """Nested plain values and pydantic models as standard JSON. NaN and infinity become null."""
    text = _JSON.dump_json(values, indent=1, ensure_ascii=True)
    if b"NaN" in text or b"Infinity" in text:  # pydantic models write these by their own settings
        text = _JSON.dump_json(_JSON.dump_python(values), indent=1, ensure_ascii=True)
    return text.decode()


def findings_to_markdown(findings: SentenceGroups, *, level: int) -> list[str]:
    """Lines of Markdown. A `Detail` stands below the sentence before."""
    lines: list[str] = []
    for heading, sentences in findings:
        if not sentences:
            continue
        lines += [f"{'#' * level} {tables.escaped(heading)}", ""]
        lines += [f"{'  ' * isinstance(sentence, wording.Detail)}- {tables.escaped(sentence)}" for sentence in sentences]
        lines += [""]
    return lines


@contextmanager
def errors_in_markdown(values: Mapping[str, Any]) -> Generator[None]:
    """On an error, write the reason to the file of `--markdown`. `values`: options by parameter."""
    try:
        yield
    except (UserError, OSError) as error:
        if (markdown := values["markdown"]) is not None:
            _append(markdown, f"# No verdict\n\n{tables.escaped(str(error))}\n")
        raise


def _append(path: Path, text: str) -> str | None:
    """Add text to a file. Returns why that failed, or None."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"The report cannot be written to {path} ({error.strerror}). Choose another --markdown."
    return None


def without_output_options(argv: Sequence[str]) -> list[str]:
    """The words of a command without its output folder and without the signing key."""
    return without_options(argv, "--out", "--sign")


def without_options(argv: Sequence[str], *options: str) -> list[str]:
    """The words of a command without these options and their values."""
    remaining = [word for before, word in pairwise(["", *argv]) if not {*options} & {before, word}]
    return [word for word in remaining if not word.startswith(tuple(f"{option}=" for option in options))]


def _table_to_markdown(table: Table) -> str:
    """A table, behind a line to click on if it folds."""
    text = tables.to_markdown(table)
    if not table.folds:
        return text
    summary = f"{html.escape(table.title)}: {wording.count(len(table.rows), 'row')}"
    return f"<details><summary>{summary}</summary>\n\n{text}\n</details>\n"


def _answer_to_markdown(label: str, sentences: Sequence[str]) -> list[str]:
    """An answer of the first screen as lines of Markdown."""
    texts = list(map(tables.escaped, sentences))
    if len(texts) < 2:
        return [f"- **{tables.escaped(label)}**: {text}" for text in texts]
    return [f"- **{tables.escaped(label)}**:", *(f"  - {text}" for text in texts)]


def _section_values(section: Section, folder: Path) -> dict[str, Any]:
    return {
        "name": section.name,
        "title": wording.one_line(section.title),
        "findings": _on_one_line(section.findings),
        "grids": list(map(page.grid, tables.with_rows(section.tables))),
        "drawings": [
            _drawing(folder / picture, f"{section.name} {Path(picture).stem}")
            for picture in section.pictures
            if _is_drawing(picture)
        ],
        "photographs": [_photograph(folder, picture) for picture in section.pictures if not _is_drawing(picture)],
        "more": section.more,
    }


def _picture(path: str) -> str:
    return f"![{Path(path).stem.replace('_', ' ')}]({path})"


def _plot_picture(path: str) -> str:
    """Markdown that shows a plot as PNG, which more readers of Markdown show than SVG."""
    return _picture(f"{path.removesuffix('.svg')}.png" if _is_drawing(path) else path)


def _is_drawing(path: str) -> bool:
    return path.endswith(".svg")


def _drawing(path: Path, name: str) -> str:
    """A plot, followed by its variant with a logarithmic axis in a `<template>`, which only a script shows."""
    name = name.replace("_", " ")
    element = svg.svg(_read_picture(path).decode(), name)
    if (logarithmic := path.with_stem(path.stem + plots.LOGARITHMIC)).exists():
        element += f"<template>{svg.svg(_read_picture(logarithmic).decode(), f'{name}, logarithmic axis')}</template>"
    return element


def _read_picture(path: Path) -> bytes:
    """The content of a picture, which may lie in a folder from somebody else."""
    return plain_file.read(path, _MOST_PICTURE_BYTES)


def _photograph(folder: Path, path: str) -> tuple[str, str]:
    """(name of the picture, data URL) of a PNG file."""
    source = base64.b64encode(_read_picture(folder / path)).decode("ascii")
    return Path(path).stem.replace("_", " "), f"data:image/png;base64,{source}"


def _on_one_line(findings: SentenceGroups) -> list[tuple[str, list[str]]]:
    return [(wording.one_line(heading), list(map(wording.one_line, sentences))) for heading, sentences in findings if sentences]
