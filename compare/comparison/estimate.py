"""Estimate a comparison before it runs: the runs in order, with time and disk, from a few measured steps or stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer

from common.artifacts import results
from common.artifacts.schema import Phases, RunResult
from common.machine import machine
from common.machine.private_folder import PrivateFolder
from compare.comparison import comparison_plan, made_again
from compare.comparison.comparison_plan import Request
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.core.progress import display
from compare.execution import executor, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison
from compare.judgement import cautions
from compare.proof import ladder, timed_rows
from compare.reporting.document import Report
from compare.reporting.tables import Cell, Column, Table

STEPS = 8
"""Training steps of a measured run."""
_SLOTS = {"sgd": 1, "adam": 2}
"""Values that each optimizer keeps per trained weight."""
_ITEM_BYTES = {"float32": 4, "float64": 8}
_ID_BYTES = 8
_FLOAT64 = 2
"""Times as long as a step in float32 takes one in float64."""
_REPORT_BYTES = 2 * 2**20
"""Approximate size of tables and plots."""
_OF_ITS_LENGTH = ("epochs", "steps", "seed", "hang_seconds", "checkpoint_seconds", "profile_steps", "paths")
"""Spec fields that do not change the time of a step. `data.limit` and `data.seed` do not change it either."""


@dataclass(frozen=True)
class Estimate:
    """Estimate of one run."""

    row: str
    repeat: int
    seconds: float | None
    """Wall time. None if it is unknown."""
    num_bytes: int | None
    """Bytes that the run leaves on the disk."""
    source: str
    """Where the figures come from."""


def rehearse(request: Request, *, as_json: bool, like: Path | None) -> int:
    """Print the remaining runs of a comparison in order, with an estimate of their time and disk. Starts none of them.

    Args:
        like: a results folder to take the times from. None: train and time a few steps of one row of each framework.

    Returns:
        The exit code: 0; 1 if a row could not be measured.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: as `run`.
    """
    comparison_plan.refuse_used(request)
    say_what_is_measured(like)
    return rehearsed(request, like).deliver(None, as_json=as_json)


def say_what_is_measured(like: Path | None) -> None:
    if like is None:
        typer.echo(
            "An estimate needs a few steps of one row of each framework. --from DIR takes times from results instead.",
            err=True,
        )


def rehearsed(request: Request, like: Path | None) -> Report:
    """The report that `rehearse` prints."""
    with interruptible(), display() as shown:
        wanted = comparison_plan.judged(request, shown)
        if said := comparison_plan.of_a_large_batch(wanted):
            typer.echo(said, err=True)
        known = by_contestant(wanted.rows, shown.say) if like is None else stored(like)
        jobs = comparison_plan.jobs(wanted, request.out, _again(request))
        estimates = estimate(wanted, jobs, known)
        unproved = no_proof(wanted, request) if jobs else "no run is left"
        proof = 0.0 if unproved else proof_seconds(wanted, request, known)
    return report(estimates, wanted, measured=like is None, proof=proof, unproved=unproved)


def _again(request: Request) -> set[tuple[str, int]]:
    """Row and repeat of the runs that are to be made again."""
    if not request.again or request.out is None:
        return set()
    return {(each.row, each.repeat) for each in made_again.chosen(store.read(request.out))}


def estimate(
    comparison: Comparison,
    jobs: Sequence[tuple[Row, int]],
    known: Callable[[Row], tuple[RunResult, str] | str],
) -> list[Estimate]:
    """Estimate every run, in order.

    Args:
        comparison: judged, not started.
        known: a result for a similar row and its source, or why there is none. Called once for each row.
    """
    rows = {row.id: row for row, _ in jobs}
    likes = {name: known(row) for name, row in rows.items()}
    num_train, weights = comparison.train_examples, comparison.trainable_values
    made: list[Estimate] = []
    for row, repeat in jobs:
        like = likes[row.id]
        if isinstance(like, str):
            made.append(Estimate(row.id, repeat, None, None, like))
        else:
            result, source = like
            taken = num_bytes(row, result, num_train) + _best_bytes(row, weights)
            made.append(Estimate(row.id, repeat, seconds(row, result, num_train), taken, source))
    return made


def seconds(row: Row, like: RunResult, num_train: int) -> float:
    """Wall time of a run, scaled from a shorter or longer run of the same kind. On fewer cores it is longer in proportion."""
    phases = like.phases
    assert phases is not None, "a whole run has its phases"
    fewer_cores = max(like.spec.cores / row.spec.cores, 1.0)
    pace = _seconds_per_image(like) * fewer_cores
    larger = num_train / like.epochs[0].epoch_images * fewer_cores
    validation = [epoch.evaluation_seconds for epoch in like.epochs]
    test = phases.evaluation_seconds - sum(validation)
    epochs, images = _length(row, num_train)
    return _seconds_once(phases) + pace * images + larger * (epochs * sum(validation) / len(validation) + test)


def _seconds_per_image(like: RunResult) -> float:
    timed_images = sum(epoch.timed_images for epoch in like.epochs)
    return like.phases.training_seconds / timed_images if like.phases and timed_images else 0.0


def _seconds_once(phases: Phases) -> float:
    """Of what a process does once, however long it trains."""
    return (
        phases.import_seconds + phases.build_seconds + phases.first_step_seconds + phases.compile_seconds + phases.other_seconds
    )


def no_proof(comparison: Comparison, request: Request) -> str | None:
    """Why no proof is made, in words. None: one is."""
    rows = [row for row in comparison.rows if row.unavailable is None]
    if not comparison.prove:
        return "none was asked for (--no-proof)"
    if not rows:
        return "there is nothing to prove: no row runs here"
    if rows[0].spec.part != "training":
        return "there is nothing to prove: a part of the training learns nothing"
    if len(request.frameworks) < 2 and timed_rows.modes_of(rows) == ["serial"]:
        return "there is nothing to prove: one framework alone has nothing to be compared with"
    if ladder.is_remembered(comparison.rows, request.frameworks, replicas=request.settings.replicas):
        return "it is remembered from an earlier comparison"
    return None


def proof_seconds(
    comparison: Comparison, request: Request, known: Callable[[Row], tuple[RunResult, str] | str]
) -> float | None:
    """Wall time of the proof: what its processes do once, and their steps in float64.

    None if nothing is known of a framework.
    """
    rows = [row for row in comparison.rows if row.unavailable is None]
    seconds = 0.0
    base = ladder.base_of(rows, request.frameworks, request.settings.replicas)
    for name in request.frameworks:
        own = [row for row in rows if row.contestant == name]
        found = [like[0] for row in own if isinstance(like := known(row), tuple)]
        if not found or found[0].phases is None:
            return None
        claimed = len({row.spec.variant for row in own if row.spec.mode != "serial" and row.spec.departs is None})
        processes = (1 + claimed) * len({row.spec.switches for row in own})
        images = _FLOAT64 * (1 + claimed) * (base.steps or 0) * base.global_batch_size
        seconds += processes * _seconds_once(found[0].phases) + images * _seconds_per_image(found[0])
    return seconds / min(2, machine.available_cores())  # the proof runs two processes side by side


def num_bytes(row: Row, like: RunResult, num_train: int) -> int:
    """Bytes that a run leaves: its facts, its spec, and for each epoch a line in its events and an entry in its result."""
    record = like.epochs[0]
    of_epoch = 2 * len(record.model_dump_json())
    of_run = len(results.to_line(like.model_copy(update={"epochs": []}))) + len(row.spec.to_json())
    return _length(row, num_train)[0] * of_epoch + of_run


def _best_bytes(row: Row, trainable_values: int) -> int:
    """Bytes of the weights of the best epoch, if they are kept."""
    return trainable_values * _ITEM_BYTES[row.spec.precision] if row.spec.best_epoch.keep else 0


def checkpoint_bytes(rows: Sequence[Row], comparison: Comparison) -> int:
    """Temporary space for checkpoints. Two exist while one replaces the other. Every restart leaves one until the run's end."""
    largest = 0
    for row in rows:
        if row.spec.starts_over is None:
            values = comparison.trainable_values * (1 + _SLOTS[row.spec.optimizer.name])
            images = _length(row, comparison.train_examples)[1]
            best = _best_bytes(row, comparison.trainable_values)
            largest = max(largest, values * _ITEM_BYTES[row.spec.precision] + best + _ID_BYTES * images)
    return (2 + comparison.restarts) * largest


