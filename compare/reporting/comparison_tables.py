"""The tables of a comparison's rows. Each is a function of its summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compare.cli import wording
from compare.judgement.conditions import CONDITIONS, NOT_RECORDED, SWITCH_CONDITIONS
from compare.judgement.row_figures import Summary
from compare.judgement.statement_words import DOUBTED_ROW, unreliable_rows_note
from compare.reporting import epoch_tables
from compare.reporting.epoch_tables import epochs_across, epochs_down, epochs_table, target_table
from compare.reporting.figure_tables import figure_columns, figure_table
from compare.reporting.step_tables import limit_table, operation_tables, step_table
from compare.reporting.tables import RUN_COLUMNS, Cell, Column, Table
from compare.statistics import verdict_words

ENVIRONMENTS = "In what do the environments differ?"
"""Heading of the sentences on `environment_table`."""
_TIMED_TABLES = ("seconds", "phases", "epoch_seconds", "epochs", "time_to_accuracy", "limit")
"""Tables of times, whose captions in files name the rows in doubt."""
_OVER_SEEDS = ("seeds", "test_accuracy_over_seeds")
_SPEEDUPS = ("speedup_one_core", "speedup_same_cores")


def written_tables(summaries: Sequence[Summary], score_caution: str = "") -> list[Table]:
    """Every table that is written to the results folder.

    Args:
        score_caution: caution on the data in captions of accuracies.
    """
    result = [
        main_table(summaries, score_caution),
        *conditions_table(summaries),
        accuracy_table(summaries, score_caution),
        seconds_table(summaries),
        speedup_table(summaries),
        phases_table(summaries),
        *step_table(summaries),
        *operation_tables(summaries),
        *(epochs_down(summaries, *figure) for figure in epoch_tables.FIGURES),
        epochs_table(summaries),
        *target_table(summaries),
        *limit_table(summaries),
        *noise_table(summaries),
    ]
    result = [_with_repeats_and_doubts(table, summaries) if table.name in _TIMED_TABLES else table for table in result]
    return result if _has_training(summaries) else _nonempty_tables(result)


def _with_repeats_and_doubts(table: Table, summaries: Sequence[Summary]) -> Table:
    repeats_done = sorted({summary.repeats_done for summary in summaries if summary.repeats_done})
    repeat_words = (
        f"{' to '.join(map(str, dict.fromkeys((repeats_done[0], repeats_done[-1]))))} of each row." if repeats_done else ""
    )
    doubt = unreliable_rows_note((summary.name, summary) for summary in summaries)
    return replace(
        table, files_note=" ".join(filter(None, (table.files_note, repeat_words and f"Repeats: {repeat_words}", doubt)))
    )


def terminal_tables(summaries: Sequence[Summary], score_caution: str = "") -> list[Table]:
    """The tables that are printed. They are narrower, and epochs run across.

    Args:
        score_caution: caution on the data in captions of accuracies.
    """
    result = [
        without_empty_speedups(main_table(summaries, score_caution)),
        *conditions_table(summaries),
        accuracy_table(summaries, score_caution),
        *_nonempty_speedup_table(summaries),
        phases_table(summaries),
        *target_table(summaries),
        *limit_table(summaries),
        *step_table(summaries),
        *operation_tables(summaries),
        *(epochs_across(summaries, *figure) for figure in (epoch_tables.FIGURES[0], epoch_tables.FIGURES[2])),
    ]
    return result if _has_training(summaries) else _nonempty_tables(result)


def without_empty_speedups(table: Table) -> Table:
    """Leave out columns of speed-ups that nothing fills: serial did not run, or not on one core, or nothing ran in parallel."""
    known = {key for row in table.rows for key, cell in row.items() if cell is not None}
    empty = {*_SPEEDUPS, "parallel_efficiency"} - known
    return replace(table, columns=tuple(column for column in table.columns if column.key not in empty))


def _nonempty_speedup_table(summaries: Sequence[Summary]) -> list[Table]:
    table = without_empty_speedups(speedup_table(summaries))
    return [table] if any(column.key in _SPEEDUPS for column in table.columns) else []


def _has_training(summaries: Sequence[Summary]) -> bool:
    """Whether anything was trained. Input alone or compute alone has neither scores nor a proof."""
    return any(summary.part == "training" for summary in summaries)


def _nonempty_tables(tables: Sequence[Table]) -> list[Table]:
    """Drop empty columns, and tables that keep no column but those that name a row."""
    result: list[Table] = []
    for table in tables:
        nonempty = {column.key for column in table.columns if any(row.get(column.key) is not None for row in table.rows)}
        nonempty.discard("parity")
        columns = tuple(column for column in table.columns if column.key in nonempty)
        if nonempty - {"contestant", "run", "epoch", "cores", "cores_used", "most_cores_used"}:
            result.append(replace(table, columns=columns))
    return result


def main_table(summaries: Sequence[Summary], score_caution: str = "") -> Table:
    sizes = sorted({summary.test_examples for summary in summaries if summary.test_examples})
    size_words = f" of {' or '.join(f'{size:,}' for size in sizes)} images" if sizes else ""
    note = (
        f"Accuracy and loss: test split{size_words}, after the last epoch. {f'{score_caution} ' if score_caution else ''}"
        * _has_training(summaries)
    )
    note += _rounding_note(summaries)
    has_repeats = max(summary.repeats for summary in summaries) > 1
    has_speedup = any(summary.reported_ratio(key) is not None for summary in summaries for key in _SPEEDUPS)
    if has_speedup:
        mean_words = ", geometric mean of the repeats' ratios" * has_repeats
        note += f"Speed-up: against the same framework's serial run, by seconds per epoch{mean_words}. "
    note += ("Seconds, images/s and scores: median over repeats." if has_speedup else "Median over repeats.") * has_repeats
    files_note = "Peak memory: the largest of the repeats." * has_repeats
    note = note.strip()
    if guessing := sum(summary.guesses for summary in summaries):
        note += f" Test accuracy no better than guessing: {guessing} of {wording.count(len(summaries), 'row')}."
    if doubts := Counter(DOUBTED_ROW[summary.doubt] for summary in summaries if summary.doubt):
        why = ", ".join(f"{doubt} ({rows})" for doubt, rows in doubts.items())
        note += f" Times in doubt in {doubts.total()} of {wording.count(len(summaries), 'row')}, rely on none of them: {why}."
    return figure_table("comparison", "Comparison", summaries, note, files_note=files_note, spreads_on_terminal=False)


def _rounding_note(summaries: Sequence[Summary]) -> str:
    """A note that rounding may change accuracies of the same training, and by how much. Empty if they are equal."""
    proved = [summary for summary in summaries if summary.parity.startswith("proved") and summary.test.accuracy is not None]
    sizes = {summary.test_examples for summary in proved}
    if (
        len({summary.test.accuracy.median for summary in proved if summary.test.accuracy}) < 2
        or len(sizes) != 1
        or None in sizes
    ):
        return ""
    size = sizes.pop() or 1
    return f"Accuracies may differ, as rounding leads to other weights: one of {size:,} images is {1 / size:.4f}. "


def accuracy_table(summaries: Sequence[Summary], score_caution: str = "") -> Table:
    has_seeds = any(summary.test_accuracy_over_seeds for summary in summaries)
    has_repeats = max(summary.repeats for summary in summaries) > 1
    note = (
        "After the last epoch."
        + " Median over repeats; in all files with the 25 % and 75 % quantiles." * has_repeats
        + " Over seeds: of each seed's median." * has_seeds
        + f" {score_caution}" * bool(score_caution)
    )
    columns = [column for column in figure_columns("accuracy", summaries) if has_seeds or column.key not in _OVER_SEEDS]
    return Table.from_items(
        "accuracy", "Accuracy and loss by mode", (*RUN_COLUMNS, *columns), summaries, note, spreads_on_terminal=False
    )


def conditions_table(summaries: Sequence[Summary]) -> list[Table]:
    """Conditions that decide each row's times beside the work: one table, or none if no run recorded them."""
    if not any(summary.conditions for summary in summaries):
        return []

    def condition(key: str, **options: Any) -> Column:
        def pick(summary: Summary) -> str | None:
            return summary.conditions.get(key, NOT_RECORDED if summary.repeats_done and not summary.conditions else None)

        return Column(key, CONDITIONS[key], pick=pick, **options)

    rates = {summary.conditions.get("learning_rate") for summary in summaries if summary.conditions}
    columns = (
        *RUN_COLUMNS,
        condition("layout", short="layout"),
        condition("graph", short="graph"),
        condition("mechanism", fold=36),
        condition("threads"),
        condition("precision", fold=24),
        *(condition(name, terminal=False) for name in SWITCH_CONDITIONS),
        condition("allocator", terminal=False),
        condition("deterministic", terminal=False),
        condition("learning_rate", terminal=len(rates) > 1),
        *figure_columns("conditions", summaries),
    )
    note = (
        "Threads: intra-op + inter-op of each process, 0 where the framework chooses. The closed division asks that all "
        "conditions are equal. Threads and mechanism belong to a mode, so they may differ from serial's."
    )
    files_note = "Determinism: whether the framework enforces deterministic kernels."
    return [Table.from_items("conditions", "Conditions", columns, summaries, note, files_note=files_note)]


