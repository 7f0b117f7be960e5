"""Estimate a comparison before it runs: the runs in order, with time and disk, from a few measured steps or stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer

from common.artifacts import results
from common.artifacts.schema import RunResult
from common.machine import machine
from common.machine.interference import LEAST_TIMED_SECONDS
from common.machine.private_folder import PrivateFolder
from common.training.spot_checks import PARTS
from compare.cli import exits, wording
from compare.cli.progress import Display
from compare.comparison import comparison_plan, executor, reruns
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement import cautions, run_figures
from compare.judgement.statement_words import sentences
from compare.proof import ladder, spot_checks
from compare.reporting.document import Report
from compare.reporting.tables import Cell, Column, Table
from compare.results import store
from compare.results.store import Comparison
from compare.results.workspace import COMPARISON
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.twins import Twins

STEPS = 8
"""Number of training steps of a measured run."""
_OPTIMIZER_SLOTS = {"sgd": 1, "adam": 2}
"""{optimizer: values that it stores for each trained weight}."""
_ITEM_BYTES = {"float32": 4, "float64": 8}
_ID_BYTES = 8
_FLOAT64_SLOWDOWN = 2
"""Assumed duration of a step in float64, relative to float32."""
_REPORT_BYTES = 2 * 2**20
"""Approximate size of tables and plots in bytes."""


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of one run."""

    row: str
    repeat: int
    seconds: float | None
    """Wall time in seconds. None if it is unknown."""
    num_bytes: int | None
    """Bytes that the run leaves on the disk. None if they are unknown."""
    source: str
    """Source of the figures, in words."""
    training_seconds: float | None = None
    """Seconds of the training alone. None if they are unknown."""


def rehearse(request: ComparisonRequest, progress: Display, times_from: Path | None) -> Report:
    """Report the remaining runs of a comparison in order, with an estimate of their time and disk. Starts none of them.

    Args:
        times_from: a results folder to take the times from. None: train and time a few steps of one row of each framework.
    """
    announce_measurement(times_from)
    return rehearsal_report(request, progress, times_from)


def announce_measurement(times_from: Path | None) -> None:
    if times_from is None:
        typer.echo(
            "An estimate needs a few steps of one row of each framework. --from DIR takes times from results instead.",
            err=True,
        )


def rehearsal_report(request: ComparisonRequest, progress: Display, times_from: Path | None) -> Report:
    """Make the report of `rehearse`."""
    COMPARISON.check(request.out, comparison_plan.early_identity(request))
    plan = comparison_plan.build_plan(request, progress)
    if request.out is not None and (request.out / store.PLAN_FILE).exists():
        plan = store.read_plan(request.out).continued_by(plan)  # it knows which rows are left out of which repeats
    for warning in comparison_plan.early_cautions(plan):
        typer.echo(warning, err=True)
    find_result = (
        measure_by_kind(plan.rows, request.twins, progress.stage) if times_from is None else stored_results(times_from)
    )
    jobs = [job for jobs in comparison_plan.remaining_rounds(plan, request.out, _runs_to_repeat(request)) for job in jobs]
    estimates = estimate(plan, jobs, find_result)
    why_unproved = why_no_proof(plan, request) if jobs else "no run is left"
    proof = 0.0 if why_unproved else proof_seconds(plan, request, find_result)
    return report(estimates, plan, measured=times_from is None, proof=proof, why_unproved=why_unproved)


def _runs_to_repeat(request: ComparisonRequest) -> set[tuple[str, int]]:
    """Return (row id, repeat) of the runs that are to be made again."""
    if not request.again or request.out is None:
        return set()
    return {(run.row, run.repeat) for run in reruns.select_disturbed(store.read(request.out))}


