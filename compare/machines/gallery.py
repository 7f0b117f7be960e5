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
from compare.core import exits, wording
from compare.core.errors import FolderError
from compare.execution import cells, options, store
from compare.judgement import cautions
from compare.machines.gathered import refuse_twice
from compare.reporting import comparison_report, document
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Column, Table

KIND, NAME, RESULTS_FILE = "gallery", "index", "gallery.json"


class Shown(NamedTuple):
    """A comparison of the gallery."""

    name: str
    """Its folder in the gallery."""
    compared: JudgedComparison

    @property
    def page(self) -> str:
        return f"{self.name}/report.html"

    @property
    def answer(self) -> str:
        """Which framework is faster, or which mode pays, without the conditions that several verdicts share."""
        found = self.compared.findings
        sentences = found.contestants or found.modes
        return next((each for each in sentences if not each.startswith("All ")), "no two rows that were compared")


def command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders of comparisons or matrices.")],
    out: Annotated[Path, typer.Option(help=f"{options.OUT} An earlier gallery there is replaced.")],
    signers: options.Signers = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a static page of many comparisons by machine, version and model, with the report of each."""
    with exits.exit_on_error():
        found, others = _comparisons(folders)
        whole: list[JudgedComparison] = []
        for each in found:
            store.refuse_growing(each)
            try:
                whole.append(comparison_report.read(each, signers=signers))
            except FolderError as damaged:
                if len(found) == 1:
                    raise
                others.append(f"{each.name}: its comparison cannot be read.")
                typer.echo(str(damaged), err=True)
        shown = _named(whole)
        own = (*document.report_files(NAME), *(each.name for each in shown))
        store.refuse_others(out, RESULTS_FILE, KIND, "gallery", allowed=own)
        store.refuse_links(out, [each.name for each in shown])
        before = _names_in(out)
        for each in shown:
            of_one = comparison_report.report(_published(each.compared), Path(each.name))
            if unwritten := of_one.write(out / each.name):
                typer.echo(unwritten, err=True)
                raise typer.Exit(exits.RUN_FAILED)
        code = _report(shown, others, out).deliver(out, as_json=as_json)
        for name in before - {each.name for each in shown}:
            shutil.rmtree(out / name)
    raise typer.Exit(code)


def _comparisons(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """(every folder of a comparison: of those that were named, and of the cells of a matrix; names of all others).

    Raises:
        FolderError: one was named twice, or there is none.
    """
    found: list[Path] = []
    others: list[str] = []
    for folder in folders:
        if not folder.exists():
            raise FolderError(f"There is no such folder. Received: {folder}. Name what `run` has made.")
        of_cells = [folder / cell.name for cell in cells.read(folder).cells] if cells.is_matrix(folder) else [folder]
        begun = [each for each in of_cells if (each / store.PLAN_FILE).exists()]
        found += begun
        others += [] if begun else [f"{folder.name}: no comparison."]
    if not found:
        raise FolderError(f"No folder holds a comparison. Received: {', '.join(map(str, folders))}. Name what `run` has made.")
    refuse_twice(found)
    return found, others


def _named(compared: Sequence[JudgedComparison]) -> list[Shown]:
    """Each with a name of its own: time, model and data. Two of one second and work are numbered."""
    shown: list[Shown] = []
    for each in compared:
        comparison = each.stored.comparison
        words = (comparison.created_at[:19], comparison.rows[0].spec.model, comparison.data_name)
        stem = "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", word).strip("-") for word in words)[:100]
        names = {other.name for other in shown}
        shown.append(Shown(next(name for n in range(1, len(names) + 2) if (name := f"{stem}-{n}") not in names), each))
    return shown


def _published(compared: JudgedComparison) -> JudgedComparison:
    """The same, with the names of interpreters alone. Their folders tell of whoever made it."""

    def named(environment: Environment) -> Environment:
        return environment.model_copy(update={"interpreter": Path(environment.interpreter).name})

    stored, plan = compared.stored, compared.stored.comparison
    environments = {name: named(each) for name, each in plan.environments.items()}
    contestants = [each.model_copy(update={"python": each.python and Path(each.python).name}) for each in plan.contestants]
    comparison = plan.model_copy(update={"environments": environments, "contestants": contestants})
    runs = {
        row: {
            repeat: run.model_copy(update={"environment": run.environment and named(run.environment)})
            for repeat, run in repeats.items()
        }
        for row, repeats in stored.runs.items()
    }
    return replace(compared, stored=stored.model_copy(update={"comparison": comparison, "runs": runs}))


def _names_in(out: Path) -> set[str]:
    """Folders of an earlier gallery, as it lists them."""
    try:
        listed = atomic_files.parse_json(plain_file.read(out / RESULTS_FILE, records.MOST_BYTES))["folders"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    named = {each for each in listed if isinstance(each, str) and re.fullmatch(r"[A-Za-z0-9_-]+", each)}
    return {each for each in named if (out / each / "report.html").is_file() and not (out / each).is_symlink()}


def _report(shown: Sequence[Shown], others: Sequence[str], out: Path) -> Report:
    """The page. It names no path of whoever made it."""
    unsigned = cautions.unconfirmed_signatures((each.name, each.compared.stored) for each in shown)
    machines = {str(each.compared.stored.comparison.machine.get("processor")) for each in shown}
    failed = sum(bool(each.compared.failures) for each in shown)
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title="Gallery of comparisons",
        overline="Comparison of frameworks",
        marks=[
            Mark("Comparisons", str(len(shown))),
            Mark("Processors", str(len(machines))),
            Mark("With failures", str(failed), "warn" if failed else "good"),
        ],
        findings=[("Left out", others)] if others else [],
        tables=[_table(shown)],
        commands=[("This page:", f"{document.COMPARE} gallery DIR... --out {wording.shell([out.name])}")],
        values={"kind": KIND, "folders": [each.name for each in shown]},
        exit_code=exits.RUN_FAILED if unsigned else 0,
        failures=unsigned,
    )


def _table(shown: Sequence[Shown]) -> Table:
    plan = "compared.stored.comparison"

    def versions(each: Shown) -> str:
        packages = [version for of in each.compared.stored.comparison.versions.values() for version in of.items()]
        return ", ".join(dict.fromkeys(f"{package} {version}" for package, version in packages))

    def signed(each: Shown) -> str:
        return each.compared.stored.signature.sentence if each.compared.stored.signature else "no"

    def failures(each: Shown) -> str:
        return "; ".join(each.compared.failures) or "ok"

    columns = (
        Column("page", "report", link=True),
        Column("made", "made", pick=lambda each: each.compared.stored.comparison.created_at[:10]),
        Column("model", "model", pick=lambda each: each.compared.stored.comparison.rows[0].spec.model_label),
        Column("data", "data", pick=f"{plan}.data_name"),
        Column("processor", "processor", pick=f"{plan}.machine.processor", fold=24),
        Column("cores", "cores", pick=lambda each: max(row.spec.cores for row in each.compared.stored.comparison.rows)),
        Column("versions", "versions", pick=versions, fold=24, wide=True),
        Column("repeats", "repeats", pick=f"{plan}.repeats", wide=True),
        Column("proof", "same training", pick=f"{plan}.headline"),
        Column("state", "status", pick=failures, fold=24),
        Column("answer", "answer", pick=lambda each: wording.one_line(each.answer), fold=40, wide=True),
        Column("signed", "signed", pick=signed, fold=24, wide=True),
    )
    note = "The answer is the first verdict of each report, judged in its own comparison. The report has its conditions."
    return Table.from_items("gallery", "Comparisons", columns, shown, note)
