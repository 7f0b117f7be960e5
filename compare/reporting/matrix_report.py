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
from compare.cli import exits, wording
from compare.cli.terminal import FULL
from compare.judgement.row_figures import Summary
from compare.judgement.summary import family
from compare.reporting import comparison_plots, comparison_report, document
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Mark, Report, Section, without_output_options
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import Column, Table
from compare.results import cells, store
from compare.results.cells import Cell, MatrixPlan
from compare.statistics.statistics import JudgedRatio, Ratio, inverse, verdicts
from compare.statistics.verdict_words import family_words, verdict_text

RESULTS_FILE = "results.json"
_NOT_RUN = "not run yet"


class MatrixResults(NamedTuple):
    """A matrix, and the results of its cells so far."""

    plan: MatrixPlan
    compared: dict[str, JudgedComparison]
    """Results by cell name. Cells without a run and failed jobs are left out."""


class CellVerdict(NamedTuple):
    """The verdict on two contestants in one configuration of one cell."""

    cell: Cell
    first: Summary
    second: Summary
    judged: JudgedRatio
    """Ratio of the seconds of the second to those of the first, judged together with the whole matrix."""

    @property
    def disturbed(self) -> bool:
        return self.first.disturbed or self.second.disturbed

    @property
    def winner(self) -> str:
        """The faster contestant, or why none is named."""
        if self.disturbed:
            return "not known: other programs took cores from it"
        return verdict_text(
            self.judged, when_above=self.first.contestant, when_below=self.second.contestant, when_neither="no difference shown"
        )

    @property
    def is_decided(self) -> bool:
        return not self.disturbed and self.judged.verdict in ("above", "below")


def read(folder: Path, signers: Path | None = None) -> MatrixResults:
    """Read a matrix and every cell that has begun.

    Args:
        signers: file of allowed signers, see `store.read`.
    """
    plan = cells.read(folder)
    names = [cell.name for cell in plan.cells if plan.on is None or not cell.failure]
    started = [name for name in names if (folder / name / store.PLAN_FILE).exists()]
    return MatrixResults(plan, {name: comparison_report.read(folder / name, signers=signers) for name in started})


def cell_verdicts(results: MatrixResults) -> list[CellVerdict]:
    """Judge all pairs of contestants, as one family over all cells whose runs are comparable."""
    ratios = [
        (cell, first, second, judged.ratio)
        for cell in results.plan.cells
        if (compared := results.compared.get(cell.name)) is not None and compared.findings.comparable
        for first, second, judged in family(compared.stored, compared.summaries).contestants
    ]
    until = results.plan.settings.until
    named_ratios = [(f"{cell.name}: {first.id} against {second.id}", ratio) for cell, first, second, ratio in ratios]
    judged = verdicts(named_ratios, until.smallest_effect if until else None)
    return [
        CellVerdict(cell, first, second, cell_judged)
        for (cell, first, second, _), cell_judged in zip(ratios, judged, strict=True)
    ]


