"""`python -m compare regress`: did a change make training slower, larger, less accurate, or different?"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from common.artifacts import atomic_files
from common.data.sources import DataRefused
from common.spec import SpecError
from compare.comparison import comparison_plan, run
from compare.core import exits, presets, terminal, wording
from compare.core.errors import FolderError, LaunchError
from compare.core.interrupt import Interrupted, interruptible
from compare.core.option_parsing import chosen, names, variants
from compare.core.presets import Preset
from compare.core.progress import display
from compare.core.statistics import CONFIDENCE, VERDICT_PAIRS, Spread, p_words, resolution_words
from compare.execution import launch, matrix
from compare.execution.matrix import Row
from compare.judgement import measurements
from compare.judgement.measurements import METRICS, MORE_IS_BETTER, SECONDS, Measured
from compare.regression import judging, revisions
from compare.regression.judging import ACCURACY, EXIT_OK, EXIT_REGRESSION, JUDGED, UNTOLD, Change, Criteria, Judgement
from compare.regression.revisions import BASE, HEAD, MARK_FILE
from compare.reporting import tables
from compare.reporting.tables import Column, Table

JSON_FILE, MARKDOWN_FILE = "regress.json", "regress.md"
"""File that `--interleaved` writes beside its runs."""

PAIRS = 6
"""One more than a verdict needs: with five pairs, a family of two rows finds a tenth in less than 90 % of cases."""
_EPOCHS = 4
"""Epochs of an interleaved run, by default: a few seconds a run, the median of a few epochs."""

_CHOICES = tuple(name for name in METRICS if name not in MORE_IS_BETTER)


_OF_INTERLEAVED = {
    "repeats": "--repeats",
    "preset": "--preset",
    "spec_file": "--spec",
    "frameworks": "--frameworks",
    "modes": "--modes",
    "assignments": "--set",
    "proof": "--proof",
    "out": "--out",
}


def command(
    context: typer.Context,
    baseline: Annotated[
        Path | None, typer.Argument(help="What was: a results folder, or a folder of pytest-benchmark files.")
    ] = None,
    candidate: Annotated[
        Path | None, typer.Argument(help="What is. Default: the newest beside the baseline that measured the same.")
    ] = None,
    threshold: Annotated[str, typer.Option(help="Part by which seconds or MiB must grow.")] = "5%",
    accuracy_threshold: Annotated[str, typer.Option(help="Accuracy, of 100%, that must be lost.")] = "1%",
    metric: Annotated[
        str | None,
        typer.Option(help=f"Which, with commas, of {', '.join(_CHOICES)}. Default: {', '.join(JUDGED)}, where measured."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Rows or benchmarks whose id matches, e.g. 'pytorch-*'.")] = None,
    revision: Annotated[
        str | None, typer.Option("--interleaved", metavar="REV", help="Measure this revision and the checked-out one in turn.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved: runs of each row and revision; a verdict needs 5.")] = PAIRS,
    preset: Annotated[str | None, typer.Option(help=f"Interleaved: {', '.join(presets.PRESETS)}.")] = None,
    spec_file: Annotated[Path | None, typer.Option("--spec", help="Interleaved: a spec file (.yaml or .json).")] = None,
    frameworks: Annotated[str, typer.Option(help="Interleaved: which, with commas.")] = ",".join(launch.FRAMEWORKS),
    modes: Annotated[str, typer.Option(help="Interleaved: which, with commas; or all.")] = "serial",
    assignments: Annotated[list[str] | None, typer.Option("--set", help="Interleaved: field=value of the spec.")] = None,
    proof: Annotated[bool, typer.Option("--proof", help="Interleaved: prove the checked-out revision's training too.")] = False,
    out: Annotated[Path | None, typer.Option(help="Interleaved: results folder. Default: results/<time>-regress.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Append the report to this file, e.g. $GITHUB_STEP_SUMMARY.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare stored results, or two revisions; exit code 3 on a regression, 2 where none can be told."""
    with exits.told(), _told_in(markdown):
        criteria = Criteria(
            threshold=part("--threshold", threshold),
            accuracy_threshold=part("--accuracy-threshold", accuracy_threshold),
            metrics=None if metric is None else tuple(chosen("--metric", names(metric), _CHOICES)),
            only=only,
        )
        if revision is None:
            if baseline is None:
                raise SpecError("There is no baseline. Name a results folder or a benchmark file, or give --interleaved REV.")
            _refuse_of_interleaved(context)
            judged = judge_stored(baseline, candidate, criteria)
        elif baseline is not None:
            raise SpecError(f"--interleaved measures both sides itself. Received also: {baseline}. Leave one of them out.")
        else:
            fields = {} if preset or spec_file else {"epochs": _EPOCHS}
            settings = comparison_plan.settings(preset, spec_file, fields, assignments or [])
            first = settings.values.get("seed") or 0
            settings = comparison_plan.with_seeds(
                replace(settings, modes=tuple(variants(modes)), repeats=repeats), tuple(range(first, first + repeats)), repeats
            )
            judged = _interleaved(revision, settings, names(frameworks), out, criteria, prove=proof)
        if as_json:
            typer.echo(to_json(judged))
        else:
            print_to(terminal.stdout(), judged)
        code = judged.exit_code
        if markdown is not None and (unwritten := _append(markdown, to_markdown(judged))):
            typer.echo(unwritten, err=True)
            code = code or exits.RUN_FAILED
    raise typer.Exit(code)


