"""The report of a matrix: who wins where, judged over all its cells together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.machine import machine
from common.machine.machine import COMMAND
from compare.core import exits, wording
from compare.core.statistics import Judged, Ratio, inverse, verdicts
from compare.core.terminal import FULL
from compare.core.verdict_words import family_words, word
from compare.execution import cells, store
from compare.execution.cells import Cell, MatrixPlan
from compare.judgement.row_figures import Summary
from compare.judgement.summary import family
from compare.reporting import comparison_plots, comparison_report, document
from compare.reporting.comparison_report import Compared
from compare.reporting.document import Mark, Report, Section, anew
from compare.reporting.screen import Paragraph, Screen, counted_cautions
from compare.reporting.tables import Column, Table

RESULTS_FILE = "results.json"
_NOT_RUN = "not run yet"


class Read(NamedTuple):
    """A matrix, and what its cells hold so far."""

    plan: MatrixPlan
    compared: dict[str, Compared]
    """By the name of the cell. Cells without a run are not in it, nor are jobs that have failed."""


class Win(NamedTuple):
    """Two contestants in one configuration of one cell."""

    cell: Cell
    first: Summary
    second: Summary
    seconds: Judged
    """Seconds of the second over those of the first, judged with all of the matrix."""

    @property
    def disturbed(self) -> bool:
        return self.first.disturbed or self.second.disturbed

    @property
    def winner(self) -> str:
        """The faster contestant, or why none is named."""
        if self.disturbed:
            return "no finding: other work disturbed it"
        return word(self.seconds, above=self.first.contestant, below=self.second.contestant, neither="no difference shown")

    @property
    def is_decided(self) -> bool:
        return not self.disturbed and self.seconds.verdict in ("above", "below")


def read(folder: Path, signers: Path | None = None) -> Read:
    """Read a matrix and every cell that has begun.

    Args:
        signers: as `store.read`.

    Raises:
        FolderError: the folder holds no matrix, or one of its records or `signers` cannot be read.
    """
    plan = cells.read(folder)
    kept = [cell.name for cell in plan.cells if plan.on is None or not cell.failure]
    begun = [name for name in kept if (folder / name / store.PLAN_FILE).exists()]
    return Read(plan, {name: comparison_report.read(folder / name, signers=signers) for name in begun})


def wins(made: Read) -> list[Win]:
    """Every two contestants that were compared, judged as one family over all cells that are comparable."""
    found = [
        (cell, first, second, judged.ratio)
        for cell in made.plan.cells
        if (compared := made.compared.get(cell.name)) is not None and compared.findings.comparable
        for first, second, judged in family(compared.stored, compared.summaries).contestants
    ]
    until = made.plan.until
    named = [(f"{cell.name}: {first.id} against {second.id}", ratio) for cell, first, second, ratio in found]
    judged = verdicts(named, until.smallest_effect if until else None)
    return [Win(cell, first, second, each) for (cell, first, second, _), each in zip(found, judged, strict=True)]


def report(made: Read, folder: Path, out: Path | None = None) -> Report:
    """The report of a matrix.

    Args:
        folder: its results.
        out: where `report` writes it. None: to `folder`.
    """
    plan, found = made.plan, wins(made)
    failed = [f"{cell.name}: {cell.failure}" for cell in plan.cells if cell.failure]
    bad = [f"{name}: {', and '.join(each.failures)}" for name, each in made.compared.items() if each.failures]
    troubles = [f"{name}: {each}" for name, compared in made.compared.items() for each in compared.findings.troubles]
    again = ["report", str(folder), *(["--out", str(out)] if out else [])]
    done = len(made.compared)
    stored = {name: each.stored for name, each in made.compared.items()}
    read_from = {f"{name}/{path}": digest for name, each in stored.items() for path, digest in each.made_from.items()}
    return Report(
        title=f"Matrix of {wording.count(len(plan.cells), 'comparison')}",
        overline="Comparison of frameworks",
        json_file=RESULTS_FILE,
        facts=[
            *(f"{axis}: {', '.join(dict.fromkeys(cell.labels[axis] for cell in plan.cells))}" for axis in plan.axes),
            *dict.fromkeys(comparison_report.facts(each)[1] for each in made.compared.values()),
        ],
        marks=[
            Mark("Comparisons with results", f"{done} of {len(plan.cells)}", "good" if done == len(plan.cells) else "warn"),
            Mark("Repeats", str(plan.repeats), "good" if any(each.is_decided for each in found) else ""),
        ],
        findings=[
            ("Who wins where?", [*_sentences(found), *_of_machines(made)]),
            ("Cautions", comparison_report.in_folder([*failed, *troubles], folder)),
        ],
        tables=[wins_table(plan, found), _cells_table(made)],
        drawings={"wins": lambda figure: _draw(figure, found)},
        sections=[_section(cell, made.compared[cell.name], folder, out) for cell in plan.cells if cell.name in made.compared],
        environment=comparison_report.made_from(read_from),
        commands=[
            *document.SET_UP,
            ("The matrix:", f"{COMMAND} {wording.shell(anew(plan.argv))}"),
            ("This report, from the stored results:", f"{COMMAND} {wording.shell(again)}"),
        ],
        values={
            "kind": cells.KIND,
            "cells": {
                cell.name: {"labels": cell.labels, "failure": cell.failure, "begun": cell.name in made.compared}
                for cell in plan.cells
            },
            "verdicts": [each.seconds.model_dump() for each in found],
            "made_from": read_from,
        },
        exit_code=exits.RUN_FAILED if failed or bad else 0,
        failures=[*([f"{wording.count(len(failed), 'comparison')} could not be run"] * bool(failed)), *bad],
        screen=_screen(made, found, [*failed, *bad], len(troubles)),
        again=wording.command("report", str(folder), FULL),
    )


def _screen(made: Read, found: Sequence[Win], bad: Sequence[str], cautions: int) -> Screen:
    plan, done = made.plan, len(made.compared)
    axes = [f"{axis} {', '.join(dict.fromkeys(cell.labels[axis] for cell in plan.cells))}" for axis in plan.axes]
    fair = Counter(each.stored.comparison.headline for each in made.compared.values())
    table = wins_table(plan, found)
    return Screen(
        asked=[f"{wording.count(len(plan.cells), 'comparison')}: {'; '.join(axes)}", wording.count(plan.repeats, "repeat")],
        answers=[
            Paragraph("Faster", _winners(found)),
            Paragraph(
                "Fair?", [f"the same training: {', '.join(f'{verdict} in {number}' for verdict, number in fair.items())}"]
            ),
            Paragraph(
                "Trouble",
                [*bad, *([f"{done} of {len(plan.cells)} comparisons have results"] * (done < len(plan.cells)))],
                "bad",
            ),
        ],
        table=replace(table, columns=tuple(column for column in table.columns if column.key != "p")),
        remarks=counted_cautions(cautions),
    )


def wins_table(plan: MatrixPlan, found: Sequence[Win]) -> Table:
    """Who is faster, a line for each configuration of each cell."""

    def times(win: Win) -> Ratio | None:
        ratio = win.seconds.ratio
        return None if win.disturbed else ratio if ratio.value >= 1.0 else inverse(ratio)

    columns = (
        *(Column(axis, axis, pick=f"cell.labels.{axis}") for axis in plan.axes),
        Column("mode", "mode", pick="first.configuration"),
        Column("compared", "compared", pick=lambda win: f"{win.first.contestant}, {win.second.contestant}", fold=24),
        Column("winner", "faster", pick="winner", fold=24),
        Column("times", "times as fast", 2, interval=True, pick=times),
        Column("p", "p", 4, least=True, pick=lambda win: None if win.disturbed else win.seconds.p, wide=True),
    )
    note = (
        "By seconds per epoch. Times as fast: of the quicker one here, whether or not that is sure. "
        "p: corrected for all lines of this table together (Holm)."
    )
    return Table.of("who_wins_where", "Who wins where", columns, found, note)


def _machines(made: Read) -> dict[str, str]:
    """What made each cell, by the cell's name: `M1: Some CPU, 8 cores`. Hosts that are not known are one."""
    known: list[dict[str, Any]] = []
    named: dict[str, str] = {}
    for name, compared in made.compared.items():
        facts = compared.stored.comparison.machine
        if (number := next((place for place, each in enumerate(known) if not machine.differences(each, facts)), None)) is None:
            known.append(facts)
            number = len(known) - 1
        cores = wording.count(facts.get("logical_cores") or 0, "core")
        named[name] = f"M{number + 1}: {machine.processors(facts)}, {cores}"
    return named


