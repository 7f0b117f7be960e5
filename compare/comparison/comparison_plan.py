"""Plan a comparison: read its settings, and check every run before the first one starts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import typer

from common import spec
from common.artifacts.schema import Environment, ResultError, RunResult
from common.data import sources
from common.machine import machine
from common.machine.interference import LEAST_TIMED_SECONDS, Meter
from common.models import architectures, work
from common.processes import supervisor
from common.spec import Spec, SpecError
from compare.cli import wording
from compare.cli.errors import FolderError, LaunchError
from compare.cli.progress import Display
from compare.judgement import cautions, statement_words
from compare.judgement.summary import has_comparisons
from compare.results import store
from compare.results.cells import MatrixPlan
from compare.results.store import Comparison
from compare.running import code_digest, contestants, launch, matrix, run_settings
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.running.interleaving import Job, remaining, rounds
from compare.running.matrix import Row
from compare.running.twins import Twins


@dataclass(frozen=True)
class ComparisonRequest:
    """A comparison that is asked for, but not yet checked, and what is done with its results."""

    settings: ComparisonSettings
    rows: Sequence[Row]
    """The rows as they are laid out."""
    twins: Twins
    """The contestants."""
    out: Path | None = None
    live: bool = False
    """Whether to keep a live page up to date during the runs."""
    again: bool = False
    """Whether disturbed repeats of the results folder are made again."""
    sign: Path | None = None
    """The SSH key that signs the results."""
    argv: Sequence[str] = field(default_factory=lambda: sys.argv[1:])
    """Arguments of `convtwins` that repeat the comparison."""


def stored_request(folder: Path, repeats: int | None = None) -> ComparisonRequest:
    """Return the request that made a results folder, from its compare.json.

    Args:
        repeats: repeats of each row. None: as many as before.
    """
    stored = store.read_plan(folder)
    refuse_fewer(repeats, stored.settings.repeats, folder)
    check_contestants(stored.settings.contestants, folder)
    return request_for_rows(stored.rows, stored, folder, repeats)


def refuse_fewer(repeats: int | None, planned: int, folder: Path) -> None:
    """Refuse to leave out repeats: to choose among them is to choose a verdict."""
    if repeats is not None and repeats < planned:
        raise SpecError(
            f"--repeats can only grow: {folder} has {planned}. Received: {repeats}. Leave it out, or start another comparison."
        )


def check_contestants(stored: Sequence[Contestant], folder: Path) -> None:
    """Name the interpreters that a results folder will start. One in the folder itself is refused."""
    for contestant in stored:
        if contestant.python is None or contestant.python == sys.executable:
            continue
        paths = (Path(contestant.python), Path(contestant.python).parent)  # the program of a virtual environment is a link
        if any(path.resolve().is_relative_to(folder.resolve()) for path in paths):
            raise FolderError(
                f"The interpreter of {contestant.name} lies in the results folder. Received: {contestant.python!r}. "
                "Name another with --contestant, and a new folder with --out."
            )
        typer.echo(f"The folder's plan starts {contestant.python!r} for {contestant.name}.", err=True)


def request_for_rows(
    rows: Sequence[Row],
    plan: Comparison | MatrixPlan,
    out: Path | None,
    repeats: int | None = None,
    twins: Twins | None = None,
) -> ComparisonRequest:
    """Return the request for rows that are laid out already, with the settings of a plan.

    Args:
        twins: the contestants. None: those of the plan, before any has described itself.
    """
    twins = twins or Twins(dict.fromkeys(row.contestant for row in rows), plan.settings.contestants)
    available_rows = [row.model_copy(update={"unavailable": None}) for row in rows]
    return ComparisonRequest(plan.settings.updated(repeats=repeats), available_rows, twins, out, argv=plan.argv)


def single_run_values(
    preset: str | None,
    spec_file: Path | None,
    options: Mapping[str, Any],
    assignments: list[str],
    *,
    with_contestants: bool = False,
) -> dict[str, Any]:
    """Return the spec values for commands that look at one model, with mode and replicas as requested."""
    stated = spec.read_values(spec_file) if spec_file is not None else {}
    if "contestants" in stated and not with_contestants:
        raise SpecError(
            "contestants of a spec file are for run, parity, scaling, plan, stragglers, regress, bisect and layers. Received: "
            f"contestants in {spec_file}. Leave them out here."
        )
    mode_values: dict[str, Any] = {}
    for source in (stated, spec.parse_assignments(assignments)):
        mode_values |= {field: source[field] for field in ("mode", "replicas") if field in source}
    return run_settings.settings(preset, spec_file, options, assignments).values | mode_values


def single_run_spec(
    command: str,
    preset: str | None,
    spec_file: Path | None,
    options: Mapping[str, Any],
    assignments: list[str],
    *,
    with_contestants: bool = False,
) -> Spec:
    """Return the spec for a command that looks at one model."""
    values = single_run_values(preset, spec_file, options, assignments, with_contestants=with_contestants)
    check_model(command, values)
    return spec.build(values)


def check_model(command: str, values: Mapping[str, Any]) -> None:
    """Refuse spec values without a model, and say what to type."""
    if "model" not in values:
        example = wording.command(command, "--model", "simple_cnn")
        raise SpecError(f"{command} needs a model. Received: none. Type e.g. {example}, or name one in the file of --spec.")


def with_seeds(settings: ComparisonSettings, seeds: tuple[int, ...], repeats: int | None) -> ComparisonSettings:
    """Return the settings with a seed for each repeat. The splits keep one seed, so all repeats are scored on the same images.

    Args:
        settings: the settings, with the requested repeats, if any.
        seeds: the seeds, each once.
        repeats: requested repeats. None: one for each seed.
    """
    for seed in seeds:
        spec.build({"seed": seed})
    if repeats is not None and repeats < len(seeds):
        raise SpecError(
            f"--repeats must be at least one for each of --seeds. Received: {repeats} for {len(seeds)} seeds. Use "
            f"{len(seeds)}, or fewer seeds."
        )
    values, data = settings.values, settings.values.get("data")
    if not isinstance(data, dict) or cast(dict[str, Any], data).get("seed") is None:
        values = spec.overlay(values, {"data.seed": values.get("seed") or 0})
    return settings.updated(values=values, seeds=seeds, repeats=max(settings.repeats, len(seeds)))


def early_identity(request: ComparisonRequest) -> dict[str, Any]:
    """Return what is known of a comparison before anything is prepared, see `workspace.COMPARISON`."""
    return {"rows": request.rows, "seeds": request.settings.seeds}


def build_plan(request: ComparisonRequest, progress: Display) -> Comparison:
    """Check every run against the frameworks, the machine and the data before the first one starts."""
    twins = request.twins
    settings = request.settings.check_repeats().updated(contestants=tuple(twins.definitions))
    progress.say("asking the frameworks what they can do here")
    with twins.describe_all() as answer:
        descriptions = {name: answer(name) for name in twins.names}
    rows = matrix.check_rows(request.rows, descriptions, twins.contestants, oversubscribe=settings.oversubscribe)
    progress.say("reading the data")
    _refuse_other_first_hosts(rows)
    run_spec = rows[0].spec
    dataset = sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir)
    matrix.check_data(rows, dataset, settings.seeds)
    architecture = architectures.build(run_spec, len(dataset.class_names), dataset.image_size)
    plan = Comparison(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=list(request.argv),
        rows=rows,
        settings=settings,
        data_name=dataset.name,
        data_hash=dataset.content_hash,
        data_notes=[f"images in training: {dataset.image_size} x {dataset.image_size} pixels", *dataset.notes],
        class_names=list(dataset.class_names),
        trainable_values=sum(parameter.size for parameter in architecture.parameters() if parameter.trainable),
        code_hash=code_digest.compute(twins.contestants, run_spec.model),
        versions={name: description["versions"] for name, description in descriptions.items()},
        environments={
            name: Environment.model_validate(description["environment"])
            for name, description in descriptions.items()
            if "environment" in description
        },
        machine=machine.describe() | {"gpus": spec.gpus(run_spec, descriptions.values())},
        work=work.count(architecture),
        train_examples=len(dataset.train),
    )
    if settings.turns and plan.has_input_ahead:
        raise SpecError(
            "--turns does not go with --input-only and workers: they make batches ahead, so a turn would not tell their pace. "
            f"Received: --turns, workers {max(row.spec.workers for row in rows)}. Leave --turns out."
        )
    if settings.until is not None and not has_comparisons(plan):
        raise SpecError(
            f"--until-decided needs a question. Received: {', '.join(row.id for row in rows)}, of which no two are compared. "
            "Add a framework or a parallel mode."
        )
    return plan


def refuse_changed_environments(comparison: Comparison) -> None:
    """Check that every contestant's environment is still what it was before the proof."""
    planned = contestants.resolve(comparison.environments, comparison.settings.contestants)
    for contestant, (name, before) in zip(planned, comparison.environments.items(), strict=True):
        if changes := contestants.describe_changes(before, launch.current_environment(contestant)):
            raise LaunchError(
                f"The environment of {name} has changed since the proof: {changes}. Nothing was trained. Run the comparison "
                "again in another folder, and leave the environment alone meanwhile."
            )


