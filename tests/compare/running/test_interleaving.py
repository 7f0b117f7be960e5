"""Jobs that are compared take turns: their order, what is left out, what is kept, and when they stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.artifacts.schema import RunResult
from compare.running import interleaving
from compare.running.interleaving import Job, LabelDisplay, remaining, rounds, run_in_turns, turn

ITEMS = st.lists(st.text("abcdef", min_size=1, max_size=2), min_size=1, max_size=5, unique=True)
REPEATS = st.integers(0, 6)
FAILURE, DISTURBED = "failed", "disturbed"


class Shown:
    """A display that remembers what it shows."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []

    def plan(self, jobs: Sequence[str]) -> None:
        self.lines.append(("plan", *jobs))

    def begin(self, name: str, label: str, seconds: float = 0.0, sharing: int = 1, working: int = 1) -> None:
        self.lines.append(("begin", name, label))

    def end(self, result: RunResult | None = None, note: str = "") -> None:
        self.lines.append(("end", note))


def words(job: Job[str]) -> str:
    return f"{job.item}{job.repeat}"


def some_of(planned: list[list[Job[str]]]) -> st.SearchStrategy[set[Job[str]]]:
    jobs = [job for one_round in planned for job in one_round]
    return st.sets(st.sampled_from(jobs)) if jobs else st.just(set())


def test_every_other_repeat_runs_backward_so_that_each_place_falls_to_each_side() -> None:
    assert [list(turn("ab", repeat)) for repeat in range(4)] == [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]


def test_a_drift_that_grows_steadily_favours_no_side_over_an_even_number_of_repeats() -> None:
    place: Counter[str] = Counter()
    runs = [side for repeat in range(6) for side in turn(("first", "second"), repeat)]
    for seconds, side in enumerate(runs):
        place[side] += seconds
    assert place["first"] == place["second"]


@given(ITEMS, REPEATS)
def test_a_round_is_one_repeat_of_each_item_and_each_is_the_mirror_of_the_one_before(items: list[str], repeats: int) -> None:
    planned = rounds(items, repeats)
    assert [[job.repeat for job in jobs] for jobs in planned] == [[repeat] * len(items) for repeat in range(repeats)]
    orders = [[job.item for job in jobs] for jobs in planned]
    assert orders[:1] in ([], [items])
    assert all(later == earlier[::-1] for earlier, later in pairwise(orders))


@given(ITEMS, ITEMS, REPEATS)
def test_pairs_within_items_take_turns_too(rows: list[str], sides: list[str], repeats: int) -> None:
    planned = rounds([(row, side) for row in rows for side in sides], repeats)
    nested = [[(row, side) for row in turn(rows, repeat) for side in turn(sides, repeat)] for repeat in range(repeats)]
    assert [[job.item for job in jobs] for jobs in planned] == nested


@given(st.data(), ITEMS, REPEATS)
def test_what_is_done_is_left_out_and_the_others_keep_their_order(data: st.DataObject, items: list[str], repeats: int) -> None:
    planned = rounds(items, repeats)
    done = data.draw(some_of(planned))
    left = remaining(planned, done.__contains__)
    assert all(left)
    assert [job for jobs in left for job in jobs] == [job for jobs in planned for job in jobs if job not in done]
    assert all(len({job.repeat for job in jobs}) == 1 for jobs in left)


@given(st.data(), ITEMS, REPEATS)
def test_a_command_that_goes_on_executes_what_was_not_stored_and_ends_with_the_same_results(
    data: st.DataObject, items: list[str], repeats: int
) -> None:
    planned = rounds(items, repeats)
    on_disk = {job: words(job) for job in data.draw(some_of(planned))}
    executed: list[Job[str]] = []

    def execute(job: Job[str]) -> str:
        executed.append(job)
        return words(job)

    shown = Shown()
    ended = list(run_in_turns(planned, execute, shown, name=str, label=words, stored=on_disk.get))
    assert ended == [[(job, words(job)) for job in jobs] for jobs in planned]
    jobs = [job for jobs in planned for job in jobs]
    assert executed == [job for job in jobs if job not in on_disk]
    lines = [line for job in jobs for line in (("begin", job.item, words(job)), ("end", ""))]
    assert shown.lines == [("plan", *(job.item for job in jobs)), *lines]


