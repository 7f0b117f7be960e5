"""The tables of a comparison, each a function of its summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.artifacts.results import TRACE_FILE
from common.artifacts.schema import Phases
from compare.core.wording import shortened, visible
from compare.judgement.summary import Epoch, Summary
from compare.reporting.tables import RUN, Cell, Column, Table

_EPOCH_FIGURES: tuple[tuple[str, str, int, Callable[[Epoch], Cell]], ...] = (
    ("epoch_train_accuracy", "Training accuracy by epoch", 4, lambda epoch: epoch.train_accuracy),
    ("epoch_validation_accuracy", "Validation accuracy by epoch", 4, lambda epoch: epoch.validation_accuracy),
    ("epoch_seconds", "Seconds by epoch", 2, lambda epoch: epoch.seconds),
)


_EPOCHS_ON_TERMINAL = 6


_CLASS_NAME = 28
"""Characters of a class's name around a matrix."""


_BEYOND = 1.02
"""Parts over their whole from which a note says so: below that, it is the rounding of medians."""


_SHORT = {"train": "train", "validation": "valid.", "test": "test", "accuracy": "acc.", "loss": "loss"}


def run_cells(summary: Summary) -> dict[str, Cell]:
    """The cells of RUN."""
    return {"framework": summary.framework, "run": summary.configuration}


