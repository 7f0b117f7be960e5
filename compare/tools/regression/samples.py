"""Samples of a row or benchmark, before and now."""

from __future__ import annotations

import fnmatch
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import cached_property

from compare.judgement.figures import times
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression.measured import COMMAND_SECONDS, FIGURE, SECONDS, MeasuredSubject

MOST_APART = timedelta(hours=1)
"""Files that were saved further apart met the machine at different times, and are no pair."""


def is_named(subject_id: str, only: str | None) -> bool:
    """Return whether `--only` names a row or benchmark, by its id or by a pattern. None names all.

    The id of a benchmark with parameters, `test_speed[small]`, is no pattern that matches itself.
    """
    return only is None or subject_id == only or fnmatch.fnmatchcase(subject_id, only)


def is_time(metric: str) -> bool:
    """Return whether other work makes a metric worse. A figure that a command writes counts as such."""
    return metric in (SECONDS, COMMAND_SECONDS, FIGURE, *times())


def usable_samples(subject: MeasuredSubject, metric: str, *, in_doubt: bool = False) -> dict[int, float]:
    """Figures by repeat, without zeros: no ratio has them. Unreliable times only if `in_doubt`."""
    doubtful = subject.unreliable_repeats if is_time(metric) and not in_doubt else ()
    samples = subject.samples.get(metric, {})
    return {repeat: value for repeat, value in samples.items() if value > 0 and repeat not in doubtful}


def unwritten(metric: str, values: Sequence[float]) -> float:
    """Return the most that digits which a command left out can change the logarithm of a ratio of these values.

    It is a unit of the last decimal place that any of them has, at most 0.1: 0.01 of 1.5 and 1.52.
    """
    if metric != FIGURE or not values:
        return 0.0
    places = min(int(Decimal(repr(value)).as_tuple().exponent) for value in (0.1, *values))
    return float(Decimal(1).scaleb(places)) / min(values)


def _accuracies(subject: MeasuredSubject) -> dict[int, float]:
    """Median accuracy of each seed's repeats, so that each seed counts once."""
    accuracies: dict[int, list[float]] = {}
    for repeat, scores in subject.tests.items():
        accuracies.setdefault(subject.seeds[repeat], []).append(scores.accuracy)
    return {seed: statistics.median(values) for seed, values in accuracies.items()}


def pair_interleaved_files(pairs: Sequence[SubjectPair]) -> list[SubjectPair]:
    """Pair the benchmark files of both sides by number, if their times show that they were made in turn. Else return no pairs.

    In turn is A B B A, A B A B or the like: of each two files that follow each other one is of each side, saved at most
    MOST_APART after the other. A last one alone has no partner.
    """
    interleaved: list[SubjectPair] = []
    for pair in pairs:
        subjects, metric = (pair.before, pair.now), next(iter(pair.before.samples), SECONDS)
        files = sorted((time, side, number) for side in (0, 1) for number, time in subjects[side].saved_at.items())
        turns = list(zip(files[::2], files[1::2], strict=False))
        if len(turns) < 2 or len({time for time, _, _ in files}) < len(files):
            return []
        if any(first[1] == second[1] or second[0] - first[0] > MOST_APART for first, second in turns):
            return []
        samples: tuple[dict[int, float], dict[int, float]] = ({}, {})
        places: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for place, (_, side, number) in enumerate(files):
            samples[side][place // 2] = subjects[side].samples[metric][number]
            places[side][number] = place // 2
        paired = [
            subject.model_copy(
                update={
                    "samples": {metric: side_samples},
                    "unreliable_repeats": {place_of[number]: why for number, why in subject.unreliable_repeats.items()},
                    "cores_taken": {place_of[number]: cores for number, cores in subject.cores_taken.items()},
                }
            )
            for subject, side_samples, place_of in zip(subjects, samples, places, strict=True)
        ]
        interleaved.append(SubjectPair(*paired, paired=True))
    return interleaved


def pair_subjects(before: MeasuredSubject, now: MeasuredSubject, *, paired: bool) -> SubjectPair:
    """Pair a row or benchmark with itself. Both sides have the statistic that the marker of `now` names."""
    return SubjectPair(before.with_statistic(now.statistic), now, paired)


@dataclass(frozen=True)
class SubjectPair:
    """A row or benchmark, before and now."""

    before: MeasuredSubject
    now: MeasuredSubject
    paired: bool
    """Whether repeats of the same number were run next to each other."""

    def samples(self, metric: str, *, in_doubt: bool = False) -> tuple[list[float], list[float]]:
        """The samples of both sides, see `usable_samples`. If they are paired, only complete pairs."""
        first, second = (usable_samples(subject, metric, in_doubt=in_doubt) for subject in (self.before, self.now))
        if self.paired:
            both = sorted(first.keys() & second.keys())
            return [first[repeat] for repeat in both], [second[repeat] for repeat in both]
        return list(first.values()), list(second.values())

    def log_ratios(self, metric: str) -> list[float]:
        """Logarithms of now over before, of each complete pair. Seconds of runs that took turns are those of their slices."""
        first, second = (usable_samples(subject, metric) for subject in (self.before, self.now))
        of_slices = self.now.slice_ratios if metric == "epoch_seconds" else {}
        return [
            math.log(of_slices[repeat]) if repeat in of_slices else math.log(second[repeat]) - math.log(first[repeat])
            for repeat in sorted(first.keys() & second.keys())
        ]

    def displayed_samples(self, metric: str) -> tuple[list[float], list[float]]:
        """The samples of both sides where none can be judged, each side for itself.

        Unreliable times are among them only if the side has no reliable one.
        """
        first, second = (
            usable_samples(subject, metric) or usable_samples(subject, metric, in_doubt=True)
            for subject in (self.before, self.now)
        )
        return list(first.values()), list(second.values())

    def neighbours(self, metric: str, *, in_turn: bool) -> list[tuple[float, float]]:
        """Return reliable samples of the same code, one after the other.

        Args:
            in_turn: whether the runs were made in the order A B, B A, A B. Then the head's second run follows its first
                directly, the base's third its second, and so on.
        """
        neighbours: list[tuple[float, float]] = []
        for first, subject in ((1, self.before), (0, self.now)):
            samples = usable_samples(subject, metric)
            starts = [repeat for repeat in samples if repeat + 1 in samples and (not in_turn or repeat % 2 == first)]
            neighbours += [(samples[repeat], samples[repeat + 1]) for repeat in starts]
        return neighbours

    @cached_property
    def by_seed(self) -> dict[int, tuple[float, float]]:
        """Accuracy of each common seed, before and now."""
        first, second = _accuracies(self.before), _accuracies(self.now)
        return {seed: (first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())}

    @property
    def tests_accuracy(self) -> bool:
        """Whether accuracies differ, over enough seeds to separate a change from the effect of rounding on each training."""
        return len(self.by_seed) >= VERDICT_PAIRS and any(first != second for first, second in self.by_seed.values())
