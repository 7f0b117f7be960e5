"""`convtwins tune`: search for the best settings in every framework, with one or several jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.spec import SpecError
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.interrupt import Interrupted
from compare.cli.option_rules import AllExcept, Excludes
from compare.cli.option_types import Choice, Integers
from compare.comparison import comparison_plan
from compare.reporting import document
from compare.reporting.document import Report
from compare.results import signing, store
from compare.running import options
from compare.tools.tuning import optuna_study, search_space, tuner, tuning_report
from compare.tools.tuning.records import (
    BACKENDS,
    OBJECTIVES,
    PRUNERS,
    SAMPLERS,
    Backend,
    Objective,
    Pruner,
    Sampler,
    Tuning,
    TuningRecord,
)

EPOCHS = 5
"""Epochs of each trial, by default."""


@commands.command(
    Excludes(
        "--resume",
        AllExcept("--resume", "--json", "--storage", "--sign"),
        "takes all settings from its folder",
        "Leave them out, or tune in another folder.",
    )
)
def command(
    invocation: Invocation,
    *,
    space: Annotated[Path | None, typer.Option(help="YAML file: ranges by field of the spec. Default: docs/tuning.md.")] = None,
    sampler: Annotated[Sampler, Choice(SAMPLERS), typer.Option(help=f"Proposes settings: {', '.join(SAMPLERS)}.")] = "tpe",
    trials: Annotated[int, typer.Option(min=1, help="Trials of each search.")] = 20,
    jobs: Annotated[
        tuple[int, ...],
        Integers(least=1),
        typer.Option(help="Parallel trials. Several numbers, with commas, make a search of each."),
    ] = (1,),
    backend: Annotated[
        Backend,
        Choice(BACKENDS),
        typer.Option(help="threads of one framework process; processes; dask: on a cluster's workers."),
    ] = "threads",
    scheduler: Annotated[str | None, typer.Option(help=f"{options.SCHEDULER} Default: a local one.")] = None,
    pruner: Annotated[Pruner, Choice(PRUNERS), typer.Option(help=f"Stops bad trials early: {', '.join(PRUNERS)}.")] = "none",
    objective: Annotated[
        Objective, Choice(OBJECTIVES), typer.Option(help=f"Score on the validation split: {', '.join(OBJECTIVES)}.")
    ] = "loss",
    repeats: Annotated[
        int, typer.Option(min=1, help=f"{options.REPEATS} Each search, with other sampler seeds. Verdicts need 5.")
    ] = 1,
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
    of_spec: options.SpecOptions,
    epochs: Annotated[int | None, typer.Option(help=f"{options.EPOCHS} In each trial. Default: {EPOCHS}.")] = None,
    limit: options.Limit = None,
    cores: Annotated[int | None, typer.Option(help=f"{options.CORES} For all jobs together. Default: all.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=f"{options.SEED} The sampler and every trial.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="URL of a database, e.g. postgresql://... Default: tuning.db in the folder.")
    ] = None,
    out: options.Out = None,
    resume: options.Resume = None,
    sign: options.Sign = None,
) -> Outcome:
    """Search for the best settings with Optuna. Finished trials are saved. Run the same command again to resume.

    Fields of the spec are the same in all trials, except those that the space names.
    """
    signing.check_key(sign)
    if resume is not None:
        settings, out = _stored_settings(resume, storage), resume
    else:
        values = comparison_plan.single_run_values(*of_spec.to_request(epochs=epochs, limit=limit, cores=cores, seed=seed))
        if values.get("epochs") is None and values.get("steps") is None:
            values["epochs"] = EPOCHS
        settings = Tuning(
            values=values,
            space=search_space.read(space),
            space_name=str(space) if space else search_space.DEFAULT_NAME,
            trials=trials,
            jobs=jobs,
            repeats=repeats,
            scheduler=scheduler,
            storage=storage,
            frameworks=frameworks,
            sampler=sampler,
            pruner=pruner,
            objective=objective,
            backend=backend,
        )
    folder = out or store.new_folder("tune", settings.model)
    resume_command = wording.command("tune", "--resume", str(folder))
    invocation.interrupt_message = f"Interrupted. Finished trials are saved. Resume with: {resume_command}"
    try:
        tuned = tuner.tune(settings, invocation.hold(tuner.open_workspace(settings, folder)))
    except Interrupted:
        if (folder / tuner.RECORD_FILE).exists():
            _report(tuner.read(folder), folder, sign).write(folder)
        raise
    return Outcome(_report(tuned, folder, sign), folder)


def _report(tuned: TuningRecord, folder: Path, sign: Path | None) -> Report:
    files = (tuner.PLAN_FILE, tuner.RECORD_FILE)
    return document.with_signature(tuning_report.report(tuned, folder), folder, files, sign, f"tune --resume {folder}")


def _stored_settings(folder: Path, storage: str | None) -> Tuning:
    """The settings of `--resume`: those of the folder."""
    settings = tuner.stored_settings(folder)
    if storage is not None:
        return settings.model_copy(update={"storage": storage})
    if settings.storage is not None and optuna_study.is_masked(settings.storage):
        raise SpecError(
            f"--resume needs the URL of the storage, because its password is not stored. Received: {settings.storage}. Add "
            "--storage URL."
        )
    return settings