def judge_stored(baseline: Path, candidate: Path | None, criteria: Criteria) -> Judgement:
    """Compare a stored measurement with an earlier one.

    Args:
        baseline: a results folder, benchmark files, or, alone, the folder of an interleaved measurement.
        candidate: another of the same kind; None: the newest one beside the baseline that measured the same.
        criteria: what counts as a regression.

    Raises:
        FolderError: one of them is missing, cannot be read, or does not compare with the other.
    """
    if not baseline.exists():
        raise FolderError(f"There is no baseline at {baseline}. Measure it first, or name a folder or file that is there.")
    if candidate is None and (baseline / MARK_FILE).exists():
        baseline, candidate = baseline / BASE, baseline / HEAD
    if candidate is not None and not candidate.exists():
        raise FolderError(f"There is no candidate at {candidate}. Measure it first, or name a folder or file that is there.")
    before = measurements.read(baseline)
    now = measurements.newest_beside(before) if candidate is None else measurements.read(candidate)
    _refuse_the_same(before, now)
    return judging.judge(before, now, criteria, paired=_in_turn(before, now))


def _refuse_the_same(before: Measured, now: Measured) -> None:
    """A measurement that is compared with itself, or with a copy of itself, would always pass.

    Raises:
        FolderError: both are the same one.
    """
    shared = before.subjects.keys() & now.subjects.keys()
    copied = any(before.subjects[name].begun == now.subjects[name].begun != [] for name in shared)
    if copied or before.source.resolve() == now.source.resolve():
        raise FolderError(f"{now.source} holds the runs of {before.source} themselves. Name another measurement.")


def part(option: str, text: str) -> float:
    """`5%` or `0.05` as 0.05.

    Raises:
        SpecError: it is no number, or below zero.
    """
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise SpecError(f"{option} must be a part of at least 0. Received: {text!r}. Use e.g. 5% or 0.05.")
    return value


def headline(judged: Judgement) -> str:
    """The verdict in a sentence."""
    bad = judged.verdicts.count("regression")
    if bad:
        return f"REGRESSION in {bad} of {len(judged.verdicts)} figures."
    if judged.exit_code != EXIT_OK:
        return "CANNOT TELL whether there is a regression."
    unsure = judged.num_not_ruled_out
    return (
        f"No regression shown: none of {len(judged.verdicts)} figures is significantly worse and beyond its threshold "
        f"({_percent(judged.threshold)} of seconds and MiB, {_percent(judged.accuracy_threshold)} of accuracy)"
        f"{f'; {unsure} of them may be, and more repeats would tell' if unsure else ''}."
    )


def sections(judged: Judgement) -> list[tuple[str, list[str]]]:
    """Sentences that explain the verdict, under headings."""
    by_verdict = {verdict: [each for each in judged.changes if each.verdict == verdict] for verdict in judged.verdicts}
    facts = [
        (fact.verdict, f"{fact.name}: {fact.what}: {fact.baseline} before, {fact.candidate} now.") for fact in judged.facts
    ]
    samples = "benchmark files" if judged.kind == "benchmarks" else "samples"
    few = [
        f"{change.name}: {_heading(change)}: {change.change.n} of the {VERDICT_PAIRS} {samples} that a verdict needs; "
        f"{change_words(change)}."
        for change in by_verdict.get("too few to tell", [])
    ]
    untold = [*few, *(said for verdict, said in facts if verdict in UNTOLD)]
    untold += [f"{name}: in the baseline, and not measured now." for name in judged.missing]
    if not judged.changes:
        untold.append("Nothing was measured on both sides.")
    unsure = [
        f"{change.name}: {_heading(change)}: {change_words(change)}: more {'seeds' if _is_accuracy(change) else 'repeats'} "
        "would tell."
        for change in judged.changes
        if change.not_ruled_out
    ]

    def of(verdict: str) -> list[str]:
        figures = [f"{change.name}: {_heading(change)}: {change_words(change)}." for change in by_verdict.get(verdict, [])]
        return figures + [said for each, said in facts if each == verdict]

    found = [
        ("Regressions", of("regression")),
        ("Not told", untold),
        ("Not tested", of("not tested")),
        ("A regression beyond the threshold is not shown, and not ruled out", unsure),
        ("Better", of("better")),
        ("Measured now, and not in the baseline", judged.added),
        ("Cautions", judged.cautions),
        ("How it was judged", _method(judged)),
    ]
    return [(title, sentences) for title, sentences in found if sentences]


