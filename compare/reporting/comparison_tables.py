"""The tables of a comparison's rows. Each is a function of its summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.artifacts.schema import Phases
from compare.core import verdict_words, wording
from compare.judgement.conditions import CONDITIONS, NOT_RECORDED, OF_SWITCHES
from compare.judgement.row_figures import GUESSING, Summary, unreliable
from compare.reporting import epoch_tables
from compare.reporting.epoch_tables import epochs_across, epochs_down, epochs_table, target_table
from compare.reporting.step_tables import MIB_PER_STEP, limit_table, operation_tables, step_table
from compare.reporting.tables import RUN, Cell, Column, Table

ENVIRONMENTS = "In what do the environments differ?"
"""Heading of the sentences on `environment_table`."""
OTHER_DATA = "other data"
"""Stands for a figure that compares rows of different data."""
_TIMED = ("seconds", "phases", "epoch_seconds", "epochs", "time_to_accuracy", "limit")
"""Tables of times, whose captions in files name the rows in doubt."""
_SPEEDUPS = ("speedup_one_core", "speedup_same_cores")
_SCORES = [(split, score) for split in ("train", "validation", "test") for score in ("accuracy", "loss")]
_SHORT = {"train": "train", "validation": "valid.", "test": "test", "accuracy": "acc.", "loss": "loss"}


def documents(summaries: Sequence[Summary], of_scores: str = "") -> list[Table]:
    """Every table that is written to the results folder.

    Args:
        of_scores: what captions of accuracies say of the data.
    """
    made = [
        main_table(summaries, of_scores),
        *conditions_table(summaries),
        accuracy_table(summaries, of_scores),
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
    made = [_captioned(table, summaries) if table.name in _TIMED else table for table in made]
    return made if _trained(summaries) else _filled(made)


def _captioned(table: Table, summaries: Sequence[Summary]) -> Table:
    done = sorted({summary.repeats_done for summary in summaries if summary.repeats_done})
    n = f"{' to '.join(map(str, dict.fromkeys((done[0], done[-1]))))} of each row." if done else ""
    doubt = unreliable((summary.name, summary) for summary in summaries)
    return replace(table, files_note=" ".join(filter(None, (table.files_note, n and f"Repeats: {n}", doubt))))


def on_terminal(summaries: Sequence[Summary], of_scores: str = "") -> list[Table]:
    """The tables that are printed. They are narrower, and epochs run across. `of_scores` as in `documents`."""
    made = [
        without_empty_speedups(main_table(summaries, of_scores)),
        *conditions_table(summaries),
        accuracy_table(summaries, of_scores),
        *_shown_speedups(summaries),
        phases_table(summaries),
        *target_table(summaries),
        *limit_table(summaries),
        *step_table(summaries),
        *operation_tables(summaries),
        *(epochs_across(summaries, *figure) for figure in (epoch_tables.FIGURES[0], epoch_tables.FIGURES[2])),
    ]
    return made if _trained(summaries) else _filled(made)


def without_empty_speedups(table: Table) -> Table:
    """Leave out columns of speed-ups that nothing fills: serial did not run, or not on one core, or nothing ran in parallel."""
    known = {key for row in table.rows for key, cell in row.items() if cell is not None}
    empty = {*_SPEEDUPS, "parallel_efficiency"} - known
    return replace(table, columns=tuple(column for column in table.columns if column.key not in empty))


def _shown_speedups(summaries: Sequence[Summary]) -> list[Table]:
    table = without_empty_speedups(speedup_table(summaries))
    return [table] if any(column.key in _SPEEDUPS for column in table.columns) else []


def _trained(summaries: Sequence[Summary]) -> bool:
    """Whether anything was trained. Input alone or compute alone has neither scores nor a proof."""
    return any(summary.part == "training" for summary in summaries)


def _filled(made: Sequence[Table]) -> list[Table]:
    """Only the columns that hold anything, and only the tables that keep a column of their own."""
    kept: list[Table] = []
    for table in made:
        full = {column.key for column in table.columns if any(row.get(column.key) is not None for row in table.rows)}
        full.discard("parity")
        columns = tuple(column for column in table.columns if column.key in full)
        if full - {"contestant", "run", "epoch", "cores", "cores_used", "most_cores_used"}:
            kept.append(replace(table, columns=columns))
    return kept


def main_table(summaries: Sequence[Summary], of_scores: str = "") -> Table:
    def written(key: str, heading: str = "", digits: int | None = None, **options: Any) -> Column:
        return Column(key, heading or key, digits, terminal=False, **options)

    columns = (
        *RUN,
        *map(written, ("implementation", "device", "replicas", "input", "workers")),
        Column("cores", "cores", wide=True),
        written("cores_used", "cores used", 2),
        *map(written, ("precision", "switches")),
        Column("epochs", "epochs", wide=True, pick="epochs_done"),
        *map(written, ("steps", "images")),
        *(_score(split, score, terminal=split == "test", short=_SHORT[score]) for split, score in _SCORES),
        *_guessing(summaries),
        Column("epoch_seconds", "seconds per epoch", 2, short="s per\nepoch", interval=True),
        Column("images_per_second", "images/s", 0, short="img/s", wide=True, interval=True),
        written("wall_seconds", "wall seconds", 1, interval=True),
        _speedup("speedup_one_core", "speed-up, 1 core", short="vs 1\ncore"),
        _speedup("speedup_same_cores", "speed-up, same cores", short="vs same\ncores"),
        written("parallel_efficiency", "parallel efficiency", 2, pick=_efficiency),
        written("pays", pick=_pays),
        written("mib_per_step", "MiB sent per step", 3, pick=MIB_PER_STEP),
        written("peak_memory_pss_mib", "peak memory PSS MiB", 0),
        written("peak_memory_mib", "peak memory RSS MiB", 0),
        written("device_peak_memory_mib", "device memory MiB", 0),
        Column("parity", "same training", short="proof", wide=True),
        written("first_step_difference", "first-step difference", -1),
        Column("status", "status", fold=9),
        written("reason"),
    )
    sizes = sorted({summary.test_examples for summary in summaries if summary.test_examples})
    of = f" of {' or '.join(f'{size:,}' for size in sizes)} images" if sizes else ""
    note = f"Accuracy and loss: test split{of}, after the last epoch. {f'{of_scores} ' if of_scores else ''}" * _trained(
        summaries
    )
    note += _by_rounding(summaries)
    several = max(summary.repeats for summary in summaries) > 1
    has_speedup = any(summary.shown_ratio(key) is not None for summary in summaries for key in _SPEEDUPS)
    if has_speedup:
        how = ", geometric mean of the repeats' ratios" * several
        note += f"Speed-up: against the same framework's serial run, by seconds per epoch{how}. "
    note += ("Seconds, images/s and scores: median over repeats." if has_speedup else "Median over repeats.") * several
    files_note = "Peak memory: the largest of the repeats." * several
    note = note.strip()
    if guessing := sum(summary.guesses for summary in summaries):
        note += f" Test accuracy no better than guessing: {guessing} of {wording.count(len(summaries), 'row')}."
    if doubts := Counter(summary.doubt for summary in summaries if summary.doubt):
        why = ", ".join(f"{doubt} ({rows})" for doubt, rows in doubts.items())
        note += f" Times in doubt in {doubts.total()} of {wording.count(len(summaries), 'row')}, rely on none of them: {why}."
    return Table.of("comparison", "Comparison", columns, summaries, note, files_note=files_note, spreads_on_terminal=False)


def _by_rounding(summaries: Sequence[Summary]) -> str:
    """Where a reader sees that rows of the same training differ in accuracy: that rounding may do it, and what an image is."""
    same = [each for each in summaries if each.parity.startswith("proved") and each.test.accuracy is not None]
    sizes = {each.test_examples for each in same}
    if len({each.test.accuracy.median for each in same if each.test.accuracy}) < 2 or len(sizes) != 1 or None in sizes:
        return ""
    size = sizes.pop() or 1
    return f"Accuracies of the same training may differ by rounding alone: one of {size:,} images is {1 / size:.4f}. "


def _score(split: str, score: str, **options: Any) -> Column:
    return Column(f"{split}_{score}", f"{split} {score}", 4, interval=True, pick=f"{split}.{score}", **options)


def _guessing(summaries: Sequence[Summary]) -> list[Column]:
    """Names the rows whose test accuracy is no better than guessing. No column if there is none. A terminal has a note."""

    def pick(summary: Summary) -> str | None:
        return GUESSING if summary.guesses else None

    return [Column("guessing", "test accuracy is", short="acc. is", terminal=False, pick=pick)] * any(map(pick, summaries))


def _speedup(key: str, heading: str, *, short: str) -> Column:
    return Column(
        key, heading, 2, short=short, interval=True,
        pick=lambda summary: OTHER_DATA if summary.other_data else summary.shown_ratio(key),
    )  # fmt: skip


def _efficiency(summary: Summary) -> Cell:
    return summary.shown_ratio("parallel_efficiency")


def _pays(summary: Summary) -> str | None:
    return OTHER_DATA if summary.other_data and summary.mode != "serial" else summary.pays


def accuracy_table(summaries: Sequence[Summary], of_scores: str = "") -> Table:
    seeded = any(summary.test_accuracy_over_seeds for summary in summaries)
    over_seeds = (
        Column("seeds", "seeds"),
        Column("test_accuracy_over_seeds", "test accuracy over seeds", 4, short="over\nseeds", interval=True),
    )
    columns = (
        *RUN,
        *(_score(split, score, short=f"{_SHORT[split]}\n{_SHORT[score]}") for split, score in _SCORES),
        *_guessing(summaries),
        *(over_seeds if seeded else ()),
    )
    repeated = max(each.repeats for each in summaries) > 1
    note = (
        "After the last epoch."
        + " Median over repeats; in all files with the 25 % and 75 % quantiles." * repeated
        + " Over seeds: of each seed's median." * seeded
        + f" {of_scores}" * bool(of_scores)
    )
    return Table.of("accuracy", "Accuracy and loss by mode", columns, summaries, note, spreads_on_terminal=False)


def conditions_table(summaries: Sequence[Summary]) -> list[Table]:
    """What decides each row's times beside the work: one table, or none where no run recorded it."""
    if not any(summary.conditions for summary in summaries):
        return []

    def condition(key: str, **options: Any) -> Column:
        def pick(summary: Summary) -> str | None:
            return summary.conditions.get(key, NOT_RECORDED if summary.repeats_done and not summary.conditions else None)

        return Column(key, CONDITIONS[key], pick=pick, **options)

    rates = {summary.conditions.get("learning_rate") for summary in summaries if summary.conditions}
    columns = (
        *RUN,
        condition("layout", short="layout"),
        condition("graph", short="graph"),
        condition("mechanism", fold=36),
        condition("threads"),
        condition("precision", fold=24),
        *(condition(name, terminal=False) for name in OF_SWITCHES),
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
    return [Table.of("conditions", "Conditions", columns, summaries, note, files_note=files_note)]


def environment_table(differences: Sequence[Mapping[str, str | None]]) -> list[Table]:
    """A line for each distribution or library that differs between contestants or sides. No table if nothing does."""

    def of(name: str) -> Callable[[Mapping[str, str | None]], Cell]:  # a name may have dots, which a path of `pick` divides
        return lambda difference: difference.get(name)

    columns = tuple(Column(name, name, pick=of(name)) for name in (differences or [{}])[0])
    note = "Versions of what differs between at least two of them. Nothing: it is not there."
    return [Table.of("environments", "In what the environments differ", columns, differences, note)] if differences else []


def seconds_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("epoch_seconds", "seconds per epoch", 3, interval=True),
        Column("training_seconds", "training seconds", 2, interval=True),
        Column("wall_seconds", "wall seconds", 1, interval=True),
        Column("images_per_second", "images/s", 1, interval=True),
    )
    note = "Median over repeats (25 % to 75 % quantile). An epoch's seconds: all its images at the pace of its timed steps."
    return Table.of("seconds", "Seconds by mode", columns, summaries, note)


