"""The tables of a comparison. Each is a function of its summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from common.artifacts.results import TRACE_FILE
from common.artifacts.schema import Phases
from compare.core.wording import shortened, visible
from compare.judgement.conditions import CONDITIONS, NOT_RECORDED, OF_SWITCHES
from compare.judgement.row_figures import GUESSING, Epoch, Summary
from compare.reporting.tables import RUN, Cell, Column, Table, value_at

_EPOCH_FIGURES: tuple[tuple[str, str, int, Callable[[Epoch], Cell]], ...] = (
    ("epoch_train_accuracy", "Training accuracy by epoch", 4, lambda epoch: epoch.train_accuracy),
    ("epoch_validation_accuracy", "Validation accuracy by epoch", 4, lambda epoch: epoch.validation_accuracy),
    ("epoch_seconds", "Seconds by epoch", 2, lambda epoch: epoch.seconds),
)
_EPOCHS_ON_TERMINAL = 6
_CLASS_NAME = 28
"""Characters of a class's name around a matrix."""
_BEYOND = 1.02
"""A note is made if parts exceed their whole by more than this factor. Less is the rounding of medians."""
OTHER_DATA = "other data"
"""Stands for a figure that compares rows of different data."""
_SCORES = [(split, score) for split in ("train", "validation", "test") for score in ("accuracy", "loss")]
_SHORT = {"train": "train", "validation": "valid.", "test": "test", "accuracy": "acc.", "loss": "loss"}


def documents(summaries: Sequence[Summary]) -> list[Table]:
    """Every table that is written to the results folder."""
    made = [
        main_table(summaries),
        *conditions_table(summaries),
        accuracy_table(summaries),
        seconds_table(summaries),
        speedup_table(summaries),
        phases_table(summaries),
        *step_table(summaries),
        *operation_tables(summaries),
        *(epochs_down(summaries, *figure) for figure in _EPOCH_FIGURES),
        epochs_table(summaries),
        *target_table(summaries),
        *limit_table(summaries),
        *noise_table(summaries),
    ]
    return made if _trained(summaries) else _filled(made)


def on_terminal(summaries: Sequence[Summary]) -> list[Table]:
    """The tables that are printed. They are narrower, and epochs run across."""
    made = [
        main_table(summaries),
        *conditions_table(summaries),
        accuracy_table(summaries),
        speedup_table(summaries),
        phases_table(summaries),
        *target_table(summaries),
        *limit_table(summaries),
        *step_table(summaries),
        *operation_tables(summaries),
        *(epochs_across(summaries, *figure) for figure in (_EPOCH_FIGURES[0], _EPOCH_FIGURES[2])),
    ]
    return made if _trained(summaries) else _filled(made)


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
        if full - {"contestant", "run", "epoch", "cores", "cores_used"}:
            kept.append(replace(table, columns=columns))
    return kept


def main_table(summaries: Sequence[Summary]) -> Table:
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
        written("parallel_efficiency", "parallel efficiency", 2),
        written("pays", pick=_pays),
        written("mib_per_step", "MiB sent per step", 3, pick=_mib_per_step),
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
    note = f"Accuracy and loss: test split{of}, after the last epoch. " * _trained(summaries)
    note += "Speed-up: against the same framework's serial run, by seconds per epoch."
    return Table.of("comparison", "Comparison", columns, summaries, note, spreads_on_terminal=False)


def _score(split: str, score: str, **options: Any) -> Column:
    return Column(f"{split}_{score}", f"{split} {score}", 4, interval=True, pick=f"{split}.{score}", **options)


def _guessing(summaries: Sequence[Summary]) -> list[Column]:
    """Names the rows whose test accuracy is no better than guessing. No column if there is none."""

    def pick(summary: Summary) -> str | None:
        return GUESSING if summary.guesses else None

    return [Column("guessing", "test accuracy is", short="acc. is", fold=10, pick=pick)] * any(map(pick, summaries))


