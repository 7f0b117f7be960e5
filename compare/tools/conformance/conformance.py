"""`convtwins conformance TWIN`: check any installed twin against the contract, and say what is missing.

The contract is `docs/a-new-twin.md`. The referee in plain NumPy says what is right, so no other framework is needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from common.machine.private_folder import PrivateFolder
from compare.cli import commands, exits, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_types import Names
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table
from compare.results.workspace import FolderKind
from compare.running import launch, options
from compare.running.twins import Twins
from compare.tools.conformance import interface, runs, training
from compare.tools.conformance.trial import Faults, TwinUnderTest

NAME, RESULTS_FILE, TRIAL_FOLDER = "conformance", "conformance.json", "conformance-trial"


class Check(NamedTuple):
    """One part of the contract."""

    name: str
    faults: list[str]

    @property
    def status(self) -> str:
        return "failed" if self.faults else "passed"


CHECKS: dict[str, Callable[[TwinUnderTest], Faults]] = {
    "describe": interface.check_description,
    "models": interface.check_models,
    "bad input": interface.check_refusals,
    "training": training.check_training,
    "single steps": training.check_single_steps,
    "input": training.check_input,
    "runs": runs.check_runs,
    "modes": training.check_modes,
}
"""Checks by the names of `--checks`, in the order that they run."""


def conform(trial: TwinUnderTest, checks: Sequence[str]) -> list[Check]:
    """Run checks of a twin. An exception fails its check, and the next check runs."""
    trial.out.mkdir(parents=True, exist_ok=True)
    assert trial.description
    checks_done: list[Check] = []
    for name in checks:
        trial.progress(f"conformance: {name}")
        faults: list[str] = []
        try:
            faults.extend(CHECKS[name](trial))
        except Exception as error:  # whatever a faulty twin leads to
            faults.append(f"{type(error).__name__}: {error}")
        checks_done.append(Check(name, [wording.one_line(fault) for fault in faults]))
    return checks_done


def prepare_trial_folder(out: Path) -> Path:
    """Return an empty folder for the files of a trial.

    Files of an earlier trial are removed, so that none of them is judged.
    """
    allowed = (TRIAL_FOLDER, *document.report_files(NAME))
    FolderKind[None](noun="trial of a twin", file=RESULTS_FILE, allowed=allowed).check(out)
    folder = out / TRIAL_FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    return folder


@commands.command()
def command(
    invocation: Invocation,
    twin: Annotated[str, typer.Argument(metavar="TWIN[@PYTHON]", help="A twin, and the interpreter that has it.")],
    checks: Annotated[
        tuple[str, ...], Names(tuple(CHECKS)), typer.Option(help=f"With commas, of: {', '.join(CHECKS)}.")
    ] = tuple(CHECKS),
    out: options.OutOrNone = None,
) -> Outcome:
    """Try an installed twin over the contract, and say what is missing; exit code 1 where a check fails."""
    progress = partial(Console(stderr=True).print, style="dim", highlight=False)
    name = twin.partition("@")[0]
    twins = Twins.choose(None, [f"{name}={twin}"], (), launch.FRAMEWORKS)
    folder = prepare_trial_folder(out or invocation.hold(PrivateFolder()).path)
    results = conform(TwinUnderTest(twins, folder, progress), checks)
    return Outcome(report(name, results), out)


def report(name: str, results: Sequence[Check]) -> Report:
    """Report one line for each check, and all faults."""
    failed = [check for check in results if check.faults]
    verdict = "does not conform" if failed else "conforms"
    columns = (
        Column("check", "check", pick="name"),
        Column("status", "status"),
        Column("found", "found", pick=lambda check: "" if not check.faults else f"{len(check.faults)}: {check.faults[0]}"),
    )
    missing = [f"{check.name}: {fault}." for check in failed for fault in check.faults]
    text = f"{name} {verdict}: {len(results) - len(failed)} of {len(results)} checks passed."
    not_tried = [name for name in CHECKS if name not in {check.name for check in results}]
    label, style = ("Fails", "bad") if failed else ("In part", "") if not_tried else ("Conforms", "good")
    answers = [
        Paragraph(label, [text], style),
        # The first fault of each check: the faults of one check often have one cause.
        Paragraph("Missing", [f"{check.name}: {_first_fault(check.faults)}" for check in failed]),
        Paragraph("Not tried", [wording.listed(not_tried, len(CHECKS))] if not_tried else []),
    ]
    return Report(
        title=f"Does the twin {name} keep the contract?",
        name=NAME,
        json_file=RESULTS_FILE,
        marks=[Mark("Contract", verdict, "bad" if failed else "good")],
        findings=[("Verdict", [text]), *([("What is missing", missing)] if missing else [])],
        tables=[Table.from_items("checks", "Checks of the contract", columns, results)],
        values={"verdict": verdict, "checks": [{**check._asdict(), "status": check.status} for check in results]},
        exit_code=exits.RUN_FAILED if failed else 0,
        screen=Screen(
            subject=[f"Does the twin {name} keep the contract?", f"{len(results)} of {len(CHECKS)} checks were tried"],
            answers=answers,
            table=Table.from_items("checks", "Checks of the contract", columns[:2], results),
            next=[("the contract", "docs/a-new-twin.md"), _rerun_hint(failed)] if failed else [],
        ),
    )


def _first_fault(faults: Sequence[str]) -> str:
    more = len(faults) - 1
    return f"{faults[0]}." + (f" {wording.count(more, 'more fault')}." if more else "")


def _rerun_hint(failed: Sequence[Check]) -> tuple[str, str]:
    """Return the hint how to run the failed checks again."""
    return "once mended", f"the same command with {wording.shell(['--checks', ','.join(check.name for check in failed)])}"