@given(ITEMS, REPEATS)
def test_runs_that_work_together_are_shown_together_and_end_one_by_one_under_their_own_names(
    items: list[str], repeats: int
) -> None:
    planned, shown = rounds(items, repeats), Shown()

    def together(jobs: Sequence[Job[str]]) -> Generator[tuple[int, str]]:
        yield from reversed([*enumerate(map(words, jobs))])

    ended = [*run_in_turns(planned, words, shown, name=str, label=words, execute_together=together)]
    assert ended == [[(job, words(job)) for job in jobs] for jobs in planned]
    lines: list[tuple[str, ...]] = []
    for jobs in planned:
        for more, job in reversed([*enumerate(jobs)]):
            if len(jobs) > 1:
                lines.append(("begin", jobs[0].item, f"{words(jobs[0])} and {more} more in turns" if more else words(job)))
            lines += [("begin", job.item, words(job)), ("end", "")]
    assert shown.lines[1:] == lines


@given(st.data(), ITEMS, REPEATS)
def test_a_failure_is_kept_what_is_disturbed_is_dropped_and_neither_stops_the_others(
    data: st.DataObject, items: list[str], repeats: int
) -> None:
    planned = rounds(items, repeats)
    outcomes = {
        job: data.draw(st.sampled_from(["ok", FAILURE, DISTURBED]), label=words(job)) for jobs in planned for job in jobs
    }
    shown = Shown()
    ended = run_in_turns(
        planned,
        lambda job: outcomes[job],
        shown,
        name=str,
        label=words,
        accept=lambda job, result: result != DISTURBED,
        ending=lambda result: (None, result),
    )
    assert [pair for pairs in ended for pair in pairs] == [
        (job, outcomes[job]) for jobs in planned for job in jobs if outcomes[job] != DISTURBED
    ]
    assert [line[1] for line in shown.lines if line[0] == "end"] == [outcomes[job] for jobs in planned for job in jobs]


@given(st.data(), ITEMS, REPEATS)
def test_a_stored_result_that_does_not_count_is_made_again_and_one_that_counts_is_not_judged_again(
    data: st.DataObject, items: list[str], repeats: int
) -> None:
    planned = rounds(items, repeats)
    stored = {job: data.draw(st.sampled_from(["ok", DISTURBED])) for job in data.draw(some_of(planned))}
    executed, accepted = list[Job[str]](), list[Job[str]]()

    def execute(job: Job[str]) -> str:
        executed.append(job)
        return "ok"

    def accept(job: Job[str], result: str) -> bool:
        accepted.append(job)
        return True

    def counted(job: Job[str]) -> str | None:
        return None if stored.get(job) == DISTURBED else stored.get(job)

    list(run_in_turns(planned, execute, Shown(), name=str, label=words, stored=counted, accept=accept))
    assert executed == accepted == [job for jobs in planned for job in jobs if stored.get(job) != "ok"]


@given(ITEMS, REPEATS, st.integers(0, 6))
def test_whoever_has_enough_takes_no_further_round_and_no_round_is_cut(items: list[str], repeats: int, enough: int) -> None:
    executed: list[Job[str]] = []
    planned = rounds(items, repeats)
    turns = run_in_turns(planned, executed.append, Shown(), name=str, label=words)
    assert len(list(islice(turns, enough))) == min(enough, repeats)
    assert executed == [job for jobs in planned[:enough] for job in jobs]


def test_an_exception_ends_all_and_the_job_after_it_does_not_begin() -> None:
    shown = Shown()

    def execute(job: Job[str]) -> str:
        if job == Job("b", 0):
            raise KeyError(job)
        return words(job)

    with pytest.raises(KeyError):
        list(run_in_turns(rounds(["a", "b", "c"], 2), execute, shown, name=str, label=words))
    assert shown.lines[1:] == [("begin", "a", "a0"), ("end", ""), ("begin", "b", "b0")]


def test_a_label_display_shows_labels_and_nothing_else() -> None:
    texts: list[str] = []
    list(run_in_turns([interleaving.one_round("ab", 1)], words, LabelDisplay(texts.append), name=str, label=words))
    assert texts == ["b1", "a1"]
