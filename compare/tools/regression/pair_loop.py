"""Runs of a base and a head in turn: A B, then B A. A subclass runs trainings, or benchmarks of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import typer

from common.artifacts.schema import RunResult
from common.errors import UserError
from common.machine import machine
from common.machine.interference import Meter
from common.machine.private_folder import PrivateFolder
from compare.cli.errors import LaunchError, UnfitError
from compare.cli.progress import Display
from compare.comparison import comparison_plan
from compare.judgement.sides import BASE, HEAD
from compare.running.interleaving import Job, run_in_turns, turn
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression.records import WASTED_PAIRS
from compare.tools.regression.revisions import RevisionError


class PairItem(Protocol):
    """One side of a pair, e.g. a row."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=PairItem)
Result = TypeVar("Result")


class Pair(NamedTuple, Generic[Item]):
    """An item of the head, and the same item of its base."""

    base: Item
    head: Item


class PairLoop(ABC, Generic[Item, Result]):
    """Runs in pairs, in a folder that may hold a part of them.

    Attributes:
        pairs: what is run on both sides.
        repeats: the most pairs of each.
        folder: where the runs are stored.
        base_name: name of the base, for messages.
        head_name: name of the head, if several are measured beside a base. Empty: there is one.
        progress: shows the progress.
    """

    pairs: Sequence[Pair[Item]]
    repeats: int
    folder: Path
    base_name: str
    head_name: str = ""
    progress: Display

    @abstractmethod
    def name(self, pair: Pair[Item]) -> str:
        """Return the name of a pair for a reader."""

    @abstractmethod
    def stored(self, item: Item, repeat: int) -> Result | None:
        """Return a stored run that ended well. None: there is none."""

    @abstractmethod
    def remove(self, item: Item, repeat: int) -> None:
        """Remove a stored run."""

    @abstractmethod
    def rounds_left(self, again: Collection[tuple[str, int]]) -> Sequence[Sequence[Job[Item]]]:
        """Return the runs of each round that are not stored, and those of `again`, by item and repeat."""

    @abstractmethod
    def execute(self, item: Item, repeat: int, folder: Path) -> Result:
        """Run one side, and store the result in a folder."""

    cores = machine.available_cores()
    """The most cores that a run has."""
    takes_turns = False
    """Whether both sides of a pair train in turns, see `execute_together`."""

    def execute_together(self, jobs: Sequence[Job[Item]]) -> Generator[tuple[int, Result]]:
        """Run both sides of a pair in turns. Yields the place and the result of each when it ends."""
        raise NotImplementedError

    @abstractmethod
    def failure(self, result: Result) -> str | None:
        """Say how a run ended, e.g. `failed: exit code 1`. None: it ended well."""

    def advice(self, result: Result) -> str:
        """Say what to do about a run that failed, if the other side did not. Empty: the usual."""
        return ""

    @abstractmethod
    def ending(self, result: Result) -> tuple[RunResult | None, str]:
        """Return a run and a note for its progress line."""

    @abstractmethod
    def is_disturbed(self, result: Result) -> bool:
        """Return whether other work disturbed a run."""

    def is_spoilt(self, runs: Sequence[Result]) -> bool:
        """Return whether other work disturbed a pair, so that no time of it counts."""
        return any(map(self.is_disturbed, runs))

    def check_stored(self, job: Job[Item], result: Result, label: str) -> None:
        """Raise OSError if a run could not be stored."""

    def runs(self, pair: Pair[Item], repeat: int) -> list[Result]:
        """Return the stored runs of both sides, if both ended well. Else empty."""
        runs = [result for item in pair if (result := self.stored(item, repeat)) is not None]
        return runs if len(runs) == len(pair) else []

    def stored_words(self) -> str:
        """Return how many pairs are stored: `2 of 6 pairs`."""
        stored = sum(bool(self.runs(pair, repeat)) for pair in self.pairs for repeat in range(self.repeats))
        return f"{stored} of {len(self.pairs) * self.repeats} pairs"

    def make(
        self,
        enough: Callable[[], bool] | None = None,
        warm: Collection[str] = (),
        needs_rerun: Callable[[Pair[Item], Result], bool] = lambda pair, run: False,
        has_verdict: Callable[[], bool] | None = None,
    ) -> None:
        """Warm up both sides, then run them in turn. Pairs that the folder holds already are not repeated.

        A pair without one of its runs is made again as a whole: both must meet the same state of the machine.

        Args:
            enough: asked after each pair whether more are needed. Then the runs of both sides must succeed. None: all pairs of
                the plan are made.
            warm: sides that need no warm-up.
            needs_rerun: whether a stored run does not count, so that its pair is made again.
            has_verdict: whether enough pairs count for a verdict on a figure. Before that, several spoilt pairs in a row end
                the measurement. Later they do not: whoever goes on would judge that figure again. None: they never do.

        Raises:
            OSError: a result could not be stored.
        """
        again: set[tuple[str, int]] = set()
        for pair in self.pairs:
            for repeat in range(self.repeats):
                runs = self.runs(pair, repeat)
                if not runs or any(needs_rerun(pair, run) for run in runs):
                    again |= {(item.id, repeat) for item in pair}
        left = self.rounds_left(again)
        num_planned, num_left = len(self.pairs) * self.repeats, len(again) // 2
        if num_left < num_planned:
            self.progress.stage(f"{num_planned - num_left} of {num_planned} pairs are in {self.folder}")
        if not left:
            return
        meter = Meter()
        self._warm_up([side for side in (BASE, HEAD) if side not in warm], strict=enough is not None)
        for caution in comparison_plan.busy_caution(meter, self.cores, machine.describe()):
            typer.echo(caution, err=True)
        places = {item.id: (pair, side) for pair in self.pairs for item, side in zip(pair, (BASE, HEAD), strict=True)}

        def label(job: Job[Item]) -> str:
            pair, side = places[job.item.id]
            if enough is not None:
                return f"{self.head_name or self.name(pair)}, pair {job.repeat + 1} of at most {self.repeats}, {side}"
            return f"{self.name(pair)}, {side} ({job.repeat + 1} of {self.repeats})"

        def start(job: Job[Item]) -> None:
            pair, side = places[job.item.id]
            if side == turn((BASE, HEAD), job.repeat)[0]:  # the first of its pair
                for item in pair:
                    self.remove(item, job.repeat)

        def checked(job: Job[Item], result: Result) -> Result:
            if self.failure(result) is not None:
                self.check_stored(job, result, label(job))
            return result

        def execute(job: Job[Item]) -> Result:
            start(job)
            return checked(job, self.execute(job.item, job.repeat, self.folder))

        def execute_together(jobs: Sequence[Job[Item]]) -> Generator[tuple[int, Result]]:
            first = 0
            for _, group in groupby(jobs, lambda job: places[job.item.id][0].head.id):
                pair_jobs = list(group)
                for job in pair_jobs:
                    start(job)
                for place, result in self.execute_together(pair_jobs):
                    yield first + place, checked(pair_jobs[place], result)
                first += len(pair_jobs)

        def accept(job: Job[Item], result: Result) -> bool:
            if enough is None or (failure := self.failure(result)) is None:
                return True
            pair, side = places[job.item.id]
            words = f"{self.name(pair)} did not end well ({failure})."
            if side == BASE:
                raise LaunchError(f"{self.base_name}: {words} It had ended well before. The same command continues.")
            raise RevisionError(words)

        def is_wasted(round_results: Sequence[tuple[Job[Item], Result]]) -> bool:
            by_pair: dict[str, list[Result]] = {}
            for job, result in round_results:
                if self.failure(result) is not None:
                    return False
                by_pair.setdefault(places[job.item.id][0].head.id, []).append(result)
            return all(map(self.is_spoilt, by_pair.values()))

        wasted: list[bool] = []

        for round_results in run_in_turns(
            left,
            execute,
            self.progress,
            name=lambda item: self.name(places[item.id][0]),
            label=label,
            accept=accept,
            ending=self.ending,
            execute_together=execute_together if self.takes_turns else None,
            is_open=enough is not None,
        ):
            if enough is not None and enough():
                return
            wasted.append(is_wasted(round_results))
            if has_verdict and wasted[-WASTED_PAIRS:] == [True] * WASTED_PAIRS and not has_verdict():
                self.progress.tell(f"other programs took cores from {WASTED_PAIRS} pairs in a row, so this ends here")
                return

    def complete_pairs(self, is_in_doubt: Callable[[Result], bool], *, may_give_up: bool) -> None:
        """Make all pairs, and those again that other work disturbed, where too few reliable pairs are left for a verdict.

        Other pairs stay. Their times have been judged, and whoever could draw them again would choose among verdicts.

        Args:
            is_in_doubt: whether the times of a run are unreliable, for this reason or another.
            may_give_up: whether spoilt pairs in a row end the measurement, see `make`.
        """

        def num_reliable(pair: Pair[Item]) -> int:
            all_runs = [self.runs(pair, repeat) for repeat in range(self.repeats)]
            return sum(bool(runs) and not any(map(is_in_doubt, runs)) for runs in all_runs)

        undecided = [pair for pair in self.pairs if num_reliable(pair) < VERDICT_PAIRS]
        self.make(
            needs_rerun=lambda pair, result: pair in undecided and self.is_disturbed(result),
            has_verdict=(lambda: max(map(num_reliable, self.pairs)) >= VERDICT_PAIRS) if may_give_up else None,
        )

    def _warm_up(self, sides: Collection[str], *, strict: bool) -> None:
        """Make one run of each item and side, and discard it. It compiles, fills caches, and shows whether the side can run."""
        with PrivateFolder() as temporary:
            for pair in self.pairs:
                for item, side in zip(pair, (BASE, HEAD), strict=True):
                    if side not in sides:
                        continue
                    self.progress.stage(f"{self.head_name or self.name(pair)}, {side}: warm-up")
                    try:
                        result = self.execute(item, 0, temporary.path)
                    except UnfitError as error:  # of its environment
                        if side == BASE or not strict:
                            raise
                        raise RevisionError(str(error)) from None
                    if (failure := self.failure(result)) is None:
                        continue
                    words = f"{self.name(pair)} did not end well"
                    if side == BASE:
                        advice = self._both_fail(pair, failure, temporary.path) or self.advice(result) or self.other_base
                        raise RevisionError(f"{words} at {self.base_name} ({failure}). {advice}")
                    if strict:
                        raise RevisionError(f"{words} ({failure}).")
                    words = f"{words} in the warm-up of the head ({failure}). It did at {self.base_name}."
                    raise LaunchError(f"{words} {self.advice(result) or self.repair_head}")

    def _both_fail(self, pair: Pair[Item], failure: str, folder: Path) -> str:
        """Say that the head fails as its base does, so that another base does not help. Empty: it does not fail."""
        self.progress.stage(f"{self.head_name or self.name(pair)}, {HEAD}: does it fail, too?")
        try:
            other = self.failure(self.execute(pair.head, 0, folder))
        except UserError as error:
            other = error.problem
        if other is None:
            return ""
        reason = "" if other.partition(";")[0] == failure.partition(";")[0] else f" ({other})"
        return f"The head fails, too{reason}. {self.mend_both}"

    other_base = "Choose another base, or rows that it can do with --only."
    repair_head = "Repair it, or choose other rows with --only."
    mend_both = "Mend the settings or the environment, or choose other rows with --only."