def _speedup(key: str, heading: str, *, short: str) -> Column:
    return Column(
        key, heading, 2, short=short, interval=True,
        pick=lambda summary: OTHER_DATA if summary.other_data else getattr(summary, key),
    )  # fmt: skip


def _pays(summary: Summary) -> str | None:
    return OTHER_DATA if summary.other_data and summary.mode != "serial" else summary.pays


def accuracy_table(summaries: Sequence[Summary]) -> Table:
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
        + " Median over repeats; in the report with the 25 % and 75 % quantiles." * repeated
        + " Over seeds: of each seed's median." * seeded
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
        Column("implementation", "made by", terminal=False),
        Column("switches", "switches", terminal=False),
    )
    note = (
        "Threads: intra-op + inter-op of each process, 0 where the framework chooses. Determinism: whether the framework "
        "enforces deterministic kernels. The closed division asks that all of these are equal."
    )
    return [Table.of("conditions", "Conditions", columns, summaries, note)]


def seconds_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("epoch_seconds", "seconds per epoch", 3, interval=True),
        Column("training_seconds", "training seconds", 2, pick="phases.training_seconds"),
        Column("wall_seconds", "wall seconds", 1, interval=True),
        Column("images_per_second", "images/s", 1, interval=True),
    )
    note = "Median over repeats (25 % to 75 % quantile). An epoch's seconds are its training steps, without the run's first."
    return Table.of("seconds", "Seconds by mode", columns, summaries, note)


def speedup_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2, short="used"),
        _speedup("speedup_one_core", "against serial, 1 core", short="vs serial,\n1 core"),
        _speedup("speedup_same_cores", "against serial, same cores", short="vs serial,\nsame cores"),
        Column("parallel_efficiency", "parallel efficiency", 2, short="eff."),
        Column("pays", "pays", fold=15, pick=_pays),
    )
    several = max(summary.repeats for summary in summaries) > 1
    note = "Geometric mean of the ratios of paired repeats (95 % t-interval)." if several else "Of one repeat each."
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
    note = "Of the repeat with the median wall time. The wait for input is part of training."
    return Table.of("phases", "Wall seconds by phase", columns, summaries, note)


def step_table(summaries: Sequence[Summary]) -> list[Table]:
    """Where the time of a step goes: one table, or none where no run was profiled."""
    profiled = [(summary, summary.step_parts) for summary in summaries if summary.step_parts]
    if not profiled:
        return []
    piped = any(summary.expected_idle is not None for summary, _ in profiled)
    inseparable = any(parts.not_separable for _, parts in profiled)

    def milliseconds(name: str, heading: str, **options: Any) -> Column:
        return Column(f"{name}_milliseconds", heading, 2, pick=_times(1e3, f"step_parts.{name}_seconds"), **options)

    def expected_idle(summary: Summary) -> float | None:
        idle, parts = summary.expected_idle, summary.step_parts
        return None if idle is None or parts is None else 1e3 * idle * parts.step_seconds

    formula = Column("expected_idle_milliseconds", "idle by formula", 2, short="idle,\nformula", wide=True, pick=expected_idle)
    columns = (
        *RUN,
        milliseconds("step", "step"),
        milliseconds("compute", "compute"),
        milliseconds("communication_hidden", "hidden"),
        milliseconds("communication_exposed", "exposed"),
        milliseconds("idle", "idle"),
        milliseconds("transfer", "to device", short="to\ndev.", wide=True),
        milliseconds("forward", "forward", short="fwd", wide=True),
        milliseconds("backward", "backward", short="bwd", wide=True),
        milliseconds("optimizer", "optimizer", short="opt.", wide=True),
        *([formula] * piped),
        Column("mib_per_step", "MiB sent", 3, short="MiB\nsent", pick=_mib_per_step),
        Column("not_separable", "not separable", fold=24, wide=True, pick="step_parts.not_separable"),
        Column("pieces", "forward, backward and optimizer", terminal=False, pick="step_parts.pieces"),
    )
    note = (
        f"Medians of {max(parts.steps for _, parts in profiled)} steps each, timed in turn after the training. Step: a whole "
        "one. Compute: a step without exchange, of the slowest replica. Exposed: what a step takes beyond compute. Hidden: "
        "what the exchange alone takes beyond that. Idle: how long a replica waits for the slowest one, in the mean. To "
        "device, forward, backward, optimizer: parts of compute, of the slowest process, timed afterwards. MiB sent: by all "
        "replicas in a step, by formula."
        + " Not separable: why a part that is missing (-) cannot be timed by itself." * inseparable
        + " Idle by formula: of S equal stages and M micro-batches, (S - 1) / (M + S - 1) of the step." * piped
        + "".join(f" {remark}" for remark in _beyond_their_whole(summaries))
    )
    return [Table.of("step_parts", "Where a step's time goes, in milliseconds", columns, summaries, note)]


