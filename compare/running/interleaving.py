"""Jobs that are compared take turns: A B, then B A, and so on. A machine that grows warmer or busier then favours neither side.

A round is one repeat of all items. `run_in_turns` runs round after round:

    for results in run_in_turns(remaining(rounds(rows, 5), is_done), execute, progress, name=..., label=...):
        if is_enough():
            break
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

from common.artifacts.schema import RunResult

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Job(NamedTuple, Generic[_Item]):
    """One repeat of an item, e.g. a run of a row."""

    item: _Item
    repeat: int


class TurnDisplay(Protocol):
    """Progress of jobs, as `progress.Display` shows it."""

    def plan(self, jobs: Sequence[str]) -> None: ...

    def begin(self, name: str, label: str, seconds: float = 0.0, sharing: int = 1, working: int = 1) -> None: ...

    def end(self, result: RunResult | None = None, note: str = "") -> None: ...


class LabelDisplay:
    """Shows nothing but the label of the current job.

    Args:
        say: shows a text.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def plan(self, jobs: Sequence[str]) -> None:
        """Show nothing."""

    def begin(self, name: str, label: str, seconds: float = 0.0, sharing: int = 1, working: int = 1) -> None:
        """Show the label."""
        self._say(label)

    def end(self, result: RunResult | None = None, note: str = "") -> None:
        """Show nothing."""


def turn(items: Sequence[_Item], repeat: int) -> Sequence[_Item]:
    """Return the items in their order for one repeat: forward in even repeats, backward in odd ones."""
    return items if repeat % 2 == 0 else items[::-1]


def one_round(items: Sequence[_Item], repeat: int) -> list[Job[_Item]]:
    """Return the jobs of one repeat, in their order."""
    return [Job(item, repeat) for item in turn(items, repeat)]


def rounds(items: Sequence[_Item], repeats: int) -> list[list[Job[_Item]]]:
    """Return the jobs of each repeat, in their order."""
    return [one_round(items, repeat) for repeat in range(repeats)]


def remaining(planned: Iterable[Sequence[Job[_Item]]], is_done: Callable[[Job[_Item]], bool]) -> list[list[Job[_Item]]]:
    """Return the jobs of each round that are not done. A round without any is left out."""
    left = ([job for job in jobs if not is_done(job)] for jobs in planned)
    return [jobs for jobs in left if jobs]


def run_in_turns(
    planned: Sequence[Sequence[Job[_Item]]],
    execute: Callable[[Job[_Item]], _Result],
    progress: TurnDisplay,
    *,
    name: Callable[[_Item], str],
    label: Callable[[Job[_Item]], str],
    stored: Callable[[Job[_Item]], _Result | None] = lambda job: None,
    accept: Callable[[Job[_Item], _Result], bool] = lambda job, result: True,
    ending: Callable[[_Result], tuple[RunResult | None, str]] = lambda result: (None, ""),
    execute_together: Callable[[Sequence[Job[_Item]]], Generator[tuple[int, _Result]]] | None = None,
    is_open: bool = False,
) -> Generator[list[tuple[Job[_Item], _Result]]]:
    """Run the jobs round after round, one after the other or all of a round together.

    Whoever has enough takes no further round.

    Args:
        planned: the rounds.
        execute: runs a job. A failure that ends all is an exception. Another one is a result.
        progress: shows the progress.
        name: returns the name of an item in the progress. The repeats of an item take about the same time.
        label: returns what is shown while a job runs.
        stored: returns the result that a job has already, if that counts. The job is not executed then.
        accept: called after each executed job: whether its result counts.
        ending: returns a job's run and a note, for the line about its end.
        execute_together: runs several jobs of a round, which take turns within their runs. Yields the place and the result of
            each when it ends. None: each runs alone.
        is_open: whether most of the rounds may not be needed. Then the progress does not count those that are left.

    Yields:
        After each round: its jobs with their results, in order, without those that do not count.
    """
    progress.plan([] if is_open else [name(job.item) for jobs in planned for job in jobs])
    for jobs in planned:
        counting: dict[int, _Result] = {}
        known = {place: result for place, job in enumerate(jobs) if (result := stored(job)) is not None}
        left = {place: job for place, job in enumerate(jobs) if place not in known}
        alone = range(len(jobs)) if execute_together is None or len(left) < 2 else known
        for place in alone:
            progress.begin(name(jobs[place].item), label(jobs[place]))
            result = known[place] if place in known else execute(jobs[place])
            progress.end(*ending(result))
            if place in known or accept(jobs[place], result):
                counting[place] = result
        if execute_together is not None and len(left) > 1:
            for place, result in _run_together(left, execute_together, progress, name, label):
                progress.end(*ending(result))
                if accept(jobs[place], result):
                    counting[place] = result
        yield [(jobs[place], result) for place, result in sorted(counting.items(), key=itemgetter(0))]


def _run_together(
    jobs: Mapping[int, Job[_Item]],
    execute_together: Callable[[Sequence[Job[_Item]]], Generator[tuple[int, _Result]]],
    progress: TurnDisplay,
    name: Callable[[_Item], str],
    label: Callable[[Job[_Item]], str],
) -> Generator[tuple[int, _Result]]:
    """Run the jobs of a round in turns. Yields the place of each and its result when it ends, with its progress begun.

    Args:
        jobs: {place: job} of at least two jobs.
    """
    places, started = list(jobs), time.monotonic()
    working = dict(jobs)
    with contextlib.closing(execute_together([*jobs.values()])) as ended:
        while working:
            first, *others = working.values()
            words = f"{label(first)} and {len(others)} more in turns" if others else label(first)
            progress.begin(name(first.item), words, time.monotonic() - started, len(jobs), len(working))
            number, result = next(ended)
            job = working[places[number]]
            progress.begin(name(job.item), label(job), time.monotonic() - started, len(jobs), len(working))
            del working[places[number]]
            yield places[number], result
