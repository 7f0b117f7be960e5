"""Judgements of claims that the paper's own tables decide, or that nothing here can decide."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from compare.judgement.statement_words import unreliable_rows_note
from compare.tools.papers import judging, schema
from compare.tools.papers.cells import fill_rows
from compare.tools.papers.judging import CANNOT_TELL, Judgement
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import CORRECTED


def not_judged(results: LocalResults, claim: schema.NotJudged) -> Judgement:
    paper = results.paper
    slow = statistics.mean(paper.epochs_of(claim.slow).column("seconds"))
    fast = [seconds for run in claim.fast for seconds in paper.epochs_of(run).column("seconds")]
    images = paper.images_of(claim.slow)
    seconds = {run: results.epoch_seconds(run, images) for run in (claim.slow, *claim.fast)}
    summaries = {paper.runs[run].title: results.summary(results.training_of(run), run) for run in seconds}
    doubt = unreliable_rows_note((title, summary) for title, summary in summaries.items() if summary)
    paces = [
        f"{paper.runs[run].title}: {seconds_here:.1f} s" for run, seconds_here in seconds.items() if seconds_here is not None
    ]
    pace = f"An epoch of {images:,} images here, at the pace of {results.setting.scale}: {', '.join(paces)}."
    return CANNOT_TELL, [
        f"Its tables give {slow / max(fast):.1f} to {slow / min(fast):.1f} times.",
        *([pace] if paces else []),
        *([doubt] if paces and doubt else []),
        *([] if results.setting.gpus else ["Here is no GPU beside the CPU either."]),
    ]


def ordering(results: LocalResults, claim: schema.Ordering) -> Judgement:
    tables = {run: table for run in results.paper.runs for table in results.paper.published_tables.values() if table.run == run}
    columns = {run: table.column(claim.column) for run, table in tables.items()}
    if claim.by == "least_on_average":
        orders = [{run: -statistics.mean(figures) for run, figures in columns.items()}]
        evidence = [f"Its tables: {_by_run(results, {run: _span(figures) for run, figures in columns.items()})}."]
        per_image = {run: 1e3 * -mean / results.paper.images_of(run) for run, mean in orders[0].items()}
        words = _by_run(results, {run: f"{milliseconds:.2f} ms an image" for run, milliseconds in per_image.items()})
        evidence.append(f"By the images that each trains on: {words}.")
        if report := results.trainings.get(CORRECTED):
            evidence += [f"Identical models here: {sentence}" for sentence in report.in_words(report.findings.contestants)]
    else:
        last = min(map(len, columns.values()))
        orders = [{run: figures[last - 1] for run, figures in columns.items()}]
        orders.append({run: figures[-1] for run, figures in columns.items()})
        common, own_last = (
            _by_run(results, {run: f"{order[run]:.4f}" for run in sorted(order, key=lambda run: -order[run])})
            for order in orders
        )
        evidence = [
            f"Its tables, after {last} epochs, the last that all have: {common}.",
            f"Each at its own last epoch: {own_last}.",
        ]
        row_figures = {run: fill_rows(results, table)[last,][0] for run, table in tables.items()}
        measures = {
            run: values[tables[run].columns[claim.column].measure or claim.column] for run, values in row_figures.items()
        }
        if all(measures.values()):
            evidence.append(f"Here: {_by_run(results, {run: f'{value:.4f}' for run, value in measures.items()})}.")
    firsts = [sorted(order, key=lambda run: -order[run])[: len(claim.first)] for order in orders]
    return (CANNOT_TELL if list(claim.first) in firsts else judging.CONTRADICTED), evidence


def _span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f} s (mean {statistics.mean(seconds):.1f})"


def _by_run(results: LocalResults, words: dict[str, str]) -> str:
    return ", ".join(f"{results.paper.runs[run].title} {text}" for run, text in words.items())
