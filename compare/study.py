"""`python -m compare study`: from the raw images to a conclusion, step by step, as one file says, in one report."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.text import Text

from common import machine, results, spec
from common.datasets import DataRefused
from common.spec import Spec
from compare import content, exits, parity, part, report, store, study_steps, tables
from compare.interrupt import Interrupted, interruptible
from compare.part import Part, Whole
from compare.store import FolderError
from compare.study_file import SCALES, Study
from compare.study_steps import STEPS, Passed, Step

KIND = "study"
SCHEMA_VERSION = 1
STUDY_FILE = "study.json"
STEP_FILE = "step.json"
REPORT_FILE, PAGE_FILE = "report.md", "report.html"
_TABLES_FOLDER = "tables"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Record(_Frozen):
    """study.json: what is studied, and with what."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["study"] = KIND
    created_at: str
    """UTC, ISO 8601."""
    argv: list[str]
    scale: str
    study: Study
    code_hash: str
    machine: dict[str, Any]


class Done(_Frozen):
    """step.json: one step that has come to its end."""

    part: Part
    passed: Passed
    """What the steps after it go on from."""
    seconds: float
    exit_code: int


def command(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What is studied; studies/ holds three.")],
    scale: Annotated[str, typer.Option(help=f"How much of it: {', '.join(SCALES)}.")] = "quick",
    data: Annotated[str | None, typer.Option(help="Other data than the file names: an image folder or archive.")] = None,
    frameworks: Annotated[str | None, typer.Option(help="Which, with commas. Default: as the file says.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the study, e.g. pretrain.repeats=5 or spec.seed=1.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder. Default: results/study-<name>-<scale>; an unfinished study there goes on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the conclusion and every table as JSON.")] = False,
) -> None:
    """Explore, clean, normalise, prove, pre-train serially and in parallel, tune, train finally, evaluate, and conclude."""
    with exits.told(), interruptible():
        given: dict[str, Any] = {} if data is None else {"spec.data.source": data}
        if frameworks is not None:
            given["frameworks"] = [word.strip() for word in frameworks.split(",")]
        study = Study.read(study_file, scale, given | spec.parse_assignments(assignments or []))
        folder = out or Path("results") / f"study-{study_file.stem}-{scale}"
        code = walk(study, scale, folder, as_json=as_json)
    raise typer.Exit(code)


def walk(study: Study, scale: str, folder: Path, *, as_json: bool) -> int:
    """Do every step that has not been done, and print the report.

    Returns:
        The exit code: that of the worst step, or of the interruption.

    Raises:
        SpecError, LaunchError, FolderError: what is asked for cannot be done.
        DataRefused: at the step that cleans; those before it are kept.
    """
    wanted = Record(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=sys.argv[1:],
        scale=scale,
        study=study,
        code_hash=parity.code_digest(study.frameworks, study.base().model),
        machine=machine.describe(),
    )
    with store.locked(folder):
        record = _claim(folder, wanted)
        done: list[Done] = []
        code = 0
        try:
            for number, step in enumerate(STEPS, 1):
                done.append(_do(step, number, study, folder, [each.passed for each in done]))
                _write(record, done, folder)
        except Interrupted as interruption:
            code = interruption.exit_code
        except DataRefused:
            _write(record, done, folder)
            raise
    if code:
        typer.echo(f"Interrupted after {len(done)} of {len(STEPS)} steps. The same command goes on.", err=True)
        return code
    _show(_whole(record, done, folder), folder, as_json=as_json)
    return max((each.exit_code for each in done), default=0)


def _do(step: Step, number: int, study: Study, folder: Path, before: list[Passed]) -> Done:
    """A step's record: the stored one where it came to a good end, else of doing it now, or going on with it."""
    directory = folder / f"{number}-{step.name}"
    if (stored := _stored(directory / STEP_FILE)) is not None and stored.exit_code == 0:
        return stored
    typer.echo(f"{number} of {len(STEPS)}: {step.title}", err=True)
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    passed = Passed.joined(before)
    made = step.do(study, directory, passed)
    done = Done(
        part=study_steps.under(made.part, directory.name),
        passed=made.passed,
        seconds=time.monotonic() - began,
        exit_code=made.exit_code,
    )
    results.write_atomically(directory / STEP_FILE, results.with_checksum(done.model_dump_json()))
    return done


