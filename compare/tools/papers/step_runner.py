"""Runner of steps in order, each in a folder of its own, towards one report. Finished steps are not repeated."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import typer

from common.artifacts import records, results
from common.data.sources import DataRefused, synthetic_leaves
from common.frozen import Exact
from common.machine import machine
from compare.cli import exits, wording
from compare.cli.commands import Outcome
from compare.cli.errors import FolderError, LaunchError
from compare.cli.interrupt import Interrupted
from compare.reporting import document, tables
from compare.reporting.document import COMPARE, SET_UP, Mark, Report, Section
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import Column, Table
from compare.results import signing, store
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from compare.running import code_digest, contestants

SCHEMA_VERSION = 1
STEP_FILE = "step.json"

Subject = TypeVar("Subject")


class PassedValues(Exact):
    """Values that a step passes to later steps."""

    best: dict[str, dict[str, Any]] = {}
    """Best values by framework, as {dotted field of the spec: value}."""
    raw: str | None = None
    """Hash of the data before they are cleaned, or the reason why they are refused so."""
    data_hash: str | None = None
    """Hash of the cleaned data. All later steps use them."""

    @classmethod
    def joined(cls, before: Sequence[Self]) -> Self:
        """Join everything that the steps before have passed on."""
        fields: dict[str, Any] = {}
        for values in before:
            fields |= values.model_dump(exclude_defaults=True)
        return cls.model_validate(fields)


@dataclass(frozen=True)
class StepResult:
    """Result of a step."""

    part: Section
    passed: PassedValues = field(default_factory=PassedValues)
    exit_code: int = 0


@dataclass(frozen=True)
class WorkflowStep(Generic[Subject]):
    """One step: its name, which is also its folder's name, and its function."""

    name: str
    title: str
    run: Callable[[Subject, Path, PassedValues], StepResult]
    """Function of the step. Paths in the section that it returns are relative to its own folder."""
    runs_every_time: bool = False
    """Whether the step only reads the other steps' results. It then runs each time, because they may have changed."""


