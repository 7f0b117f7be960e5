"""`convtwins regress`: did a change make training slower, larger, less accurate, or different?"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.errors import FolderError
from compare.cli.interrupt import Interrupted
from compare.cli.option_rules import AllExcept, Excludes, Needs, OneOf
from compare.cli.option_types import Parsed, Percent
from compare.comparison import run_options
from compare.judgement.sides import BASE, HEAD
from compare.reporting import document
from compare.results import store
from compare.results.workspace import Workspace
from compare.running import options
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression import (
    benchmark_files,
    benchmark_sides,
    judging,
    measurements,
    pairs,
    regress_report,
    requests,
    revisions,
)
from compare.tools.regression.benchmark_runs import BenchmarkRuns
from compare.tools.regression.measured import Measurement
from compare.tools.regression.pair_loop import PairLoop
from compare.tools.regression.pairs import PairedRuns
from compare.tools.regression.records import JUDGED, Criteria, Judgement, choices, metrics_named
from compare.tools.regression.regress_screen import MeasuredBy

PAIRS = 6
"""One more than a verdict needs: with five pairs, a family of two rows finds a tenth in less than 90 % of cases."""
_MEASURING = ("--interleaved", "--environments")
_OF_STORED = ("BASE", "HEAD", "--threshold", "--accuracy-threshold", "--metric", "--only", "--markdown", "--json")
"""Options that have an effect without those that measure."""
_OWN = ("--pytest", "--command")
_OF_OWN = (*_OWN, *_MEASURING, "--python", "--threshold", "--only", "--repeats", "--out", "--markdown", "--json")
"""Options that have an effect on benchmarks of your own."""


@commands.command(
    Excludes("--interleaved", "--environments"),
    Excludes("--pytest", "--command"),
    Needs(_OWN, _MEASURING),
    Needs("--python", "--interleaved"),
    Needs("--python", _OWN),
    Excludes(_OWN, AllExcept(*_OF_OWN), "measures code of your own"),
    Excludes(_MEASURING, "BASE", "measures both sides itself"),
    OneOf(["BASE", *_MEASURING], "Name a results folder or a benchmark file, or give --interleaved REV or --environments A B."),
    Needs(AllExcept(*_OF_STORED, *_MEASURING), _MEASURING),
    within=document.errors_in_markdown,
)
def command(
    invocation: Invocation,
    *,
    baseline: Annotated[
        Path | None,
        typer.Argument(
            metavar="BASE",
            help="Before: a results folder, or a folder of pytest-benchmark files. FOLDER@REV: those of one commit.",
        ),
    ] = None,
    candidate: Annotated[
        Path | None,
        typer.Argument(
            metavar="HEAD",
            help="Now. Default: the other commit in that folder, or the newest beside it that shares a row or benchmark.",
        ),
    ] = None,
    threshold: Annotated[float, Percent(), typer.Option(help=f"{options.THRESHOLD} Of seconds or MiB.")] = 0.05,
    accuracy_threshold: Annotated[float, Percent(), typer.Option(help="Loss of accuracy that counts, of 100 %.")] = 0.01,
    metric: Annotated[
        tuple[str, ...] | None,
        Parsed(metrics_named),
        typer.Option(help=f"{options.METRIC} Of {', '.join(choices())}. Default: {', '.join(JUDGED)}, where measured."),
    ] = None,
    only: Annotated[str | None, typer.Option(help=options.ONLY)] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            "--interleaved",
            metavar="REV",
            help="Measure this revision, PATH@REV in another clone, and the checked-out one in turn.",
        ),
    ] = None,
    environments: Annotated[
        tuple[str, str] | None,
        typer.Option("--environments", metavar="A B", help=f"{options.ENVIRONMENTS} Two, in turn."),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=VERDICT_PAIRS, help=f"{options.REPEATS} On each side. Default: {PAIRS}, or as the spec says."),
    ] = None,
    pytest_arguments: Annotated[str | None, typer.Option("--pytest", metavar="ARGS", help=requests.PYTEST)] = None,
    command_line: Annotated[str | None, typer.Option("--command", metavar="CMD", help=requests.COMMAND)] = None,
    python: Annotated[str | None, typer.Option("--python", help=requests.PYTHON)] = None,
    of_spec: options.TrainingOptions,
    contestants: options.ContestantOptions,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: serial, or as the spec says.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help=f"{options.PROFILE} The report says where a step's time changed.")
    ] = False,
    proof: Annotated[
        bool, typer.Option(help=f"{options.PROOF} That of the checked-out revision, or that of B as that of A.")
    ] = False,
    out: options.Out = None,
    markdown: options.Markdown = None,
) -> Outcome:
    """Compare stored results, two revisions, or two environments. Exit code 3: a regression, 5: cannot tell.

    The options of runs, from --repeats to --out, need --interleaved or --environments. The same command with the same --out
    continues what was interrupted.
    """
    criteria = Criteria(threshold=threshold, accuracy_threshold=accuracy_threshold, metrics=metric, only=only)
    folder = named_folder = None
    num_new_pairs = 0
    if baseline is not None:
        judgement = judge_stored(baseline, candidate, criteria)
    elif (benchmark_command := requests.own_command(pytest_arguments, command_line)) is not None:
        named_folder = out or store.new_folder("regress")
        folder = named_folder.resolve()
        num_new_pairs = repeats or PAIRS
        invocation.interrupt_message = requests.interrupted(folder)
        with Workspace.open(folder, benchmark_files.SETTLED) as benchmark_workspace, ExitStack() as checkouts:
            if environments is not None:
                named = zip((BASE, HEAD), environments, strict=True)
                packages = benchmark_command.packages
                both = [benchmark_sides.from_environment(side, name, packages) for side, name in named]
            else:
                repository = benchmark_sides.Repository(python or sys.executable, benchmark_command)
                repository.refuse_changes()
                sides = ((BASE, revision or ""), (HEAD, "HEAD"))
                both = [checkouts.enter_context(repository.checked_out(side, name)) for side, name in sides]
            runs = BenchmarkRuns(benchmark_command, both, num_new_pairs, benchmark_workspace, invocation.progress, only=only)
            with _saying_what_stays(invocation, runs, has_checkouts=revision is not None):
                runs.complete()
        judgement = judge_stored(folder, None, criteria)
    else:
        spec_request = of_spec.to_request(profile_steps=run_options.PROFILE_STEPS if profile else None)
        settings = requests.build_settings(*spec_request, modes, repeats, PAIRS)
        named_folder = out or store.new_folder("regress")
        folder = named_folder.resolve()
        num_new_pairs = settings.repeats
        twins = contestants.twins(settings.contestants, has_other_interpreters=environments is not None)
        request = requests.build_request(settings, twins, folder, criteria.only, prove=proof)
        invocation.interrupt_message = requests.interrupted(folder)
        progress = invocation.progress
        with Workspace.open(folder, pairs.MEASUREMENT) as workspace:
            progress.stage(requests.PREPARING)
            if environments is not None:
                base_name, with_bases = environments[0], nullcontext(requests.against_environment(environments, request))
            else:
                base_name, with_bases = revision or "", revisions.against(revision or "", request)
            with with_bases as paired_request:
                paired_runs = PairedRuns(paired_request, workspace, base_name, progress)
                with _saying_what_stays(invocation, paired_runs, has_checkouts=revision is not None):
                    paired_runs.complete(criteria.judged)
        judgement = judge_stored(folder, None, criteria)
    measured_by = MeasuredBy(num_new_pairs, sys.argv[1:], named_folder) if named_folder is not None else None
    report = regress_report.report(judgement, measured_by)

    return Outcome(report, folder, functools.partial(report.append_to, markdown))


@contextmanager
def _saying_what_stays(invocation: Invocation, runs: PairLoop[Any, Any], *, has_checkouts: bool) -> Generator[None]:
    """Let the last line of a measurement that is interrupted say how many pairs stay."""
    try:
        yield
    except Interrupted:
        removed = "The other checkout is removed. " if has_checkouts else ""
        invocation.interrupt_message = requests.interrupted(runs.folder, f"{removed}{runs.stored_words()}")
        raise


def judge_stored(baseline: Path, candidate: Path | None, criteria: Criteria) -> Judgement:
    """Compare a stored measurement with an earlier one.

    Args:
        baseline: a results folder, benchmark files, or, alone, the folder of an interleaved measurement. `FOLDER@REV`: of a
            folder of benchmark files those of one commit. `FOLDER@base` and `FOLDER@head`: a side of an interleaved one.
        candidate: another of the same kind. None: the other commit of the baseline's folder, or the newest one beside it that
            shares a row or benchmark with it.
        criteria: what counts as a regression.
    """
    for what, path in ((BASE, baseline), (HEAD, candidate)):
        if path is not None and not _split_revision(path)[0].exists():
            raise FolderError(f"There is no {what} at {path}. Measure it first, or name a folder or file that is there.")
    before, now = _read_both(baseline) if candidate is None else (_read(baseline), _read(candidate))
    shared = before.subjects.keys() & now.subjects.keys()
    copied = any(before.subjects[name].has_the_runs_of(now.subjects[name]) for name in shared)
    if copied or before.source.resolve() == now.source.resolve():  # it would always pass
        raise FolderError(f"{now.source} holds the runs of {before.source} themselves. Name another measurement.")
    is_paired = (before.side, now.side) == (BASE, HEAD) and before.measured_in == now.measured_in
    return judging.judge(before, now, criteria, paired=is_paired)


def _split_revision(path: Path) -> tuple[Path, str]:
    """The path, and the revision if it is `FOLDER@REV`."""
    return (path, "") if path.exists() else revisions.split_revision(str(path)) or (path, "")


def _read(path: Path) -> Measurement:
    """A measurement. `FOLDER@REV` names the benchmark files of one commit, or a side of a measurement in turn."""
    folder, revision = _split_revision(path)
    if not revision:
        return measurements.read(folder)
    side = next((side for side in measurements.read_sides(folder) if revision == side.side), None)
    return side or _commit_measurement(folder, measurements.measurements_by_commit(folder), revision)


def _read_both(path: Path) -> tuple[Measurement, Measurement]:
    """The baseline, and the candidate that it implies: the other commit of its folder, else the newest beside it."""
    folder, revision = _split_revision(path)
    if not revision and folder.is_dir() and (both := measurements.read_sides(folder)):
        return both[0], both[1]
    by_commit = measurements.measurements_by_commit(folder) if folder.is_dir() else {}
    if len(by_commit) < 2:
        return (before := _read(path)), measurements.newest_sibling(before)
    if len(by_commit) > 2:
        raise FolderError(
            f"{folder} holds benchmarks of {len(by_commit)} commits, and two are compared. Received: "
            f"{measurements.commit_words(by_commit)}. Name two without changes: regress {folder}@REV {folder}@REV."
        )
    before, now = (_commit_measurement(folder, by_commit, name) for name in by_commit)
    chosen = _commit_measurement(folder, by_commit, revision) if revision else before
    return (before, now) if chosen.source == before.source else (now, before)


def _commit_measurement(folder: Path, by_commit: Mapping[str, Sequence[Measurement]], revision: str) -> Measurement:
    """The benchmark files of a commit, named by its id or its first digits, or as the repository of the folder knows it.

    Args:
        folder: that holds them.
        by_commit: all its files, see `measurements.measurements_by_commit`.
        revision: the commit.
    """
    files = [file for group in by_commit.values() for file in group]
    if not files:
        raise FolderError(
            f"{folder} holds no benchmark of pytest-benchmark, so none of {wording.visible(revision)}. Save benchmarks there: "
            "pytest --benchmark-autosave."
        )
    ids = {file.commit or "" for file in files if file.names_its_code}
    if not (matches := [commit_id for commit_id in ids if commit_id.startswith(revision)]):
        known = revisions.rev_parse(revision, folder).stdout.strip()
        if not known and revision not in by_commit:
            raise FolderError(
                f"{wording.visible(revision)} is neither a commit of the benchmarks in {folder} nor a revision of its "
                f"repository. Received: {measurements.commit_words(by_commit)}."
            )
        matches = [commit_id for commit_id in ids if commit_id == known]
    if len(matches) != 1:
        raise FolderError(
            f"{folder} has no benchmarks that were measured at one clean commit {wording.visible(revision)}. Received: "
            f"{measurements.commit_words(by_commit)}. Files without a commit, or with uncommitted changes, do not say "
            "what they measured: commit, and measure again, or keep them in a folder of their own (--benchmark-storage)."
        )
    (commit,) = matches
    chosen = [file for file in files if file.commit == commit]
    merged = benchmark_files.merge(Path(f"{folder}@{commit[:8]}"), [file for file in chosen if file.names_its_code])
    if changed := sum(not file.names_its_code for file in chosen):
        words = f"{wording.count(changed, 'file')} of {commit[:8]} with uncommitted changes, left out."
        merged = merged.model_copy(update={"set_aside": [words]})
    return merged
