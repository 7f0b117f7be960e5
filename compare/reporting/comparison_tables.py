"""The tables of a comparison's rows. Each is a function of its summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.artifacts.schema import Phases
from compare.core import verdict_words, wording
from compare.judgement.conditions import CONDITIONS, NOT_RECORDED, SWITCH_CONDITIONS
from compare.judgement.row_figures import GUESSING, Summary, unreliable_rows_note
from compare.reporting import epoch_tables
from compare.reporting.epoch_tables import epochs_across, epochs_down, epochs_table, target_table
from compare.reporting.step_tables import MIB_PER_STEP, limit_table, operation_tables, step_table
from compare.reporting.tables import RUN_COLUMNS, Cell, Column, Table

ENVIRONMENTS = "In what do the environments differ?"
"""Heading of the sentences on `environment_table`."""
OTHER_DATA = "other data"
"""Replaces a figure that compares rows of different data."""
_TIMED_TABLES = ("seconds", "phases", "epoch_seconds", "epochs", "time_to_accuracy", "limit")
"""Tables of times, whose captions in files name the rows in doubt."""
_SPEEDUPS = ("speedup_one_core", "speedup_same_cores")
_SPLIT_SCORES = [(split, score) for split in ("train", "validation", "test") for score in ("accuracy", "loss")]
_SHORT_WORDS = {"train": "train", "validation": "valid.", "test": "test", "accuracy": "acc.", "loss": "loss"}


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
    def file_column(key: str, heading: str = "", digits: int | None = None, **options: Any) -> Column:
        return Column(key, heading or key, digits, terminal=False, **options)

    columns = (
        *RUN_COLUMNS,
        *map(file_column, ("implementation", "device", "replicas", "input", "workers")),
        Column("cores", "cores", wide=True),
        file_column("cores_used", "cores used", 2),
        *map(file_column, ("precision", "switches")),
        Column("epochs", "epochs", wide=True, pick="epochs_done"),
        *map(file_column, ("steps", "images")),
        *(_score_column(split, score, terminal=split == "test", short=_SHORT_WORDS[score]) for split, score in _SPLIT_SCORES),
        *_guessing_column(summaries),
        Column("epoch_seconds", "seconds per epoch", 2, short="s per\nepoch", interval=True),
        Column("images_per_second", "images/s", 0, short="img/s", wide=True, interval=True),
        file_column("wall_seconds", "wall seconds", 1, interval=True),
        _speedup_column("speedup_one_core", "speed-up, 1 core", short="vs 1\ncore"),
        _speedup_column("speedup_same_cores", "speed-up, same cores", short="vs same\ncores"),
        file_column("parallel_efficiency", "parallel efficiency", 2, pick=_efficiency),
        file_column("pays", pick=_pays),
        file_column("mib_per_step", "MiB sent per step", 3, pick=MIB_PER_STEP),
        file_column("peak_memory_pss_mib", "peak memory PSS MiB", 0),
        file_column("peak_memory_mib", "peak memory RSS MiB", 0),
        file_column("device_peak_memory_mib", "device memory MiB", 0),
        Column("parity", "same training", short="proof", wide=True),
        file_column("first_step_difference", "first-step difference", -1),
        Column("status", "status", fold=9),
        file_column("reason"),
    )
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
    if doubts := Counter(summary.doubt for summary in summaries if summary.doubt):
        why = ", ".join(f"{doubt} ({rows})" for doubt, rows in doubts.items())
        note += f" Times in doubt in {doubts.total()} of {wording.count(len(summaries), 'row')}, rely on none of them: {why}."
    return Table.from_items(
        "comparison", "Comparison", columns, summaries, note, files_note=files_note, spreads_on_terminal=False
    )


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
    return f"Accuracies of the same training may differ by rounding alone: one of {size:,} images is {1 / size:.4f}. "


def _score_column(split: str, score: str, **options: Any) -> Column:
    return Column(f"{split}_{score}", f"{split} {score}", 4, interval=True, pick=f"{split}.{score}", **options)


def _guessing_column(summaries: Sequence[Summary]) -> list[Column]:
    """A column that marks rows whose test accuracy is no better than guessing, if there are any. A terminal has a note."""

    def pick(summary: Summary) -> str | None:
        return GUESSING if summary.guesses else None

    return [Column("guessing", "test accuracy is", short="acc. is", terminal=False, pick=pick)] * any(map(pick, summaries))


def _speedup_column(key: str, heading: str, *, short: str) -> Column:
    return Column(
        key, heading, 2, short=short, interval=True,
        pick=lambda summary: OTHER_DATA if summary.other_data else summary.reported_ratio(key),
    )  # fmt: skip


def _efficiency(summary: Summary) -> Cell:
    return summary.reported_ratio("parallel_efficiency")


def _pays(summary: Summary) -> str | None:
    return OTHER_DATA if summary.other_data and summary.is_parallel else summary.pays


def accuracy_table(summaries: Sequence[Summary], score_caution: str = "") -> Table:
    has_seeds = any(summary.test_accuracy_over_seeds for summary in summaries)
    over_seeds = (
        Column("seeds", "seeds"),
        Column("test_accuracy_over_seeds", "test accuracy over seeds", 4, short="over\nseeds", interval=True),
    )
    columns = (
        *RUN_COLUMNS,
        *(_score_column(split, score, short=f"{_SHORT_WORDS[split]}\n{_SHORT_WORDS[score]}") for split, score in _SPLIT_SCORES),
        *_guessing_column(summaries),
        *(over_seeds if has_seeds else ()),
    )
    has_repeats = max(summary.repeats for summary in summaries) > 1
    note = (
        "After the last epoch."
        + " Median over repeats; in all files with the 25 % and 75 % quantiles." * has_repeats
        + " Over seeds: of each seed's median." * has_seeds
        + f" {score_caution}" * bool(score_caution)
    )
    return Table.from_items("accuracy", "Accuracy and loss by mode", columns, summaries, note, spreads_on_terminal=False)


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
        Column("implementation", "made by", terminal=False),
        Column("switches", "switches", terminal=False),
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
    columns = (
        *RUN_COLUMNS,
        Column("epoch_seconds", "seconds per epoch", 3, interval=True),
        Column("training_seconds", "training seconds", 2, interval=True),
        Column("wall_seconds", "wall seconds", 1, interval=True),
        Column("images_per_second", "images/s", 1, interval=True),
    )
    note = "Median over repeats (25 % to 75 % quantile). An epoch's seconds: all its images at the pace of its timed steps."
    return Table.from_items("seconds", "Seconds by mode", columns, summaries, note)


def speedup_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN_COLUMNS,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2, short="used"),
        _speedup_column("speedup_one_core", "against serial, 1 core", short="vs serial,\n1 core"),
        _speedup_column("speedup_same_cores", "against serial, same cores", short="vs serial,\nsame cores"),
        Column("parallel_efficiency", "parallel efficiency", 2, short="eff.", pick=_efficiency),
        Column("pays", "pays", fold=15, pick=_pays),
    )
    has_repeats = max(summary.repeats for summary in summaries) > 1
    note = (
        f"Geometric mean of the ratios of paired repeats, with its 95 % interval. {verdict_words.HOLDS}"
        if has_repeats
        else "Of one repeat each."
    )
    return Table.from_items("speedup", "Speed-up", columns, summaries, note)


def phases_table(summaries: Sequence[Summary]) -> Table:
    short = {"evaluation_seconds": "eval.", "training_seconds": "train"}
    wide_only = ("compile_seconds", "other_seconds")

    def phase(name: str) -> Column:
        heading = name.removesuffix("_seconds").replace("_", " ")
        return Column(name, heading, 2, short=short.get(name, ""), wide=name in wide_only, pick=f"phases.{name}")

    memory = [
        Column(f"peak_memory_{kind}mib", heading, 0, wide=True)
        for kind, heading in (("pss_", "peak PSS MiB"), ("", "peak RSS MiB"))
    ]
    *names, wait = sorted(Phases.model_fields, key="input_wait_seconds".__eq__)
    columns = (*RUN_COLUMNS, *map(phase, names), phase(wait), *memory)
    note = "Seconds: the repeat with the median wall time. Memory: the most of all repeats. The input wait is part of training."
    return Table.from_items("phases", "Wall seconds by phase", columns, summaries, note)


def noise_table(summaries: Sequence[Summary]) -> list[Table]:
    """Other activity of the machine during the runs: one table, or none if no run recorded it."""
    if not any(summary.noise for summary in summaries):
        return []

    def noise(key: str, heading: str, digits: int) -> Column:
        return Column(key, heading, digits, pick=f"noise.{key}")

    columns = (
        *RUN_COLUMNS,
        Column("cores", "cores"),
        Column("most_cores_used", "most cores used", 2),
        Column("cores_lost", "cores lost to others", 2),
        noise("cores_stolen", "cores stolen by the hypervisor", 2),
        noise("load_start", "load at the start", 2),
        noise("load_end", "load at the end", 2),
        noise("frequency_start_mhz", "MHz at the start", 0),
        noise("frequency_end_mhz", "MHz at the end", 0),
    )
    return [Table.from_items("noise", "What else the machine did", columns, summaries, "The worst of the repeats.")]
