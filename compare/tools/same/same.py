"""`convtwins same`: do two commands of anybody's train the same? If not, where do they part first, and why?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from pydantic import Field, model_validator

from common.artifacts import atomic_files, records
from common.errors import UserError
from common.frozen import Exact
from common.spec import SpecError
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_rules import Excludes, Needs, OneOf
from compare.proof.step_comparison import HOPELESS_RATIO
from compare.proof.step_truth import COPIES, MOST_COPIES
from compare.reporting.document import Report
from compare.results.workspace import FolderKind
from compare.running import options
from compare.tools.same import curves, judging, runs, same_report, subjects
from compare.tools.same.curves import LINES, Curve, LossesError
from compare.tools.same.judging import Copies, CurveComparison
from compare.tools.same.runs import Runner
from compare.tools.same.subjects import LOSSES_WORD, Columns, CommandError, Subject

_GOLDEN_VERSION = 1
_GOLDEN_REMEDY = "Name the file that same --golden has written, or take it back from your repository."
_Step = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class GoldenCurve(Exact):
    """The losses of a command, with what its copies differed by."""

    schema_version: Literal[1] = _GOLDEN_VERSION
    kind: Literal["golden curve"] = "golden curve"
    command: str
    steps: Annotated[list[_Step], Field(min_length=1)]
    losses: list[float]
    epochs: list[_Step] | None = None
    is_counted: bool = False
    rounding: list[float] | None = None
    """Rounding error at each step. None: no copies were made."""
    copies: Annotated[int, Field(ge=0)] = 0
    is_moved: bool = False

    @model_validator(mode="after")
    def _lengths(self) -> GoldenCurve:
        lengths = {len(values) for values in (self.steps, self.losses, self.epochs, self.rounding) if values is not None}
        if len(lengths) != 1 or any(after <= before for before, after in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError("its lists differ in length, or its steps do not ascend")
        return self

    @property
    def curve(self) -> Curve:
        epochs = None if self.epochs is None else np.array(self.epochs, np.int64)
        return Curve(self.command, np.array(self.steps, np.int64), np.array(self.losses), epochs, self.is_counted)

    def rounding_at(self, places: npt.NDArray[np.int64]) -> Copies | None:
        """Return what its copies differed by at some places. None: it has none."""
        if self.rounding is None:
            return None
        return Copies(np.array(self.rounding)[places], self.copies, self.is_moved)


class SideRuns(NamedTuple):
    """One side with its usual run, and its copies so far."""

    subject: Subject
    curve: Curve
    copies: Sequence[Curve] = ()
    moved: bool = True
    """Whether `nudge` moved values in the copies."""
    golden: GoldenCurve | None = None
    """The stored curve that is this side. None: a command or a file is."""

    @property
    def is_copied(self) -> bool:
        return bool(self.copies) and self.moved


class Request(NamedTuple):
    """How copies are made, and what is read."""

    columns: Columns
    copies: int = 0
    ulp: bool = False
    most_steps: int | None = None


@commands.command(
    OneOf(["B", "--golden"], "Name what A is compared with."), Needs("--ulp", "--copies"), Excludes("--golden", "B")
)
def command(
    invocation: Invocation,
    *,
    a: Annotated[str, typer.Argument(help="A command, or a file or folder of losses.")],
    b: Annotated[str | None, typer.Argument(help="Another one.")] = None,
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="Column or tag of the loss. Default: a usual one.")] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Column of the step; {LINES}: count them. Default: a usual one, or lines."),
    ] = None,
    losses: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help=f"Where the commands write, if not to {LOSSES_WORD} or stdout. Twice: A's, then B's."
        ),
    ] = None,
    copies: Annotated[
        int | None,
        typer.Option(
            min=COPIES,
            max=MOST_COPIES,
            help="Run each command again so often, to measure its rounding. Of a file x.csv, read x-copy-1.csv and so on.",
        ),
    ] = None,
    ulp: Annotated[
        bool, typer.Option("--ulp", help="Move inputs by one unit in the last place in the copies: scripts call nudge().")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Compare the first common steps alone.")] = None,
    golden_file: Annotated[
        Path | None, typer.Option("--golden", metavar="FILE", help="Store A's losses there, or compare with those stored.")
    ] = None,
    out: options.OutOrNone = None,
) -> Outcome:
    """Compare the losses of two trainings step by step: same, rounding, or another training; exit code 1 where they part."""
    FolderKind[None](noun="comparison of losses", file=same_report.RESULTS_FILE, allowed=(runs.KEPT_FOLDERS,)).check(out)
    request = Request(Columns(loss, step), copies or 0, ulp, steps)
    golden = None if golden_file is None else _open_golden(golden_file)
    written = losses or [None]
    sides = [subjects.subject("A" if golden is None else "B", a, written[0])]
    if b is not None:
        sides.append(subjects.subject("B", b, written[-1]))
    letters = [side.letter for side in sides if side.words]
    if losses and len(losses) > len(letters):
        raise SpecError(
            "--losses names what a command writes, at most once for each command. "
            f"Received: {len(losses)} for {wording.count(len(letters), 'command')}. Leave it out."
        )
    for side in sides:
        side.refuse_missing_copies(request.copies)
    runner = Runner(runs.new_folder(out) if letters else Path(), invocation.progress)
    if letters:
        invocation.hold(runs.keeping(runner.folder))
        runner.progress.plan(letters * (1 + request.copies))
    words = sys.argv[1:]
    if golden_file is not None and golden is None:
        return Outcome(_store(golden_file, sides[0], request, runner, words), out)
    files_first = sorted(sides, key=lambda side: bool(side.words))  # they may be refused, and commands may take hours
    by_letter = {side.letter: _read(side, request, runner) for side in files_first}
    first, second = golden or by_letter["A"], by_letter["B"]
    comparison = compare(first, second, request, runner)
    return Outcome(same_report.report(comparison, (first.subject, second.subject), words), out)


def read_golden(path: Path) -> SideRuns:
    """Read a stored curve as a side, which has the copies that were stored."""
    golden = records.read(
        path, GoldenCurve, kind="golden curve", remedy=_GOLDEN_REMEDY, version=_GOLDEN_VERSION, raises=LossesError
    )
    return SideRuns(Subject("A", f"{path}: {golden.command}"), golden.curve, golden=golden)


def _open_golden(path: Path) -> SideRuns | None:
    """Read a stored curve. None: there is none yet, and one can be written."""
    try:
        if not path.is_file():
            atomic_files.check_writable(path)
            return None
    except OSError as error:
        raise SpecError(f"--golden cannot be written ({error.strerror}). Received: {path}. Name another file.") from None
    return read_golden(path)


def compare(a: SideRuns, b: SideRuns, request: Request, runner: Runner) -> CurveComparison:
    """Judge without copies, then with those that were asked for, and with more before a small excess is another training."""
    aligned = judging.align(a.curve, b.curve, request.most_steps)

    def judge(sides: Sequence[SideRuns], number: int) -> CurveComparison:
        measured = [_measure(side, places, number, request) for side, places in zip(sides, aligned.places, strict=True)]
        return judging.judge(a.curve, b.curve, aligned, (measured[0], measured[1]), most_steps=request.most_steps)

    latest, number = judge([a, b], 0), 0
    if not request.copies or latest.verdict == "same":
        return latest
    try:
        copied = _copy([a, b], request.copies, request, runner)
        latest, number = judge(copied, request.copies), request.copies
        if 1 < latest.excess <= HOPELESS_RATIO and request.ulp and request.copies < MOST_COPIES:
            if _missing(copied, MOST_COPIES):
                runner.progress.tell(f"{MOST_COPIES} copies, before it is called another training")
            latest = judge(_copy(copied, MOST_COPIES, request, runner), MOST_COPIES)
    except UserError as error:  # the runs so far may have taken hours
        copies = f"with {number} copies" if number else "without copies"
        raise type(error)(f"{error} The answer {copies}: {latest.verdict}.") from None
    return latest


def _store(path: Path, side: Subject, request: Request, runner: Runner, words: Sequence[str]) -> Report:
    """Store the curve of a side, with what its copies differ by."""
    new = _read(side, request, runner)
    if not np.isfinite(new.curve.losses).all():
        place = int(np.argmin(np.isfinite(new.curve.losses)))
        raise SpecError(
            f"--golden stores finite losses. Received: {new.curve.losses[place]} at step {new.curve.steps[place]}. Mend the "
            "training first."
        )
    if request.copies:
        (new,) = _copy([new], request.copies, request, runner)
    curve, copies = new.curve, _measure(new, np.arange(len(new.curve.steps)), request.copies, request)
    golden = GoldenCurve(
        command=side.text,
        steps=curve.steps.tolist(),
        losses=curve.losses.tolist(),
        epochs=None if curve.epochs is None else curve.epochs.tolist(),
        is_counted=curve.is_counted,
        rounding=None if copies is None else copies.rounding.tolist(),
        copies=0 if copies is None else copies.number,
        is_moved=copies is not None and copies.is_moved,
    )
    records.write(path, golden)
    return same_report.stored_report(path, side, curve, words)


def _read(side: Subject, request: Request, runner: Runner) -> SideRuns:
    """Run a command, or read a file and all copies beside it."""
    if side.words:
        return SideRuns(side, runner.run(side, request.columns).curve)
    curve, *copies = (curves.read(path, *request.columns) for path in side.files(MOST_COPIES if request.copies else 0))
    if copies:  # those of other steps are refused before a command runs
        judging.measure_copies(curve, copies, np.arange(0), side.letter, is_moved=request.ulp)
    return SideRuns(side, curve, copies)


def _copy(sides: Sequence[SideRuns], number: int, request: Request, runner: Runner) -> list[SideRuns]:
    """Run commands again until each has so many copies. With `--ulp`, at least one of them has to move values."""
    copied = list(sides)
    runner.progress.plan([copied[place].subject.letter for place in _missing(copied, number)])
    while missing := _missing(copied, number):
        side = copied[missing[0]]
        run = runner.run(side.subject, request.columns, len(side.copies) + 1, number, is_moved=request.ulp)
        if request.ulp and run.moved == 0:
            raise CommandError(
                f"{side.subject.letter} calls nudge(), but no value was moved. Received: {side.subject.text}. Call it on "
                "floating-point values, behind the conversion of integers."
            )
        moved = not request.ulp or bool(run.moved)
        copied[missing[0]] = side._replace(copies=[*side.copies, run.curve], moved=moved)
        if not moved:
            runner.progress.plan([copied[place].subject.letter for place in _missing(copied, number)])
    if request.ulp and not any(side.is_copied for side in copied):
        texts = " and ".join(side.subject.text for side in copied if side.subject.words)
        raise CommandError(
            f"--ulp moves inputs, but no command calls nudge(). Received: {texts}. Add `from convtwins.ulp import nudge` and "
            "call it on the data or the initial weights."
        )
    return copied


def _missing(sides: Sequence[SideRuns], number: int) -> list[int]:
    """Return the places of the sides whose commands have to run again, once for each copy, in turn."""
    return [
        place
        for copy in range(number)
        for place, side in enumerate(sides)
        if side.subject.words and side.moved and len(side.copies) <= copy
    ]


def _measure(side: SideRuns, places: npt.NDArray[np.int64], number: int, request: Request) -> Copies | None:
    """Measure the first copies of a side, at most this number."""
    if side.golden is not None:
        return side.golden.rounding_at(places)
    if not (number and side.is_copied):
        return None
    return judging.measure_copies(side.curve, side.copies[:number], places, side.subject.letter, is_moved=request.ulp)
