"""The candidates of a bisection, commits or environments in order. Two of them are measured in turn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import typer

from common.artifacts.schema import Environment
from common.machine import machine
from common.machine.machine import Facts
from common.spec import SpecError
from compare.cli.errors import LaunchError, NoAnswerError
from compare.cli.progress import Display
from compare.cli.wording import shortened
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement.sides import BASE, HEAD
from compare.judgement.statement_words import unreliable_words
from compare.results import store
from compare.results.store import Comparison
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.statistics import statistics
from compare.statistics.statistics import Ratio
from compare.tools.regression import (
    benchmark_files,
    benchmark_runs,
    benchmark_sides,
    bisection,
    facts,
    measurements,
    pairs,
    requests,
    revisions,
)
from compare.tools.regression.benchmark_command import BenchmarkCommand
from compare.tools.regression.benchmark_runs import BenchmarkRuns
from compare.tools.regression.benchmark_sides import BenchmarkSide
from compare.tools.regression.bisection import BisectionOutcome, BisectionTest, Enough, Unmeasurable
from compare.tools.regression.measured import COMMAND_SECONDS
from compare.tools.regression.pair_loop import PairLoop
from compare.tools.regression.pairs import PairedRuns
from compare.tools.regression.records import WASTED_PAIRS
from compare.tools.regression.revisions import LOCK_FILES, RevisionError
from compare.tools.regression.samples import SubjectPair, is_time, pair_subjects, unwritten

SideT = TypeVar("SideT")
PreparedT = TypeVar("PreparedT")
KIND, RECORD_FILE = "bisection", "bisection.json"
_SHORT, _LONGEST_SUBJECT = 8, 48


class Bisection(PlannedWork):
    """bisection.json: what is searched."""

    kind: str = KIND
    candidates: list[str]
    """Commits or interpreters, the good end first."""
    rows: dict[str, dict[str, Any]]
    """Spec by row id."""
    seeds: list[int]
    metric: str
    threshold: float
    most_repeats: int
    distributions_hashes: list[str | None] = []
    """Hash of the distributions of each environment, by its place, or of the common one of all commits. None: the environment
    could not run. It may do so later."""

    def identity(self) -> dict[str, Any]:
        """A test may stop at any number of pairs, so more may be allowed later. Each pair has a seed, one after the other."""
        others = {"kind", "code_hash", "machine", "most_repeats", "distributions_hashes"}
        fields = self.model_dump(mode="json", exclude=others)
        return fields | {"seeds": self.seeds[0]}

    def continued_by(self, new: Any) -> Self:
        hashes = [now or before for before, now in self._hashes_beside(new)]
        return self.model_copy(update={"most_repeats": new.most_repeats, "seeds": new.seeds, "distributions_hashes": hashes})

    def difference(self, new: Any) -> str | None:
        """Environments differ where both hashes are known."""
        known = {
            f"distributions_hashes.{place}": both for place, both in enumerate(self._hashes_beside(new)) if None not in both
        }
        before, now = ({name: both[side] for name, both in known.items()} for side in (0, 1))
        return store.describe_differences(before, now) or super().difference(new)

    def _hashes_beside(self, new: Any) -> list[tuple[str | None, str | None]]:
        """Return the hashes of this record and of another one, by place."""
        return list(itertools.zip_longest(self.distributions_hashes, new.distributions_hashes))


@dataclass(frozen=True)
class BisectionQuery:
    """The question of a bisection, from the command line."""

    metric: str
    threshold: float
    good: str | None = None
    bad: str = "HEAD"
    environments: tuple[str, ...] = ()
    only: str | None = None
    """Pattern of the benchmark that is followed."""


@dataclass(frozen=True)
class Candidate:
    """One commit or environment. The first candidate is the good end, the last is the bad end."""

    name: str
    """Short name, usable as a file name."""
    title: str
    """Name for a reader."""
    identity: str
    """The commit or the interpreter. It is unique among the candidates."""
    refusal: str | None = None
    """Reason why the candidate cannot be measured, if it is known beforehand."""


@dataclass(frozen=True)
class Candidates(Generic[SideT]):
    """All candidates in order, and how two of them are measured in turn."""

    items: Sequence[Candidate]
    subject: str
    """Row or benchmark that is followed, for a reader."""
    machine: Facts
    code_hash: str
    work: Mapping[str, dict[str, Any]]
    """Work of a run: the spec of the row by its id, or a command."""
    ready: Callable[[int], AbstractContextManager[SideT]]
    """Context manager of a candidate, by its place. It raises RevisionError if it cannot be measured."""
    open_pairs: Callable[[SideT, SideT, Path], AbstractContextManager[PairLoop[Any, Any]]]
    """Context manager of the pairs of two candidates, base and head, in a folder."""
    environments: Mapping[int, Environment]
    """Environment of each candidate by its place, where it is known. All commits have that of place 0."""
    figure: str = ""
    """Name of the figure that is followed, if a command has one of its own. Empty: that of the metric."""


def from_revisions(good: str, bad: str, request: ComparisonRequest, progress: Display) -> Candidates[Contestant]:
    """Return the commits from `good` to `bad` that changed what a run uses: `common`, the twins, the lock.

    A merge is one commit: its first parents are followed. Commits that need other packages than this environment has are
    refused one by one.
    """
    plan = comparison_plan.build_plan(request, progress)
    twins = {row.framework for row in plan.rows}
    paths = [*LOCK_FILES, "common", *sorted(folder for twin, folder in launch.FRAMEWORKS.items() if twin in twins)]
    candidates: list[Candidate] = []
    for candidate in _commits(good, bad, None, paths):
        lock = revisions.other_lock(candidate.identity)
        refusal = None if lock is None else f"its {lock} differs from that of the working tree"
        candidates.append(replace(candidate, refusal=refusal))
    for end, word in ((candidates[0], good), (candidates[-1], bad)):
        if end.refusal:
            raise RevisionError(
                f"{word} cannot be measured here: {end.refusal}. Name revisions with the packages of this .venv."
            )
    row = _one_row(plan)
    if revisions.repository_of(row.spec.model) != machine.PROJECT_ROOT:
        raise RevisionError(
            f"bisect follows commits of the suite. {row.spec.model} lies outside it, so every commit would train the same. "
            "Compare two revisions of your own repository with regress --interleaved."
        )

    @contextmanager
    def ready(place: int) -> Generator[Contestant]:
        candidate = candidates[place]
        with revisions.worktree(candidate.identity) as worktree:
            yield request.twins[row.contestant].at(*revisions.code_of_suite(worktree, candidate.name))

    return _from_row(candidates, {0: plan}, row, ready, request, progress)


def _commits(good: str, bad: str, repository: Path | None, paths: Sequence[str]) -> list[Candidate]:
    """Return the commit `good` and those up to `bad`, by first parents, that changed one of the paths. No paths: any file."""
    first, last = (revisions.commit_of(revision, repository) for revision in (good, bad))
    if first == last or first not in revisions.output("rev-list", "--first-parent", last, at=repository).split():
        raise RevisionError(
            f"--good must be an earlier revision than --bad, of the same branch. Received: {good} and {bad}. A commit of a "
            "side branch stands in it as its merge: name that one."
        )
    between = ("--first-parent", "--reverse", "--format=%H %s", f"{first}..{last}", "--", *paths)
    lines = revisions.output("log", "--no-walk", "--format=%H %s", first, at=repository).splitlines()
    lines += revisions.output("log", *between, at=repository).splitlines()
    if len(lines) < 2:
        raise RevisionError(f"Nothing that a run uses changed from {good} to {bad} ({', '.join(paths)}). Name other revisions.")
    parts = [line.partition(" ")[::2] for line in lines]
    return [
        Candidate(commit[:_SHORT], f"{commit[:_SHORT]} {shortened(subject, _LONGEST_SUBJECT)}", commit)
        for commit, subject in parts
    ]


def from_environments(pythons: Sequence[str], request: ComparisonRequest, progress: Display) -> Candidates[Contestant]:
    """Return the environments in the order that they are named. One that cannot run is left out, see `prepare_each`."""

    def prepare(place: int) -> tuple[Contestant, Comparison]:
        contestants = requests.in_environment(pythons[place], request.twins.contestants)
        twins = request.twins.with_contestants(contestants)
        plan = comparison_plan.build_plan(replace(request, twins=twins), progress)
        return twins[_one_row(plan).contestant], plan

    candidates, prepared = prepare_each(_environments(pythons), prepare)
    plans = {place: plan for place, (_, plan) in prepared.items()}

    @contextmanager
    def ready(place: int) -> Generator[Contestant]:
        yield prepared[place][0]

    return _from_row(candidates, plans, _one_row(plans[len(candidates) - 1]), ready, request, progress)


def _environments(pythons: Sequence[str]) -> list[Candidate]:
    paths = [Contestant.from_fields("environment", {"twin": "any", "python": python}).python or "" for python in pythons]
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise RevisionError(
            f"--environments takes two or more, each once, the good one first. Received: {', '.join(pythons)}. Use e.g. "
            "--environments torch-213 torch-214 torch-215."
        )
    if missing := [python for python, path in zip(pythons, paths, strict=True) if not Path(path).exists()]:
        raise RevisionError(
            f"--environments names an interpreter that is not there. Received: {missing[0]}. {launch.PYTHON_ADVICE}"
        )
    return [Candidate(f"environment-{place + 1}", python, paths[place]) for place, python in enumerate(pythons)]


def prepare_each(
    candidates: Sequence[Candidate], prepare: Callable[[int], PreparedT]
) -> tuple[list[Candidate], dict[int, PreparedT]]:
    """Prepare each environment. One between the ends that cannot run is left out, as `git bisect` skips a commit.

    Returns:
        (the candidates, with the reason of those that are left out; what `prepare` returned, by place).

    Raises:
        NoAnswerError: an environment may run, and has not answered.
    """
    checked, prepared = list(candidates), dict[int, PreparedT]()
    for place, candidate in enumerate(candidates):
        try:
            prepared[place] = prepare(place)
        except NoAnswerError:  # a busy machine leaves no environment out
            raise
        except (LaunchError, SpecError) as error:
            if place in (0, len(candidates) - 1):
                raise
            typer.echo(f"{candidate.title} is left out: {error}", err=True)
            checked[place] = replace(candidate, refusal=str(error))
    return checked, prepared


def _one_row(plan: Comparison) -> Row:
    """Return the row that is followed."""
    row, *others = requests.runnable(plan.rows)
    if others:
        raise SpecError(
            f"bisect follows one row. Received: {', '.join(other.id for other in (row, *others))}. Choose with "
            "--frameworks, --modes and --only."
        )
    return row


def _from_row(
    candidates: Sequence[Candidate],
    plans: Mapping[int, Comparison],
    row: Row,
    ready: Callable[[int], AbstractContextManager[Contestant]],
    request: ComparisonRequest,
    progress: Display,
) -> Candidates[Contestant]:
    @contextmanager
    def open_pairs(base: Contestant, head: Contestant, folder: Path) -> Generator[PairedRuns]:
        with Workspace.open(folder, pairs.GROWING) as workspace:
            yield PairedRuns(requests.with_bases(request, [head], [base]), workspace, "The good end", progress)

    plan = plans[max(plans)]
    environments = {
        place: place_plan.environments[row.contestant]
        for place, place_plan in plans.items()
        if row.contestant in place_plan.environments
    }
    work = {row.id: row.spec.model_dump(mode="json")}
    return Candidates(candidates, row.id, plan.machine, plan.code_hash, work, ready, open_pairs, environments)


def from_command(
    command: BenchmarkCommand, query: BisectionQuery, python: str, most_repeats: int, progress: Display
) -> Candidates[BenchmarkSide]:
    """Return commits of the caller's repository, or environments, whose benchmarks are measured."""
    if query.environments:
        pythons = query.environments

        def prepare(place: int) -> BenchmarkSide:
            return benchmark_sides.from_environment(HEAD, pythons[place], command.packages)

        candidates, sides = prepare_each(_environments(pythons), prepare)
        environments = {place: side.facts.environment for place, side in sides.items()}

        @contextmanager
        def ready(place: int) -> Generator[BenchmarkSide]:
            yield sides[place]
    else:
        repository = benchmark_sides.Repository(python, command)
        candidates = _commits(query.good or "", query.bad, repository.root, ())
        environments = {0: repository.environment}

        @contextmanager
        def ready(place: int) -> Generator[BenchmarkSide]:
            with repository.checked_out(candidates[place].name, candidates[place].identity) as side:
                yield side

    @contextmanager
    def open_pairs(base: BenchmarkSide, head: BenchmarkSide, folder: Path) -> Generator[BenchmarkRuns]:
        both = [replace(base, id=BASE), replace(head, id=HEAD)]
        with Workspace.open(folder, benchmark_files.IN_TURN) as workspace:
            yield BenchmarkRuns(command, both, most_repeats, workspace, progress, only=query.only, is_search=True)

    return Candidates(
        candidates,
        query.only or command.name,
        machine.describe(),
        benchmark_runs.code_hash(),
        {command.option: {"text": command.text, "only": query.only}},
        ready,
        open_pairs,
        environments,
    )