def report(results: MatrixResults, folder: Path, out: Path | None = None) -> Report:
    """The report of a matrix.

    Args:
        folder: results folder of the matrix.
        out: folder that `report` writes to. None: `folder`.
    """
    plan, pair_verdicts = results.plan, cell_verdicts(results)
    failed = [f"{cell.name}: {cell.failure}" for cell in plan.cells if cell.failure]
    cell_failures = [
        f"{name}: {', and '.join(compared.failures)}" for name, compared in results.compared.items() if compared.failures
    ]
    troubles = [
        f"{name}: {trouble}"
        for name, compared in results.compared.items()
        for trouble in compared.in_words(compared.findings.troubles, folder)
    ]
    again = ["report", str(folder), *(["--out", str(out)] if out else [])]
    done = len(results.compared)
    stored = {name: compared.stored for name, compared in results.compared.items()}
    read_from = {
        f"{name}/{path}": digest for name, cell_stored in stored.items() for path, digest in cell_stored.made_from.items()
    }
    return Report(
        title=f"Matrix of {wording.count(len(plan.cells), 'comparison')}",
        overline="Comparison of frameworks",
        json_file=RESULTS_FILE,
        facts=[
            *(f"{axis}: {', '.join(dict.fromkeys(cell.labels[axis] for cell in plan.cells))}" for axis in plan.axes),
            *dict.fromkeys(comparison_report.facts(compared)[1] for compared in results.compared.values()),
        ],
        marks=[
            Mark("Comparisons with results", f"{done} of {len(plan.cells)}", "good" if done == len(plan.cells) else "warn"),
            Mark("Repeats", str(plan.settings.repeats), "good" if any(verdict.is_decided for verdict in pair_verdicts) else ""),
        ],
        findings=[
            ("Who wins where?", [*_sentences(pair_verdicts), *_machine_caution(results)]),
            ("Cautions", [*failed, *troubles]),
        ],
        tables=[winners_table(plan, pair_verdicts), _cells_table(results)],
        drawings={"wins": lambda figure: _draw(figure, pair_verdicts)},
        sections=[
            _section(cell, results.compared[cell.name], folder, out) for cell in plan.cells if cell.name in results.compared
        ],
        environment=comparison_report.source_digest(read_from),
        commands=[
            *document.SET_UP,
            ("The matrix:", f"{COMMAND} {wording.shell(without_output_options(plan.argv))}"),
            ("This report, from the stored results:", f"{COMMAND} {wording.shell(again)}"),
        ],
        values={
            "kind": cells.KIND,
            "cells": {
                cell.name: {"labels": cell.labels, "failure": cell.failure, "begun": cell.name in results.compared}
                for cell in plan.cells
            },
            "verdicts": [verdict.judged.model_dump() for verdict in pair_verdicts],
            "made_from": read_from,
        },
        exit_code=exits.RUN_FAILED if failed or cell_failures else 0,
        failures=[*([f"{wording.count(len(failed), 'comparison')} could not be run"] * bool(failed)), *cell_failures],
        screen=_screen(results, pair_verdicts, [*failed, *cell_failures], len(troubles)),
        again=wording.command("report", str(folder), FULL),
    )


def _screen(results: MatrixResults, pair_verdicts: Sequence[CellVerdict], failures: Sequence[str], cautions: int) -> Screen:
    plan, done = results.plan, len(results.compared)
    axes = [f"{axis} {', '.join(dict.fromkeys(cell.labels[axis] for cell in plan.cells))}" for axis in plan.axes]
    headlines = Counter(compared.stored.comparison.headline for compared in results.compared.values())
    table = winners_table(plan, pair_verdicts)
    return Screen(
        subject=[
            f"{wording.count(len(plan.cells), 'comparison')}: {'; '.join(axes)}",
            wording.count(plan.settings.repeats, "repeat"),
        ],
        answers=[
            Paragraph("Faster", _winner_sentences(pair_verdicts)),
            Paragraph(
                "Fair?", [f"the same training: {', '.join(f'{verdict} in {number}' for verdict, number in headlines.items())}"]
            ),
            Paragraph(
                "Trouble",
                [*failures, *([f"{done} of {len(plan.cells)} comparisons have results"] * (done < len(plan.cells)))],
                "bad",
            ),
        ],
        table=replace(table, columns=tuple(column for column in table.columns if column.key != "p")),
        remarks=caution_count(cautions),
    )


def winners_table(plan: MatrixPlan, pair_verdicts: Sequence[CellVerdict]) -> Table:
    """Who is faster, a line for each configuration of each cell."""

    def times(win: CellVerdict) -> Ratio | None:
        ratio = win.judged.ratio
        return None if win.disturbed else ratio if ratio.value >= 1.0 else inverse(ratio)

    columns = (
        *(Column(axis, axis, pick=f"cell.labels.{axis}") for axis in plan.axes),
        Column("mode", "mode", pick="first.configuration"),
        Column("compared", "compared", pick=lambda win: f"{win.first.contestant}, {win.second.contestant}", fold=24),
        Column("winner", "faster", pick="winner", fold=24),
        Column("times", "times as fast", 2, interval=True, pick=times),
        Column("p", "p", 4, least=True, pick=lambda win: None if win.disturbed else win.judged.p, wide=True),
    )
    note = (
        "By seconds per epoch. Times as fast: of the quicker one here, whether or not that is sure. "
        "p: corrected for all lines of this table together (Holm)."
    )
    return Table.from_items("who_wins_where", "Who wins where", columns, pair_verdicts, note)


def _machine_names(results: MatrixResults) -> dict[str, str]:
    """Machine of each cell, by cell name: `M1: Some CPU, 8 cores`. Unknown hosts count as one."""
    machines: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for name, compared in results.compared.items():
        facts = compared.stored.comparison.machine
        if (
            number := next((place for place, other in enumerate(machines) if not machine.differences(other, facts)), None)
        ) is None:
            machines.append(facts)
            number = len(machines) - 1
        cores = wording.count(facts.get("logical_cores") or 0, "core")
        names[name] = f"M{number + 1}: {machine.processors(facts)}, {cores}"
    return names


