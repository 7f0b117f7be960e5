"""When a bar that is a ratio counts as met."""

import pytest

from compare.statistics.statistics import MeanEstimate, Ratio
from tests.benchmarks.bars import exit_code, met, within


@pytest.mark.parametrize(
    ("low", "high", "bar", "answer"),
    [
        (1.9, 2.0, 1.9, "yes"),
        (1.8, 2.1, 1.9, "not shown"),  # its mean of 1.95 is above the bar, its interval is not
        (1.7, 1.89, 1.9, "no"),
        (None, None, 1.9, "not shown"),
        (0.1, 0.2, None, "-"),
    ],
)
def test_a_bar_is_met_or_missed_where_the_whole_interval_is_above_or_below_it(
    low: float | None, high: float | None, bar: float | None, answer: str
) -> None:
    assert met(Ratio(value=1.95, low=low, high=high, n=5), bar) == answer


@pytest.mark.parametrize(("mean", "answer"), [(1.0, "yes"), (1.95, "not shown"), (2.05, "not shown"), (3.0, "no")])
def test_seconds_are_within_a_bar_where_their_whole_interval_is(mean: float, answer: str) -> None:
    assert within(MeanEstimate(mean, 0.1, 4), 2.0) == answer


def test_too_few_pairs_and_disturbed_ones_show_nothing() -> None:
    assert met(Ratio(value=1.95, low=1.94, high=1.96, n=4), 1.9) == "not shown"
    assert met(Ratio(value=1.95, low=1.94, high=1.96, n=5), 1.9, in_doubt=True) == "not shown"
    assert within(MeanEstimate(1.0, 0.1, 3), 2.0) == within(MeanEstimate(1.0, 0.1, 4), 2.0, in_doubt=True) == "not shown"


def test_a_bar_that_was_not_measured_is_missed() -> None:
    assert met(None, 1.9) == "no"


@pytest.mark.parametrize(
    ("answers", "code"), [(["yes", "yes"], 0), (["yes", "not shown"], 2), (["not shown", "no"], 1), (["no", "yes"], 1)]
)
def test_the_exit_code_tells_a_missed_bar_from_one_that_the_pairs_do_not_tell(answers: list[str], code: int) -> None:
    assert exit_code(answers) == code