def environment_table(differences: Sequence[Mapping[str, str | None]]) -> list[Table]:
    """A line for each distribution or library that differs between contestants or sides. No table if nothing does."""

    def pick_version(
        name: str,
    ) -> Callable[[Mapping[str, str | None]], Cell]:  # a name may have dots, which a path of `pick` divides
        return lambda difference: difference.get(name)

    columns = tuple(Column(name, name, pick=pick_version(name)) for name in (differences or [{}])[0])
    note = "Versions of what differs between at least two of them. Nothing: it is not there."
    return (
        [Table.from_items("environments", "In what the environments differ", columns, differences, note)] if differences else []
    )


def seconds_table(summaries: Sequence[Summary]) -> Table:
    columns = sorted(figure_columns("seconds", summaries), key=lambda column: column.key == "images_per_second")
    note = "Median over repeats (25 % to 75 % quantile). An epoch's seconds: all its images at the pace of its timed steps."
    return Table.from_items("seconds", "Seconds by mode", (*RUN_COLUMNS, *columns), summaries, note)


def speedup_table(summaries: Sequence[Summary]) -> Table:
    has_repeats = max(summary.repeats for summary in summaries) > 1
    note = (
        f"Geometric mean of the ratios of paired repeats, with its 95 % interval. {verdict_words.HOLDS}"
        if has_repeats
        else "Of one repeat each."
    )
    return figure_table("speedup", "Speed-up", summaries, note)


def phases_table(summaries: Sequence[Summary]) -> Table:
    note = (
        "Seconds: the repeat with the median wall time. Memory: the most of all repeats. The input wait is part of training. "
        "Steps that are not timed, as the first of each turn, are in other."
    )
    return figure_table("phases", "Wall seconds by phase", summaries, note)


def noise_table(summaries: Sequence[Summary]) -> list[Table]:
    """Other activity of the machine during the runs: one table, or none if no run recorded it."""
    if not any(summary.noise for summary in summaries):
        return []

    return [figure_table("noise", "What else the machine did", summaries, "The worst of the repeats.")]