def _stored(path: Path) -> Done | None:
    """The record of a step; None where there is none, or one that cannot be relied on."""
    if not path.exists():
        return None
    try:
        return store.read_record(path, Done, "a step")
    except FolderError as error:
        typer.echo(f"{error} The step is done again.", err=True)
        return None


def _claim(folder: Path, wanted: Record) -> Record:
    """Take a locked folder for a study, new or the same again.

    Raises:
        FolderError: it holds another study, or files of another kind.
    """
    path = folder / STUDY_FILE
    store.refuse_others(folder, STUDY_FILE, KIND, KIND)
    if not path.exists():
        results.write_atomically(path, results.with_checksum(wanted.model_dump_json()))
        return wanted
    stored = store.read_record(path, Record, "a study")
    if difference := _difference(stored, wanted):
        raise FolderError(f"{folder} holds another study ({difference}). Choose another --out, or remove it.")
    return stored


def _difference(stored: Record, wanted: Record) -> str | None:
    there, asked = (store.flat(each.study.model_dump(mode="json")) for each in (stored, wanted))
    ground = store.other_ground((stored.code_hash, wanted.code_hash), (stored.machine, wanted.machine))
    return store.differing(there, asked) or ground


def _whole(record: Record, done: list[Done], folder: Path) -> Whole:
    base: Spec = record.study.base()
    minutes = sum(each.seconds for each in done) / 60
    failed = [each.part.title for each in done if each.exit_code]
    again = [word for word in record.argv if word != "--json"]
    return Whole(
        title=record.study.title,
        overline=f"Study, scale {record.scale}",
        facts=[
            f"{base.model} on {base.data.source}, {', '.join(record.study.frameworks)}; begun {record.created_at}",
            f"{record.machine.get('processor') or 'unknown processor'}, budget of {base.cores} cores",
        ],
        marks=[
            ("Steps", f"{len(done)} of {len(STEPS)}", "good" if len(done) == len(STEPS) else "warn"),
            ("Not as they should be", ", ".join(failed) or "none", "bad" if failed else "good"),
            ("Time", f"{minutes:.1f} minutes", ""),
        ],
        conclusions=[(each.part.title, each.part.conclusions) for each in done if each.part.conclusions],
        parts=[each.part for each in done],
        commands=[
            ("Its environment:", "make setup"),
            ("The study, or what of it is not done:", f"{content.COMPARE} {content.shell(again)}"),
        ],
    )


def _write(record: Record, done: list[Done], folder: Path) -> None:
    """The report so far."""
    whole = _whole(record, done, folder)
    for each in whole.parts:
        for table in each.tables:
            tables.write(table, folder / _TABLES_FOLDER)
    results.write_atomically(folder / REPORT_FILE, part.to_markdown(whole))
    results.write_atomically(folder / PAGE_FILE, part.to_html(whole, folder))


def _show(whole: Whole, folder: Path, *, as_json: bool) -> None:
    if as_json:
        plain = {
            "schema_version": SCHEMA_VERSION,
            "title": whole.title,
            "conclusions": dict(whole.conclusions),
            "parts": [
                {"name": each.name, "sections": dict(each.sections), "tables": list(map(tables.to_plain, each.tables))}
                for each in whole.parts
            ],
        }
        typer.echo(json.dumps(report.finite(plain), indent=1, allow_nan=False))
        return
    console: Console = report.console()
    console.print(Text(whole.title, style="bold"))
    tables.print_sections(console, [(tables.one_line(title), said) for title, said in whole.conclusions])
    console.print(Text(f"Report: {folder / REPORT_FILE}, {PAGE_FILE}"), soft_wrap=True)
