"""The report of a comparison: tables, plots and sentences made from its stored results, as often as wanted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from common import results
from compare import plots, store, tables, tidy
from compare.findings import Findings, findings
from compare.store import FolderError, Stored
from compare.summary import FAILURES, Summary, summarize

REPORT_FILE = "report.md"
RESULTS_FILE = "results.json"
TABLES_FOLDER = "tables"
PLOTS_FOLDER = "plots"

EXIT_RUN_FAILED, EXIT_USAGE = 1, 2
_WIDTH_WITHOUT_TERMINAL = 120


@dataclass(frozen=True)
class Report:
    """A stored comparison, and what was made of it."""

    stored: Stored
    summaries: list[Summary]
    findings: Findings

    @property
    def exit_code(self) -> int:
        """1 where a run failed or is missing, the proof was refuted or the timed runs did not train the same, else 0."""
        proof = self.stored.comparison.proof
        refuted = proof is not None and proof.verdict == "not proved"
        bad = any(summary.status in (*FAILURES, "not run") for summary in self.summaries)
        bad = bad or bool(self.stored.set_aside)
        return EXIT_RUN_FAILED if bad or refuted or not self.findings.comparable else 0


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder of a comparison.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Make the tables and plots of a comparison again from its stored results."""
    try:
        report = read(folder)
    except FolderError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_USAGE) from None
    unwritten = write(report, folder)
    show(report, folder, as_json=as_json)
    if unwritten:
        typer.echo(unwritten, err=True)
        raise typer.Exit(EXIT_RUN_FAILED)
    raise typer.Exit(report.exit_code)


def read(folder: Path) -> Report:
    """Read a results folder and judge it.

    Raises:
        FolderError: the folder holds no comparison.
    """
    stored = store.read(folder)
    summaries = summarize(stored)
    return Report(stored, summaries, findings(stored, summaries))


def write(report: Report, folder: Path) -> str | None:
    """Write a report's report.md, tables, plots and results.json; why that failed, where it did."""
    stored, summaries = report.stored, report.summaries
    try:
        for table in tables.documents(summaries):
            results.write_atomically(folder / TABLES_FOLDER / f"{table.name}.md", tables.to_markdown(table))
            results.write_atomically(folder / TABLES_FOLDER / f"{table.name}.csv", tables.to_csv(table))
        for name, frame in (("runs", tidy.runs(stored)), ("epochs", tidy.epochs(stored))):
            results.write_atomically(folder / TABLES_FOLDER / f"{name}.csv", frame.to_csv(index=False))
        drawn = plots.write(summaries, folder / PLOTS_FOLDER)
        results.write_atomically(
            folder / REPORT_FILE, _markdown(report, [path.name for path in drawn if path.suffix == ".png"])
        )
        results.write_atomically(folder / RESULTS_FILE, json.dumps(to_plain(report), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        return f"The report cannot be written to {folder} ({error}). Free space there, or copy the folder."
    return None


def show(report: Report, folder: Path, *, as_json: bool) -> None:
    """Print a report on stdout: for a reader, or as one JSON object."""
    if as_json:
        typer.echo(json.dumps(to_plain(report), indent=1, allow_nan=False))
        return
    shown = console()
    print_to(shown, report)
    shown.print(Text(f"Report: {folder / REPORT_FILE}"), soft_wrap=True)


def console() -> Console:
    """For tables on stdout: as wide as the terminal, or as a page where there is none."""
    made = Console(highlight=False)
    if made.is_terminal or "COLUMNS" in os.environ:
        return made
    return Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)


def print_to(console: Console, report: Report) -> None:
    """Tables, and under them what they say."""
    console.print(Text(_heading(report)))
    for table in tables.on_terminal(report.summaries):
        console.print()
        console.print(tables.to_rich(table, console.width))
        left_out = tables.left_out(table, console.width)
        note = f"{table.note} Too wide for this terminal, in report.md: {', '.join(left_out)}." if left_out else table.note
        if note:
            console.print(Text(note.strip(), style="dim"))
    for title, sentences in _sections(report):
        console.print()
        console.print(Text(title, style="bold"))
        for sentence in sentences:
            console.print(Padding(Text(tables.one_line(sentence)), (0, 0, 0, 2), expand=False))
    console.print()


def to_plain(report: Report) -> dict[str, Any]:
    """Everything: plan, proof, tables, findings and every run's result, JSON-ready."""
    stored = report.stored
    return _finite(
        {
            "schema_version": store.SCHEMA_VERSION,
            "comparison": stored.comparison.model_dump(mode="python"),
            "findings": report.findings.model_dump(),
            "summaries": [summary.model_dump() | {"name": summary.name} for summary in report.summaries],
            "tables": [tables.to_plain(table) for table in tables.documents(report.summaries)],
            "runs": {
                row_id: [result.model_dump() for _, result in sorted(repeats.items())]
                for row_id, repeats in stored.runs.items()
            },
            "set_aside": stored.set_aside,
            "exit_code": report.exit_code,
        }
    )


def _sections(report: Report) -> list[tuple[str, list[str]]]:
    found = report.findings
    sections = [
        ("Is it the same training?", found.sameness),
        ("Which framework is faster?", found.frameworks),
        ("Which modes pay?", found.modes),
        ("How sure is that?", found.surety),
        ("Which modes are not serial's mathematics, and what came of it?", found.departures),
        ("Input or model: what bounds the runs?", found.bounds),
        ("Cautions", found.troubles),
        ("The data", report.stored.comparison.data_notes),
    ]
    return [(title, sentences) for title, sentences in sections if sentences]


def _heading(report: Report) -> str:
    comparison = report.stored.comparison
    spec = comparison.rows[0].spec
    count, unit = (spec.epochs, "epoch") if spec.epochs is not None else (spec.steps, "step")
    length = f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    machine = comparison.machine
    versions = ", ".join(
        f"{package} {version}" for packages in comparison.versions.values() for package, version in packages.items()
    )
    repeats = f"{comparison.repeats} repeat{'s' if comparison.repeats > 1 else ''}"
    cores = max(row.spec.cores for row in comparison.rows)
    part = {"training": "", "input": "; the input path alone", "compute": "; the model alone, on one batch"}[spec.part]
    return (
        f"{spec.model} on {comparison.data_name}, {spec.optimizer.name}, global batch {spec.global_batch_size}, {length}, "
        f"{spec.precision}, seed {spec.seed}, {repeats}{part}\n"
        f"{machine.get('processor') or 'unknown processor'}, budget of {cores} core{'s' if cores > 1 else ''}; {versions}"
    )


def _markdown(report: Report, plot_files: Sequence[str]) -> str:
    lines = ["# Comparison", "", *(f"{tables.escaped(line)}  " for line in _heading(report).splitlines()), ""]
    for title, sentences in _sections(report):
        lines += [f"## {title}", "", *(f"- {tables.escaped(sentence)}" for sentence in sentences), ""]
    lines += ["## Tables", ""]
    for table in tables.documents(report.summaries):
        lines += [tables.to_markdown(table)]
    lines += ["## Plots", ""]
    lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({PLOTS_FOLDER}/{name})" for name in plot_files]
    absent = plots.left_out(report.summaries)
    if absent:
        lines += ["", f"Left out of the plots: {tables.escaped(absent)}."]
    return "\n".join(lines) + "\n"


def _finite(value: Any) -> Any:
    """The same nested values with NaN and infinity as null: standard JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return tables.plain(value)