def _beyond_their_whole(summaries: Sequence[Summary]) -> list[str]:
    """Remarks on rows whose parts of a step, timed apart, add up to more than the whole."""
    computing: dict[str, float] = {}
    pieces: dict[str, float] = {}
    for summary in summaries:
        if (parts := summary.step_parts) is not None:
            whole = parts.step_seconds if parts.compute_seconds is None else parts.compute_seconds
            apart = (parts.transfer_seconds, parts.forward_seconds, parts.backward_seconds, parts.optimizer_seconds)
            computing[summary.name] = whole / parts.step_seconds
            pieces[summary.name] = sum(seconds for seconds in apart if seconds is not None) / whole
    remarks = (
        ("Compute is longer than the step in", computing, "that is noise, and exposed is told as 0."),
        (
            "Pieces add up to more than compute in",
            pieces,
            "each is waited for by itself, outside the step and at another moment. Read them as shares.",
        ),
    )
    return [f"{what} {rows}: {why}" for what, times, why in remarks if (rows := _rows_above(times, _BEYOND))]


def _rows_above(times: Mapping[str, float | None], most: float) -> str:
    """The rows above a limit, by name and factor: `pytorch serial, 2 cores (1.25 times)`."""
    return "; ".join(f"{name} ({each:.2f} times)" for name, each in times.items() if round(each or 0.0, 2) > most)


def target_table(summaries: Sequence[Summary]) -> list[Table]:
    """How soon an accuracy was reached: one table, or none where none was asked for."""
    targets = {summary.target.accuracy for summary in summaries if summary.target}
    if not targets:
        return []

    def reached(summary: Summary) -> str | None:
        target = summary.target
        return f"{target.reached} of {target.repeats}" if target and target.repeats else None

    columns = (
        *RUN,
        Column("epoch_seconds", "seconds per epoch", 2, short="s per\nepoch", interval=True),
        Column("target_seconds", "seconds to accuracy", 2, short="s to\naccuracy", interval=True, pick="target.seconds"),
        Column("target_epochs", "epochs to accuracy", 1, short="epochs to\naccuracy", interval=True, pick="target.epochs"),
        Column("reached", "repeats that reached it", short="reached", pick=reached),
    )
    note = (
        f"Training time until validation accuracy {max(targets):g}, checked after each epoch, with the first step and without "
        "evaluation. Median over all repeats (25 % to 75 % quantile). Repeats that did not reach it, diverged or failed "
        "before count as later than the others. No figure stands where that leaves a quantile open."
    )
    return [Table.of("time_to_accuracy", "Time to accuracy", columns, summaries, note, spreads_on_terminal=False)]


