"""Every figure of a row, declared once: where it comes from, and where it is shown.

The values of `Summary`, the columns of a comparison's tables, `runs.csv`, the metrics of `regress` and `history`, the JSON and
docs/reading-a-report.md follow from the list here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from common.artifacts.schema import Metrics, RunResult
from compare.judgement import conditions, row_values, run_figures
from compare.judgement.row_figures import DISTURBED, GUESSING, OTHER_DATA, Summary
from compare.judgement.row_values import RowRuns, first, largest, median, smallest
from compare.judgement.run_figures import cores_lost, epoch_seconds, images_per_second, steps_needed, timed_steps
from compare.results.store import Comparison
from compare.statistics.statistics import spread

Pick = str | Callable[[Summary], Any]


class ColumnOptions(TypedDict, total=False):
    """Options of a figure's column in one table, as in `reporting.tables.Column`. Each one given replaces the figure's."""

    key: str
    """Key in the table's rows. Default: the figure's name."""
    heading: str
    digits: int
    interval: bool
    pick: Pick
    scale: float
    """Factor, e.g. 1000 for milliseconds."""
    if_any: bool
    """Whether the column is left out if no row has a value."""
    terminal: bool
    short: str
    wide: bool
    fold: int


@dataclass(frozen=True)
class Metric:
    """How `regress` and `history` compare a figure of a run."""

    counts: Callable[[RunResult], bool] = lambda run: True
    """Whether the figure of a run may be compared with other runs'."""
    is_time: bool = True
    """Whether other work on the machine makes it worse."""
    more_is_better: bool = False


@dataclass(frozen=True)
class Figure:
    """One figure of a row."""

    name: str
    """Key in summaries, tables, data frames and the JSON."""
    docs: str
    """Meaning, in sentences."""
    row: Callable[[RowRuns], Any] | None = None
    """Function that computes the value of a row. None: see `over`."""
    run: Callable[[RunResult], Any] | None = None
    """Function that computes the value of a run. Default: the field of that name, of the result or of its `part_of`."""
    run_in: Callable[[RunResult, Comparison], Any] | None = None
    """As `run`, for a figure that needs the comparison."""
    over: Callable[[Sequence[Any]], Any] | None = None
    """Function that computes the value of a row from those of its finished runs, without None."""
    part_of: str = ""
    """Record of the result that it is a part of. `runs.csv` leaves out all parts of a record that no run has."""
    pick: Pick = ""
    """Dotted path in the summary, or function of it, that gives a table's cell. Default: the value of that name."""
    heading: str = ""
    """Default: its name, with spaces."""
    digits: int | None = None
    interval: bool = False
    """Whether its cells are spreads or ratios."""
    tables: Mapping[str, ColumnOptions] = field(default_factory=dict[str, ColumnOptions])
    """Tables that have it, by name. Columns stand in the order of the figures."""
    in_frame: bool = True
    """Whether a figure of a run is a column of `runs.csv`."""
    metric: Metric | None = None

    @property
    def label(self) -> str:
        return self.heading or self.name.replace("_", " ")

    @property
    def is_in_summary(self) -> bool:
        return self.row is not None or self.over is not None

    @property
    def is_in_frame(self) -> bool:
        return self.in_frame and bool(self.run or self.run_in or self.over or self.part_of)

    @property
    def cell(self) -> Pick:
        """Path in the summary, or function of it, that gives a table's cell."""
        return self.pick or (f"{self.part_of}.{self.name}" if self.part_of and not self.is_in_summary else self.name)

    def of_row(self, runs: RowRuns) -> Any:
        """The value in the row's summary."""
        if self.row is not None:
            return self.row(runs)
        assert self.over is not None
        values = (self.of_run(run, runs.comparison) for run in runs.finished)
        return self.over([value for value in values if value is not None])

    def of_run(self, run: RunResult, comparison: Comparison) -> Any:
        """The value of a run."""
        if self.run_in is not None:
            return self.run_in(run, comparison)
        if self.run is not None:
            return self.run(run)
        return getattr(getattr(run, self.part_of) if self.part_of else run, self.name, None)


def _is_steady(run: RunResult) -> bool:
    return timed_steps(run) >= max(steps_needed(run.spec), 1)


def _is_whole(run: RunResult) -> bool:
    """Whether one process made the run. Several processes share the phases and the memory of a resumed one."""
    return not run.resumes