def by_contestant(rows: Sequence[Row], say: Callable[[str], None]) -> Callable[[Row], tuple[RunResult, str] | str]:
    """Measures one row of each contestant, serial on the most cores if there is one. The others are taken to be like it."""
    found: dict[str, tuple[RunResult, str] | str] = {}

    def known(row: Row) -> tuple[RunResult, str] | str:
        own = [each for each in rows if each.unavailable is None and each.contestant == row.contestant]
        first = min(own, key=lambda each: (each.spec.mode != "serial", -each.spec.cores))
        if first.id not in found:
            say(f"a few steps of {first.id}")
            found[first.id] = measured(first)
        made = found[first.id]
        return made if row.id == first.id or isinstance(made, str) else (made[0], f"as {first.id}")

    return known


def measured(row: Row) -> tuple[RunResult, str] | str:
    """Trains a few steps of a row in a temporary folder. Returns the result, or why it failed."""
    spec = row.spec
    length = min(STEPS, spec.steps or STEPS)
    short = spec.with_fields(epochs=None, steps=length, profile_steps=0, checkpoint_seconds=None)
    with PrivateFolder() as temporary:
        result = executor.execute(row.model_copy(update={"spec": short}), 0, temporary.path, lambda events: None)
    if result.status not in ("ok", "not parallel"):
        return f"{result.status}: {result.reason}"
    return result, f"{length} steps measured now"