def limit_table(summaries: Sequence[Summary]) -> list[Table]:
    """Each row against the rates of the machine: one table, or none where they were not counted."""
    if not any(summary.limit for summary in summaries):
        return []

    def limit(key: str, heading: str, digits: int, **options: Any) -> Column:
        return Column(key, heading, digits, pick=f"limit.{key}", **options)

    columns = (
        *RUN,
        Column("cores", "cores"),
        limit("gflop_per_image", "GFLOP per image", 4, short="GFLOP\n/image", wide=True),
        limit("mb_per_image", "MB moved per image", 2, short="MB\n/image", wide=True),
        limit("gflops", "GFLOP/s", 1),
        limit("matrix_fraction", "of the matrix rate", 2, short="of matrix\nrate"),
        limit("gb_per_second", "GB/s moved", 1, short="GB/s"),
        limit("copy_fraction", "of the copy rate", 2, short="of copy\nrate"),
    )
    return [Table.of("limit", "Where is the limit?", columns, summaries, _limit_note(summaries))]


def _limit_note(summaries: Sequence[Summary]) -> str:
    limits = {summary.name: summary.limit for summary in summaries if summary.limit}
    rated = [summary for summary in summaries if summary.limit and summary.limit.matrix_fraction is not None]
    if not rated:
        return "Operations and bytes by formula. What these devices can do was not measured."
    note = (
        "Operations (of convolutions and dense layers) and bytes by formula, forward and backward. Rates: NumPy's matrix "
        "product and copy on as many cores of this machine, before the runs."
    )
    if not all((summary.device or "").startswith("cpu") for summary in rated):
        note += " Of a GPU: the framework's own in the run's arithmetic, after its training, times the replicas."
    if above := _rows_above({name: each.matrix_fraction for name, each in limits.items()}, 1.0):
        note += (
            f" Above the matrix rate: {above}: the framework's own library is faster than NumPy's or needs fewer "
            "operations than the formula counts, or the machine was busier when its rate was measured."
        )
    if above := _rows_above({name: each.copy_fraction for name, each in limits.items()}, 1.0):
        note += f" Above the copy rate: {above}: bytes came from caches, or layers are fused and moved fewer."
    if unrated := [name for name, each in limits.items() if each.matrix_fraction is None]:
        note += f" Not measured: {', '.join(unrated)}."
    return note


def noise_table(summaries: Sequence[Summary]) -> list[Table]:
    """What else the machine did: one table, or none where no run recorded it."""
    if not any(summary.noise for summary in summaries):
        return []

    def noise(key: str, heading: str, digits: int) -> Column:
        return Column(key, heading, digits, pick=f"noise.{key}")

    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2),
        Column("cores_lost", "cores lost to others", 2),
        noise("cores_stolen", "cores stolen by the hypervisor", 2),
        noise("load_start", "load at the start", 2),
        noise("load_end", "load at the end", 2),
        noise("frequency_start_mhz", "MHz at the start", 0),
        noise("frequency_end_mhz", "MHz at the end", 0),
    )
    return [Table.of("noise", "What else the machine did", columns, summaries, "The worst of the repeats.")]


def operation_tables(summaries: Sequence[Summary]) -> list[Table]:
    """The longest operations of a step: for each mode a table with its frameworks side by side."""
    modes: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.top_operations is not None:
            modes.setdefault(summary.configuration, []).append(summary)
    return [_operation_table(mode, own) for mode, own in modes.items()]


