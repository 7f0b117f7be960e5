"""The candidates of a bisection, commits or environments in order. Two of them are measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.artifacts.schema import Environment, RunResult
from common.frozen import Exact
from common.machine import machine
from common.machine.machine import Facts
from compare.comparison.comparison_plan import ComparisonRequest
from compare.core import statistics
from compare.core.progress import Display
from compare.core.statistics import Ratio
from compare.core.wording import shortened
from compare.execution import launch, results_folder, store
from compare.execution.contestants import Contestant
from compare.execution.matrix import Row
from compare.execution.store import Comparison
from compare.judgement import measurements, run_figures
from compare.judgement.measurements import TIMES
from compare.regression import bisection, facts, revisions
from compare.regression.bisection import Enough, Found, Trial, Unmeasurable
from compare.regression.revisions import BASE, HEAD, LOCK_FILES, OneSide, RevisionError
from compare.regression.samples import Pair

KIND, RECORD_FILE = "bisection", "bisection.json"
_SHORT, _LONGEST_SUBJECT = 8, 48
WASTED_PAIRS = 3
"""A test ends when so many pairs in a row do not count."""


class Bisection(Exact):
    """bisection.json: what is searched."""

    kind: str = KIND
    candidates: list[str]
    """Commits or interpreters, the good end first."""
    rows: dict[str, dict[str, Any]]
    """Id: its spec."""
    seeds: list[int]
    metric: str
    threshold: float
    most_repeats: int
    code_hash: str
    machine: Facts
    distributions_hashes: list[str] = []
    """Of each environment, or of the one that all commits run in."""


@dataclass(frozen=True)
class Asked:
    """What a user wants to know."""

    metric: str
    threshold: float
    good: str | None = None
    bad: str = "HEAD"
    environments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One of those in order. The first is the good end, the last is the bad end."""

    name: str
    """Short, a plain file name."""
    title: str
    """For a reader."""
    identity: str
    """What tells it from all others: the commit, or the interpreter."""
    refusal: str | None = None
    """Why it cannot be measured, if that is known before."""


@dataclass(frozen=True)
class Candidates:
    """All of them, and how each is made ready for its runs."""

    each: Sequence[Candidate]
    plan: Comparison
    """Of this revision, or of the last environment."""
    rows: Sequence[Row]
    """That can be run."""
    ready: Callable[[int], AbstractContextManager[OneSide]]
    """Raises RevisionError if the candidate cannot be measured."""
    environments: Sequence[Environment]
    """Of each candidate, or the one that all commits run in. Empty: the twin does not say."""


def of_revisions(good: str, bad: str, plan: Comparison) -> Candidates:
    """The commits from `good` to `bad` that changed what a run uses: `common`, the twins, the lock.

    A merge is one commit: its first parents are followed. Commits that need other packages than this environment has are
    refused one by one.

    Raises:
        RevisionError: git does not know a revision, `good` is no earlier commit of the branch of `bad`, nothing changed between
            them, or an end needs other packages.
    """
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
    found: list[Candidate] = []
    for line in lines:
        commit, _, subject = line.partition(" ")
        lock = revisions.other_lock(commit)
        refusal = None if lock is None else f"its {lock} differs from that of the working tree"
        title = f"{commit[:_SHORT]} {shortened(subject, _LONGEST_SUBJECT)}"
        found.append(Candidate(commit[:_SHORT], title, commit, refusal))
    for end, word in ((found[0], good), (found[-1], bad)):
        if end.refusal:
            raise RevisionError(
                f"{word} cannot be measured here: {end.refusal}. Name revisions with the packages of this .venv."
            )
    rows = revisions.runnable(plan)
    if revisions.repository_of(rows[0].spec.model) != machine.PROJECT_ROOT:
        raise RevisionError(
            f"bisect follows commits of the suite. {rows[0].spec.model} lies outside it, so every commit would train the same. "
            "Compare two revisions of your own repository with regress --interleaved."
        )

    @contextmanager
    def ready(place: int) -> Generator[OneSide]:
        candidate = found[place]
        with revisions.worktree(candidate.identity) as checkout:
            yield revisions.side_of(checkout, candidate.name, plan, rows)

    return Candidates(found, plan, rows, ready, list(plan.environments.values()))


def of_environments(pythons: Sequence[str], request: ComparisonRequest, shown: Display) -> Candidates:
    """Environments in the order that they are named.

    Raises:
        RevisionError: there are fewer than two, one is named twice, or they cannot run the same rows.
        SpecError, DataRefused, LaunchError: something else is refused.
    """
    paths = [Contestant.from_fields("environment", {"twin": "any", "python": python}).python or "" for python in pythons]
    if len(paths) < 2 or len(set(paths)) < len(paths):
        raise RevisionError(
            f"--environments takes two or more, each once, the good one first. Received: {', '.join(pythons)}. Use e.g. "
            "--environments torch-213 torch-214 torch-215."
        )
    sides = revisions.sides_of_environments(pythons, request, shown)
    found = [Candidate(f"environment-{place + 1}", python, paths[place]) for place, python in enumerate(pythons)]

    @contextmanager
    def ready(place: int) -> Generator[OneSide]:
        yield sides[place]

    there = [each for side in sides for each in side.plan.environments.values()]
    return Candidates(found, sides[-1].plan, revisions.runnable(sides[-1].plan), ready, there)


