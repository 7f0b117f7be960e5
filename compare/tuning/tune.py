"""`python -m compare tune`: search for the best settings, in every framework, by one or several jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from common import spec
from common.data import sources
from common.spec import SpecError
from compare.comparison import comparison_plan
from compare.core import exits
from compare.core.interrupt import Interrupted, interruptible
from compare.core.option_parsing import chosen, given_besides, names, numbers
from compare.execution import launch, store
from compare.tuning import optuna_study, search_space, tuner, tuning_report
from compare.tuning.optuna_study import OBJECTIVES, PRUNERS, SAMPLERS
from compare.tuning.servers import BACKENDS
from compare.tuning.tuner import Tuning

EPOCHS = 5
"""Epochs of each trial, by default."""

_WITH_RESUME = ("resume", "out", "as_json", "storage")
"""Command parameters that do not change what is searched."""


def command(
    context: typer.Context,
    space: Annotated[Path | None, typer.Option(help="YAML file: ranges by field of the spec. Default: docs/tuning.md.")] = None,
    sampler: Annotated[str, typer.Option(help=f"{', '.join(SAMPLERS)}.")] = "tpe",
    trials: Annotated[int, typer.Option(min=1, help="Of each search.")] = 20,
    jobs: Annotated[str, typer.Option(help="Trials side by side; several numbers, with commas, make a search of each.")] = "1",
    backend: Annotated[
        str, typer.Option(help="threads of one framework process; processes; dask: on a cluster's workers.")
    ] = "threads",
    scheduler: Annotated[str | None, typer.Option(help="tcp://host:port of the Dask cluster. Default: one made here.")] = None,
    pruner: Annotated[str, typer.Option(help=f"Which trials are stopped early: {', '.join(PRUNERS)}.")] = "none",
    objective: Annotated[str, typer.Option(help=f"Of the validation split: {', '.join(OBJECTIVES)}.")] = "loss",
    repeats: Annotated[int, typer.Option(min=1, help="Of each search, with another sampler's seed; verdicts need 5.")] = 1,
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    data: Annotated[str | None, typer.Option(help=f"{', '.join(sources.NAMES)}, or an image folder or archive.")] = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(spec.MODELS)}, or package.module of your own.")] = None,
    epochs: Annotated[int | None, typer.Option(help=f"Of each trial. Default: {EPOCHS}.")] = None,
    limit: Annotated[int | None, typer.Option(help="Training examples to keep.")] = None,
    cores: Annotated[int | None, typer.Option(help="CPU cores of all jobs together. Default: all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampler, and of every trial.")] = None,
    spec_file: Annotated[Path | None, typer.Option("--spec", help="What all trials share (.yaml or .json).")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec, for all trials; the space has the last word.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="URL of a database, e.g. postgresql://... Default: tuning.db in the folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/<time>-tune-<model>.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the tuning in --out, its settings as they were.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Search for the best settings with Optuna. Finished trials are saved. Run the same command again to resume."""
    with exits.told():
        if resume:
            if out is None:
                raise SpecError("--resume needs the folder. Received: no --out. Name the folder of the tuning with --out DIR.")
            _only_with_resume(context)
            settings = tuner.stored_settings(out)
            if storage is not None:
                settings = settings.model_copy(update={"storage": storage})
            elif settings.storage is not None and optuna_study.is_masked(settings.storage):
                raise SpecError(
                    f"--resume needs the URL of the storage again, whose password is written nowhere. Received: "
                    f"{settings.storage}. Say --storage URL."
                )
        else:
            fields = {"data.source": data, "model": model, "epochs": epochs, "data.limit": limit, "cores": cores, "seed": seed}
            settings = Tuning(
                values=_values(spec_file, fields, assignments or []),
                space=search_space.read(space),
                space_name=str(space) if space else search_space.DEFAULT_NAME,
                sampler=cast(Any, _one("--sampler", sampler, SAMPLERS)),
                pruner=cast(Any, _one("--pruner", pruner, PRUNERS)),
                objective=cast(Any, _one("--objective", objective, OBJECTIVES)),
                trials=trials,
                jobs=numbers("--jobs", jobs, least=1),
                repeats=repeats,
                backend=cast(Any, _one("--backend", backend, BACKENDS)),
                scheduler=scheduler,
                storage=storage,
                frameworks=tuple(chosen("--frameworks", names(frameworks), tuple(launch.FRAMEWORKS))),
            )
        folder = out or _default_folder(settings)
        with interruptible():
            try:
                tuned = tuner.tune(settings, folder)
            except Interrupted as interruption:
                if (folder / tuner.RECORD_FILE).exists():
                    tuning_report.write(tuner.read(folder), folder)
                interruption.words = f"Interrupted. What is told is kept: tune --out {folder} --resume goes on."
                raise
            unwritten = tuning_report.write(tuned, folder)
        tuning_report.show(tuned, None if unwritten else folder, as_json=as_json)
        if unwritten:
            typer.echo(unwritten, err=True)
        code = tuned.exit_code or (exits.RUN_FAILED if unwritten else 0)
    raise typer.Exit(code)


def _values(spec_file: Path | None, fields: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Spec values from a file, the options over it, and `--set` over these."""
    made = comparison_plan.values_of_one(None, spec_file, fields, assignments)
    return made if made.get("epochs") is not None or made.get("steps") is not None else {**made, "epochs": EPOCHS}


def _one(option: str, word: str, known: tuple[str, ...]) -> str:
    return chosen(option, [word], known)[0]


def _default_folder(settings: Tuning) -> Path:
    return store.new_folder("tune", str(settings.values.get("model", "simple_cnn")))


def _only_with_resume(context: typer.Context) -> None:
    """Refuse what would make another tuning of the one in the folder.

    Raises:
        SpecError: an option was given that the folder has the say of.
    """
    others = given_besides(context, _WITH_RESUME)
    if others:
        raise SpecError(
            f"--resume takes all settings from its folder. Received also: {', '.join(others)}. Leave them out, or tune in "
            "another folder."
        )