def estimate(
    comparison: Comparison,
    jobs: Sequence[tuple[Row, int]],
    find_result: Callable[[Row], tuple[RunResult, str] | str],
) -> list[RunEstimate]:
    """Estimate every run, in order.

    Args:
        comparison: a plan that is checked, but not started.
        find_result: returns a result for a similar row and its source, or why there is none. Called once for each row.
    """
    rows = {row.id: row for row, _ in jobs}
    similar_results = {name: find_result(row) for name, row in rows.items()}
    num_train, weights = comparison.train_examples, comparison.trainable_values
    estimates: list[RunEstimate] = []
    for row, repeat in jobs:
        similar = similar_results[row.id]
        if isinstance(similar, str):
            estimates.append(RunEstimate(row.id, repeat, None, None, similar))
        else:
            result, source = similar
            disk_bytes = num_bytes(row, result, num_train) + _best_bytes(row, weights)
            training = training_seconds(row, result, num_train)
            estimates.append(RunEstimate(row.id, repeat, seconds(row, result, num_train), disk_bytes, source, training))
    return estimates


def seconds(row: Row, reference: RunResult, num_train: int) -> float:
    """Estimate the wall time of a run, scaled from another run of the same kind. On fewer cores it is longer in proportion."""
    phases = reference.phases
    assert phases is not None, "a whole run has its phases"
    evaluation_factor = num_train / reference.epochs[0].epoch_images * _core_factor(row, reference)
    validation = [epoch.evaluation_seconds for epoch in reference.epochs]
    test = phases.evaluation_seconds - sum(validation)
    evaluation = evaluation_factor * (_length(row, num_train)[0] * sum(validation) / len(validation) + test)
    return _seconds_once(reference) + training_seconds(row, reference, num_train) + evaluation


def training_seconds(row: Row, reference: RunResult, num_train: int) -> float:
    """Estimate the seconds of a run's training alone, see `seconds`."""
    return _seconds_per_image(reference) * _core_factor(row, reference) * _length(row, num_train)[1]


def _core_factor(row: Row, reference: RunResult) -> float:
    return max(reference.spec.cores / row.spec.cores, 1.0)


def _seconds_per_image(reference: RunResult) -> float:
    timed_images = sum(epoch.timed_images for epoch in reference.epochs)
    return reference.phases.training_seconds / timed_images if reference.phases and timed_images else 0.0


def _seconds_once(reference: RunResult) -> float:
    """Return the seconds of what a process does once, however long it trains. Steps that were not timed are no part of it."""
    if (phases := reference.phases) is None:
        return 0.0
    others = phases.other_seconds - sum(epoch.training_seconds - epoch.timed_seconds for epoch in reference.epochs)
    return phases.import_seconds + phases.build_seconds + phases.first_step_seconds + phases.compile_seconds + max(others, 0.0)


def why_no_proof(comparison: Comparison, request: ComparisonRequest) -> str | None:
    """Explain why no proof is made. None: one is made."""
    if not comparison.settings.prove:
        return "none was asked for (--no-proof)"
    replicas = comparison.replicas
    if why_not := ladder.ProofRequest.for_rows(comparison.rows, request.twins, replicas=replicas).why_nothing:
        return f"there is nothing to prove: {why_not}"
    if ladder.is_remembered(comparison.rows, request.twins, replicas=replicas):
        return "it is remembered from an earlier comparison"
    return None


def proof_seconds(
    comparison: Comparison, request: ComparisonRequest, find_result: Callable[[Row], tuple[RunResult, str] | str]
) -> float | None:
    """Estimate the wall time of the proof: what its processes do once, and their steps in float64.

    None if nothing is known of a framework.
    """
    rows = [row for row in comparison.rows if row.unavailable is None]
    seconds = 0.0
    base = ladder.ProofRequest.for_rows(rows, request.twins, replicas=comparison.replicas).base
    for name in request.twins.names:
        contestant_rows = [row for row in rows if row.contestant == name]
        similar_results = [similar[0] for row in contestant_rows if isinstance(similar := find_result(row), tuple)]
        if not similar_results or similar_results[0].phases is None:
            return None
        num_modes = len(
            {row.spec.variant for row in contestant_rows if row.spec.is_parallel and row.spec.not_serial_because is None}
        )
        processes = (1 + num_modes) * len({row.spec.switches for row in contestant_rows})
        images = _FLOAT64_SLOWDOWN * (1 + num_modes) * (base.steps or 0) * base.global_batch_size
        seconds += processes * _seconds_once(similar_results[0]) + images * _seconds_per_image(similar_results[0])
    return seconds / min(2, machine.available_cores())  # the proof runs two processes side by side


