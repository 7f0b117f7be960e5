"""`convtwins gallery`: a static page of many comparisons, each with its report, that anyone can host."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from common.artifacts import atomic_files, records
from common.artifacts.schema import Environment
from common.machine import plain_file
from common.machine.machine import cpu_name
from compare.cli import commands, exits, wording
from compare.cli.commands import Outcome
from compare.cli.errors import FolderError
from compare.judgement import cautions
from compare.reporting import comparison_report, document
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Column, Table
from compare.results import cells, store, workspace
from compare.results.workspace import FolderKind
from compare.running import options
from compare.tools.machines.questions import refuse_duplicates

KIND, NAME, RESULTS_FILE = "gallery", "index", "gallery.json"


class GalleryEntry(NamedTuple):
    """A comparison of the gallery."""

    name: str
    """Name of the comparison's folder in the gallery."""
    compared: JudgedComparison

    @property
    def page(self) -> str:
        return f"{self.name}/report.html"

    @property
    def answer(self) -> str:
        """Which framework is faster, or which mode pays, without the conditions that several verdicts share."""
        findings = self.compared.findings
        verdicts = [verdict for verdict in findings.contestants or findings.modes if verdict.rows]
        return next(iter(self.compared.in_words(verdicts)), "no two rows that were compared")


@commands.command()
def command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders of comparisons or matrices.")],
    out: Annotated[Path, typer.Option(help=f"{options.OUT} An earlier gallery there is replaced.")],
    signers: options.Signers = None,
) -> Outcome | int:
    """Make a static page of many comparisons by machine, version and model, with the report of each."""
    comparison_folders, others = _comparisons(folders)
    comparisons: list[JudgedComparison] = []
    for folder in comparison_folders:
        workspace.refuse_growing(folder)
        try:
            comparisons.append(comparison_report.read(folder, signers=signers))
        except FolderError as error:
            if len(comparison_folders) == 1:
                raise
            others.append(f"{folder.name}: its comparison cannot be read.")
            typer.echo(str(error), err=True)
    entries = _name_entries(comparisons)
    allowed = (*document.report_files(NAME), *(entry.name for entry in entries))
    subfolders = [entry.name for entry in entries]
    FolderKind[None](noun="gallery", file=RESULTS_FILE, kind=KIND, allowed=allowed, subfolders=subfolders).check(out)
    old_names = _names_in(out)
    for entry in entries:
        page = comparison_report.report(_without_paths(entry.compared), Path(entry.name))
        if unwritten := page.write(out / entry.name):
            typer.echo(unwritten, err=True)
            return exits.RUN_FAILED

    def remove_old_entries(code: int) -> int:
        for name in old_names - {entry.name for entry in entries}:
            shutil.rmtree(out / name)
        return code

    return Outcome(_report(entries, others, out), out, remove_old_entries)