def refuse_used(request: ComparisonRequest, asked: Asked, folder: Path) -> None:
    """Refuse the folder at once for what shows before anything is prepared; `search` judges the rest.

    Raises:
        FolderError: it cannot be written, or holds another bisection or other files.
    """
    known = {"metric": asked.metric, "threshold": asked.threshold, "seeds": request.settings.seeds[0]}
    results_folder.refuse_other_request(folder, RECORD_FILE, Bisection, KIND, known, identity=_identity, kind=KIND)


def search(chosen: Candidates, request: ComparisonRequest, asked: Asked, folder: Path, shown: Display) -> Found:
    """Measure candidates until the first bad one is found. Finished runs in the folder are used again.

    Raises:
        RevisionError: an end cannot be measured.
        FolderError: the folder holds something else.
        Interrupted: finished runs are in the folder.
    """
    record = Bisection(
        candidates=[each.identity for each in chosen.each],
        rows={row.id: row.spec.model_dump(mode="json") for row in chosen.rows},
        seeds=list(request.settings.seeds),
        metric=asked.metric,
        threshold=asked.threshold,
        most_repeats=request.settings.repeats,
        code_hash=chosen.plan.code_hash,
        machine=chosen.plan.machine,
        distributions_hashes=[each.distributions_hash for each in chosen.environments],
    )
    with (
        results_folder.open_or_resume(folder, RECORD_FILE, record, KIND, identity=_identity, merge=_go_on),
        ExitStack() as held,
    ):
        good: list[OneSide] = []  # once it is checked out

        def is_spoilt(row: Row, run: RunResult) -> bool:
            return asked.metric in TIMES and run_figures.disturbing_cores(run) is not None

        def measure(earlier: int, later: int, enough: Enough) -> Ratio | None:
            """In pairs. The good end is checked out once for all tests."""
            place = _folder(folder, chosen, earlier, later)
            so_far = partial(_ratio, place, asked.metric)
            if enough(before := so_far()):
                shown.stage(f"the pairs in {place} decide already")
                return before
            counted = [before.n if before else 0]  # after each pair that is made now

            def is_over() -> bool:
                ratio = so_far()
                counted.append(ratio.n if ratio else 0)
                is_wasted = len(counted) > WASTED_PAIRS and counted[-1] == counted[-1 - WASTED_PAIRS]
                return enough(ratio) or is_wasted

            try:
                with ExitStack() as briefly:
                    warm = [BASE] if good and earlier == 0 else []
                    if earlier == 0:
                        base = good[0] if good else held.enter_context(chosen.ready(0))
                        good[:] = [base]
                    else:
                        base = briefly.enter_context(chosen.ready(earlier))
                    sides = {BASE: base, HEAD: briefly.enter_context(chosen.ready(later))}
                    mark = {"bisection": [chosen.each[earlier].identity, chosen.each[later].identity]}
                    revisions.claim(place, sides, mark)
                    name = chosen.each[earlier].name
                    revisions.in_turn(name, chosen.rows, sides, place, shown, is_over, warm, is_spoilt)
            except RevisionError as error:
                raise Unmeasurable(str(error)) from error
            return so_far()

        known = {place: each.refusal for place, each in enumerate(chosen.each) if each.refusal}
        try:
            found = bisection.search(len(chosen.each) - 1, measure, asked.threshold, known)
        except Unmeasurable as error:
            raise RevisionError(f"A candidate that is needed cannot be measured. {error}") from None
        trials = [
            _with_doubts(trial, chosen, _folder(folder, chosen, trial.earlier, trial.later), asked.metric)
            for trial in found.trials
        ]
        return found.model_copy(update={"trials": trials})


def _identity(record: Bisection) -> Mapping[str, Any]:
    # A test may stop at any number of pairs, so more may be allowed later. Each pair has a seed, one after the other.
    own = record.model_dump(mode="json", exclude={"kind", "code_hash", "machine", "most_repeats"})
    return own | {"seeds": record.seeds[0]}


def _go_on(stored: Bisection, wanted: Bisection) -> Bisection:
    return stored.model_copy(update={"most_repeats": wanted.most_repeats, "seeds": wanted.seeds})


def _folder(folder: Path, chosen: Candidates, earlier: int, later: int) -> Path:
    """Of the test of two candidates."""
    return folder / f"{chosen.each[earlier].name}-{chosen.each[later].name}"


def _pair(folder: Path) -> Pair | None:
    """The row of both sides. None before anything was measured."""
    if not all((folder / side / store.PLAN_FILE).exists() for side in (BASE, HEAD)):
        return None
    base, head = (measurements.read(folder / side) for side in (BASE, HEAD))
    (pair,) = (Pair(base.subjects[each], head.subjects[each], paired=True) for each in base.subjects)
    return pair


def _ratio(folder: Path, metric: str) -> Ratio | None:
    """The figure of the head over that of the base, over all pairs that are stored and can be used."""
    if (pair := _pair(folder)) is None:
        return None
    before, now = pair.samples(metric)
    return statistics.paired_ratio(list(zip(now, before, strict=True)))


def _with_doubts(trial: Trial, chosen: Candidates, folder: Path, metric: str) -> Trial:
    """The trial with its number of pairs, and why some do not count."""
    if (pair := _pair(folder)) is None:
        return trial
    sides = ((pair.before, trial.earlier), (pair.now, trial.later))
    made = pair.before.seeds.keys() & pair.now.seeds.keys()
    if metric not in TIMES:
        return trial.model_copy(update={"pairs": len(made)})
    disturbed = made & (pair.before.cores_taken.keys() | pair.now.cores_taken.keys())
    doubts = [sentence for each, at in sides for sentence in facts.doubts(each, f"of {chosen.each[at].title}")]
    return trial.model_copy(update={"pairs": len(made), "disturbed": len(disturbed), "doubts": doubts})