def _of_machines(made: Read) -> list[str]:
    """That no ratio goes from one machine to another, where there are several."""
    if (number := len({name.split(":")[0] for name in _machines(made).values()})) < 2:
        return []
    return [f"The comparisons were made on {number} machines, each on one. No time is compared with a time of another machine."]


def _cells_table(made: Read) -> Table:
    names = _machines(made)

    def state(cell: Cell) -> str:
        compared = made.compared.get(cell.name)
        if cell.failure or compared is None:
            return cell.failure or _NOT_RUN
        worst = [summary.status for summary in compared.summaries if summary.status != "ok"]
        return ", ".join(f"{number} {status}" for status, number in Counter(worst).items()) or "ok"

    def proof(cell: Cell) -> str:
        return made.compared[cell.name].stored.comparison.headline if cell.name in made.compared else "not examined"

    columns = (
        Column("cell", "folder", pick="name"),
        Column("rows", "rows", pick=lambda cell: len(cell.rows)),
        Column("machine", "machine", pick=lambda cell: names.get(cell.name), fold=40),
        Column("proof", "same training", pick=proof),
        Column("state", "status", pick=state, fold=40),
    )
    return Table.of("cells", "Comparisons", columns, made.plan.cells, "Each has a report of its own in its folder.")


def _sentences(found: Sequence[Win]) -> list[str]:
    words = family_words([each.seconds for each in found])
    return [*_winners(found), *([words] if words else [])]