_PACE = Metric(_is_steady)
_PHASE = Metric(_is_whole)
_MEMORY = Metric(_is_whole, is_time=False)


def _of_phases(name: str, docs: str, metric: Metric | None = None, **options: Unpack[ColumnOptions]) -> Figure:
    return Figure(f"{name}_seconds", docs, part_of="phases", metric=metric, tables={"phases": _phase_column(name, **options)})


def _phase_column(name: str, **options: Unpack[ColumnOptions]) -> ColumnOptions:
    return {"heading": name.replace("_", " "), "digits": 2, "interval": False, "pick": f"phases.{name}_seconds", **options}


def _scores(split: str, metrics_of: Callable[[RunResult], Metrics | None]) -> list[Figure]:
    is_test = split == "test"
    split_word = "valid." if split == "validation" else split

    def score(name: str, short: str) -> Figure:
        return Figure(
            f"{split}_{name}", f"Final {name} on the {split} split.", pick=f"{split}.{name}", digits=4, interval=True,
            run=lambda run: getattr(metrics_of(run), name, None), in_frame=is_test,
            metric=Metric(is_time=False, more_is_better=name == "accuracy") if is_test else None,
            tables={
                "comparison": {"terminal": is_test, "short": short, "wide": name == "loss"},
                "accuracy": {"short": f"{split_word}\n{short}"},
            },
        )  # fmt: skip

    docs = f"Final scores on the {split} split, over the repeats."
    whole = Figure(split, docs, run=metrics_of, over=row_values.score_spreads, in_frame=False)
    return [whole, score("accuracy", "acc."), score("loss", "loss")]


def _of_step(name: str, heading: str, docs: str, /, **options: Unpack[ColumnOptions]) -> Figure:
    column: ColumnOptions = {"key": f"{name}_milliseconds", "heading": heading, "digits": 2, "scale": 1e3}
    docs = f"{docs} Seconds of a step, by `--profile`."
    return Figure(f"{name}_seconds", docs, part_of="step_parts", tables={"step_parts": {**column, **options}})


def _of_noise(name: str, heading: str, digits: int, docs: str) -> Figure:
    return Figure(name, docs, part_of="noise", heading=heading, digits=digits, tables={"noise": {}})


def _of_limit(name: str, heading: str, digits: int, docs: str, /, **options: Unpack[ColumnOptions]) -> Figure:
    return Figure(
        name, docs, run_in=lambda run, comparison: getattr(run_figures.limit_of_run(comparison, run), name, None),
        part_of="limit", heading=heading, digits=digits, tables={"limit": options},
    )  # fmt: skip


def _rate_fraction(name: str) -> Callable[[Summary], float | str | None]:
    """Return a function that gives the fraction of a rate of the machine, unless other work disturbed it."""

    def pick(summary: Summary) -> float | str | None:
        fraction: float | None = getattr(summary.limit, name, None)
        return DISTURBED if fraction is not None and summary.disturbed else fraction

    return pick


def _expected_idle_milliseconds(summary: Summary) -> float | None:
    idle, parts = summary.expected_idle, summary.step_parts
    return None if idle is None or parts is None else 1e3 * idle * parts.step_seconds


def _speedup(name: str) -> Callable[[Summary], Any]:
    return lambda summary: OTHER_DATA if summary.other_data else summary.reported_ratio(name)


def _pays(summary: Summary) -> str | None:
    return OTHER_DATA if summary.other_data and summary.is_parallel else summary.pays


def _repeats_that_reached(summary: Summary) -> str | None:
    target = summary.target
    return f"{target.reached} of {target.repeats}" if target and target.repeats else None


def _to_target(place: int) -> Callable[[RunResult, Comparison], float | None]:
    """Return a function that gives the seconds (place 0) or epochs (1) of a run until the target accuracy."""

    def run_in(run: RunResult, comparison: Comparison) -> float | None:
        target = comparison.settings.target_accuracy
        reached = None if target is None else run_figures.time_to_accuracy(run, target)
        return reached[place] if reached else None

    return run_in


_FILES: ColumnOptions = {"terminal": False}
"""Options of a column that a terminal does not show."""