def documents(summaries: Sequence[Summary]) -> list[Table]:
    """Every table that is written to the results folder."""
    made = [
        main_table(summaries),
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
    """The tables that are printed: narrower, epochs running across."""
    made = [
        main_table(summaries),
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
    """Whether anything was trained: a part of the training alone has neither scores nor a proof."""
    return any(summary.part == "training" for summary in summaries)


def _filled(made: Sequence[Table]) -> list[Table]:
    """The columns that hold anything, and the tables that have one left of their own."""
    kept: list[Table] = []
    for table in made:
        full = {column.key for column in table.columns if any(row.get(column.key) is not None for row in table.rows)}
        full.discard("parity")
        columns = tuple(column for column in table.columns if column.key in full)
        if full - {"framework", "run", "epoch", "cores", "cores_used"}:
            kept.append(replace(table, columns=columns))
    return kept


def main_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("implementation", "implementation", terminal=False),
        Column("device", "device", terminal=False),
        Column("replicas", "replicas", terminal=False),
        Column("input", "input", terminal=False),
        Column("workers", "workers", terminal=False),
        Column("cores", "cores", wide=True),
        Column("cores_used", "cores used", 2, terminal=False),
        Column("precision", "precision", terminal=False),
        Column("switches", "switches", terminal=False),
        Column("epochs", "epochs", wide=True),
        Column("steps", "steps", terminal=False),
        Column("images", "images", terminal=False),
        *(
            Column(f"{split}_{score}", f"{split} {score}", 4, terminal=split == "test", short=_SHORT[score], interval=True)
            for split in ("train", "validation", "test")
            for score in ("accuracy", "loss")
        ),
        Column("epoch_seconds", "seconds per epoch", 2, short="s per\nepoch", interval=True),
        Column("images_per_second", "images/s", 0, short="img/s", wide=True, interval=True),
        Column("wall_seconds", "wall seconds", 1, terminal=False, interval=True),
        Column("speedup_one_core", "speed-up, 1 core", 2, short="vs 1\ncore", interval=True),
        Column("speedup_same_cores", "speed-up, same cores", 2, short="vs same\ncores", interval=True),
        Column("parallel_efficiency", "parallel efficiency", 2, terminal=False),
        Column("pays", "pays", terminal=False),
        Column("mib_per_step", "MiB sent per step", 3, terminal=False),
        Column("peak_memory_mib", "peak memory MiB", 0, terminal=False),
        Column("device_peak_memory_mib", "device memory MiB", 0, terminal=False),
        Column("parity", "same training", short="proof", wide=True),
        Column("first_step_difference", "first-step difference", -1, terminal=False),
        Column("status", "status", fold=9),
        Column("reason", "reason", terminal=False),
    )
    rows = [
        run_cells(summary)
        | {column.key: getattr(summary, column.key) for column in columns if column.key in Summary.model_fields}
        | {
            f"{split}_{score}": getattr(getattr(summary, split), score)
            for split in ("train", "validation", "test")
            for score in ("accuracy", "loss")
        }
        | {"epochs": summary.epochs_done, "mib_per_step": _mib_per_step(summary)}
        for summary in summaries
    ]
    return Table(
        "comparison",
        "Comparison",
        columns,
        rows,
        spreads_on_terminal=False,
        note="Accuracy and loss: test split, after the last epoch. " * _trained(summaries)
        + "Speed-up: against the same framework's serial run, by seconds per epoch.",
    )


def accuracy_table(summaries: Sequence[Summary]) -> Table:
    scores = [(split, score) for split in ("train", "validation", "test") for score in ("accuracy", "loss")]
    seeded = any(summary.test_accuracy_over_seeds for summary in summaries)
    over_seeds = (
        Column("seeds", "seeds"),
        Column("test_accuracy_over_seeds", "test accuracy over seeds", 4, short="over\nseeds", interval=True),
    )
    columns = (
        *RUN,
        *(
            Column(f"{split}_{score}", f"{split} {score}", 4, short=f"{_SHORT[split]}\n{_SHORT[score]}", interval=True)
            for split, score in scores
        ),
        *(over_seeds if seeded else ()),
    )
    rows = [
        run_cells(summary)
        | {f"{split}_{score}": getattr(getattr(summary, split), score) for split, score in scores}
        | {"seeds": summary.seeds, "test_accuracy_over_seeds": summary.test_accuracy_over_seeds}
        for summary in summaries
    ]
    return Table(
        "accuracy",
        "Accuracy and loss by mode",
        columns,
        rows,
        spreads_on_terminal=False,
        note="After the last epoch."
        + " Median over repeats; in the report with the 25 % and 75 % quantiles."
        * (max(each.repeats for each in summaries) > 1)
        + " Over seeds: of each seed's median." * seeded,
    )


def seconds_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("epoch_seconds", "seconds per epoch", 3, interval=True),
        Column("training_seconds", "training seconds", 2),
        Column("wall_seconds", "wall seconds", 1, interval=True),
        Column("images_per_second", "images/s", 1, interval=True),
    )
    rows = [
        run_cells(summary)
        | {
            "epoch_seconds": summary.epoch_seconds,
            "training_seconds": summary.phases.training_seconds if summary.phases else None,
            "wall_seconds": summary.wall_seconds,
            "images_per_second": summary.images_per_second,
        }
        for summary in summaries
    ]
    return Table(
        "seconds",
        "Seconds by mode",
        columns,
        rows,
        note="Median over repeats (25 % to 75 % quantile). An epoch's seconds are its training steps, without the run's first.",
    )


def speedup_table(summaries: Sequence[Summary]) -> Table:
    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2, short="used"),
        Column("speedup_one_core", "against serial, 1 core", 2, short="vs serial,\n1 core", interval=True),
        Column("speedup_same_cores", "against serial, same cores", 2, short="vs serial,\nsame cores", interval=True),
        Column("parallel_efficiency", "parallel efficiency", 2, short="eff."),
        Column("pays", "pays", fold=15),
    )
    rows = [
        run_cells(summary)
        | {column.key: getattr(summary, column.key) for column in columns if column.key in Summary.model_fields}
        for summary in summaries
    ]
    several = max(summary.repeats for summary in summaries) > 1
    note = "Geometric mean of the ratios of paired repeats (95 % t-interval)." if several else "Of one repeat each."
    return Table("speedup", "Speed-up", columns, rows, note=note)