def num_bytes(row: Row, reference: RunResult, num_train: int) -> int:
    """Estimate the bytes that a run leaves: its facts, its spec, and for each epoch an event and an entry in its result."""
    record = reference.epochs[0]
    epoch_bytes = 2 * len(record.model_dump_json())
    run_bytes = len(results.to_line(reference.model_copy(update={"epochs": []}))) + len(row.spec.to_json())
    return _length(row, num_train)[0] * epoch_bytes + run_bytes


def _best_bytes(row: Row, trainable_values: int) -> int:
    """Return the bytes of the weights of the best epoch, if they are stored."""
    return trainable_values * _ITEM_BYTES[row.spec.precision] if row.spec.best_epoch.keep else 0


def checkpoint_bytes(rows: Sequence[Row], comparison: Comparison) -> int:
    """Estimate the bytes of checkpoints. Two exist while one replaces the other. Every restart leaves one until the end."""
    largest = 0
    for row in rows:
        if row.spec.not_resumable_because is None:
            values = comparison.trainable_values * (1 + _OPTIMIZER_SLOTS[row.spec.optimizer.name])
            images = _length(row, comparison.train_examples)[1]
            best = _best_bytes(row, comparison.trainable_values)
            largest = max(largest, values * _ITEM_BYTES[row.spec.precision] + best + _ID_BYTES * images)
    return (2 + comparison.settings.restarts) * largest


def recorded_bytes(runs: Sequence[Row], comparison: Comparison) -> int:
    """Estimate the bytes of the steps that runs record, which go when they are judged: between two runs if they are many.

    Each step has the weights and the optimizer's state before and after it. Its images are few beside them.
    """
    sizes: list[int] = []
    for row in runs:
        if comparison.settings.prove and spot_checks.is_checked(row.spec):
            steps = PARTS + (comparison.train_examples % row.spec.global_batch_size > 0)
            values = comparison.trainable_values * (1 + _OPTIMIZER_SLOTS[row.spec.optimizer.name])
            sizes.append(2 * steps * values * _ITEM_BYTES[row.spec.precision])
    return min(sum(sizes), spot_checks.MOST_BYTES + max(sizes, default=0))


def _contestant(row: Row) -> str:
    return row.contestant


def measure_by_kind(
    rows: Sequence[Row], twins: Twins, say: Callable[[str], None], kind: Callable[[Row], str] = _contestant
) -> Callable[[Row], tuple[RunResult, str] | str]:
    """Return a function that measures one row of each kind: serial on the most cores, if there is one.

    The other rows of the kind are taken to be like it.

    Args:
        kind: names the kind of a row. Default: its contestant.
    """
    measurements: dict[str, tuple[RunResult, str] | str] = {}

    def find_result(row: Row) -> tuple[RunResult, str] | str:
        alike = [other for other in rows if other.unavailable is None and kind(other) == kind(row)]
        first = min(alike, key=lambda candidate: (candidate.spec.is_parallel, -candidate.spec.cores))
        if kind(row) not in measurements:
            say(f"a few steps of {first.id}")
            measurements[kind(row)] = measure_row(twins[first.contestant], first)
        measurement = measurements[kind(row)]
        return measurement if row.id == first.id or isinstance(measurement, str) else (measurement[0], f"as {first.id}")

    return find_result


def measure_row(contestant: Contestant, row: Row) -> tuple[RunResult, str] | str:
    """Train a few steps of a row in a temporary folder. Returns the result and its source, or why it failed."""
    spec = row.spec
    length = min(STEPS, spec.steps or STEPS)
    short = spec.with_fields(epochs=None, steps=length, profile_steps=0, checkpoint_seconds=None)
    with PrivateFolder() as temporary:
        result = executor.execute(contestant, row.model_copy(update={"spec": short}), 0, temporary.path, lambda events: None)
    if result.status not in ("ok", "not parallel"):
        return f"{result.status}: {result.reason}"
    return result, f"{length} steps measured now"