def _comparisons(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return (folders of comparisons, among those named and the cells of matrices; sentences on all other folders)."""
    comparison_folders: list[Path] = []
    others: list[str] = []
    for folder in folders:
        if not folder.exists():
            raise FolderError(f"There is no such folder. Received: {folder}. Name what `run` has made.")
        candidates = [folder / cell.name for cell in cells.read(folder).cells] if cells.is_matrix(folder) else [folder]
        started = [candidate for candidate in candidates if (candidate / store.PLAN_FILE).exists()]
        comparison_folders += started
        others += [] if started else [f"{folder.name}: no comparison."]
    if not comparison_folders:
        raise FolderError(f"No folder holds a comparison. Received: {', '.join(map(str, folders))}. Name what `run` has made.")
    refuse_duplicates(comparison_folders)
    return comparison_folders, others


def _name_entries(compared: Sequence[JudgedComparison]) -> list[GalleryEntry]:
    """Give each comparison a unique name: time, model and data. Two of one second and work are numbered."""
    entries: list[GalleryEntry] = []
    for judged in compared:
        comparison = judged.stored.comparison
        words = (comparison.created_at[:19], comparison.rows[0].spec.model, comparison.data_name)
        stem = "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", word).strip("-") for word in words)[:100]
        names = {entry.name for entry in entries}
        entries.append(
            GalleryEntry(next(name for n in range(1, len(names) + 2) if (name := f"{stem}-{n}") not in names), judged)
        )
    return entries


def _without_paths(compared: JudgedComparison) -> JudgedComparison:
    """Return a comparison with the names of interpreters instead of their paths, which identify their owner."""

    def without_path(environment: Environment) -> Environment:
        return environment.model_copy(update={"interpreter": Path(environment.interpreter).name})

    stored, plan = compared.stored, compared.stored.comparison
    environments = {name: without_path(environment) for name, environment in plan.environments.items()}
    contestants = tuple(
        contestant.model_copy(update={"python": contestant.python and Path(contestant.python).name})
        for contestant in plan.settings.contestants
    )
    comparison = plan.with_settings(contestants=contestants).model_copy(update={"environments": environments})
    runs = {
        row: {
            repeat: run.model_copy(update={"environment": run.environment and without_path(run.environment)})
            for repeat, run in repeats.items()
        }
        for row, repeats in stored.runs.items()
    }
    return replace(compared, stored=stored.model_copy(update={"comparison": comparison, "runs": runs}))


def _names_in(out: Path) -> set[str]:
    """Return the folders of an earlier gallery, as it lists them."""
    try:
        folders = atomic_files.parse_json(plain_file.read(out / RESULTS_FILE, records.MOST_BYTES))["folders"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    names = {name for name in folders if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]+", name)}
    return {name for name in names if (out / name / "report.html").is_file() and not (out / name).is_symlink()}


def _report(entries: Sequence[GalleryEntry], others: Sequence[str], out: Path) -> Report:
    """Build the page. It contains no path of its author."""
    unsigned = cautions.unconfirmed_signatures((entry.name, entry.compared.stored) for entry in entries)
    machines = {cpu_name(entry.compared.stored.comparison.machine) for entry in entries}
    failed = sum(bool(entry.compared.failures) for entry in entries)
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title="Gallery of comparisons",
        overline="Comparison of frameworks",
        marks=[
            Mark("Comparisons", str(len(entries))),
            Mark("Processors", str(len(machines))),
            Mark("With failures", str(failed), "warn" if failed else "good"),
        ],
        findings=[("Left out", others)] if others else [],
        tables=[_table(entries)],
        commands=[("This page:", f"{document.COMPARE} gallery DIR... --out {wording.shell([out.name])}")],
        values={"kind": KIND, "folders": [entry.name for entry in entries]},
        exit_code=exits.RUN_FAILED if unsigned else 0,
        failures=unsigned,
    )


def _table(entries: Sequence[GalleryEntry]) -> Table:
    plan = "compared.stored.comparison"

    def versions(entry: GalleryEntry) -> str:
        packages = [
            version
            for contestant_versions in entry.compared.stored.comparison.versions.values()
            for version in contestant_versions.items()
        ]
        return ", ".join(dict.fromkeys(f"{package} {version}" for package, version in packages))

    def signed(entry: GalleryEntry) -> str:
        return entry.compared.stored.signature.sentence if entry.compared.stored.signature else "no"

    def failures(entry: GalleryEntry) -> str:
        return "; ".join(entry.compared.failures) or "ok"

    columns = (
        Column("page", "report", link=True),
        Column("made", "made", pick=lambda entry: entry.compared.stored.comparison.created_at[:10]),
        Column("model", "model", pick=lambda entry: entry.compared.stored.comparison.rows[0].spec.model_label),
        Column("data", "data", pick=f"{plan}.data_name"),
        Column("processor", "processor", pick=lambda entry: cpu_name(entry.compared.stored.comparison.machine), fold=24),
        Column("cores", "cores", pick=lambda entry: max(row.spec.cores for row in entry.compared.stored.comparison.rows)),
        Column("versions", "versions", pick=versions, fold=24, wide=True),
        Column("repeats", "repeats", pick=f"{plan}.settings.repeats", wide=True),
        Column("proof", "same training", pick=f"{plan}.headline"),
        Column("state", "status", pick=failures, fold=24),
        Column("answer", "answer", pick=lambda entry: wording.one_line(entry.answer), fold=40, wide=True),
        Column("signed", "signed", pick=signed, fold=24, wide=True),
    )
    note = "The answer is the first verdict of each report, judged in its own comparison. The report has its conditions."
    return Table.from_items("gallery", "Comparisons", columns, entries, note)