def phases_table(summaries: Sequence[Summary]) -> Table:
    names = [name for name in Phases.model_fields if name != "input_wait_seconds"]
    short = {"evaluation_seconds": "eval.", "training_seconds": "train"}
    columns = (
        *RUN,
        *(
            Column(
                name,
                name.removesuffix("_seconds").replace("_", " "),
                2,
                short=short.get(name, ""),
                wide=name == "other_seconds",
            )
            for name in names
        ),
        Column("input_wait_seconds", "input wait", 2),
        Column("peak_memory_mib", "peak MiB", 0, wide=True),
    )
    rows: list[dict[str, Cell]] = [
        run_cells(summary)
        | {name: getattr(summary.phases, name) if summary.phases else None for name in Phases.model_fields}
        | {"peak_memory_mib": summary.peak_memory_mib}
        for summary in summaries
    ]
    return Table(
        "phases",
        "Wall seconds by phase",
        columns,
        rows,
        note="Of the repeat with the median wall time. The wait for input is part of training.",
    )


def step_table(summaries: Sequence[Summary]) -> list[Table]:
    """Where the time of a step goes: one table, or none where no run was profiled."""
    if not any(summary.step_parts for summary in summaries):
        return []
    parts = {
        "step_seconds": "step",
        "compute_seconds": "compute",
        "communication_hidden_seconds": "hidden",
        "communication_exposed_seconds": "exposed",
        "idle_seconds": "idle",
        "transfer_seconds": "to device",
        "forward_seconds": "forward",
        "backward_seconds": "backward",
        "optimizer_seconds": "optimizer",
    }
    short = {"transfer_seconds": "to\ndev.", "forward_seconds": "fwd", "backward_seconds": "bwd", "optimizer_seconds": "opt."}
    piped = any(summary.step_parts and summary.expected_idle is not None for summary in summaries)
    expected = [Column("expected_idle_milliseconds", "idle by formula", 2, short="idle,\nformula", wide=True)] * piped
    columns = (
        *RUN,
        *(
            Column(name.replace("_seconds", "_milliseconds"), heading, 2, short=short.get(name, ""), wide=name in short)
            for name, heading in parts.items()
        ),
        *expected,
        Column("mib_per_step", "MiB sent", 3, short="MiB\nsent"),
        Column("not_separable", "not separable", fold=24, wide=True),
        Column("pieces", "forward, backward and optimizer", terminal=False),
    )
    rows: list[dict[str, Cell]] = []
    for summary in summaries:
        row = run_cells(summary) | {"mib_per_step": _mib_per_step(summary)}
        if summary.step_parts is not None:
            row |= {"not_separable": summary.step_parts.not_separable, "pieces": summary.step_parts.pieces}
            for name in parts:
                seconds = getattr(summary.step_parts, name)
                row[name.replace("_seconds", "_milliseconds")] = None if seconds is None else 1e3 * seconds
            if summary.expected_idle is not None:
                row["expected_idle_milliseconds"] = 1e3 * summary.expected_idle * summary.step_parts.step_seconds
        rows.append(row)
    steps = max(summary.step_parts.steps for summary in summaries if summary.step_parts)
    inseparable = any(summary.step_parts and summary.step_parts.not_separable for summary in summaries)
    note = (
        f"Medians of {steps} steps each, after the training and in turn. Step: a whole one. Compute: one without exchange, the "
        "slowest replica's. Exposed: what a step takes beyond compute. Hidden: what the exchange alone takes beyond that. "
        "Idle: how long a replica waits for the slowest one, in the mean. To device, forward, backward, optimizer: of compute, "
        "the slowest process's, timed afterwards. MiB sent: by all replicas in a step, by formula."
        + " Not separable: why a part that is missing (-) cannot be timed by itself." * inseparable
        + " Idle by formula: of S equal stages and M micro-batches, (S - 1) / (M + S - 1) of the step." * piped
        + "".join(f" {remark}" for remark in _beyond_their_whole(summaries))
    )
    return [Table("step_parts", "Where a step's time goes, in milliseconds", columns, rows, note=note)]


