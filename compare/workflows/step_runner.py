"""Runs steps in order, each in a folder of its own, towards one report. Finished steps are not repeated."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import typer

from common.artifacts import records, results
from common.data.sources import DataRefused, synthetic_leaves
from common.frozen import Exact
from common.machine import machine
from common.machine.machine import Facts
from compare.core import exits, wording
from compare.core.errors import FolderError, LaunchError
from compare.core.interrupt import Interrupted
from compare.execution import code_digest, results_folder, signing, store
from compare.reporting import document, tables
from compare.reporting.document import COMPARE, SET_UP, Mark, Report, Section
from compare.reporting.screen import Paragraph, caution_count
from compare.reporting.tables import Column, Table

SCHEMA_VERSION = 1
STEP_FILE = "step.json"

Subject = TypeVar("Subject")


class Passed(Exact):
    """What a step passes to later steps."""

    best: dict[str, dict[str, Any]] = {}
    """framework: {dotted field of the spec: the best value found}."""
    raw: str | None = None
    """Hash of the data before they are cleaned, or why they are refused so."""
    data_hash: str | None = None
    """Hash of the cleaned data. All later steps use them."""

    @classmethod
    def joined(cls, before: Sequence[Self]) -> Self:
        """Everything that the steps before have passed on."""
        fields: dict[str, Any] = {}
        for each in before:
            fields |= each.model_dump(exclude_defaults=True)
        return cls.model_validate(fields)


@dataclass(frozen=True)
class Made:
    """Result of a step."""

    part: Section
    passed: Passed = field(default_factory=Passed)
    exit_code: int = 0


@dataclass(frozen=True)
class Step(Generic[Subject]):
    """One step: its name, which is also its folder's name, and its function."""

    name: str
    title: str
    do: Callable[[Subject, Path, Passed], Made]
    """Paths in the section that it makes are relative to its own folder."""
    anew: bool = False
    """Whether it only reads the other steps' results. It then runs each time, because they may have changed."""