class StepsRecord(PlannedWork):
    """Contents of `<kind>.json`: the steps and their settings."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    created_at: str
    """UTC, ISO 8601."""
    argv: list[str]
    settings: dict[str, Any]
    """All settings that identify the run of the steps."""

    def identity(self) -> dict[str, Any]:
        return self.settings

    @classmethod
    def create(cls, kind: str, settings: dict[str, Any], frameworks: Sequence[str], model: str) -> Self:
        """Create the record of a run of steps that starts now.

        Args:
            kind: kind of the steps, which names their file.
            settings: settings, JSON-ready.
            frameworks: frameworks whose code is run.
            model: model of the spec.
        """
        return cls(
            kind=kind,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=sys.argv[1:],
            settings=settings,
            code_hash=code_digest.compute(contestants.resolve(frameworks), model),
            machine=machine.describe(),
        )


class FinishedStep(Exact):
    """Contents of step.json: a finished step."""

    part: Section
    passed: PassedValues
    """Values that the step passes to later steps."""
    seconds: float
    exit_code: int
    made_from: dict[str, str] = {}
    """SHA-256 of the plan and the results of each comparison of the step, by their paths. `run --resume` changes them: with
    more repeats, or where a run was removed or torn."""


def folder_kind(kind: str) -> FolderKind[StepsRecord]:
    """Return the kind of folder that steps of this kind run in."""
    return FolderKind(
        noun=kind,
        file=f"{kind}.json",
        kind=kind,
        record=StepsRecord,
        has_started=lambda folder: any(folder.glob(f"*/{STEP_FILE}")),
    )


def run_steps(
    requested: StepsRecord,
    steps: Sequence[WorkflowStep[Subject]],
    subject: Subject,
    workspace: Workspace[StepsRecord],
    report: Callable[[StepsRecord, list[FinishedStep]], Report],
    *,
    sign: Path | None,
) -> Outcome | int:
    """Run every step that is not finished or runs each time, and write the report.

    Args:
        requested: the record, as if the run started now.
        steps: in order.
        workspace: gets the record, the report, and a folder of each step.
        report: makes the report of the steps so far.
        sign: the SSH key that signs the records of the steps, and each comparison in them separately.

    Returns:
        The report and the exit code: the worst step's, or 1 if a signature fails. If interrupted, the exit code alone.
    """
    runner = _StepRunner(workspace.claim(requested), steps, subject, workspace.folder, report, sign)
    try:
        runner.run()
        whole = runner.signed_report()
        write(whole, runner.folder)
    except Interrupted as interruption:
        if sign is not None:
            write(runner.signed_report(), runner.folder)
        typer.echo(f"Interrupted after {len(runner.done)} of {len(steps)} steps. The same command goes on.", err=True)
        return interruption.exit_code
    except DataRefused:
        write(runner.current_report(), runner.folder)
        raise
    worst = max((finished.exit_code for finished in runner.done), default=0)
    return Outcome(document.WrittenReport(whole), runner.folder, lambda code: max(code, worst))


@dataclass
class _StepRunner(Generic[Subject]):
    """Runs steps in an opened folder, and reports those that are done."""

    record: StepsRecord
    steps: Sequence[WorkflowStep[Subject]]
    subject: Subject
    folder: Path
    report: Callable[[StepsRecord, list[FinishedStep]], Report]
    sign: Path | None
    done: list[FinishedStep] = field(default_factory=list[FinishedStep])

    def run(self) -> None:
        """Run every step that is not finished or runs each time. Write the report after each."""
        for number, step in enumerate(self.steps, 1):
            directory = self.folder / f"{number}-{step.name}"
            stored = None if step.runs_every_time else _load_finished(directory / STEP_FILE)
            if stored is not None:
                self.done.append(stored)
                continue
            typer.echo(f"{number} of {len(self.steps)}: {step.title}", err=True)
            self.done.append(_do(step, directory, self.subject, [finished.passed for finished in self.done]))
            write(self.current_report(), self.folder)

    def current_report(self) -> Report:
        # A step that only reads the others runs each time, and has no time of its own.
        timed_steps = [finished for step, finished in zip(self.steps, self.done, strict=False) if not step.runs_every_time]
        return _with_times(self.report(self.record, self.done), timed_steps)

    def signed_report(self) -> Report:
        numbered = enumerate(self.steps, 1)
        places = [f"{number}-{step.name}/{STEP_FILE}" for number, step in numbered if not step.runs_every_time]
        unsigned = self._unsigned(self.sign) if self.sign is not None else []
        for sentence in unsigned:
            typer.echo(sentence, err=True)
        repeat_words = f"the same command and --out {self.folder}"
        files = (f"{self.record.kind}.json", *places)
        whole = document.with_signature(self.current_report(), self.folder, files, self.sign, repeat_words)
        return replace(whole, exit_code=whole.exit_code or (exits.RUN_FAILED if unsigned else 0))

    def _unsigned(self, key: Path) -> list[str]:
        """Sign each comparison within the folder. Return the reasons of those that could not be signed."""
        reasons: list[str] = []
        for plan in self.folder.rglob(store.PLAN_FILE):
            try:
                reason = signing.sign(plan.parent, store.read(plan.parent).made_from, key)
            except FolderError as error:
                reason = str(error)
            reasons += [reason] if reason else []
        return reasons


def _do(step: WorkflowStep[Subject], directory: Path, subject: Subject, before: list[PassedValues]) -> FinishedStep:
    """Run or resume a step, and return its record."""
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    result = step.run(subject, directory, PassedValues.joined(before))
    done = FinishedStep(
        part=under(result.part, directory.name),
        passed=result.passed,
        seconds=time.monotonic() - began,
        exit_code=result.exit_code,
        made_from=_made_from(directory),
    )
    records.write(directory / STEP_FILE, done)
    return done


def under(part: Section, folder: str) -> Section:
    """Return the section of a step for the report of all steps, one folder above."""
    return replace(
        part,
        pictures=[f"{folder}/{path}" for path in part.pictures],
        more=[f"{folder}/{path}" for path in part.more],
    )


def _load_finished(path: Path) -> FinishedStep | None:
    """Load the record of a step that finished well. None if it is missing or unreliable, or if a comparison has changed."""
    if not path.exists():
        return None
    try:
        done = store.read_record(path, FinishedStep, "a step")
    except FolderError as error:
        typer.echo(f"{error} The step is done again.", err=True)
        return None
    return None if done.exit_code or done.made_from != _made_from(path.parent) else done


def _made_from(step: Path) -> dict[str, str]:
    files = [*step.rglob(store.PLAN_FILE), *step.rglob(f"{store.RUNS_FOLDER}/*/{results.RESULT_FILE}")]
    return {str(file.relative_to(step)): signing.sha256(file) for file in sorted(files)}


def complete(draft: Report, screen: Screen, record: StepsRecord, done: Sequence[FinishedStep], num_steps: int) -> Report:
    """Add to the report of a command what every report on steps has: their sections, failures, cautions and duration.

    Args:
        draft: report of the command. Its sections are the steps' own in another order, if it has any.
        screen: its first screen. Failures come before its answers.
    """
    failed = [finished for finished in done if finished.exit_code]
    failed_titles = ", ".join(finished.part.title for finished in failed)
    cautions = sum(
        len(sentences) for finished in done for heading, sentences in finished.part.findings if heading == "Cautions"
    )
    parts = draft.sections or [finished.part for finished in done]
    answers = [Paragraph("Failed", list(map(_failure, failed)), "bad"), *screen.answers]
    return replace(
        draft,
        marks=[
            *draft.marks,
            Mark("Steps", f"{len(done)} of {num_steps}", "good" if len(done) == num_steps else "warn"),
            Mark("Steps with a failure", failed_titles or "none", "bad" if failed else "good"),
            Mark("Time", f"{_minutes(done):.1f} minutes"),
        ],
        findings=[(part.title, part.conclusions) for part in parts if part.conclusions],
        sections=parts,
        commands=_commands(record),
        screen=replace(screen, answers=answers, remarks=caution_count(cautions)),
    )


def _failure(finished: FinishedStep) -> str:
    place = f" Its report: {finished.part.more[0]}" if finished.part.more else ""
    return f"{finished.part.name}: {finished.part.title} (exit code {finished.exit_code}).{place}"


def _minutes(done: Sequence[FinishedStep]) -> float:
    return sum(finished.seconds for finished in done) / 60


def progress(done: Sequence[FinishedStep], num_steps: int) -> str:
    """Say how many steps are done, and in what time."""
    return f"{len(done)} of {num_steps} steps in {_minutes(done):.1f} minutes"


def trouble_paragraph(done: Sequence[FinishedStep], *more: str) -> Paragraph:
    """Return what changes the answer, for the first screen.

    Args:
        more: sentences on all steps.
    """
    return Paragraph(
        "Trouble",
        [*more, *(f"{finished.part.name}: {sentence}" for finished in done for sentence in finished.part.trouble)],
        "bad",
    )


def data_warning(source: str) -> list[str]:
    """Return a warning about the data, for a reader of the figures. Empty if there is none."""
    sentence = (
        f"The data are synthetic: {source} are drawn leaves, not photographs. Their scores say nothing about real images."
    )
    return [sentence] if synthetic_leaves.is_source(source) else []


def _with_times(report: Report, done: Sequence[FinishedStep]) -> Report:
    """Return a report with the seconds of each step, and its JSON."""
    table = Table(
        "steps",
        "Seconds of each step",
        (Column("step", "step"), Column("seconds", "seconds", 0)),
        [{"step": finished.part.title, "seconds": finished.seconds} for finished in done],
        note="Of a step that was cut short and resumed, the last part alone",
    )
    parts = [*report.sections, Section(name="times", title="What it took", tables=[table])]
    parts_json = [
        {"name": part.name, "sections": dict(part.findings), "tables": list(map(tables.to_plain, part.tables))}
        for part in parts
    ]
    values = {
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "conclusions": {title: list(sentences) for title, sentences in report.findings},
        "parts": parts_json,
    }
    return replace(report, sections=parts, values=values, exit_code=max((finished.exit_code for finished in done), default=0))


def _commands(record: StepsRecord) -> list[tuple[str, str]]:
    """Return (purpose, command line) of each command that repeats the run."""
    words = [word for word in document.without_options(record.argv, "--sign") if word != "--json"]
    return [
        *SET_UP,
        (f"The {record.kind}, or what of it is not done:", f"{COMPARE} {wording.shell(words)}"),
    ]


def write(report: Report, folder: Path) -> None:
    """Write a report."""
    if unwritten := report.write(folder):
        raise LaunchError(unwritten)
