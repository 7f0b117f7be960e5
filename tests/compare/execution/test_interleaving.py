"""The order in which compared runs are made."""

from collections import Counter

from compare.execution.interleaving import turn


def test_every_other_repeat_runs_backward_so_that_each_place_falls_to_each_side() -> None:
    assert [list(turn("ab", repeat)) for repeat in range(4)] == [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]


def test_a_drift_that_grows_steadily_favours_no_side_over_an_even_number_of_repeats() -> None:
    place: Counter[str] = Counter()
    runs = [side for repeat in range(6) for side in turn(("first", "second"), repeat)]
    for seconds, side in enumerate(runs):
        place[side] += seconds
    assert place["first"] == place["second"]