_FIGURES: list[Figure] = [
    # The row and its settings.
    Figure("id", "Name of the row in files and options.", row=lambda runs: runs.row.id),
    Figure("contestant", "Framework, or contestant with settings of its own.", row=lambda runs: runs.row.contestant),
    Figure("mode", "Parallel mode.", row=lambda runs: runs.spec.variant),
    Figure(
        "implementation", "Implementation of the mode on this machine.", run=lambda run: run.implementation,
        row=lambda runs: first([run.implementation for run in runs.reported]),
        tables={"comparison": _FILES, "conditions": {"heading": "made by", "terminal": False}},
    ),
    Figure(
        "device", "Devices that trained.", run=lambda run: run.device, tables={"comparison": _FILES},
        row=lambda runs: first([run.device for run in runs.reported]),
    ),
    Figure("replicas", "Number of copies of the model.", row=lambda runs: runs.spec.replicas, tables={"comparison": _FILES}),
    Figure("part", "Part that ran: the training, or the input or the compute alone.", row=lambda runs: runs.spec.part),
    Figure("input", "Way in which batches are made.", row=lambda runs: runs.spec.input, tables={"comparison": _FILES}),
    Figure("workers", "Number of input workers.", row=lambda runs: runs.spec.workers, tables={"comparison": _FILES}),
    Figure(
        "cores", "Budget of cores.", row=lambda runs: runs.spec.cores,
        tables={"comparison": {"wide": True}, "speedup": {}, "limit": {}, "noise": {}},
    ),
    Figure(
        "cores_used", "CPU seconds over wall seconds in training, the median of the repeats.", over=median, digits=2,
        tables={"comparison": _FILES, "speedup": {"short": "used"}},
    ),
    Figure("precision", "Precision of the arithmetic.", row=lambda runs: runs.spec.precision, tables={"comparison": _FILES}),
    Figure(
        "switches", "Level of the switches, and those that the spec names: `usual`, or `best: arithmetic=bfloat16`.",
        row=lambda runs: run_figures.switches_words(runs.spec), tables={"comparison": _FILES, "conditions": _FILES},
    ),
    Figure(
        "conditions", "Conditions of the times beside the work. Empty if not recorded.",
        row=lambda runs: conditions.row_conditions(runs.stored, runs.row),
    ),
    # What was done.
    Figure("repeats_done", "Number of repeats that finished.", row=lambda runs: len(runs.finished)),
    Figure("repeats", "Number of repeats that were planned.", row=lambda runs: runs.repeats),
    Figure(
        "epochs_done", "Number of epochs, the most of the repeats.", row=row_values.epochs_done,
        tables={"comparison": {"key": "epochs", "heading": "epochs", "wide": True}},
    ),
    Figure(
        "steps", "Number of steps of a run, over all its epochs.", run=lambda run: sum(epoch.steps for epoch in run.epochs),
        over=first, tables={"comparison": _FILES},
    ),
    Figure("timed_steps", "Number of timed steps, the fewest of the repeats.", run=timed_steps, over=smallest),
    Figure("steps_needed", "Timed steps below which no rate of the row is reliable.", row=lambda runs: steps_needed(runs.spec)),
    Figure(
        "images", "Number of images that a run trained on, over all its epochs.",
        run=lambda run: sum(epoch.images for epoch in run.epochs), over=first, tables={"comparison": _FILES},
    ),
    # Scores.
    *_scores("train", lambda run: run.epochs[-1].train if run.epochs else None),
    *_scores("validation", lambda run: run.epochs[-1].validation if run.epochs else None),
    *_scores("test", lambda run: run.test),
    Figure(
        "guessing", "Whether the test accuracy is not shown to be better than guessing.", heading="test accuracy is",
        pick=lambda summary: GUESSING if summary.guesses else None,
        tables={name: {"short": "acc. is", "terminal": False, "if_any": True} for name in ("comparison", "accuracy")},
    ),
    Figure(
        "seeds", "Number of different seeds of the repeats.", row=lambda runs: len({run.spec.seed for run in runs.finished}),
        tables={"accuracy": {}},
    ),
    Figure(
        "test_accuracy_over_seeds", "Spread of the medians of the seeds: each seed is one sample. None for a single seed.",
        row=row_values.accuracy_over_seeds, digits=4, interval=True, tables={"accuracy": {"short": "over\nseeds"}},
    ),
    Figure(
        "test_examples", "Number of images of the test split.", over=first, in_frame=False,
        run=lambda run: run.test.num_examples if run.test else None,
    ),
    Figure(
        "chance_accuracy", "Test accuracy of always naming the most frequent class. None if the classes are unknown.",
        row=row_values.chance_accuracy,
    ),
    Figure(
        "confusion", "Confusion matrix of the test split, summed over the repeats: rows are the true class.",
        over=row_values.total_confusion, in_frame=False,
    ),
    Figure("epochs", "Medians of each epoch over the repeats.", row=row_values.epoch_medians),
    # Times.
    Figure(
        "epoch_seconds", "Seconds of an epoch at the pace of its timed steps, without the first step and evaluation.",
        run=epoch_seconds, over=spread, heading="seconds per epoch", interval=True, metric=_PACE,
        tables={
            "comparison": {"digits": 2, "short": "s per\nepoch"}, "seconds": {"digits": 3},
            "time_to_accuracy": {"digits": 2, "short": "s per\nepoch"},
        },
    ),
    Figure(
        "images_per_second", "Images of an epoch over its seconds.", run=images_per_second, over=spread, heading="images/s",
        interval=True, metric=Metric(_is_steady, more_is_better=True),
        tables={"comparison": {"digits": 0, "short": "img/s", "wide": True}, "seconds": {"digits": 1}},
    ),
    Figure(
        "phases", "Seconds by phase of the repeat with the median wall time, so that they add up.",
        over=row_values.phases_of_median_run, in_frame=False,
    ),
    _of_phases("import", "Seconds until the framework is imported, devices are set up and ranks are connected.", _PHASE),
    _of_phases("build", "Seconds to build data, model, initial weights and optimizer.", _PHASE),
    _of_phases("first_step", "Seconds of the first update: tracing, compiling, first use of memory.", _PHASE),
    _of_phases("compile", "Seconds of tracing and compiling for batches of another size.", wide=True),
    Figure(
        "training_seconds", "Seconds of all updates that were timed, with their wait for input.", over=spread, interval=True,
        part_of="phases", tables={"seconds": {"digits": 2}, "phases": _phase_column("training", short="train")},
    ),
    _of_phases("evaluation", "Seconds of evaluation.", _PHASE, short="eval."),
    _of_phases("other", "Seconds of a run in no other phase.", wide=True),
    Figure(
        "wall_seconds", "Seconds of the process, from its start to its end.", over=spread, interval=True, digits=1,
        part_of="phases", metric=_PHASE, tables={"comparison": _FILES, "seconds": {}, "phases": _phase_column("wall")},
    ),
    _of_phases("input_wait", "Seconds of training in which the loop waited for its next batch."),
    Figure("target", "Time to the target accuracy over all repeats. None without a target.", row=row_values.target),
    Figure(
        "target_accuracy", "Validation accuracy whose time is asked for.", part_of="target",
        run_in=lambda run, comparison: comparison.settings.target_accuracy,
    ),
    Figure(
        "target_seconds", "Seconds of training, with the first step, until the target accuracy.", run_in=_to_target(0),
        part_of="target", pick="target.seconds", heading="seconds to accuracy", digits=2, interval=True,
        tables={"time_to_accuracy": {"short": "s to\naccuracy"}},
    ),
    Figure(
        "target_epochs", "Epochs until the target accuracy.", run_in=_to_target(1), part_of="target", pick="target.epochs",
        heading="epochs to accuracy", digits=1, interval=True, tables={"time_to_accuracy": {"short": "epochs to\naccuracy"}},
    ),
    Figure(
        "reached", "Number of repeats that reached the target accuracy.", pick=_repeats_that_reached,
        heading="repeats that reached it", tables={"time_to_accuracy": {"short": "reached"}},
    ),
    # Speed-ups.
    Figure(
        "speedup_one_core", "Seconds per epoch of serial on one core over this row's.", row=lambda runs: runs.speedup_one_core,
        pick=_speedup("speedup_one_core"), digits=2, interval=True,
        tables={
            "comparison": {"heading": "speed-up, 1 core", "short": "vs 1\ncore"},
            "speedup": {"heading": "against serial, 1 core", "short": "vs serial,\n1 core"},
        },
    ),
    Figure(
        "speedup_same_cores", "Seconds per epoch of serial on the same cores over this row's.",
        row=lambda runs: runs.speedup_same_cores, pick=_speedup("speedup_same_cores"), digits=2, interval=True,
        tables={
            "comparison": {"heading": "speed-up, same cores", "short": "vs same\ncores"},
            "speedup": {"heading": "against serial, same cores", "short": "vs serial,\nsame cores"},
        },
    ),
    Figure(
        "parallel_efficiency", "Speed-up over the resources: against one core, cores; on accelerators, replicas.",
        row=row_values.parallel_efficiency, pick=lambda summary: summary.reported_ratio("parallel_efficiency"), digits=2,
        tables={"comparison": _FILES, "speedup": {"short": "eff."}},
    ),
    # `summarize` fills it in when it has judged all rows together.
    Figure(
        "pays", "Whether a parallel mode beats serial on the same cores.", row=lambda runs: None, pick=_pays,
        tables={"comparison": _FILES, "speedup": {"fold": 15}},
    ),
    Figure(
        "other_data", "Whether the row or a serial row of its speed-ups had other data. Then it has no speed-up.",
        row=row_values.has_other_data,
    ),
    # One step.
    Figure(
        "step_parts", "Median of each part of a step over the repeats. None without `--profile`.",
        over=row_values.median_step_parts, in_frame=False,
    ),
    _of_step("step", "step", "A whole step."),
    _of_step("compute", "compute", "A step of the slowest replica, without any exchange."),
    _of_step("communication_hidden", "hidden", "Exchange that overlaps with computing."),
    _of_step("communication_exposed", "exposed", "Exchange in which everything waits for it."),
    _of_step("idle", "idle", "A replica neither computes nor exchanges, mean over replicas."),
    _of_step("transfer", "to device", "Copy of a batch from the host to the device.", short="to\ndev.", wide=True),
    _of_step("forward", "forward", "Forward pass.", short="fwd", wide=True),
    _of_step("backward", "backward", "Backward pass.", short="bwd", wide=True),
    _of_step("optimizer", "optimizer", "Update of the weights.", short="opt.", wide=True),
    Figure(
        "expected_idle", "Fraction of a step, 0..1, that one of several equal stages of a pipeline waits, by formula.",
        row=row_values.expected_idle, pick=_expected_idle_milliseconds, heading="idle by formula", digits=2,
        tables={
            "step_parts": {"key": "expected_idle_milliseconds", "short": "idle,\nformula", "wide": True, "if_any": True},
        },
    ),
    Figure(
        "bytes_per_step", "Bytes that all replicas together send in a step.", over=first, digits=3,
        tables={
            "comparison": {"key": "mib_per_step", "heading": "MiB sent per step", "scale": 2**-20, "terminal": False},
            "step_parts": {"key": "mib_per_step", "heading": "MiB sent", "scale": 2**-20, "short": "MiB\nsent"},
        },
    ),
    Figure(
        "not_separable", "Reason why a part of a step is missing.", pick="step_parts.not_separable",
        tables={"step_parts": {"fold": 24, "wide": True}},
    ),
    Figure(
        "pieces", "Method by which forward, backward and optimizer were separated.", pick="step_parts.pieces",
        heading="forward, backward and optimizer", tables={"step_parts": _FILES},
    ),
    Figure("top_operations", "Longest operations of the first repeat. None without `--profile`.", over=first, in_frame=False),
    # Memory.
    Figure(
        "peak_memory_pss_mib", "Largest proportional set size. A page that n processes share counts 1 / n in each.",
        over=largest, heading="peak memory PSS MiB", digits=0, metric=_MEMORY,
        tables={"comparison": _FILES, "phases": {"heading": "peak PSS MiB", "wide": True}},
    ),
    Figure(
        "peak_memory_mib", "Largest resident memory, its processes summed. A shared page counts in each.", over=largest,
        heading="peak memory RSS MiB", digits=0, metric=_MEMORY,
        tables={"comparison": _FILES, "phases": {"heading": "peak RSS MiB", "wide": True}},
    ),
    Figure(
        "device_peak_memory_mib", "Peak memory of all accelerators together. None on a CPU.", over=largest,
        heading="device memory MiB", digits=0, metric=_MEMORY, tables={"comparison": _FILES},
    ),
    # Sameness.
    Figure(
        "parity", "Verdict of the proof on the row's mode.", row=row_values.parity, heading="same training",
        tables={"comparison": {"short": "proof"}},
    ),
    Figure(
        "first_step_loss", "Mean loss of the first batch before any update.", run=lambda run: run.first_step_loss,
        row=lambda runs: first([run.first_step_loss for run in runs.results]),
    ),
    Figure(
        "first_step_difference",
        "Largest relative difference of the first loss to other frameworks' rows of the same configuration and seed.",
        row=row_values.first_step_difference, heading="first-step difference", digits=-1, tables={"comparison": _FILES},
    ),
    # The machine.
    Figure(
        "most_cores_used", "Largest `cores_used` of the repeats, because each must keep the budget.",
        row=lambda runs: largest([run.cores_used for run in runs.finished if run.cores_used is not None]), digits=2,
        tables={"noise": {}},
    ),
    Figure(
        "unwatched_repeats", "Finished repeats whose training was too short to tell whether other work disturbed it.",
        row=lambda runs: sum(run_figures.is_unwatched(run) for run in runs.finished),
    ),
    Figure(
        "shortest_training_seconds", "Seconds of training of the shortest repeat, without the first step.",
        row=lambda runs: smallest([run.phases.training_seconds for run in runs.finished if run.phases]),
    ),
    Figure(
        "cores_lost", "Cores of the budget that other work took during training, the most of the repeats.", run=cores_lost,
        over=largest, heading="cores lost to others", digits=2, tables={"noise": {}},
    ),
    Figure(
        "cores_of_others", "CPU seconds over wall seconds during training of other work on the machine.",
        run=lambda run: run.cores_of_others,
    ),
    Figure(
        "noise", "Worst noise of the repeats: highest loads and stolen time, lowest clocks.", over=row_values.worst_noise,
        in_frame=False,
    ),
    _of_noise("cores_stolen", "cores stolen by the hypervisor", 2, "Cores that the hypervisor gave to other machines."),
    _of_noise("load_start", "load at the start", 2, "Load average of the minute before the run."),
    _of_noise("load_end", "load at the end", 2, "Load average of the minute before the run's end."),
    _of_noise("frequency_start_mhz", "MHz at the start", 0, "Mean clock of the run's CPUs at its start."),
    _of_noise("frequency_end_mhz", "MHz at the end", 0, "Mean clock of the run's CPUs at its end."),
    Figure("cores_taken", "Cores of the run's CPUs that other work took during training.", part_of="noise"),
    Figure("clock_caution", "Caution of the first repeat whose losses came after the clock had stopped.", over=first),
    Figure("limit", "Rates of the row beside those that the machine can reach.", row=row_values.limit),
    _of_limit("gflop_per_image", "GFLOP per image", 4, "Billions of operations of an image.", short="GFLOP\n/image", wide=True),
    _of_limit("mb_per_image", "MB moved per image", 2, "Megabytes read and written per image.", short="MB\n/image", wide=True),
    _of_limit("gflops", "GFLOP/s", 1, "Billions of operations per second."),
    _of_limit(
        "matrix_fraction", "of the matrix rate", 2, "Fraction of the rate that the row's cores reach in matrix products.",
        short="of matrix\nrate", pick=_rate_fraction("matrix_fraction"),
    ),
    _of_limit("gb_per_second", "GB/s moved", 1, "Gigabytes moved per second, if nothing came from a cache.", short="GB/s"),
    _of_limit(
        "copy_fraction", "of the copy rate", 2, "Fraction of the rate that the row's cores reach in copies of memory.",
        short="of copy\nrate", pick=_rate_fraction("copy_fraction"),
    ),
    # How it ended.
    Figure(
        "status", "Worst status of the repeats: a run's, `not run` or `incomplete`.",
        row=lambda runs: runs.status_and_reason[0], tables={"comparison": {"fold": 9}},
    ),
    Figure(
        "reason", "Reason why the status is not ok.", row=lambda runs: runs.status_and_reason[1], tables={"comparison": _FILES},
    ),
]  # fmt: skip


def all_figures() -> Sequence[Figure]:
    """All figures, in the order of their columns."""
    return _FIGURES


def metrics() -> dict[str, Figure]:
    """The figures that `regress` and `history` compare, by name."""
    return {figure.name: figure for figure in _FIGURES if figure.metric is not None}


def times() -> tuple[str, ...]:
    """Names of the metrics that other work on the machine makes worse."""
    return tuple(name for name, figure in metrics().items() if figure.metric and figure.metric.is_time)


@contextmanager
def registered(*figures: Figure) -> Generator[None]:
    """Add figures, for as long as the context lasts."""
    if taken := {figure.name for figure in _FIGURES} & {figure.name for figure in figures}:
        raise ValueError(f"Each figure needs another name. Received again: {', '.join(sorted(taken))}.")
    _FIGURES.extend(figures)
    try:
        yield
    finally:
        del _FIGURES[-len(figures) :]
