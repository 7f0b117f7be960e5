"""`convtwins study`: run a study file, from raw images to a conclusion, in one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from common import spec
from common.machine.machine import processors
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_types import Choice, Names
from compare.reporting.document import Report
from compare.reporting.screen import Paragraph, Screen
from compare.results import signing
from compare.results.workspace import Workspace
from compare.running import options
from compare.tools.papers import step_runner
from compare.tools.papers.step_runner import FinishedStep, StepsRecord
from compare.tools.papers.study_file import SCALES, Study
from compare.tools.papers.study_steps import STEPS

KIND = "study"


@commands.command()
def command(
    invocation: Invocation,
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What is studied; studies/ holds three.")],
    scale: Annotated[str, Choice(SCALES), typer.Option(help=f"How much of it: {', '.join(SCALES)}.")] = "quick",
    data: Annotated[str | None, typer.Option(help=f"{options.DATA} Default: as the file says.")] = None,
    frameworks: Annotated[
        tuple[str, ...] | None, Names(), typer.Option(help=f"{options.FRAMEWORKS} Default: as the file says.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the study, e.g. pretrain.repeats=5 or spec.seed=1.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"{options.OUT} Default: results/study-<name>-<scale>. What is unfinished there goes on."),
    ] = None,
    sign: options.Sign = None,
) -> Outcome | int:
    """Explore, clean, normalise, prove, pre-train serially and in parallel, tune, train finally, evaluate, and conclude."""
    signing.check_key(sign)
    overrides: dict[str, Any] = {} if data is None else {"spec.data.source": data}
    if frameworks is not None:
        overrides["frameworks"] = [*frameworks]
    study = Study.read(study_file, scale, overrides | spec.parse_assignments(assignments or []))
    if "source" not in study.spec.get("data", {}):
        default = study.base().data.source
        typer.echo(f"{study_file} names no data. The study takes {default}. Name others with --data.", err=True)
    folder = out or Path("results") / f"study-{study_file.stem}-{scale}"
    settings = study.model_dump(mode="json") | {"scale": scale}
    record = StepsRecord.create(KIND, settings, study.frameworks, study.base().model)
    workspace = invocation.hold(Workspace.open(folder, step_runner.folder_kind(KIND)))
    return step_runner.run_steps(record, STEPS, study, workspace, lambda record, done: _report(study, record, done), sign=sign)


def _report(study: Study, record: StepsRecord, done: list[FinishedStep]) -> Report:
    base, scale = study.base(), record.settings["scale"]
    warnings = step_runner.data_warning(base.data.source)
    answers = [
        Paragraph(
            finished.part.name.capitalize(),
            finished.part.first or finished.part.conclusions,
            "bad" if finished.exit_code else "",
        )
        for finished in done
    ]
    draft = Report(
        title=study.title,
        overline=f"Study, scale {scale}",
        facts=[
            f"{base.model} on {base.data.source}, {', '.join(study.frameworks)}; begun {record.created_at}",
            f"{processors(record.machine)}, budget of {base.cores} cores",
            *warnings,
        ],
    )
    screen = Screen(
        subject=[
            f"{study.title}: {base.model} on {base.data.source}, {wording.joined(study.frameworks)}",
            f"scale {scale}, {step_runner.progress(done, len(STEPS))}",
            f"{wording.count(base.cores, 'core')} of {processors(record.machine)}",
        ],
        answers=[*answers, step_runner.trouble_paragraph(done, *warnings)],
    )
    return step_runner.complete(draft, screen, record, done, len(STEPS))