def change_words(change: Change) -> str:
    """`1.120 (1.090 to 1.150) times, p = 0.003`, or the difference of an accuracy."""
    ratio = change.change
    form, unit = ("+.4f", "") if _is_accuracy(change) else (".3f", " times")
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:{form}} to {ratio.high:{form}})"
    return f"{ratio.value:{form}}{interval}{unit}{'' if change.adjusted_p is None else f', p {p_words(change.adjusted_p)}'}"


def change_tables(judged: Judgement) -> list[Table]:
    """Every figure, before and now. Facts stand in a table of their own."""
    figures = [change for change in judged.changes if not _is_accuracy(change)]
    scores = [change for change in judged.changes if _is_accuracy(change)]
    columns = (
        Column("run", "run"),
        Column("metric", "metric"),
        Column("verdict", "verdict", fold=20),
        Column("change", "times (95 % interval)", 3),
        Column("p", "p, Holm", short="p,\nHolm"),
        Column("baseline", "baseline (quartiles)", wide=True),
        Column("candidate", "candidate (quartiles)", wide=True),
        Column("n", "n"),
    )
    facts = Table(
        "facts",
        "What holds",
        (
            Column("run", "run"),
            Column("what", "what"),
            Column("verdict", "verdict"),
            Column("baseline", "baseline"),
            Column("candidate", "candidate", fold=40),
        ),
        [
            {
                "run": fact.name,
                "what": fact.what,
                "verdict": fact.verdict,
                "baseline": fact.baseline,
                "candidate": fact.candidate,
            }
            for fact in judged.facts
        ],
    )
    score_columns = tuple(
        replace(column, heading="difference (95 % interval)", digits=4) if column.key == "change" else column
        for column in columns
        if column.key != "metric"
    )
    made = [
        Table("changes", "Seconds and memory, candidate over baseline", columns, [_cells(each) for each in figures]),
        Table("accuracy", "Test accuracy, candidate minus baseline", score_columns, [_cells(each) for each in scores]),
        facts,
    ]
    return [table for table in made if table.rows]


def to_json(judged: Judgement) -> str:
    plain = judged.model_dump(mode="json") | {"headline": headline(judged), "exit_code": judged.exit_code}
    return json.dumps(plain, indent=1, allow_nan=False)


def to_markdown(judged: Judgement) -> str:
    """The whole report for a page of Markdown, the verdict as its heading."""
    lines = [f"## {tables.escaped(headline(judged))}", "", f"{tables.escaped(_sides(judged))}", ""]
    for title, sentences in sections(judged):
        lines += [f"### {title}", "", *(f"- {tables.escaped(sentence)}" for sentence in sentences), ""]
    return "\n".join([*lines, *map(tables.to_markdown, change_tables(judged))]) + "\n"


def print_to(console: Console, judged: Judgement) -> None:
    """Prints the verdict, the tables and their sentences."""
    good = "bold yellow" if judged.num_not_ruled_out else "bold green"
    style = {EXIT_OK: good, EXIT_REGRESSION: "bold red"}.get(judged.exit_code, "bold yellow")
    console.print(Text(headline(judged), style=style))
    console.print(Text(wording.one_line(_sides(judged)), style="dim"))
    tables.print_all(console, change_tables(judged), where="--markdown and --json")
    tables.print_sections(console, sections(judged))


def _interleaved(
    revision: str, settings: Preset, frameworks: Sequence[str], out: Path | None, criteria: Criteria, *, prove: bool
) -> Judgement:
    def lay_out(settings: Preset, frameworks: Sequence[str]) -> list[Row]:
        made = matrix.rows(settings.values, frameworks, settings.modes, settings.replicas, settings.workers)
        whole = {row.framework: max(each.spec.cores for each in made if each.framework == row.framework) for row in made}
        # # Serial on one core is only a reference for speed-ups, which is not the question here.
        rows = [row for row in made if row.spec.mode != "serial" or row.spec.cores == whole[row.framework]]
        chosen = [row for row in rows if criteria.only is None or fnmatch.fnmatchcase(row.id, criteria.only)]
        if not chosen:
            raise SpecError(f"--only matches no row. Received: {criteria.only!r}. Rows: {', '.join(row.id for row in rows)}.")
        return chosen

    folder = (out or revisions.default_folder()).resolve()
    request = run.Request(settings, list(frameworks), folder, prove=prove, lay_out=lay_out)
    try:
        with interruptible(), display(Console(stderr=True)) as shown:
            revisions.measure(revision, request, folder, shown)
    except Interrupted as interruption:
        interruption.words = f"Interrupted. The other checkout is removed; what was measured is in {folder}."
        raise
    judged = judge_stored(folder, None, criteria)
    atomic_files.write_atomically(folder / JSON_FILE, to_json(judged) + "\n")
    atomic_files.write_atomically(folder / MARKDOWN_FILE, to_markdown(judged))
    return judged