def _winners(found: Sequence[Win]) -> list[str]:
    if not found:
        return ["No two contestants have times that can be compared yet."]
    number = wording.count(len(found), "comparison")
    won = Counter(each.winner for each in found if each.is_decided)
    said = [f"{name} is faster in {times} of {number}." for name, times in won.most_common()]
    if left := len(found) - sum(won.values()):
        said.append(f"In {left} of {number} no contestant is shown to be faster.")
    return said


def _section(cell: Cell, compared: Compared, folder: Path, out: Path | None) -> Section:
    """A cell in the whole report. Its verdicts are not in it: they are judged among fewer comparisons."""
    picture = f"{cell.name}/{document.PLOTS_FOLDER}/seconds_per_epoch.svg"  # none if no epoch has ended
    signature = compared.stored.signature  # one that is not confirmed is among the cautions
    (main, *_) = comparison_report.documents(compared)
    narrow = replace(main, columns=tuple(column for column in main.columns if column.terminal))
    return Section(
        name=cell.name,
        title=", ".join(f"{axis} {label}" for axis, label in cell.labels.items()),
        findings=[
            ("Is it the same training?", compared.findings.sameness[:1]),
            *([("Who signed it?", [signature.sentence])] if signature is not None and signature.confirmed else []),
        ],
        tables=[narrow],
        pictures=[picture] if out is None and (folder / picture).exists() else [],
        more=[] if out else [f"{cell.name}/report.html"],
    )


def _draw(figure: Figure, found: Sequence[Win]) -> bool:
    """The ratio of every comparison with its interval."""
    shown = [each for each in found if not each.disturbed]
    axis: Axes = figure.subplots()
    names: list[str] = []
    for place, win in enumerate(shown):
        ratio, pair = win.seconds.ratio, f"{win.first.contestant} against {win.second.contestant}"
        where = ", ".join([*win.cell.labels.values(), win.first.configuration])
        names.append(
            f"{where}: {pair}" if len({(each.first.contestant, each.second.contestant) for each in shown}) > 1 else where
        )
        words = f"{where}: {win.first.contestant} {ratio.value:.3f} times as fast as {win.second.contestant}"
        comparison_plots.draw_ratio(axis, place, ratio, pair, words)
    axis.axvline(1.0, color="black", linewidth=1)
    comparison_plots.name_rows(axis, names)
    first = f"{shown[0].first.contestant} is" if shown else "the first is"
    axis.set(title="Who wins where (95 % interval of each comparison alone)", xlabel=f"times as fast as the other {first}")
    return bool(shown)
