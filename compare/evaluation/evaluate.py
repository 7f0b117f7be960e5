"""`python -m compare evaluate`: train to the best epoch, and score it on the test split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from common import spec
from common.data import sources
from compare.comparison import comparison_plan
from compare.core import exits, presets, terminal
from compare.core.interrupt import Interrupted, interruptible
from compare.core.option_parsing import names
from compare.core.progress import display
from compare.evaluation import evaluation_report, final_training
from compare.evaluation.final_training import Evaluation
from compare.execution import launch, store

EPOCHS, PATIENCE = 30, 5
"""Epochs of a final training, by default."""


def command(
    preset: Annotated[str | None, typer.Option(help=f"A named comparison: {', '.join(presets.PRESETS)}.")] = None,
    spec_file: Annotated[Path | None, typer.Option("--spec", help="A spec file (.yaml or .json).")] = None,
    data: Annotated[str | None, typer.Option(help=f"{', '.join(sources.NAMES)}, or an image folder or archive.")] = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(spec.MODELS)}, or package.module of your own.")] = None,
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    tuned: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The best fields of a tuning: its folder, or a file of fields.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help=f"Passes over the training split, at most. Default: {EPOCHS}.")] = None,
    patience: Annotated[
        int, typer.Option(min=0, help="Epochs without a better one after which training ends; 0: it never ends early.")
    ] = PATIENCE,
    limit: Annotated[int | None, typer.Option(help="Training examples to keep.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, weights, augmentation and splits.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Trainings of each framework, each with a seed of its own.")] = 1,
    cores: Annotated[int | None, typer.Option(help="CPU cores that each run may use. Default: all.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec, e.g. best_epoch.by=loss.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/<time>-evaluate-<model>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Train every framework to its best validation epoch, and score that epoch on the test split in every way."""
    with exits.told():
        options: dict[str, Any] = {
            "best_epoch.patience": patience or None,
            "data.source": data,
            "model": model,
            "epochs": epochs,
            "data.limit": limit,
            "seed": seed,
            "cores": cores,
        }
        wanted = settings(preset, spec_file, options, assignments or [])
        named = tuple(names(frameworks))
        fields, tuned_on = final_training.read_tuned(tuned, named) if tuned is not None else ({}, None)
        asked = Evaluation(values=wanted, frameworks=named, tuned=fields, tuned_on=tuned_on, repeats=repeats)
        folder = out or store.new_folder("evaluate", str(wanted.get("model", spec.Spec.model_fields["model"].default)))
        try:
            with interruptible(), display(Console(stderr=True)) as shown:
                made = final_training.evaluate(asked, folder, shown)
                shown.say("report")
                evaluation_report.write(made, final_training.data_of(made).test.images, folder)
        except Interrupted as interruption:
            interruption.words = f"Interrupted. The same command with --out {folder} goes on."
            raise
        if as_json:
            typer.echo(evaluation_report.to_json(made))
        else:
            console = terminal.stdout()
            evaluation_report.print_to(console, made)
            files = f"Report: {folder / evaluation_report.REPORT_FILE}; training: {folder / final_training.TRAINING_FOLDER}"
            console.print(Text(files), soft_wrap=True)
    raise typer.Exit(made.exit_code)


def settings(preset: str | None, spec_file: Path | None, options: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The spec's values of a final training: those of `run`, with its mode, and with an own default for epochs.

    Raises:
        SpecError: they contradict each other.
    """
    given = {field: value for field, value in options.items() if value is not None}
    assigned = spec.parse_assignments(assignments)
    stated = spec.read_values(spec_file) if spec_file is not None else {}
    if not {"epochs", "steps"} & (given.keys() | assigned.keys() | stated.keys()):
        given["epochs"] = EPOCHS
    return comparison_plan.values_of_one(preset, spec_file, given, assignments)