@contextmanager
def _told_in(markdown: Path | None) -> Generator[None]:
    """On an error, write the reason to the report's file."""
    try:
        yield
    except (SpecError, DataRefused, LaunchError, FolderError, OSError) as error:
        if markdown is not None:
            _append(markdown, f"## No verdict\n\n{tables.escaped(str(error))}\n")
        raise


def _append(path: Path, text: str) -> str | None:
    """Add text to a file; why that failed, where it did."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"The report cannot be written to {path} ({error.strerror}). Choose another --markdown."
    return None


def _in_turn(before: Measured, now: Measured) -> bool:
    """Whether the two are the sides of one interleaved measurement."""
    folders = [measured.source.resolve() for measured in (before, now)]
    together = {folder.parent for folder in folders}
    return [folder.name for folder in folders] == [BASE, HEAD] and len(together) == 1 and (together.pop() / MARK_FILE).exists()


def _refuse_of_interleaved(context: typer.Context) -> None:
    """Refuse options that have no effect.

    Raises:
        SpecError: one was given.
    """
    given = {name for name in context.params if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"}
    if idle := [option for name, option in _OF_INTERLEAVED.items() if name in given]:
        raise SpecError(f"{', '.join(idle)} say what --interleaved is to run. Received: no --interleaved. Leave them out.")


def _heading(change: Change) -> str:
    return "seconds" if change.metric == SECONDS else METRICS[change.metric].heading


def _is_accuracy(change: Change) -> bool:
    return change.metric == ACCURACY


def _sides(judged: Judgement) -> str:
    sides = (("Baseline", judged.baseline), ("candidate", judged.candidate))
    said = [f"{word}: {side.source}, {side.commit}, {side.measured_at}" for word, side in sides]
    return f"{'; '.join(said)}. {judged.machine}."


def _method(judged: Judgement) -> list[str]:
    level = f"{CONFIDENCE:.0%}"
    if judged.paired:
        how = "Base and head were measured in turn: paired t-tests on the logarithms of the ratios of repeats."
    else:
        how = (
            "The two were measured apart, each with the machine as it was then: Welch's t-tests on logarithms, which cannot "
            "tell the change from what else changed meanwhile. --interleaved REV can."
        )
    worse = f"more than {_percent(judged.threshold)} of seconds or MiB, or {_percent(judged.accuracy_threshold)} of accuracy"
    sentences = [how]
    tested = [change.change for change in judged.changes if change.adjusted_p is not None and not _is_accuracy(change)]
    if judged.tested:
        sentences.append(
            f"A regression is worse by {worse}, and significantly so: with {level} confidence none of the {judged.tested} "
            "tested figures is called better or worse by chance (Holm). Each interval is that of its figure alone. A figure "
            f"that is the same number in every run leaves nothing to be tested.{resolution_words(tested, judged.tested)}"
        )
    if judged.kind == "benchmarks":
        sentences.append(
            "A sample is the median of a benchmark file: its rounds are of one process, and say nothing of the next one. Each "
            f"side needs a folder of at least {VERDICT_PAIRS} files."
        )
    if any(map(_is_accuracy, judged.changes)):
        sentences.append(
            "Accuracies are paired by seed, of each seed the median of its repeats: paired t-tests on their differences. They "
            "are those of the same test images, and say nothing of others."
        )
    elif any(fact.what == METRICS[ACCURACY].heading and fact.verdict != "no change shown" for fact in judged.facts):
        sentences.append(
            "Rounding alone moves the accuracy of one seed's training, however often it is repeated: so accuracies are tested "
            f"over at least {VERDICT_PAIRS} seeds (run --seeds 0,1,2,3,4)."
        )
    return sentences


def _cells(change: Change) -> dict[str, tables.Cell]:
    return {
        "run": change.name,
        "metric": _heading(change),
        "verdict": f"{change.verdict}{', not ruled out' if change.not_ruled_out else ''}",
        "change": change.change,
        "p": "-" if change.adjusted_p is None else p_words(change.adjusted_p).removeprefix("= "),
        "baseline": _spread_words(change.baseline),
        "candidate": _spread_words(change.candidate),
        "n": f"{change.baseline.n}, {change.candidate.n}" if change.baseline.n != change.candidate.n else str(change.change.n),
    }


def _spread_words(spread: Spread) -> str:
    return f"{_figure(spread.median)} ({_figure(spread.low)} to {_figure(spread.high)})"


def _figure(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