def with_names(
    candidates: Candidates[BenchmarkSide],
    command: BenchmarkCommand,
    query: BisectionQuery,
    outcome: BisectionOutcome,
    folder: Path,
) -> Candidates[BenchmarkSide]:
    """Return the candidates with the names of the benchmark, or of the command's figure, that its runs have shown."""
    ends = outcome.trials[0]
    pair = _pair(_test_folder(folder, candidates, ends.earlier, ends.later), query.only)
    if command.option == "--pytest":
        return replace(candidates, subject=pair.now.name) if pair else candidates
    if command.metric == COMMAND_SECONDS:
        return replace(candidates, subject=command.name)
    return replace(candidates, subject=command.name, figure=pair.now.name if pair else query.only or "")


def open_workspace(query: BisectionQuery, first_seed: int, folder: Path) -> AbstractContextManager[Workspace[Bisection]]:
    """Open the folder of a bisection."""
    early = {"metric": query.metric, "threshold": query.threshold, "seeds": first_seed}
    return Workspace.open(folder, BISECTION, early=early)


def search(
    candidates: Candidates[SideT],
    query: BisectionQuery,
    seeds: Sequence[int],
    workspace: Workspace[Bisection],
    progress: Display,
) -> BisectionOutcome:
    """Measure candidates until the first bad one is found. Finished runs in the folder are used again.

    Args:
        seeds: seed of each pair, of the most that are made.
    """
    record = Bisection(
        candidates=[candidate.identity for candidate in candidates.items],
        rows=dict(candidates.work),
        seeds=list(seeds),
        metric=query.metric,
        threshold=query.threshold,
        most_repeats=len(seeds),
        code_hash=candidates.code_hash,
        machine=candidates.machine,
        distributions_hashes=[
            candidates.environments[place].distributions_hash if place in candidates.environments else None
            for place in range(1 + max(candidates.environments, default=-1))
        ],
    )
    workspace.claim(record)
    folder = workspace.folder
    with ExitStack() as resources:
        good_end: list[SideT] = []  # once it is checked out

        def label(place: int) -> str:
            candidate = candidates.items[place]
            return candidate.title if query.environments else f"commit {candidate.name}"

        def make_pairs(earlier: int, later: int, enough: Enough) -> Ratio | None:
            """Measure pairs of two candidates. The good end is checked out once for all tests."""
            place = _test_folder(folder, candidates, earlier, later)
            so_far = partial(_ratio, place, query)
            if enough(before := so_far()):
                progress.stage(f"the pairs in {place} decide already")
                return before
            counted = [before.n if before else 0]  # after each pair that is made now

            def is_over() -> bool:
                ratio = so_far()
                counted.append(ratio.n if ratio else 0)
                is_wasted = len(counted) > WASTED_PAIRS and counted[-1] == counted[-1 - WASTED_PAIRS]
                return is_wasted or enough(ratio)

            with ExitStack() as test_resources:
                warm = [BASE] if good_end and earlier == 0 else []
                if earlier == 0:
                    good_end[:] = good_end or [resources.enter_context(candidates.ready(0))]
                base = good_end[0] if earlier == 0 else test_resources.enter_context(candidates.ready(earlier))
                head = test_resources.enter_context(candidates.ready(later))
                runs = test_resources.enter_context(candidates.open_pairs(base, head, place))
                runs.base_name, runs.head_name = candidates.items[earlier].name, label(later)
                runs.make(is_over, warm, lambda pair, run: is_time(query.metric) and runs.is_disturbed(run))
            return so_far()

        def measure(earlier: int, later: int, enough: Enough) -> Ratio | None:
            try:
                return make_pairs(earlier, later, enough)
            except RevisionError as error:
                raise Unmeasurable(str(error)) from error

        refusals = {place: candidate.refusal for place, candidate in enumerate(candidates.items) if candidate.refusal}
        try:
            outcome = bisection.search(len(candidates.items) - 1, measure, query.threshold, refusals)
        except Unmeasurable as error:
            raise RevisionError(f"A candidate that is needed cannot be measured. {error}") from None
        trials = [
            _with_doubts(trial, candidates, _test_folder(folder, candidates, trial.earlier, trial.later), query)
            for trial in outcome.trials
        ]
        return outcome.model_copy(update={"trials": trials})


