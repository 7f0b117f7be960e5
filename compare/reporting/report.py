"""The report of a comparison: tables, plots and sentences made from its stored results, as often as wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from common.artifacts import atomic_files
from compare.core import exits, terminal
from compare.core.errors import FolderError
from compare.execution import store
from compare.reporting import comparison_tables, content, dataframes, document, page, plots, side_by_side, tables
from compare.reporting.content import Report, read

REPORT_FILE = "report.md"
PAGE_FILE = "report.html"
RESULTS_FILE = "results.json"

_FRAMES = {"runs": dataframes.runs, "epochs": dataframes.epochs}
"""Written beside the tables, for other tools."""


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder of a comparison.")],
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="A second one, to stand beside it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write here. Default: DIR; of two folders, nothing is written.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Make the page, tables and plots of a comparison again from its stored results; or put two side by side."""
    try:
        code = _one(folder, out, as_json=as_json) if other is None else _two(folder, other, out, as_json=as_json)
    except FolderError as error:
        typer.echo(str(error), err=True)
        code = exits.USAGE
    raise typer.Exit(code)


def _one(folder: Path, out: Path | None, *, as_json: bool) -> int:
    report = read(folder)
    if out is not None and out.resolve() != folder.resolve() and (out / store.PLAN_FILE).exists():
        raise FolderError(f"{out} holds another comparison. Choose another --out.")
    unwritten = write(report, out or folder, source=folder)
    show(report, out or folder, as_json=as_json)
    if unwritten:
        typer.echo(unwritten, err=True)
        return exits.RUN_FAILED
    return report.exit_code


def _two(folder: Path, other: Path, out: Path | None, *, as_json: bool) -> int:
    pair = side_by_side.pair((folder, other), (read(folder), read(other)))
    unwritten = side_by_side.write(pair, out) if out else None
    if as_json:
        typer.echo(document.to_json(side_by_side.to_plain(pair)))
    else:
        shown = terminal.stdout()
        side_by_side.print_to(shown, pair)
        if out and not unwritten:
            shown.print(Text(f"Report: {out / side_by_side.REPORT_FILE}, {side_by_side.PAGE_FILE}"), soft_wrap=True)
    if unwritten:
        typer.echo(unwritten, err=True)
    return exits.RUN_FAILED if unwritten else 0


def write(report: Report, folder: Path, *, source: Path | None = None) -> str | None:
    """Write a report's page, report.md, tables, plots and results.json; why that failed, where it did.

    Tables and plots of the report before, of which this one has nothing to say, are removed.

    Args:
        report: what is written.
        folder: where to.
        source: the folder with the results, for the commands that it names; None: the same one.
    """
    stored, summaries = report.stored, report.summaries
    try:
        class_names = stored.comparison.class_names
        documents = [*content.documents(report), *comparison_tables.confusion_table(summaries, class_names)]
        there = {path.stem for path in (folder / document.TABLES_FOLDER).glob("*")}
        if others := there - {table.name for table in documents} - set(_FRAMES):
            for name in _tables_before(folder) & others:
                tables.remove(name, folder / document.TABLES_FOLDER)
        for table in documents:
            tables.write(table, folder / document.TABLES_FOLDER)
        for name, frame in _FRAMES.items():
            atomic_files.write_atomically(folder / document.TABLES_FOLDER / f"{name}.csv", tables.frame_to_csv(frame(stored)))
        drawn = plots.write(summaries, folder / document.PLOTS_FOLDER, class_names)
        pictures = {path.stem: path.read_text("utf-8") for path in drawn if path.suffix == ".svg"}
        atomic_files.write_atomically(folder / PAGE_FILE, page.to_html(report, source or folder, pictures))
        atomic_files.write_atomically(folder / REPORT_FILE, _markdown(report, source or folder, list(pictures)))
        atomic_files.write_atomically(folder / RESULTS_FILE, document.to_json(to_plain(report)) + "\n")
    except OSError as error:
        return f"The report cannot be written to {folder} ({error}). Free space there, or copy the folder."
    return None


def _tables_before(folder: Path) -> set[str]:
    """The names of the tables that an earlier report wrote here."""
    try:
        before = _Before.model_validate_json((folder / RESULTS_FILE).read_bytes())
    except (OSError, ValueError):
        return set()
    names = {table.name for table in before.tables}
    return {name for name in names if Path(name).name == name}  # whoever wrote them: no other folder's files


class _Named(BaseModel):
    name: str


class _Before(BaseModel):
    """What of an earlier report's results.json is asked for: all of it may be as large as thousands of runs."""

    tables: list[_Named]


def show(report: Report, folder: Path, *, as_json: bool) -> None:
    """Print a report on stdout: for a reader, or as one JSON object."""
    if as_json:
        typer.echo(document.to_json(to_plain(report)))
        return
    shown = terminal.stdout()
    print_to(shown, report)
    if (folder / REPORT_FILE).exists():
        shown.print(Text(f"Report: {folder / REPORT_FILE}, {PAGE_FILE}"), soft_wrap=True)


def print_to(console: Console, report: Report) -> None:
    """Tables, and under them what they say."""
    console.print(Text(content.heading(report)))
    tables.print_all(console, comparison_tables.on_terminal(report.summaries), where=REPORT_FILE)
    tables.print_sections(console, content.sections(report))
    console.print()


def to_plain(report: Report) -> dict[str, Any]:
    """Everything: plan, proof, tables, findings and every run's result, for `document.to_json`."""
    stored = report.stored
    return {
        "schema_version": store.SCHEMA_VERSION,
        "comparison": stored.comparison.model_dump(mode="python"),
        "findings": report.findings.model_dump(),
        "summaries": [summary.model_dump() | {"name": summary.name} for summary in report.summaries],
        "tables": [tables.to_plain(table) for table in content.documents(report)],
        "runs": {row_id: [result for _, result in sorted(repeats.items())] for row_id, repeats in stored.runs.items()},
        "set_aside": stored.set_aside,
        "exit_code": report.exit_code,
    }


def _markdown(report: Report, folder: Path, plot_names: Sequence[str]) -> str:
    lines: list[str] = []
    absent = plots.left_out(report.summaries)
    if absent:
        lines += ["", f"Left out of the plots: {tables.escaped(absent)}."]
    lines += ["", "## Environment", ""]
    lines += [f"- {tables.escaped(name)}: {tables.escaped(value)}" for name, value in content.environment(report)]
    lines += ["", "## To repeat it", ""]
    for what, line in content.commands(report, folder):
        lines += [tables.escaped(what), "", *(f"    {part}" for part in line.splitlines()), ""]
    facts = content.heading(report).splitlines()
    return document.markdown("Comparison", facts, content.sections(report), content.documents(report), plot_names, lines)