def _beyond_their_whole(summaries: Sequence[Summary]) -> list[str]:
    """Why parts of a step that are timed apart add up to more than it, of rows where they do."""
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
    """Names of the rows above it, each with how many times its whole it is: `pytorch serial, 2 cores (1.25 times)`."""
    return "; ".join(f"{name} ({each:.2f} times)" for name, each in times.items() if round(each or 0.0, 2) > most)


def target_table(summaries: Sequence[Summary]) -> list[Table]:
    """How soon an accuracy was reached: one table, or none where none was asked for."""
    targets = {summary.target.accuracy for summary in summaries if summary.target}
    if not targets:
        return []
    columns = (
        *RUN,
        Column("epoch_seconds", "seconds per epoch", 2, short="s per\nepoch", interval=True),
        Column("target_seconds", "seconds to accuracy", 2, short="s to\naccuracy", interval=True),
        Column("target_epochs", "epochs to accuracy", 1, short="epochs to\naccuracy", interval=True),
        Column("reached", "repeats that reached it", short="reached"),
    )
    rows: list[dict[str, Cell]] = []
    for summary in summaries:
        row = run_cells(summary) | {"epoch_seconds": summary.epoch_seconds}
        if summary.target is not None and summary.target.repeats:
            row |= {
                "target_seconds": summary.target.seconds,
                "target_epochs": summary.target.epochs,
                "reached": f"{summary.target.reached} of {summary.target.repeats}",
            }
        rows.append(row)
    note = (
        f"Until validation accuracy {max(targets):g}, looked at after each epoch: training time with the first step, without "
        "evaluation. Median over all repeats (25 % to 75 % quantile), those that did not reach it, diverged or failed before "
        "counted as later than the others; none where that leaves a quantile open."
    )
    return [Table("time_to_accuracy", "Time to accuracy", columns, rows, spreads_on_terminal=False, note=note)]


def limit_table(summaries: Sequence[Summary]) -> list[Table]:
    """How near each row came to what the machine can do: one table, or none where that was not counted."""
    if not any(summary.limit for summary in summaries):
        return []
    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("gflop_per_image", "GFLOP per image", 4, short="GFLOP\n/image", wide=True),
        Column("mb_per_image", "MB moved per image", 2, short="MB\n/image", wide=True),
        Column("gflops", "GFLOP/s", 1),
        Column("matrix_fraction", "of the matrix rate", 2, short="of matrix\nrate"),
        Column("gb_per_second", "GB/s moved", 1, short="GB/s"),
        Column("copy_fraction", "of the copy rate", 2, short="of copy\nrate"),
    )
    rows: list[dict[str, Cell]] = []
    for summary in summaries:
        row = run_cells(summary) | {"cores": summary.cores}
        if summary.limit is not None:
            row |= summary.limit.model_dump()
        rows.append(row)
    limits = {summary.name: summary.limit for summary in summaries if summary.limit}
    if any(each.matrix_fraction is not None for each in limits.values()):
        note = (
            "Operations (of convolutions and dense layers) and bytes by formula, forward and backward. Rates: NumPy's matrix "
            "product and copy on as many cores of this machine, before the runs."
        )
        rated = [summary for summary in summaries if summary.limit and summary.limit.matrix_fraction is not None]
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
    else:
        note = "Operations and bytes by formula. What these devices can do was not measured."
    return [Table("limit", "Where is the limit?", columns, rows, note=note)]


def noise_table(summaries: Sequence[Summary]) -> list[Table]:
    """What else the machine did: one table, or none where no run recorded it."""
    if not any(summary.noise for summary in summaries):
        return []
    columns = (
        *RUN,
        Column("cores", "cores"),
        Column("cores_used", "cores used", 2),
        Column("cores_lost", "cores lost to others", 2),
        Column("cores_stolen", "cores stolen by the hypervisor", 2),
        Column("load_start", "load at the start", 2),
        Column("load_end", "load at the end", 2),
        Column("frequency_start_mhz", "MHz at the start", 0),
        Column("frequency_end_mhz", "MHz at the end", 0),
    )
    rows: list[dict[str, Cell]] = [
        run_cells(summary)
        | {"cores": summary.cores, "cores_used": summary.cores_used, "cores_lost": summary.cores_lost}
        | (summary.noise.model_dump() if summary.noise else {})
        for summary in summaries
    ]
    return [Table("noise", "What else the machine did", columns, rows, note="The worst of the repeats.")]