def _refuse_other_first_hosts(rows: Sequence[Row]) -> None:
    """Check that the first host of every row is this machine."""
    for hosts in {row.spec.hosts for row in rows if row.spec.hosts}:
        try:
            supervisor.free_ports(1, hosts[0])
        except supervisor.AddressError as error:
            raise SpecError(
                f"--hosts must begin with this machine. Received: {', '.join(hosts)} ({error}). Name an address of this "
                "machine first."
            ) from None


def order(rows: Sequence[Row], repeats: int) -> list[list[Job[Row]]]:
    """Return the runs of each repeat in the order of their execution: A B, then B A, and so on. See `interleaving`.

    Rows that differ by their framework alone follow one another. So little changes on the machine between the two that are
    compared most.
    """
    runnable = [row for row in rows if row.unavailable is None]
    ordered: list[Row] = []
    for row in runnable:
        if row not in ordered:
            ordered += [row, *(other for other in runnable if matrix.same_except_contestant(row, other))]
    return rounds(ordered, repeats)


def early_cautions(comparison: Comparison) -> list[str]:
    """Say what a user should know before the runs: doubtful data, and a batch that is larger than the training split."""
    sentences = statement_words.sentences(cautions.data_cautions(comparison.data_notes))
    largest = max(row.spec.global_batch_size for row in comparison.rows)
    if largest > comparison.train_examples:
        sentences.append(
            f"A batch of {largest:,} is larger than the training split of {comparison.train_examples:,}: "
            "an epoch is a single step on all its images. The first step of a run is not timed."
        )
    return sentences