def stored_results(folder: Path) -> Callable[[Row], tuple[RunResult, str] | str]:
    """Return a function that finds results of similar rows in another comparison.

    Of several it finds that with the median wall time.
    """
    comparison = store.read(folder)
    complete_runs = [
        (row.contestant, result.phases.wall_seconds, result)
        for row in comparison.comparison.rows
        for result in comparison.runs[row.id].values()
        if result.status in ("ok", "not parallel") and result.epochs and result.phases
    ]

    def find_result(row: Row) -> tuple[RunResult, str] | str:
        similar_runs = [
            run for run in complete_runs if run[0] == row.contestant and not run[2].spec.differs(row.spec, in_="step")
        ]
        if not similar_runs:
            return f"unknown: {folder} has no run of this kind"
        return sorted(similar_runs, key=itemgetter(1))[(len(similar_runs) - 1) // 2][2], f"stored in {folder}"

    return find_result


def report(
    estimates: Sequence[RunEstimate],
    comparison: Comparison,
    *,
    measured: bool,
    proof: float | None = None,
    why_unproved: str | None = None,
) -> Report:
    """Report the estimates. A row that could not be measured now is a failure; one missing from stored results is not.

    Args:
        proof: seconds of the proof, see `proof_seconds`.
        why_unproved: why none is made, see `why_no_proof`.
    """
    settings = comparison.settings
    rows_by_id = {row.id: row for row in comparison.rows}
    estimated_rows = [row for row in comparison.rows if row.id in {run.row for run in estimates}]
    values: dict[str, Any] = {
        "runs": [asdict(run) for run in estimates],
        "not_run": {row.id: str(row.unavailable) for row in comparison.rows if row.unavailable},
        "seconds": sum(run.seconds or 0.0 for run in estimates),
        "num_bytes": sum(run.num_bytes or 0 for run in estimates) + _REPORT_BYTES,
        "checkpoint_bytes": checkpoint_bytes(estimated_rows, comparison),
        "recorded_bytes": recorded_bytes([rows_by_id[run.row] for run in estimates], comparison),
        "unknown": sum(run.seconds is None for run in estimates),
        "proof": settings.prove,
        "proof_seconds": proof,
        "no_proof": why_unproved,
        "profile": any(row.spec.profile_steps for row in estimated_rows),
        "restarts": settings.restarts,
        "start_over": {row.id: row.spec.not_resumable_because for row in estimated_rows if row.spec.not_resumable_because},
        "too_short": _too_short(estimates, rows_by_id),
        "most_repeats": settings.until.most_repeats if settings.until else None,
        "most_seconds": None,
    }
    if settings.until and (last := [run for run in estimates if run.repeat == settings.repeats - 1]):
        more = settings.until.most_repeats - settings.repeats
        values["most_seconds"] = values["seconds"] + max(more, 0) * sum(run.seconds or 0.0 for run in last)
    columns = (
        Column("number", "no."),
        Column("row", "run"),
        Column("repeat", "repeat"),
        Column("seconds", "seconds", 0),
        Column("source", "from", fold=50),
    )
    rows: list[dict[str, Cell]] = [
        {**asdict(run), "number": number, "repeat": run.repeat + 1} for number, run in enumerate(estimates, 1)
    ]
    return dry_run_report(
        left_out=("Not run", [f"{row}: {reason}" for row, reason in values["not_run"].items()]),
        sentences=_sentences(values),
        table=Table("dry_run", "Runs, in this order", columns, rows),
        values=values,
        has_failed=measured and bool(values["unknown"]),
        first_sentences=sentences(cautions.nothing_can_run(comparison)),
    )


def dry_run_report(
    left_out: tuple[str, list[str]],
    sentences: Sequence[str],
    table: Table,
    values: dict[str, Any],
    *,
    has_failed: bool,
    first_sentences: Sequence[str] = (),
) -> Report:
    """Report what would be run, and its time and disk.

    Args:
        left_out: heading and sentences on what would not be run.
        sentences: sentences on time and disk.
    """
    return Report(
        title="Dry run",
        first_sentences=first_sentences,
        findings=[*([left_out] if left_out[1] else []), ("Time and disk", [*sentences, "No results folder was touched."])],
        tables=[table] if table.rows else [],
        values=values,
        exit_code=exits.RUN_FAILED if has_failed else 0,
    )


def totals(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return number of runs, seconds and MiB of a comparison from the values of its `report`."""
    mib = values["num_bytes"] / 2**20
    return {"runs": len(values["runs"]), "seconds": values["seconds"], "proof_seconds": values["proof_seconds"], "mib": mib}


def time_words(seconds: float, unknown: int) -> str:
    """Say how long runs take.

    Args:
        unknown: number of runs without any known time.
    """
    besides = f", and {unknown} of which nothing is known" if unknown else ""
    return f"about {wording.clock_words(seconds)} min{besides}"


def _sentences(values: Mapping[str, Any]) -> list[str]:
    number, unknown = len(values["runs"]), values["unknown"]
    disk_mib, checkpoint_mib, recorded_mib = (
        values[name] / 2**20 for name in ("num_bytes", "checkpoint_bytes", "recorded_bytes")
    )
    about = "nothing is known of their time"
    if unknown < number:
        about = time_words(values["seconds"], unknown)
        about += f"; {disk_mib:.1f} MiB of disk, and {checkpoint_mib:.1f} for checkpoints meanwhile"
        about += f"; {recorded_mib:.1f} MiB for recorded steps until they are judged" if recorded_mib else ""
    sentences = [f"{wording.count(number, 'run')}: {about}."]
    if values["most_repeats"]:
        most = "" if values["most_seconds"] is None else f", which take about {wording.clock_words(values['most_seconds'])} min"
        sentences.append(
            "Repeats are added until every question is decided (--until-decided): at most "
            f"{values['most_repeats']} of each row{most}."
        )
    if any(run["source"].startswith("as ") for run in values["runs"]):
        sentences.append(
            "One row of each framework was measured. The others are taken to be as fast for each core, so a mode that pays is "
            "quicker. --from DIR counts each row by its own results."
        )
    if values["proof"]:
        proof = values["proof_seconds"]
        if proof is None:
            about = "Nothing is known of its time."
        elif proof:
            proof_time, total_time = map(wording.clock_words, (proof, proof + values["seconds"]))
            about = f"It takes about {proof_time} min, so all takes about {total_time} min."
        else:
            about = f"It takes no time: {values['no_proof']}."
        sentences.append(f"The proof comes before the runs. {about}")
    if values["profile"]:
        sentences.append("The profile after each run, and its trace, are not counted.")
    if too_short := values["too_short"]:
        fewest = min(row["training_seconds"] for row in too_short.values())
        longest = max(too_short.values(), key=lambda row: int(row["options"][1].removeprefix("steps=")))["options"]
        sentences.append(
            f"Too short to tell whether other work disturbs it, which needs {LEAST_TIMED_SECONDS} s of training: "
            f"{wording.count(len(too_short), 'row')}, of {fewest:.2g} s or more. Do not rely on times of such runs. "
            f"Use {wording.shell(longest)} or more."
        )
    if values["restarts"]:
        most = wording.count(values["restarts"], "time")
        sentences.append(f"A run whose process dies is restarted at most {most} (--restarts). That time is not counted.")
        for reason in dict.fromkeys(values["start_over"].values()):
            rows = ", ".join(row for row, row_reason in values["start_over"].items() if row_reason == reason)
            sentences.append(f"Without a checkpoint to go on from: {rows}; {reason}.")
    return sentences


def _too_short(estimates: Sequence[RunEstimate], rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the rows whose training is too short to be watched, each with its seconds and the option that makes it longer."""
    seconds = {run.row: run.training_seconds for run in estimates if run.training_seconds is not None}
    return {
        row_id: {"training_seconds": training, "options": [*run_figures.longer(rows[row_id].spec, training)]}
        for row_id, training in seconds.items()
        if training < LEAST_TIMED_SECONDS and rows[row_id].spec.part == "training"
    }


def _length(row: Row, num_train: int) -> tuple[int, int]:
    """Return (epochs, images) of a run."""
    spec = row.spec
    if spec.steps is None:
        return spec.epochs or 0, (spec.epochs or 0) * num_train
    steps_per_epoch = -(-num_train // spec.global_batch_size)
    epochs = -(-spec.steps // steps_per_epoch)
    return epochs, min(spec.steps * spec.global_batch_size, epochs * num_train)