def _operation_table(mode: str, summaries: Sequence[Summary]) -> Table:
    found = [(summary.contestant, summary.top_operations) for summary in summaries if summary.top_operations]
    columns = [Column("place", "#", pick="0")]
    for side, (contestant, _) in enumerate(found):
        columns += [
            Column(f"{contestant}_operation", contestant, pick=f"1.{side}.name"),
            Column(f"{contestant}_calls", "calls", 1, pick=f"1.{side}.calls"),
            Column(f"{contestant}_milliseconds", "ms", 2, pick=_times(1e3, f"1.{side}.self_seconds")),
            Column(f"{contestant}_percent", "%", 1, pick=_times(100.0, f"1.{side}.share")),
        ]
    notes = [
        "Calls of a step, their self time, and its share of the self time of all operations. Mean of "
        f"{max(top.steps for _, top in found)} steps after the training under the framework's own profiler, in the first "
        f"process of the first repeat. {TRACE_FILE} of the run has everything that the profiler saw.",
        "Names are each framework's own, and kernels are fused differently: do not compare row with row.",
        *(f"{contestant}: {top.failure}." for contestant, top in found if top.failure is not None),
    ]
    name = f"operations_{summaries[0].id.removeprefix(f'{summaries[0].contestant}-')}"
    places = enumerate(zip_longest(*(top.operations for _, top in found)), 1)
    return Table.of(name, f"The longest operations of a step: {mode}", columns, places, " ".join(notes))


def epochs_table(summaries: Sequence[Summary]) -> Table:
    """All figures of all epochs, one epoch of one row a line."""
    figures = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds")
    columns = (
        *(replace(column, pick=f"0.{column.pick or column.key}") for column in RUN),
        Column("epoch", "epoch", pick="1.epoch"),
        *(Column(name, name.replace("_", " "), 4, pick=f"1.{name}") for name in figures),
    )
    every = [(summary, epoch) for summary in summaries for epoch in summary.epochs]
    return Table.of("epochs", "Epoch by epoch", columns, every, "Median over repeats.")


def class_table(summaries: Sequence[Summary], class_names: Sequence[str]) -> list[Table]:
    """Precision and recall of each class: one table, or none where no run has counted them.

    Args:
        summaries: of all rows.
        class_names: by class id.
    """
    columns = (
        *RUN,
        Column("class", "class"),
        Column("examples", "examples"),
        Column("precision", "precision", 4),
        Column("recall", "recall", 4),
        Column("f1", "F1", 4),
    )
    rows: list[dict[str, Cell]] = []
    for summary in summaries:
        names = named(class_names, len(summary.confusion or []))
        for label, true in enumerate(summary.confusion or []):
            hits = true[label]
            examples, predicted = sum(true), sum(row[label] for row in summary.confusion or [])
            rows.append(
                _run_cells(summary)
                | {"class": names[label], "examples": examples}
                | {"precision": hits / predicted if predicted else None, "recall": hits / examples if examples else None}
                | {"f1": 2 * hits / (examples + predicted) if examples + predicted else None}
            )
    note = "Test split, examples of all repeats. Precision: of what was taken for the class. Recall: of what is of the class."
    return [Table("classes", "Precision and recall by class", columns, rows, note=note)] if rows else []


def confusion_table(summaries: Sequence[Summary], class_names: Sequence[str]) -> list[Table]:
    """The confusion matrices: one table, or none where no run has counted them.

    Args:
        summaries: of all rows.
        class_names: by class id.
    """
    names = named(class_names, max((len(summary.confusion or []) for summary in summaries), default=0))
    columns = (*RUN, Column("class", "true class"), *(Column(f"predicted {name}", name) for name in names))
    rows: list[dict[str, Cell]] = [
        _run_cells(summary)
        | {"class": names[label]}
        | {f"predicted {name}": count for name, count in zip(names, counts, strict=True)}
        for summary in summaries
        for label, counts in enumerate(summary.confusion or [])
    ]
    note = "Test split, examples of all repeats. Rows are the true class, columns what it was taken for."
    return [Table("confusion", "Confusion", columns, rows, note=note)] if rows else []


def named(class_names: Sequence[str], number: int) -> list[str]:
    """The first `number` classes by name, as `visible` shows it. A class without a name has its id."""
    return [*map(visible, class_names[:number]), *map(str, range(len(class_names), number))]


def headings(class_names: Sequence[str], number: int) -> list[str]:
    """The same, shortened."""
    return [shortened(name, _CLASS_NAME) for name in named(class_names, number)]


