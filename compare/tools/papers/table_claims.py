"""Claims that the paper's own tables decide, or that nothing here can decide."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from compare.judgement.statement_words import unreliable_rows_note
from compare.tools.papers.cells import fill_rows
from compare.tools.papers.judging import CANNOT_TELL, CONTRADICTED, Judgement
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import CORRECTED
from compare.tools.papers.schema import PublishedClaim, PublishedTable


class NotJudged(PublishedClaim):
    """Claim: one run's epochs take a number of times as long as others', on machines that are not known."""

    kind: Literal["not_judged"]
    slow: str
    fast: tuple[str, ...]

    def judge(self, results: LocalResults) -> Judgement:
        paper = results.paper
        slow = statistics.mean(paper.epochs_of(self.slow).column("seconds"))
        fast = [seconds for run in self.fast for seconds in paper.epochs_of(run).column("seconds")]
        images = paper.images_of(self.slow)
        runs = (self.slow, *self.fast)
        seconds = {run: here for run in runs if (here := results.epoch_seconds(run, images)) is not None}
        evidence = [f"Its tables give {slow / max(fast):.1f} to {slow / min(fast):.1f} times."]
        if seconds:
            paces = _by_run(results, {run: f"{here:.1f} s" for run, here in seconds.items()}, ": ")
            evidence.append(f"An epoch of {images:,} images here, at the pace of {results.setting.scale}: {paces}.")
            summaries = {paper.runs[run].title: results.summary(results.training_of(run), run) for run in runs}
            if doubt := unreliable_rows_note((title, summary) for title, summary in summaries.items() if summary):
                evidence.append(doubt)
        if not results.setting.gpus:
            evidence.append("Here is no GPU beside the CPU either.")
        return CANNOT_TELL, evidence


class Ordering(PublishedClaim):
    """Claim: these runs are the best ones, in this order, by the paper's own tables of epochs."""

    kind: Literal["ordering"]
    column: str
    first: tuple[str, ...]
    by: Literal["highest_at_the_end", "least_on_average"]

    def judge(self, results: LocalResults) -> Judgement:
        tables = {table.run: table for table in results.paper.published_tables.values() if table.run}
        tables = {run: tables[run] for run in results.paper.runs if run in tables}
        orders, evidence = (self._averages if self.by == "least_on_average" else self._ends)(results, tables)
        is_first = any(_best_first(order)[: len(self.first)] == [*self.first] for order in orders)
        return (CANNOT_TELL if is_first else CONTRADICTED), evidence

    def _averages(self, results: LocalResults, tables: dict[str, PublishedTable]) -> tuple[list[dict[str, float]], list[str]]:
        columns = {run: table.column(self.column) for run, table in tables.items()}
        means = {run: statistics.mean(figures) for run, figures in columns.items()}
        per_image = {run: f"{1e3 * mean / results.paper.images_of(run):.2f} ms an image" for run, mean in means.items()}
        evidence = [
            f"Its tables: {_by_run(results, {run: _span(figures) for run, figures in columns.items()})}.",
            f"By the images that each trains on: {_by_run(results, per_image)}.",
        ]
        if report := results.trainings.get(CORRECTED):
            evidence += [f"Identical models here: {sentence}" for sentence in report.in_words(report.findings.contestants)]
        return [{run: -mean for run, mean in means.items()}], evidence

    def _ends(self, results: LocalResults, tables: dict[str, PublishedTable]) -> tuple[list[dict[str, float]], list[str]]:
        columns = {run: table.column(self.column) for run, table in tables.items()}
        last = min(map(len, columns.values()))
        orders = [{run: figures[end] for run, figures in columns.items()} for end in (last - 1, -1)]
        common, own_last = (_by_run(results, {run: f"{order[run]:.4f}" for run in _best_first(order)}) for order in orders)
        evidence = [
            f"Its tables, after {last} epochs, the last that all have: {common}.",
            f"Each at its own last epoch: {own_last}.",
        ]
        here = {
            run: fill_rows(results, table)[last,][0][table.columns[self.column].measure or self.column]
            for run, table in tables.items()
        }
        if all(here.values()):
            evidence.append(f"Here: {_by_run(results, {run: f'{value:.4f}' for run, value in here.items()})}.")
        return orders, evidence


def _best_first(figures: dict[str, float]) -> list[str]:
    return sorted(figures, key=lambda run: -figures[run])


def _span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s (mean {statistics.mean(seconds):.1f})"


def _by_run(results: LocalResults, words: dict[str, str], separator: str = " ") -> str:
    return ", ".join(f"{results.paper.runs[run].title}{separator}{text}" for run, text in words.items())