def stored(folder: Path) -> Callable[[Row], tuple[RunResult, str] | str]:
    """Looks up results of similar rows in another comparison. Of several, it takes the one with the median wall time.

    Raises:
        FolderError: the folder holds none.
    """
    held = store.read(folder)
    whole = [
        (row.contestant, result.phases.wall_seconds, result)
        for row in held.comparison.rows
        for result in held.runs[row.id].values()
        if result.status in ("ok", "not parallel") and result.epochs and result.phases
    ]

    def known(row: Row) -> tuple[RunResult, str] | str:
        alike = [each for each in whole if each[0] == row.contestant and _alike(each[2], row)]
        if not alike:
            return f"unknown: {folder} has no run of this kind"
        return sorted(alike, key=itemgetter(1))[(len(alike) - 1) // 2][2], f"stored in {folder}"

    return known


def report(
    estimates: Sequence[Estimate],
    comparison: Comparison,
    *,
    measured: bool,
    proof: float | None = None,
    unproved: str | None = None,
) -> Report:
    """Report the estimates. A row that could not be measured now is a failure; one missing from stored results is not.

    Args:
        proof: seconds of the proof, see `proof_seconds`.
        unproved: why none is made, see `no_proof`.
    """
    wanted = [row for row in comparison.rows if row.id in {each.row for each in estimates}]
    plain: dict[str, Any] = {
        "runs": [asdict(each) for each in estimates],
        "not_run": {row.id: row.unavailable for row in comparison.rows if row.unavailable},
        "seconds": sum(each.seconds or 0.0 for each in estimates),
        "num_bytes": sum(each.num_bytes or 0 for each in estimates) + _REPORT_BYTES,
        "checkpoint_bytes": checkpoint_bytes(wanted, comparison),
        "unknown": sum(each.seconds is None for each in estimates),
        "proof": comparison.prove,
        "proof_seconds": proof,
        "no_proof": unproved,
        "profile": any(row.spec.profile_steps for row in wanted),
        "restarts": comparison.restarts,
        "start_over": {row.id: row.spec.starts_over for row in wanted if row.spec.starts_over},
        "most_repeats": comparison.until.most_repeats if comparison.until else None,
        "most_seconds": None,
    }
    if comparison.until and (last := [each for each in estimates if each.repeat == comparison.repeats - 1]):
        more = comparison.until.most_repeats - comparison.repeats
        plain["most_seconds"] = plain["seconds"] + max(more, 0) * sum(each.seconds or 0.0 for each in last)
    columns = (
        Column("number", "no."),
        Column("row", "run"),
        Column("repeat", "repeat"),
        Column("seconds", "seconds", 0),
        Column("source", "from", fold=50),
    )
    rows: list[dict[str, Cell]] = [
        {**asdict(each), "number": number, "repeat": each.repeat + 1} for number, each in enumerate(estimates, 1)
    ]
    left_out = [f"{row}: {reason}" for row, reason in plain["not_run"].items()]
    return Report(
        title="Dry run",
        first_sentences=cautions.nothing_can_run(comparison),
        findings=[*([("Not run", left_out)] if left_out else []), ("Time and disk", _sentences(plain))],
        tables=[Table("dry_run", "Runs, in this order", columns, rows)] if rows else [],
        values=plain,
        exit_code=exits.RUN_FAILED if measured and plain["unknown"] else 0,
    )


def _sentences(plain: Mapping[str, Any]) -> list[str]:
    number, unknown = len(plain["runs"]), plain["unknown"]
    kept, checkpoints = plain["num_bytes"] / 2**20, plain["checkpoint_bytes"] / 2**20
    about = "nothing is known of their time"
    if unknown < number:
        besides = f", and {unknown} of which nothing is known" if unknown else ""
        about = f"about {wording.clock_words(plain['seconds'])} min{besides}"
        about += f"; {kept:.1f} MiB of disk, and {checkpoints:.1f} for checkpoints meanwhile"
    sentences = [f"{wording.count(number, 'run')}: {about}."]
    if plain["most_repeats"]:
        most = "" if plain["most_seconds"] is None else f", which take about {wording.clock_words(plain['most_seconds'])} min"
        sentences.append(
            "Repeats are added until every question is decided (--until-decided): at most "
            f"{plain['most_repeats']} of each row{most}."
        )
    if any(each["source"].startswith("as ") for each in plain["runs"]):
        sentences.append(
            "One row of each framework was measured. The others are taken to be as fast for each core, so a mode that pays is "
            "quicker. --from DIR counts each row by its own results."
        )
    if plain["proof"]:
        proof = plain["proof_seconds"]
        if proof is None:
            about = "Nothing is known of its time."
        elif proof:
            alone, all_of_it = map(wording.clock_words, (proof, proof + plain["seconds"]))
            about = f"It takes about {alone} min, so all takes about {all_of_it} min."
        else:
            about = f"It takes no time: {plain['no_proof']}."
        sentences.append(f"The proof comes before the runs. {about}")
    if plain["profile"]:
        sentences.append("The profile after each run, and its trace, are not counted.")
    if plain["restarts"]:
        most = wording.count(plain["restarts"], "time")
        sentences.append(f"A run whose process dies is restarted at most {most} (--restarts). That time is not counted.")
        for reason in dict.fromkeys(plain["start_over"].values()):
            rows = ", ".join(row for row, own in plain["start_over"].items() if own == reason)
            sentences.append(f"Without a checkpoint to go on from: {rows}; {reason}.")
    return [*sentences, "No results folder was touched."]


def _length(row: Row, num_train: int) -> tuple[int, int]:
    """(epochs, images) of a run."""
    spec = row.spec
    if spec.steps is None:
        return spec.epochs or 0, (spec.epochs or 0) * num_train
    steps_per_epoch = -(-num_train // spec.global_batch_size)
    epochs = -(-spec.steps // steps_per_epoch)
    return epochs, min(spec.steps * spec.global_batch_size, epochs * num_train)


def _alike(result: RunResult, row: Row) -> bool:
    length: dict[str, Any] = {name: getattr(row.spec, name) for name in _OF_ITS_LENGTH}
    data = row.spec.data
    length["data"] = result.spec.data.model_copy(update={"limit": data.limit, "seed": data.seed})
    return result.spec.model_copy(update=length) == row.spec
