"""`convtwins evaluate`: train to the best epoch, and score it on the test split."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from common import spec
from compare.comparison import comparison_plan
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.core.option_parsing import split_names
from compare.core.progress import display
from compare.evaluation import evaluation_report, final_training
from compare.evaluation.final_training import Evaluation
from compare.execution import contestants, launch, options, store

EPOCHS, PATIENCE = 30, 5
"""Epochs of a final training, by default."""


@options.grouped
def command(
    *,
    of_spec: options.SpecOptions,
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
    tuned: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The best fields of a tuning: its folder, or a file of fields.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help=f"{options.EPOCHS} At most, see --patience. Default: {EPOCHS}.")] = None,
    patience: Annotated[
        int, typer.Option(min=0, help="Training ends after this many epochs without a better one. 0: it never ends early.")
    ] = PATIENCE,
    limit: options.Limit = None,
    seed: options.Seed = None,
    repeats: Annotated[int, typer.Option(min=1, help=f"{options.REPEATS} Each time with another seed.")] = 1,
    cores: options.Cores = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Train every framework to its best validation epoch, and score that epoch on the test split in every way."""
    with exits.exit_on_error():
        own = {"best_epoch.patience": patience or None, "epochs": epochs, "limit": limit, "seed": seed, "cores": cores}
        wanted = settings(*of_spec.to_request(**own))
        named = tuple(contestants.builtin_twins("--frameworks", split_names(frameworks), launch.FRAMEWORKS))
        fields, tuned_on = final_training.read_tuned(tuned, named) if tuned is not None else ({}, None)
        asked = Evaluation(values=wanted, frameworks=named, tuned=fields, tuned_on=tuned_on, repeats=repeats)
        folder = out or store.new_folder("evaluate", str(wanted.get("model", spec.Spec.model_fields["model"].default)))
        with (
            interruptible(f"Interrupted. The same command with {wording.shell(['--out', str(folder)])} goes on."),
            ExitStack() as lock,
        ):
            with display() as shown:
                made = final_training.evaluate(asked, folder, shown, lock)
                report = evaluation_report.report(made, final_training.data_of(made).test.images)
            code = report.deliver(folder, as_json=as_json)
    raise typer.Exit(code)


def settings(preset: str | None, spec_file: Path | None, given: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The spec's values of a final training: those of `run`, with its mode, and its own default for epochs.

    Raises:
        SpecError: they contradict each other.
    """
    given = {field: value for field, value in given.items() if value is not None}
    assigned = spec.parse_assignments(assignments)
    stated = spec.read_values(spec_file) if spec_file is not None else {}
    if not {"epochs", "steps"} & (given.keys() | assigned.keys() | stated.keys()):
        given["epochs"] = EPOCHS
    return comparison_plan.single_run_values(preset, spec_file, given, assignments)