def busy_caution(meter: Meter, cores: int, description: Mapping[str, Any]) -> list[str]:
    """Say before the first run that other programs use the machine, and what follows. Empty if they do not disturb.

    Args:
        meter: started before the preparation, whose processes are this command's own.
        cores: the most cores that a run has.
        description: `machine.describe` of this machine.
    """
    if (usage := meter.usage()).wall_seconds < LEAST_TIMED_SECONDS:  # the kernel's clocks tick every 10 ms
        return []
    return statement_words.sentences(cautions.busy_now(usage.other_cpu_seconds / usage.wall_seconds, cores, description))


def remaining_rounds(
    comparison: Comparison, folder: Path | None, again: Collection[tuple[str, int]] = ()
) -> list[list[Job[Row]]]:
    """Return the runs of each repeat that still have no good result, in order, each with its repeat's seed.

    Args:
        again: (row id, repeat) of the runs that are to be made again.
    """

    def is_done(job: Job[Row]) -> bool:
        row, repeat = job
        if repeat in comparison.left_out.get(row.id, ()):
            return True
        return folder is not None and (row.id, repeat) not in again and good_result(folder, row, repeat) is not None

    planned = [
        [Job(comparison.row_for_repeat(row, repeat), repeat) for row, repeat in jobs]
        for jobs in order(comparison.rows, comparison.settings.repeats)
    ]
    return remaining(planned, is_done)


def unfinished_attempts(comparison: Comparison, folder: Path) -> list[str]:
    """Say which runs of a folder did not end well before, and are made again now. Empty: there are none."""
    jobs = itertools.chain.from_iterable(remaining_rounds(comparison, folder))
    directories = {
        f"{job.item.id} (repeat {job.repeat + 1})": directory
        for job in jobs
        if any((directory := store.run_folder(folder, job.item.id, job.repeat)).glob("*"))
    }
    if not directories:
        return []
    going_on = sum(store.has_checkpoint(directory) for directory in directories.values())
    begun, is_one = len(directories) - going_on, len(directories) == 1
    if not going_on:
        how = "It begins again" if is_one else "They begin again"
    elif not begun:
        how = "It goes on from its checkpoint" if is_one else "They go on from their checkpoints"
    else:
        how = f"{begun:,} of them begin again, {going_on:,} go on from a checkpoint"
    return [
        f"{wording.count(len(directories), 'run')} did not end well: {wording.listed(directories)}. {how}. What was written is "
        f"set aside in {store.RUNS_FOLDER}/*.attempt*."
    ]


def good_result(folder: Path, row: Row, repeat: int) -> RunResult | None:
    """Return the result of a run that ended well. None: it has none."""
    try:
        result = store.load_result(folder, row, repeat)
    except ResultError:
        return None
    return result if result is not None and result.status in store.FINISHED else None