def speedup_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2, short="used"),
        _speedup("speedup_one_core", "against serial, 1 core", short="vs serial,\n1 core"),
        _speedup("speedup_same_cores", "against serial, same cores", short="vs serial,\nsame cores"),
        Column("parallel_efficiency", "parallel efficiency", 2, short="eff.", pick=_efficiency),
        Column("pays", "pays", fold=15, pick=_pays),
    )
    several = max(summary.repeats for summary in summaries) > 1
    note = (
        f"Geometric mean of the ratios of paired repeats, with its 95 % interval. {verdict_words.HOLDS}"
        if several
        else "Of one repeat each."
    )
    return Table.of("speedup", "Speed-up", columns, summaries, note)


def phases_table(summaries: Sequence[Summary]) -> Table:
    short = {"evaluation_seconds": "eval.", "training_seconds": "train"}
    seldom = ("compile_seconds", "other_seconds")

    def phase(name: str) -> Column:
        heading = name.removesuffix("_seconds").replace("_", " ")
        return Column(name, heading, 2, short=short.get(name, ""), wide=name in seldom, pick=f"phases.{name}")

    memory = [
        Column(f"peak_memory_{kind}mib", heading, 0, wide=True)
        for kind, heading in (("pss_", "peak PSS MiB"), ("", "peak RSS MiB"))
    ]
    *names, wait = sorted(Phases.model_fields, key="input_wait_seconds".__eq__)
    columns = (*RUN, *map(phase, names), phase(wait), *memory)
    note = "Seconds: the repeat with the median wall time. Memory: the most of all repeats. The input wait is part of training."
    return Table.of("phases", "Wall seconds by phase", columns, summaries, note)


def noise_table(summaries: Sequence[Summary]) -> list[Table]:
    """What else the machine did: one table, or none where no run recorded it."""
    if not any(summary.noise for summary in summaries):
        return []

    def noise(key: str, heading: str, digits: int) -> Column:
        return Column(key, heading, digits, pick=f"noise.{key}")

    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("most_cores_used", "most cores used", 2),
        Column("cores_lost", "cores lost to others", 2),
        noise("cores_stolen", "cores stolen by the hypervisor", 2),
        noise("load_start", "load at the start", 2),
        noise("load_end", "load at the end", 2),
        noise("frequency_start_mhz", "MHz at the start", 0),
        noise("frequency_end_mhz", "MHz at the end", 0),
    )
    return [Table.of("noise", "What else the machine did", columns, summaries, "The worst of the repeats.")]
