"""The candidates of a bisection, commits or environments in order. Two of them are measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from common.artifacts.schema import Environment, RunResult
from common.machine import machine
from compare.cli.progress import Display
from compare.cli.wording import shortened
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement import run_figures
from compare.judgement.figures import times
from compare.judgement.sides import BASE
from compare.judgement.statement_words import unreliable_words
from compare.results.store import Comparison
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.statistics import statistics
from compare.statistics.statistics import Ratio
from compare.tools.regression import bisection, facts, measurements, pairs, requests, revisions
from compare.tools.regression.bisection import BisectionOutcome, BisectionTest, Enough, Unmeasurable
from compare.tools.regression.pair_loop import Pair
from compare.tools.regression.pairs import PairedRuns
from compare.tools.regression.revisions import LOCK_FILES, RevisionError
from compare.tools.regression.samples import SubjectPair

KIND, RECORD_FILE = "bisection", "bisection.json"
_SHORT, _LONGEST_SUBJECT = 8, 48
WASTED_PAIRS = 3
"""A test ends when so many pairs in a row do not count."""


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
    distributions_hashes: list[str] = []
    """Hash of the distributions of each environment, or of the common one of all commits."""

    def identity(self) -> dict[str, Any]:
        """A test may stop at any number of pairs, so more may be allowed later. Each pair has a seed, one after the other."""
        fields = self.model_dump(mode="json", exclude={"kind", "code_hash", "machine", "most_repeats"})
        return fields | {"seeds": self.seeds[0]}

    def continued_by(self, new: Any) -> Self:
        return self.model_copy(update={"most_repeats": new.most_repeats, "seeds": new.seeds})


@dataclass(frozen=True)
class BisectionQuery:
    """The question of a bisection, from the command line."""

    metric: str
    threshold: float
    good: str | None = None
    bad: str = "HEAD"
    environments: tuple[str, ...] = ()


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
class Candidates:
    """All candidates in order, and how each is made ready for its runs."""

    items: Sequence[Candidate]
    plan: Comparison
    """Plan of this revision, or of the last environment."""
    rows: Sequence[Row]
    """Rows that can be run. `bisect` follows one."""
    ready: Callable[[int], AbstractContextManager[Contestant]]
    """Context manager of a candidate as a contestant, by its place. It raises RevisionError if it cannot be measured."""
    environments: Sequence[Environment]
    """Environment of each candidate, or the common one of all commits. Empty: the twin does not report it."""


def from_revisions(good: str, bad: str, request: ComparisonRequest, progress: Display) -> Candidates:
    """Return the commits from `good` to `bad` that changed what a run uses: `common`, the twins, the lock.

    A merge is one commit: its first parents are followed. Commits that need other packages than this environment has are
    refused one by one.
    """
    plan = comparison_plan.build_plan(request, progress)
    first, last = (revisions.commit_of(revision) for revision in (good, bad))
    if first == last or first not in revisions.output("rev-list", "--first-parent", last).split():
        raise RevisionError(
            f"--good must be an earlier revision than --bad, of the same branch. Received: {good} and {bad}. A commit of a "
            "side branch stands in it as its merge: name that one."
        )
    twins = {row.framework for row in plan.rows}
    paths = [*LOCK_FILES, "common", *sorted(folder for twin, folder in launch.FRAMEWORKS.items() if twin in twins)]
    between = ("--first-parent", "--reverse", "--format=%H %s", f"{first}..{last}", "--", *paths)
    lines = revisions.output("log", "--no-walk", "--format=%H %s", first).splitlines()
    lines += revisions.output("log", *between).splitlines()
    if len(lines) < 2:
        raise RevisionError(f"Nothing that a run uses changed from {good} to {bad} ({', '.join(paths)}). Name other revisions.")
    candidates: list[Candidate] = []
    for line in lines:
        commit, _, subject = line.partition(" ")
        lock = revisions.other_lock(commit)
        refusal = None if lock is None else f"its {lock} differs from that of the working tree"
        title = f"{commit[:_SHORT]} {shortened(subject, _LONGEST_SUBJECT)}"
        candidates.append(Candidate(commit[:_SHORT], title, commit, refusal))
    for end, word in ((candidates[0], good), (candidates[-1], bad)):
        if end.refusal:
            raise RevisionError(
                f"{word} cannot be measured here: {end.refusal}. Name revisions with the packages of this .venv."
            )
    rows = requests.runnable(plan.rows)
    if revisions.repository_of(rows[0].spec.model) != machine.PROJECT_ROOT:
        raise RevisionError(
            f"bisect follows commits of the suite. {rows[0].spec.model} lies outside it, so every commit would train the same. "
            "Compare two revisions of your own repository with regress --interleaved."
        )

    @contextmanager
    def ready(place: int) -> Generator[Contestant]:
        candidate = candidates[place]
        with revisions.worktree(candidate.identity) as worktree:
            yield request.twins[rows[0].contestant].at(*revisions.code_of_suite(worktree, candidate.name))

    return Candidates(candidates, plan, rows, ready, list(plan.environments.values()))


def from_environments(pythons: Sequence[str], request: ComparisonRequest, progress: Display) -> Candidates:
    """Return the environments in the order that they are named."""
    paths = [Contestant.from_fields("environment", {"twin": "any", "python": python}).python or "" for python in pythons]
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise RevisionError(
            f"--environments takes two or more, each once, the good one first. Received: {', '.join(pythons)}. Use e.g. "
            "--environments torch-213 torch-214 torch-215."
        )
    requests_by_place = [
        replace(request, twins=request.twins.with_contestants(requests.in_environment(python, request.twins.contestants)))
        for python in pythons
    ]
    plans = [comparison_plan.build_plan(place_request, progress) for place_request in requests_by_place]
    rows = requests.runnable(plans[-1].rows)
    candidates = [Candidate(f"environment-{place + 1}", python, paths[place]) for place, python in enumerate(pythons)]

    @contextmanager
    def ready(place: int) -> Generator[Contestant]:
        yield requests_by_place[place].twins[rows[0].contestant]

    all_environments = [environment for plan in plans for environment in plan.environments.values()]
    return Candidates(candidates, plans[-1], rows, ready, all_environments)


def open_workspace(
    request: ComparisonRequest, query: BisectionQuery, folder: Path
) -> AbstractContextManager[Workspace[Bisection]]:
    """Open the folder of a bisection."""
    early = {"metric": query.metric, "threshold": query.threshold, "seeds": request.settings.seeds[0]}
    return Workspace.open(folder, BISECTION, early=early)


def search(
    candidates: Candidates,
    request: ComparisonRequest,
    query: BisectionQuery,
    workspace: Workspace[Bisection],
    progress: Display,
) -> BisectionOutcome:
    """Measure candidates until the first bad one is found. Finished runs in the folder are used again."""
    record = Bisection(
        candidates=[candidate.identity for candidate in candidates.items],
        rows={row.id: row.spec.model_dump(mode="json") for row in candidates.rows},
        seeds=list(request.settings.seeds),
        metric=query.metric,
        threshold=query.threshold,
        most_repeats=request.settings.repeats,
        code_hash=candidates.plan.code_hash,
        machine=candidates.plan.machine,
        distributions_hashes=[environment.distributions_hash for environment in candidates.environments],
    )
    workspace.claim(record)
    folder = workspace.folder
    with ExitStack() as resources:
        good_end: list[Contestant] = []  # once it is checked out

        def is_disturbed(pair: Pair[Row], run: RunResult) -> bool:
            return query.metric in times() and run_figures.disturbing_cores(run) is not None

        def measure(earlier: int, later: int, enough: Enough) -> Ratio | None:
            """Measure pairs of two candidates. The good end is checked out once for all tests."""
            place = _test_folder(folder, candidates, earlier, later)
            so_far = partial(_ratio, place, query.metric)
            if enough(before := so_far()):
                progress.stage(f"the pairs in {place} decide already")
                return before
            counted = [before.n if before else 0]  # after each pair that is made now

            def is_over() -> bool:
                ratio = so_far()
                counted.append(ratio.n if ratio else 0)
                is_wasted = len(counted) > WASTED_PAIRS and counted[-1] == counted[-1 - WASTED_PAIRS]
                return enough(ratio) or is_wasted

            try:
                with ExitStack() as test_resources:
                    warm = [BASE] if good_end and earlier == 0 else []
                    if earlier == 0:
                        good_end[:] = good_end or [resources.enter_context(candidates.ready(0))]
                    base = good_end[0] if earlier == 0 else test_resources.enter_context(candidates.ready(earlier))
                    head = test_resources.enter_context(candidates.ready(later))
                    test_workspace = test_resources.enter_context(Workspace.open(place, pairs.GROWING))
                    test_request = requests.with_bases(request, [head], [base])
                    runs = PairedRuns(test_request, test_workspace, candidates.items[earlier].name, progress)
                    runs.make(is_over, warm, is_disturbed)
            except RevisionError as error:
                raise Unmeasurable(str(error)) from error
            return so_far()

        refusals = {place: candidate.refusal for place, candidate in enumerate(candidates.items) if candidate.refusal}
        try:
            outcome = bisection.search(len(candidates.items) - 1, measure, query.threshold, refusals)
        except Unmeasurable as error:
            raise RevisionError(f"A candidate that is needed cannot be measured. {error}") from None
        trials = [
            _with_doubts(trial, candidates, _test_folder(folder, candidates, trial.earlier, trial.later), query.metric)
            for trial in outcome.trials
        ]
        return outcome.model_copy(update={"trials": trials})


BISECTION = FolderKind(noun=KIND, file=RECORD_FILE, kind=KIND, record=Bisection)


def _test_folder(folder: Path, candidates: Candidates, earlier: int, later: int) -> Path:
    """Return the folder of the test of two candidates."""
    return folder / f"{candidates.items[earlier].name}-{candidates.items[later].name}"


def _pair(folder: Path) -> SubjectPair | None:
    """Return the row of both sides. None before anything was measured."""
    if not (sides := measurements.read_sides(folder)):
        return None
    base, head = sides
    (pair,) = (SubjectPair(base.subjects[subject_id], head.subjects[subject_id], paired=True) for subject_id in base.subjects)
    return pair


def _ratio(folder: Path, metric: str) -> Ratio | None:
    """Return the figure of the head over that of the base, over all stored pairs that can be used."""
    if (pair := _pair(folder)) is None:
        return None
    before, now = pair.samples(metric)
    return statistics.paired_ratio(list(zip(now, before, strict=True)))


def _with_doubts(trial: BisectionTest, candidates: Candidates, folder: Path, metric: str) -> BisectionTest:
    """Return the trial with its number of pairs and the reasons why some do not count."""
    if (pair := _pair(folder)) is None:
        return trial
    sides = ((pair.before, trial.earlier), (pair.now, trial.later))
    repeats = pair.before.seeds.keys() & pair.now.seeds.keys()
    if metric not in times():
        return trial.model_copy(update={"pairs": len(repeats)})
    disturbed = repeats & (pair.before.cores_taken.keys() | pair.now.cores_taken.keys())
    doubts = [
        unreliable_words(runs.values)
        for subject, place in sides
        for runs in facts.unreliable_runs(subject, f"of {candidates.items[place].title}")
    ]
    return trial.model_copy(update={"pairs": len(repeats), "disturbed": len(disturbed), "doubts": doubts})