class Record(Exact):
    """`<kind>.json`: the steps and their settings."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    created_at: str
    """UTC, ISO 8601."""
    argv: list[str]
    settings: dict[str, Any]
    """Everything that identifies it."""
    code_hash: str
    machine: Facts

    @classmethod
    def of(cls, kind: str, settings: dict[str, Any], frameworks: Sequence[str], model: str) -> Self:
        """The record of a run of steps that starts now.

        Args:
            kind: as it names its file.
            settings: JSON-ready.
            frameworks: whose code it runs.
            model: the spec's.
        """
        return cls(
            kind=kind,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=sys.argv[1:],
            settings=settings,
            code_hash=code_digest.compute(frameworks, model),
            machine=machine.describe(),
        )


class Done(Exact):
    """step.json: a finished step."""

    part: Section
    passed: Passed
    """What it passes to later steps."""
    seconds: float
    exit_code: int
    made_from: dict[str, str] = {}
    """SHA-256 of the plan and the results of each comparison of the step, by their paths. `run --resume` changes them: with
    more repeats, or where a run was removed or torn."""


def refuse_used(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """Refuse the folder at once for what shows before anything is prepared; `run_steps` judges the rest.

    Args:
        settings: those that are known already.

    Raises:
        FolderError: it cannot be written, or holds steps with other settings, or other files.
    """
    results_folder.refuse_other_request(
        folder,
        f"{kind}.json",
        Record,
        kind,
        settings,
        identity=lambda record: record.settings,
        kind=kind,
        has_started=partial(_is_begun, folder),
    )


def _is_begun(folder: Path) -> bool:
    return any(folder.glob(f"*/{STEP_FILE}"))


def run_steps(
    wanted: Record,
    steps: Sequence[Step[Subject]],
    subject: Subject,
    folder: Path,
    report: Callable[[Record, list[Done]], Report],
    *,
    sign: Path | None,
    as_json: bool,
) -> int:
    """Run every step that is not finished or runs each time, and print the report.

    Args:
        wanted: the record, as if the run started now.
        steps: in order.
        report: makes the report of the steps so far.
        sign: the SSH key that signs the records of the steps, and each comparison in them by itself.

    Returns:
        The exit code: the worst step's, 1 if a signature fails, or the interruption's.

    Raises:
        SpecError, LaunchError, FolderError: the request cannot be carried out.
        DataRefused: at the step that reads the data; earlier steps are kept.
    """
    done: list[Done] = []
    with results_folder.open_or_resume(
        folder,
        f"{wanted.kind}.json",
        wanted,
        wanted.kind,
        identity=lambda record: record.settings,
        has_started=partial(_is_begun, folder),
    ) as record:

        def made() -> Report:
            # A step that only reads the others runs each time, and has no time of its own.
            once = [each for step, each in zip(steps, done, strict=False) if not step.anew]
            return _with_times(report(record, done), once)

        def signed() -> Report:
            places = [f"{number}-{step.name}/{STEP_FILE}" for number, step in enumerate(steps, 1) if not step.anew]
            unsigned = _unsigned(folder, sign) if sign is not None else []
            for said in unsigned:
                typer.echo(said, err=True)
            again = f"the same command and --out {folder}"
            whole = document.with_signature(made(), folder, (f"{wanted.kind}.json", *places), sign, again)
            return replace(whole, exit_code=whole.exit_code or (exits.RUN_FAILED if unsigned else 0))

        try:
            for number, step in enumerate(steps, 1):
                directory = folder / f"{number}-{step.name}"
                known = None if step.anew else _stored(directory / STEP_FILE)
                if known is not None:
                    done.append(known)
                    continue
                typer.echo(f"{number} of {len(steps)}: {step.title}", err=True)
                done.append(_do(step, directory, subject, [each.passed for each in done]))
                _written(made(), folder)
            whole = signed()
            _written(whole, folder)
        except Interrupted as interruption:
            if sign is not None:
                _written(signed(), folder)
            typer.echo(f"Interrupted after {len(done)} of {len(steps)} steps. The same command goes on.", err=True)
            return interruption.exit_code
        except DataRefused:
            _written(made(), folder)
            raise
    whole.show(folder, as_json=as_json)
    return max([whole.exit_code, *(each.exit_code for each in done)])


def _unsigned(folder: Path, key: Path) -> list[str]:
    """Sign each comparison within a folder. Which are not signed, and why."""
    said: list[str] = []
    for plan in folder.rglob(store.PLAN_FILE):
        try:
            why = signing.sign(plan.parent, store.read(plan.parent).made_from, key)
        except FolderError as error:
            why = str(error)
        said += [why] if why else []
    return said


def _do(step: Step[Subject], directory: Path, subject: Subject, before: list[Passed]) -> Done:
    """Run or resume a step, and return its record."""
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    made = step.do(subject, directory, Passed.joined(before))
    done = Done(
        part=under(made.part, directory.name),
        passed=made.passed,
        seconds=time.monotonic() - began,
        exit_code=made.exit_code,
        made_from=_made_from(directory),
    )
    records.write(directory / STEP_FILE, done)
    return done


def under(part: Section, folder: str) -> Section:
    """The section of a step for the report of all steps, one folder above."""
    return replace(
        part,
        pictures=[f"{folder}/{each}" for each in part.pictures],
        more=[f"{folder}/{each}" for each in part.more],
    )


def _stored(path: Path) -> Done | None:
    """The record of a step that finished well. None if it is missing or unreliable, or a comparison of the step has changed."""
    if not path.exists():
        return None
    try:
        done = store.read_record(path, Done, "a step")
    except FolderError as error:
        typer.echo(f"{error} The step is done again.", err=True)
        return None
    return None if done.exit_code or done.made_from != _made_from(path.parent) else done


def _made_from(step: Path) -> dict[str, str]:
    files = [*step.rglob(store.PLAN_FILE), *step.rglob(f"{store.RUNS_FOLDER}/*/{results.RESULT_FILE}")]
    return {str(file.relative_to(step)): signing.sha256(file) for file in sorted(files)}


def marks(done: Sequence[Done], steps: int) -> list[Mark]:
    """Progress, problems and duration, for the head of a report."""
    failed = [each.part.title for each in done if each.exit_code]
    minutes = sum(each.seconds for each in done) / 60
    return [
        Mark("Steps", f"{len(done)} of {steps}", "good" if len(done) == steps else "warn"),
        Mark("Steps with a failure", ", ".join(failed) or "none", "bad" if failed else "good"),
        Mark("Time", f"{minutes:.1f} minutes"),
    ]


def failed(done: Sequence[Done]) -> Paragraph:
    """Which steps failed, for the first screen."""
    where = [f" Its report: {each.part.more[0]}" if each.part.more else "" for each in done]
    said = [
        f"{each.part.name}: {each.part.title} (exit code {each.exit_code}).{place}"
        for each, place in zip(done, where, strict=True)
        if each.exit_code
    ]
    return Paragraph("Failed", said, "bad")


def trouble(done: Sequence[Done], *more: str) -> Paragraph:
    """What changes the answer, for the first screen.

    Args:
        more: sentences on all steps.
    """
    return Paragraph("Trouble", [*more, *(f"{each.part.name}: {said}" for each in done for said in each.part.trouble)], "bad")


def remarks(done: Sequence[Done]) -> list[str]:
    """How many cautions the steps have, for the first screen."""
    number = sum(len(said) for each in done for heading, said in each.part.findings if heading == "Cautions")
    return caution_count(number)


def on_the_data(source: str) -> list[str]:
    """What a reader must know of the data before the figures."""
    said = f"The data are synthetic: {source} are drawn leaves, not photographs. Their scores say nothing about real images."
    return [said] if synthetic_leaves.is_source(source) else []


def _with_times(report: Report, done: Sequence[Done]) -> Report:
    """A report with the seconds of each step, and its JSON."""
    table = Table(
        "steps",
        "Seconds of each step",
        (Column("step", "step"), Column("seconds", "seconds", 0)),
        [{"step": each.part.title, "seconds": each.seconds} for each in done],
        note="Of a step that was cut short and resumed, the last part alone",
    )
    parts = [*report.sections, Section(name="times", title="What it took", tables=[table])]
    plain = [
        {"name": each.name, "sections": dict(each.findings), "tables": list(map(tables.to_plain, each.tables))}
        for each in parts
    ]
    values = {
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "conclusions": {title: list(said) for title, said in report.findings},
        "parts": plain,
    }
    return replace(report, sections=parts, values=values, exit_code=max((each.exit_code for each in done), default=0))


def commands(record: Record) -> list[tuple[str, str]]:
    """(purpose, command line) of each command that repeats it."""
    again = [word for word in document.without_options(record.argv, "--sign") if word != "--json"]
    return [
        *SET_UP,
        (f"The {record.kind}, or what of it is not done:", f"{COMPARE} {wording.shell(again)}"),
    ]


def _written(report: Report, folder: Path) -> None:
    """The report so far.

    Raises:
        LaunchError: it cannot be written.
    """
    if unwritten := report.write(folder):
        raise LaunchError(unwritten)
