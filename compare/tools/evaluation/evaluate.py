"""`convtwins evaluate`: train to the best epoch, and score it on the test split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from common import spec
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.comparison import comparison_plan
from compare.results import store
from compare.results.workspace import Workspace
from compare.running import options
from compare.tools.evaluation import evaluation_report, final_training
from compare.tools.evaluation.final_training import EVALUATION, EvaluationSettings

EPOCHS, PATIENCE = 30, 5
"""Default epochs and patience of a final training."""


@commands.command()
def command(
    invocation: Invocation,
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
) -> Outcome:
    """Train every framework to its best validation epoch, and score that epoch on the test split in every way."""
    option_fields = {
        "best_epoch.patience": patience or None,
        "epochs": epochs,
        "limit": limit,
        "seed": seed,
        "cores": cores,
    }
    values = settings(*of_spec.to_request(**option_fields))
    tuned_fields, tuned_on = final_training.read_tuned(tuned, frameworks) if tuned is not None else ({}, None)
    evaluation_settings = EvaluationSettings(
        values=values, frameworks=frameworks, tuned=tuned_fields, tuned_on=tuned_on, repeats=repeats
    )
    folder = out or store.new_folder("evaluate", str(values.get("model", spec.Spec.model_fields["model"].default)))
    invocation.interrupt_message = f"Interrupted. The same command with {wording.shell(['--out', str(folder)])} goes on."
    workspace = invocation.hold(Workspace.open(folder, EVALUATION))
    record = final_training.evaluate(evaluation_settings, workspace, invocation.progress)
    return Outcome(evaluation_report.report(record, final_training.data_of(record).test.images), folder)


def settings(preset: str | None, spec_file: Path | None, fields: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Return the spec's values of a final training: those of `run`, with its mode, and its own default for epochs."""
    fields = {field: value for field, value in fields.items() if value is not None}
    assigned = spec.parse_assignments(assignments)
    file_values = spec.read_values(spec_file) if spec_file is not None else {}
    if not {"epochs", "steps"} & (fields.keys() | assigned.keys() | file_values.keys()):
        fields["epochs"] = EPOCHS
    return comparison_plan.single_run_values(preset, spec_file, fields, assignments)