def _machine_caution(results: MatrixResults) -> list[str]:
    """A sentence that no ratio spans two machines. Empty for a single machine."""
    if (number := len({name.split(":")[0] for name in _machine_names(results).values()})) < 2:
        return []
    return [f"The comparisons were made on {number} machines, each on one. No time is compared with a time of another machine."]


def _cells_table(results: MatrixResults) -> Table:
    names = _machine_names(results)

    def state(cell: Cell) -> str:
        compared = results.compared.get(cell.name)
        if cell.failure or compared is None:
            return cell.failure or _NOT_RUN
        worst = [summary.status for summary in compared.summaries if summary.status != "ok"]
        return ", ".join(f"{number} {status}" for status, number in Counter(worst).items()) or "ok"

    def proof(cell: Cell) -> str:
        return results.compared[cell.name].stored.comparison.headline if cell.name in results.compared else "not examined"

    columns = (
        Column("cell", "folder", pick="name"),
        Column("rows", "rows", pick=lambda cell: len(cell.rows)),
        Column("machine", "machine", pick=lambda cell: names.get(cell.name), fold=40),
        Column("proof", "same training", pick=proof),
        Column("state", "status", pick=state, fold=40),
    )
    return Table.from_items("cells", "Comparisons", columns, results.plan.cells, "Each has a report of its own in its folder.")


def _sentences(pair_verdicts: Sequence[CellVerdict]) -> list[str]:
    words = family_words([verdict.judged for verdict in pair_verdicts])
    return [*_winner_sentences(pair_verdicts), *([words] if words else [])]


def _winner_sentences(pair_verdicts: Sequence[CellVerdict]) -> list[str]:
    if not pair_verdicts:
        return ["No two contestants have times that can be compared yet."]
    number = wording.count(len(pair_verdicts), "comparison")
    wins_by_contestant = Counter(verdict.winner for verdict in pair_verdicts if verdict.is_decided)
    sentences = [f"{name} is faster in {times} of {number}." for name, times in wins_by_contestant.most_common()]
    if num_undecided := len(pair_verdicts) - sum(wins_by_contestant.values()):
        sentences.append(f"In {num_undecided} of {number} no contestant is shown to be faster.")
    return sentences


def _section(cell: Cell, compared: JudgedComparison, folder: Path, out: Path | None) -> Section:
    """A cell in the whole report. Its verdicts are not in it: they are judged among fewer comparisons."""
    picture = f"{cell.name}/{document.PLOTS_FOLDER}/seconds_per_epoch.svg"  # none if no epoch has ended
    signature = compared.stored.signature  # one that is not confirmed is among the cautions
    (main, *_) = comparison_report.report_tables(compared)
    narrow = replace(main, columns=tuple(column for column in main.columns if column.terminal))
    return Section(
        name=cell.name,
        title=", ".join(f"{axis} {label}" for axis, label in cell.labels.items()),
        findings=[
            ("Is it the same training?", compared.in_words(compared.findings.sameness[:1])),
            *([("Who signed it?", [signature.sentence])] if signature is not None and signature.confirmed else []),
        ],
        tables=[narrow],
        pictures=[picture] if out is None and (folder / picture).exists() else [],
        more=[] if out else [f"{cell.name}/report.html"],
    )


def _draw(figure: Figure, pair_verdicts: Sequence[CellVerdict]) -> bool:
    """Draw the ratio of every comparison with its interval."""
    undisturbed = [verdict for verdict in pair_verdicts if not verdict.disturbed]
    axis: Axes = figure.subplots()
    names: list[str] = []
    for place, win in enumerate(undisturbed):
        ratio, pair = win.judged.ratio, f"{win.first.contestant} against {win.second.contestant}"
        where = ", ".join([*win.cell.labels.values(), win.first.configuration])
        names.append(
            f"{where}: {pair}"
            if len({(verdict.first.contestant, verdict.second.contestant) for verdict in undisturbed}) > 1
            else where
        )
        words = f"{where}: {win.first.contestant} {ratio.value:.3f} times as fast as {win.second.contestant}"
        comparison_plots.draw_ratio(axis, place, ratio, pair, words)
    axis.axvline(1.0, color="black", linewidth=1)
    comparison_plots.name_rows(axis, names)
    first = f"{undisturbed[0].first.contestant} is" if undisturbed else "the first is"
    axis.set(title="Who wins where (95 % interval of each comparison alone)", xlabel=f"times as fast as the other {first}")
    return bool(undisturbed)