def operation_tables(summaries: Sequence[Summary]) -> list[Table]:
    """The longest operations of a step: for each mode a table with its frameworks side by side."""
    modes: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.top_operations is not None:
            modes.setdefault(summary.configuration, []).append(summary)
    return [_operation_table(mode, own) for mode, own in modes.items()]


def _operation_table(mode: str, summaries: Sequence[Summary]) -> Table:
    columns = [Column("place", "#")]
    rows: list[dict[str, Cell]] = []
    notes: list[str] = []
    for summary in summaries:
        found, framework = summary.top_operations, summary.framework
        assert found is not None
        columns += [
            Column(f"{framework}_operation", framework),
            Column(f"{framework}_calls", "calls", 1),
            Column(f"{framework}_milliseconds", "ms", 2),
            Column(f"{framework}_percent", "%", 1),
        ]
        for place, operation in enumerate(found.operations):
            if place == len(rows):
                rows.append({"place": place + 1})
            rows[place] |= {
                f"{framework}_operation": operation.name,
                f"{framework}_calls": operation.calls,
                f"{framework}_milliseconds": 1e3 * operation.self_seconds,
                f"{framework}_percent": 100.0 * operation.share,
            }
        if found.failure is not None:
            notes.append(f"{framework}: {found.failure}.")
    steps = max(found.steps for summary in summaries if (found := summary.top_operations))
    return Table(
        f"operations_{summaries[0].id.removeprefix(f'{summaries[0].framework}-')}",
        f"The longest operations of a step: {mode}",
        tuple(columns),
        rows,
        note=" ".join(
            [
                f"Calls, self time and its share of all operations', a step: mean of {steps} after the training under the "
                f"framework's own profiler, first process, first repeat; all that it saw is in {TRACE_FILE} of the run.",
                "Names are each framework's own, and kernels are fused differently: do not compare row with row.",
                *notes,
            ]
        ),
    )


def epochs_table(summaries: Sequence[Summary]) -> Table:
    """All figures of all epochs, one epoch of one row a line."""
    figures = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds")
    columns = (*RUN, Column("epoch", "epoch"), *(Column(name, name.replace("_", " "), 4) for name in figures))
    rows: list[dict[str, Cell]] = [
        run_cells(summary) | {"epoch": epoch.epoch} | {name: getattr(epoch, name) for name in figures}
        for summary in summaries
        for epoch in summary.epochs
    ]
    return Table("epochs", "Epoch by epoch", columns, rows, note="Median over repeats.")


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
                run_cells(summary)
                | {"class": names[label], "examples": examples}
                | {"precision": hits / predicted if predicted else None, "recall": hits / examples if examples else None}
                | {"f1": 2 * hits / (examples + predicted) if examples + predicted else None}
            )
    note = "Test split, examples of all repeats. Precision: of what was taken for the class; recall: of what is of the class."
    return [Table("classes", "Precision and recall by class", columns, rows, note=note)] if rows else []


def confusion_table(summaries: Sequence[Summary], class_names: Sequence[str]) -> list[Table]:
    """How often each class was taken for which: one table, or none where no run has counted it.

    Args:
        summaries: of all rows.
        class_names: by class id.
    """
    names = named(class_names, max((len(summary.confusion or []) for summary in summaries), default=0))
    columns = (*RUN, Column("class", "true class"), *(Column(f"predicted {name}", name) for name in names))
    rows: list[dict[str, Cell]] = [
        run_cells(summary)
        | {"class": names[label]}
        | {f"predicted {name}": count for name, count in zip(names, counts, strict=True)}
        for summary in summaries
        for label, counts in enumerate(summary.confusion or [])
    ]
    note = "Test split, examples of all repeats: rows are the true class, columns what it was taken for."
    return [Table("confusion", "Confusion", columns, rows, note=note)] if rows else []