def _has_runs(folder: Path) -> bool:
    return any(folder.glob(f"*/{store.RUNS_FOLDER}/*"))


BISECTION = FolderKind(noun=KIND, file=RECORD_FILE, kind=KIND, record=Bisection, has_started=_has_runs)


def _test_folder(folder: Path, candidates: Candidates[Any], earlier: int, later: int) -> Path:
    """Return the folder of the test of two candidates."""
    return folder / f"{candidates.items[earlier].name}-{candidates.items[later].name}"


def _pair(folder: Path, only: str | None) -> SubjectPair | None:
    """Return the row or benchmark of both sides. None before anything was measured."""
    if not (sides := measurements.read_sides(folder)):
        return None
    base, head = sides
    shared = [name for name in base.subjects if name in head.subjects]
    # A row has been chosen before. A benchmark shows only when it has run.
    (chosen,) = benchmark_runs.choose(shared, None if base.kind == "comparison" else only, one=True)
    return pair_subjects(base.subjects[chosen], head.subjects[chosen], paired=True)


def _ratio(folder: Path, query: BisectionQuery) -> Ratio | None:
    """Return the figure of the head over that of the base, over all stored pairs that can be used."""
    if (pair := _pair(folder, query.only)) is None:
        return None
    ratios = [(math.exp(logarithm), 1.0) for logarithm in pair.log_ratios(query.metric)]
    values = [value for side in pair.samples(query.metric) for value in side]
    return statistics.paired_ratio(ratios, rounding=unwritten(query.metric, values))


def _with_doubts(trial: BisectionTest, candidates: Candidates[Any], folder: Path, query: BisectionQuery) -> BisectionTest:
    """Return the trial with its number of pairs and the reasons why some do not count."""
    if (pair := _pair(folder, query.only)) is None:
        return trial
    sides = ((pair.before, trial.earlier), (pair.now, trial.later))
    repeats = pair.before.repeats & pair.now.repeats
    if not is_time(query.metric):
        return trial.model_copy(update={"pairs": len(repeats)})
    disturbed = repeats & (pair.before.cores_taken.keys() | pair.now.cores_taken.keys())
    doubts = [
        unreliable_words(runs.values)
        for subject, place in sides
        for runs in facts.unreliable_runs(subject, f"of {candidates.items[place].title}")
    ]
    return trial.model_copy(update={"pairs": len(repeats), "disturbed": len(disturbed), "doubts": doubts})
