"""`convtwins conformance TWIN`: try any installed twin over the contract, and say what is missing.

The contract is `docs/a-new-twin.md`. The referee in plain NumPy says what is right, so no other framework is needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from common.machine.private_folder import PrivateFolder
from compare.conformance import description, models, modes, refusals, runs, single_steps, training
from compare.conformance.trial import Faults, Trial
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.core.option_parsing import chosen, names
from compare.execution import contestants, launch, options, store
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table

NAME, RESULTS_FILE, TRIAL_FOLDER = "conformance", "conformance.json", "conformance-trial"


class Check(NamedTuple):
    """One part of the contract."""

    name: str
    faults: list[str]

    @property
    def status(self) -> str:
        return "failed" if self.faults else "passed"


CHECKS: dict[str, Callable[[Trial], Faults]] = {
    "describe": description.check,
    "models": models.check,
    "bad input": refusals.check,
    "training": training.check,
    "single steps": single_steps.check,
    "input": training.check_input,
    "runs": runs.check,
    "modes": modes.check,
}
"""What is tried, in this order, by the names of `--checks`."""


def conform(trial: Trial, checks: Sequence[str]) -> list[Check]:
    """Try a twin. A check that a twin does not survive is failed, and the next one is tried.

    Raises:
        LaunchError: the twin cannot even describe itself.
    """
    trial.out.mkdir(parents=True, exist_ok=True)
    assert trial.description
    made: list[Check] = []
    for name in checks:
        trial.progress(f"conformance: {name}")
        faults: list[str] = []
        try:
            faults.extend(CHECKS[name](trial))
        except Exception as error:  # whatever a faulty twin leads to
            faults.append(f"{type(error).__name__}: {error}")
        made.append(Check(name, [wording.one_line(fault) for fault in faults]))
    return made


def fresh(out: Path) -> Path:
    """The folder for the files of a trial. Files of an earlier trial are removed, so that none of them is judged.

    Raises:
        FolderError: `out` holds something else than an earlier trial.
    """
    store.refuse_others(out, RESULTS_FILE, None, "trial of a twin", own=(TRIAL_FOLDER, *document.files_of(NAME)))
    folder = out / TRIAL_FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    return folder


def command(
    twin: Annotated[str, typer.Argument(metavar="TWIN[@PYTHON]", help="A twin, and the interpreter that has it.")],
    checks: Annotated[str, typer.Option(help=f"With commas, of: {', '.join(CHECKS)}.")] = ",".join(CHECKS),
    out: options.OutOrNone = None,
    as_json: options.AsJson = False,
) -> None:
    """Try an installed twin over the contract, and say what is missing; exit code 1 where a check fails."""
    console = Console(stderr=True)

    def progress(text: str) -> None:
        console.print(text, style="dim", highlight=False)

    with exits.reported(), interruptible(), PrivateFolder() as temporary:
        asked = chosen("--checks", names(checks), tuple(CHECKS))
        name = twin.partition("@")[0]
        (name,) = contestants.choose(None, [f"{name}={twin}"], {}, launch.FRAMEWORKS)
        made = conform(Trial(name, fresh(out or temporary.path), progress), asked)
        code = report(name, made).deliver(out, as_json=as_json)
    raise typer.Exit(code)


def report(name: str, made: Sequence[Check]) -> Report:
    """One line a check, and all that is missing."""
    failed = [check for check in made if check.faults]
    verdict = "does not conform" if failed else "conforms"
    columns = (
        Column("check", "check", pick="name"),
        Column("status", "status"),
        Column("found", "found", pick=lambda check: "" if not check.faults else f"{len(check.faults)}: {check.faults[0]}"),
    )
    missing = [f"{check.name}: {fault}." for check in failed for fault in check.faults]
    said = f"{name} {verdict}: {len(made) - len(failed)} of {len(made)} checks passed."
    untried = [each for each in CHECKS if each not in {check.name for check in made}]
    answers = [
        Paragraph(
            "Fails" if failed else "In part" if untried else "Conforms", [said], "bad" if failed else "" if untried else "good"
        ),
        # Of each check the first fault: all of one check have often one cause.
        Paragraph("Missing", [f"{check.name}: {_first(check.faults)}" for check in failed]),
        Paragraph("Not tried", [wording.listed(untried, len(CHECKS))] if untried else []),
    ]
    return Report(
        title=f"Does the twin {name} keep the contract?",
        name=NAME,
        json_file=RESULTS_FILE,
        marks=[Mark("Contract", verdict, "bad" if failed else "good")],
        findings=[
            ("Verdict", [said]),
            *([("What is missing", missing)] if missing else []),
        ],
        tables=[Table.of("checks", "Checks of the contract", columns, made)],
        values={"verdict": verdict, "checks": [{**check._asdict(), "status": check.status} for check in made]},
        exit_code=exits.RUN_FAILED if failed else 0,
        screen=Screen(
            asked=[f"Does the twin {name} keep the contract?", f"{len(made)} of {len(CHECKS)} checks were tried"],
            answers=[each for each in answers if each.sentences],
            table=Table.of("checks", "Checks of the contract", columns[:2], made),
            next=[("the contract", "docs/a-new-twin.md"), _again(failed)] if failed else [],
        ),
    )


def _first(faults: Sequence[str]) -> str:
    more = len(faults) - 1
    return f"{faults[0]}." + (f" {wording.count(more, 'more fault')}." if more else "")


def _again(failed: Sequence[Check]) -> tuple[str, str]:
    """The command that tries again what failed."""
    return "once mended", f"the same command with {wording.shell(['--checks', ','.join(check.name for check in failed)])}"