def named(class_names: Sequence[str], number: int) -> list[str]:
    """The names of so many classes, by class id; its id where one has none."""
    return [*class_names[:number], *map(str, range(len(class_names), number))]


def headings(class_names: Sequence[str], number: int) -> list[str]:
    """The same in short, and visible whatever they are."""
    return [shortened(visible(name), _CLASS_NAME) for name in named(class_names, number)]


def proof_tables(proof: Mapping[str, Any]) -> list[Table]:
    """The certificate, a rung a line, and what each framework's modes may claim; none of what was not examined.

    Args:
        proof: a stored `ProofRecord`, plain.
    """
    columns = (
        Column("name", "rung"),
        Column("framework", "framework"),
        Column("mode", "mode"),
        Column("model", "model"),
        Column("optimizer", "optimizer"),
        Column("precision", "precision"),
        Column("max_relative_difference", "largest difference", -1),
        Column("step", "step"),
        Column("steps", "of steps"),
        Column("tolerance", "tolerance", -1),
        Column("status", "status"),
        Column("where", "where", terminal=False),
        Column("reason", "why this tolerance", terminal=False),
    )
    rungs = [{column.key: rung.get(column.key) for column in columns} for rung in proof["rungs"]]
    verdicts: Mapping[str, Mapping[str, str]] = proof["mode_verdicts"]
    modes = list(dict.fromkeys(mode for each in verdicts.values() for mode in each))
    why = (Column("why", "why it is not claimed"),) if proof["not_claimed"] else ()
    claimed = (Column("mode", "mode"), *(Column(name, name) for name in verdicts), *why)
    claims: list[dict[str, Cell]] = [
        {"mode": mode} | {name: each.get(mode) for name, each in verdicts.items()} | {"why": proof["not_claimed"].get(mode)}
        for mode in modes
    ]
    certificate = Table(
        "proof",
        "Certificate of parity",
        columns,
        rungs,
        note="The largest relative difference of each rung, the step where it stood, and the tolerance at that step.",
    )
    verdict = Table("claims", "The same training, by mode", claimed, claims)
    return [table for table in (certificate, verdict) if table.rows]


def epochs_down(summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[Epoch], Cell]) -> Table:
    """One figure as the published reports lay it out: epochs down, runs across."""
    columns = (Column("epoch", "epoch"), *(Column(summary.id, summary.name, digits) for summary in summaries))
    last = max((len(summary.epochs) for summary in summaries), default=0)
    rows: list[dict[str, Cell]] = [
        {"epoch": index + 1}
        | {summary.id: pick(summary.epochs[index]) if index < len(summary.epochs) else None for summary in summaries}
        for index in range(last)
    ]
    return Table(name, title, columns, rows, note="Median over repeats.")


def epochs_across(summaries: Sequence[Summary], name: str, title: str, digits: int, pick: Callable[[Epoch], Cell]) -> Table:
    """The same figure for a terminal: runs down, at most six epochs across, the first and the last among them."""
    last = max((len(summary.epochs) for summary in summaries), default=0)
    count = min(last, _EPOCHS_ON_TERMINAL)
    shown = [1 + round(index * (last - 1) / max(count - 1, 1)) for index in range(count)]
    columns = (*RUN, *(Column(str(epoch), f"epoch {epoch}", digits) for epoch in shown))
    rows = [
        run_cells(summary) | {str(epoch.epoch): pick(epoch) for epoch in summary.epochs if epoch.epoch in shown}
        for summary in summaries
    ]
    return Table(
        name, title, columns, rows, note="" if count == last else f"{count} of {last} epochs; all of them in the report."
    )


def _mib_per_step(summary: Summary) -> float | None:
    return None if summary.bytes_per_step is None else summary.bytes_per_step / 2**20
