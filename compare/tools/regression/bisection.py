"""Which change made a figure worse? A search by tests that together name a wrong change in at most one of 20 searches.

The good end is measured again beside each candidate, in turn, so that the machine's drift is left out. A candidate is bad if
its figure over the good end's is shown to be above a border, and good if it is shown to be below. The border is half of the
difference between the ends, on the logarithmic scale. The pairs of the ends alone set it, and each candidate has pairs of its
own. So no candidate chooses the border that it is judged by.

Each test may stop at any number of pairs (see `alpha_spending`). The level of 5 % is shared among all tests of the search: each
gets its part of what is left, divided by the number of tests that are still to come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from common.frozen import Frozen
from compare.statistics.statistics import SIGNIFICANCE, Ratio, one_sided_p_values

TestKind = Literal["the ends", "a candidate", "the change itself"]
Verdict = Literal["good", "bad", "undecided"]
Enough = Callable[[Ratio | None], bool]
"""Whether the pairs so far decide."""
Measure = Callable[[int, int, Enough], Ratio | None]
"""Measures two candidates, by their places, in pairs until that is enough or the most pairs are made. Later over earlier."""


class Unmeasurable(Exception):
    """A candidate cannot be measured. The message says why."""


class BisectionTest(Frozen):
    """Two candidates measured in turn."""

    what: TestKind
    earlier: int
    later: int
    level: float
    """Level of this test: its share of the 5 %."""
    border: float
    """Ratio that a bad candidate is shown to exceed."""
    ratio: Ratio | None
    """Later over earlier. None: no pair could be used."""
    verdict: Verdict
    pairs: int = 0
    """Number of pairs measured. `ratio.n` of them count."""
    disturbed: int = 0
    """Pairs that do not count because other work disturbed one of their runs."""
    doubts: list[str] = []
    """Why runs do not count, in sentences."""


class BisectionOutcome(Frozen):
    """Outcome of a search."""

    outcome: Literal["found", "one of several", "gradual", "undecided", "no regression"]
    """`gradual`: the figure crosses the border there, but that change alone is not shown to make it worse."""
    last_good: int
    first_bad: int
    trials: list[BisectionTest]
    skipped: dict[int, str]
    """Candidates that cannot be measured, with the reason."""

    @property
    def suspects(self) -> list[int]:
        """Candidates that may be the first bad one."""
        return [] if self.outcome == "no regression" else list(range(self.last_good + 1, self.first_bad + 1))


class NamedCandidate(Frozen):
    """A candidate for a reader."""

    identity: str
    title: str


class BisectionReport(Frozen):
    """Answer of `convtwins bisect`."""

    search: BisectionOutcome
    candidates: list[NamedCandidate]
    """Candidates in order, the good end first."""
    first_bad: str | None
    """Identity of the first bad candidate. None: not found."""
    suspects: list[str]
    """Identities of the candidates that may be the first bad one."""
    metric: str
    environments: list[str]
    """Sentences on what differs between the environments of the last good and the first bad one."""


def search(last: int, measure: Measure, threshold: float, skipped: Mapping[int, str] | None = None) -> BisectionOutcome:
    """Find the first bad one of the candidates 0 to `last`, in order. The first is the good end, `last` is the bad end.

    Args:
        last: at least 1.
        measure: raises Unmeasurable if the later candidate cannot be measured.
        threshold: growth between the ends that is worth a search.
        skipped: candidates between the ends that are known to be unmeasurable.

    Raises:
        Unmeasurable: one of the ends.
    """
    remaining_level, trials, unmeasurable = SIGNIFICANCE, list[BisectionTest](), dict(skipped or {})

    def run_test(
        what: TestKind, earlier: int, later: int, judge: Callable[[Ratio, float], tuple[float, Verdict]], num_remaining: int
    ) -> BisectionTest:
        nonlocal remaining_level
        level = remaining_level / (1 + num_remaining)
        ratio = measure(earlier, later, lambda so_far: so_far is not None and judge(so_far, level)[1] != "undecided")
        remaining_level -= level
        border, verdict = (1.0, "undecided") if ratio is None else judge(ratio, level)
        trials.append(
            BisectionTest(what=what, earlier=earlier, later=later, level=level, border=border, ratio=ratio, verdict=verdict)
        )
        return trials[-1]

    good, bad = 0, last
    ends = run_test(
        "the ends", good, bad, lambda ratio, level: _judge_ends(ratio, level, threshold), _steps(last - 1) + (last > 1)
    )
    if ends.verdict != "bad":
        outcome = "no regression" if ends.verdict == "good" else "undecided"
        return BisectionOutcome(outcome=outcome, last_good=good, first_bad=bad, trials=trials, skipped=unmeasurable)

    def beside_good(ratio: Ratio, level: float) -> tuple[float, Verdict]:
        return ends.border, _classify(ratio, ends.border, level)

    while untested := [index for index in range(good + 1, bad) if index not in unmeasurable]:
        middle = min(untested, key=lambda index: abs(2 * index - good - bad))
        try:
            trial = run_test("a candidate", 0, middle, beside_good, _steps(len(untested)))
        except Unmeasurable as reason:
            unmeasurable[middle] = str(reason)
            continue
        if trial.verdict == "undecided":
            return BisectionOutcome(outcome="undecided", last_good=good, first_bad=bad, trials=trials, skipped=unmeasurable)
        good, bad = (good, middle) if trial.verdict == "bad" else (middle, bad)
    outcome = "found" if bad == good + 1 else "one of several"
    if outcome == "found" and good > 0:  # beside the good end itself it has been measured already
        change_test = run_test("the change itself", good, bad, lambda ratio, level: _judge_change(ratio, level, threshold), 0)
        outcome = "found" if change_test.verdict == "bad" else "gradual"
    return BisectionOutcome(outcome=outcome, last_good=good, first_bad=bad, trials=trials, skipped=unmeasurable)


def _steps(candidates: int) -> int:
    """Return the number of tests that find one place among `candidates`."""
    return math.ceil(math.log2(candidates + 1))


def _classify(ratio: Ratio, border: float, level: float) -> Verdict:
    """Tell the side of the border where the ratio is shown to be."""
    above, below = one_sided_p_values(ratio, border)
    return "bad" if above < level else "good" if below < level else "undecided"


def _judge_ends(ratio: Ratio, level: float, threshold: float) -> tuple[float, Verdict]:
    """Return (the border for the candidates, whether the bad end is shown to be above it).

    The ends are judged by a border from their own pairs. This asks for more than a difference that is shown: half of the growth
    must exceed the error that a test against 1 allows. So equal ends are called different less often than by that test.
    """
    border = math.sqrt(ratio.value)
    if ratio.value > 1.0 + threshold:
        return border, "bad" if _classify(ratio, border, level) == "bad" else "undecided"
    return border, _at_most(ratio, level, threshold)


def _judge_change(ratio: Ratio, level: float, threshold: float) -> tuple[float, Verdict]:
    """Tell whether a single change is shown to make the figure worse."""
    if _classify(ratio, 1.0, level) == "bad":
        return 1.0, "bad"
    return 1.0, _at_most(ratio, level, threshold)


def _at_most(ratio: Ratio, level: float, threshold: float) -> Verdict:
    """Return `good` if the ratio is shown to be below one plus the threshold."""
    return "good" if _classify(ratio, 1.0 + threshold, level) == "good" else "undecided"