def proof_tables(proof: Mapping[str, Any]) -> list[Table]:
    """The certificate, one rung a line, and what each framework's modes may claim. Tables without a row are left out.

    Args:
        proof: a stored `ProofRecord`, plain.
    """
    columns = (
        Column("name", "rung"),
        *(Column(name, name) for name in ("framework", "mode", "model", "optimizer", "precision")),
        Column("max_relative_difference", "largest difference", -1),
        Column("step", "step"),
        Column("steps", "of steps"),
        Column("tolerance", "tolerance", -1),
        Column("status", "status"),
        Column("where", "where", terminal=False),
        Column("reason", "why this tolerance", terminal=False),
    )
    note = "The largest relative difference of each rung, the step where it stood, and the tolerance at that step."
    certificate = Table.of("proof", "Certificate of parity", columns, proof["rungs"], note)

    verdicts: Mapping[str, Mapping[str, str]] = proof["mode_verdicts"]
    modes = dict.fromkeys(mode for each in verdicts.values() for mode in each)
    why = (Column("why", "why it is not claimed", pick=proof["not_claimed"].get),) if proof["not_claimed"] else ()
    claimed = (Column("mode", "mode", pick=str), *(Column(name, name, pick=each.get) for name, each in verdicts.items()), *why)
    claims = Table.of("claims", "The same training, by mode", claimed, modes)
    return [table for table in (certificate, claims) if table.rows]


def environment_table(contestants: Sequence[str], differences: Sequence[Mapping[str, str | None]]) -> list[Table]:
    """A line for each distribution or library that differs between contestants. No table if nothing does."""

    def of(name: str) -> Callable[[Mapping[str, str | None]], Cell]:  # a name may have dots, which a path of `pick` divides
        return lambda difference: difference.get(name)

    columns = (Column("what", "what", pick=of("what")), *(Column(name, name, pick=of(name)) for name in contestants))
    note = "Versions of what differs between at least two contestants. Nothing: it is not there."
    return [Table.of("environments", "In what the environments differ", columns, differences, note)] if differences else []


def epochs_down(summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[Epoch], Cell]) -> Table:
    """One figure as the published reports lay it out: epochs down, runs across."""

    def of(summary: Summary) -> Callable[[int], Cell]:
        return lambda place: pick(summary.epochs[place]) if place < len(summary.epochs) else None

    columns = (
        Column("epoch", "epoch", pick=lambda place: place + 1),
        *(Column(summary.id, summary.name, digits, pick=of(summary)) for summary in summaries),
    )
    last = max((len(summary.epochs) for summary in summaries), default=0)
    return Table.of(name, title, columns, range(last), "Median over repeats.")


def epochs_across(summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[Epoch], Cell]) -> Table:
    """The same figure for a terminal: runs down, at most six epochs across. The first and the last are among them."""
    last = max((len(summary.epochs) for summary in summaries), default=0)
    count = min(last, _EPOCHS_ON_TERMINAL)
    shown = [1 + round(index * (last - 1) / max(count - 1, 1)) for index in range(count)]

    def of(number: int) -> Callable[[Summary], Cell]:
        return lambda summary: next((pick(epoch) for epoch in summary.epochs if epoch.epoch == number), None)

    columns = (*RUN, *(Column(str(epoch), f"epoch {epoch}", digits, pick=of(epoch)) for epoch in shown))
    note = "" if count == last else f"{count} of {last} epochs; all of them in the report."
    return Table.of(name, title, columns, summaries, note)


def _run_cells(summary: Summary) -> dict[str, Cell]:
    return {column.key: column.cell(summary) for column in RUN}


def _times(factor: float, path: str) -> Callable[[Any], float | None]:
    def pick(item: Any) -> float | None:
        value = value_at(item, path)
        return None if value is None else factor * value

    return pick


def _mib_per_step(summary: Summary) -> float | None:
    return None if summary.bytes_per_step is None else summary.bytes_per_step / 2**20
