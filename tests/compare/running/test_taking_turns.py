"""Rounds of real processes that take turns: who works when, what their clocks count, and what is noticed of a fault."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator
from contextlib import nullcontext, suppress
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.running import launch
from compare.running.launch import StartedProcess
from compare.running.taking_turns import LEAST_STEPS, Seat, balanced_orders, run_round

STEPS, STEP_SECONDS = 40, 0.005


class Ended(NamedTuple):
    """A process that has ended, and what it logged."""

    code: int
    steps: list[tuple[float, float]]
    """Begin and end of each step."""
    imported: tuple[float, float]
    built: tuple[float, float]
    startup_seconds: float
    """Seconds from its start until its own clock began."""
    clock_seconds: float
    """Seconds by its own clock, without waiting."""
    launcher_seconds: float
    """The same by the launcher's, from its start to its last line."""
    paused_seconds: float
    """Seconds of waiting by the launcher's clock."""
    defect: str | None
    waited_more_seconds: float
    """Seconds of waiting by its own clock, less those by its launcher's."""


def taker(folder: Path, name: str, seat: Seat) -> Generator[StartedProcess, None, Ended]:
    """Run a process whose fault is its name without digits."""
    log, fault = folder / f"{name}.log", name.strip("0123456789")
    command = [sys.executable, "-m", "tests.compare.twins.taker", str(log), str(STEPS), str(STEP_SECONDS), fault]
    started = time.monotonic()
    process = StartedProcess(command, folder / f"{name}.txt", environment=seat.environment)
    try:
        yield from launch.watching(process, watch=lambda: None, hang_seconds=60.0, folder=folder)
    finally:
        launch.stop(process, grace_seconds=0.0)
    lines = [line.split() for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    steps = [(float(begin), float(end)) for number, begin, end in lines if number.isdigit()]
    said = {word: (float(first), float(second)) for word, first, second in lines if not word.isdigit()}
    (created, ended), (clock, waited) = said.get("life", (started, started)), said.get("clock", (0.0, 0.0))
    paused = seat.paused_seconds()
    return Ended(
        code=process.returncode,
        steps=steps,
        imported=said.get("import", (0.0, 0.0)),
        built=said.get("build", (0.0, 0.0)),
        startup_seconds=created - started,
        clock_seconds=clock,
        launcher_seconds=ended - started - paused,
        paused_seconds=paused,
        defect=seat.defect(),
        waited_more_seconds=waited - paused,
    )


def ran(folder: Path, *names: str, **options: object) -> list[Ended]:
    ended = dict(run_round(names, lambda name, seat: taker(folder, name, seat), 0.05, **options))  # pyright: ignore
    return [ended[place] for place in range(len(names))]


def test_two_processes_train_the_same_slices_one_after_the_other(tmp_path: Path) -> None:
    one, other = ran(tmp_path, "1", "2")
    assert (one.code, other.code, len(one.steps), len(other.steps)) == (0, 0, STEPS, STEPS)
    spans = sorted([(*span, 0) for span in one.steps] + [(*span, 1) for span in other.steps])
    assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(spans)), "two worked at once"
    owners = [owner for _, _, owner in spans]
    work = [(owner, len(list(steps))) for owner, steps in groupby(owners)]
    assert [owner for owner, _ in work[:3]] == [0, 1, 0]  # A B, then B A
    assert work[0][1] == LEAST_STEPS and work[1][1] >= 2 * LEAST_STEPS and len(work) < STEPS / 2


def test_no_clock_counts_the_waiting(tmp_path: Path) -> None:
    for process in ran(tmp_path, "1", "2", "3"):
        worked = sum(end - begin for begin, end in process.steps)
        assert worked <= process.clock_seconds < process.launcher_seconds
        not_counted = process.launcher_seconds - process.clock_seconds - process.startup_seconds
        assert not_counted < process.paused_seconds / 2, "the launcher's clock counts the waiting"
        assert process.steps[-1][1] - process.steps[0][0] > 2 * worked  # it has waited for two others


def test_as_many_as_may_import_at_the_same_time_and_each_builds_alone(tmp_path: Path) -> None:
    one, other, last = ran(tmp_path, "1meets", "2meets", "3", importing=2)
    assert [(process.code, len(process.steps)) for process in (one, other, last)] == [(0, STEPS)] * 3
    assert max(one.imported[0], other.imported[0]) <= min(one.imported[1], other.imported[1])
    assert last.imported[0] >= max(one.built[1], other.built[1]), "it would be the third process that works"
    for process in (one, other, last):
        (begin, end), others = process.built, [each for each in (one, other, last) if each is not process]
        spans = [span for each in others for span in (each.imported, each.built, *each.steps)]
        assert all(span[1] <= begin or end <= span[0] for span in spans), "another one worked while it built"


def test_on_a_busy_machine_both_clocks_leave_out_the_same_waiting(tmp_path: Path) -> None:
    """The launcher reads what a run asks up to 40 ms later. A run counts as waiting what it sees itself."""

    def late(name: str, seat: Seat) -> Generator[StartedProcess, None, Ended]:
        looks = taker(tmp_path, name, seat)
        while True:
            time.sleep(0.04)
            try:
                process = next(looks)
            except StopIteration as ended:
                return ended.value
            yield process

    for _, process in run_round(["1", "2"], late, 0.05):
        assert process.code == 0 and abs(process.waited_more_seconds) < 0.1, "40 ms of each turn would be half a second"


def test_a_thread_that_never_rests_is_stopped_with_its_process(tmp_path: Path) -> None:
    assert [process.defect for process in ran(tmp_path, "1spins", "2")] == [None, None]


def test_a_process_of_the_run_that_leads_a_group_of_its_own_is_stopped_too(tmp_path: Path) -> None:
    """Each rank of a parallel run is one."""
    assert [process.defect for process in ran(tmp_path, "1forks", "2")] == [None, None]


def test_what_watches_the_ranks_of_a_run_never_sees_them_stopped(tmp_path: Path) -> None:
    """It would take them for stuck: each turn it is the first to look."""
    watcher, other = ran(tmp_path, "1supervises", "2")
    assert (watcher.code, other.code, len(watcher.steps)) == (0, 0, STEPS)


def test_a_process_that_escapes_and_computes_out_of_turn_is_noticed(tmp_path: Path) -> None:
    fault, other = ran(tmp_path, "1escapes", "2")
    assert fault.defect is not None and fault.defect.startswith("computed out of turn")
    assert other.defect is None


@pytest.mark.parametrize("asks", [True, False])
def test_whoever_slows_a_run_down_continues_it_in_its_own_turn_alone(tmp_path: Path, asks: bool) -> None:
    """Planted: one that stops and continues it without asking, and so lets its spinning thread compute out of turn."""
    ended = threading.Event()

    def slowed(name: str, seat: Seat) -> Generator[StartedProcess, None, Ended]:
        looks = taker(tmp_path, name, seat)
        process = next(looks)

        def slow() -> None:
            while not ended.wait(0.002):
                with seat.slowing() if asks else nullcontext(True) as works, suppress(psutil.NoSuchProcess):
                    if works:
                        psutil.Process(process.pid).suspend()
                        time.sleep(0.001)
                        psutil.Process(process.pid).resume()

        thread = threading.Thread(target=slow)
        if name == "1spins":
            thread.start()
        yield process
        return (yield from looks)

    try:
        results = dict(run_round(["1spins", "2"], slowed, 0.05))
    finally:
        ended.set()
    assert [results[place].code for place in range(2)] == [0, 0] and results[1].defect is None
    assert (results[0].defect is None) == asks


def test_one_that_dies_leaves_the_others_their_turns(tmp_path: Path) -> None:
    one, dead, other = ran(tmp_path, "1", "2dies", "3")
    assert [process.code for process in (one, dead, other)] == [0, 3, 0]
    assert [len(process.steps) for process in (one, dead, other)] == [STEPS, LEAST_STEPS, STEPS]


def test_one_that_ends_before_its_first_turn_leaves_the_others_theirs(tmp_path: Path) -> None:
    dead, other = ran(tmp_path, "1fails", "2")
    assert (dead.code, other.code, len(other.steps)) == (5, 0, STEPS)


def test_one_that_ends_before_it_reads_the_answer_leaves_the_others_theirs(tmp_path: Path) -> None:
    left, other = ran(tmp_path, "1leaves", "2")
    assert (left.code, other.code, len(other.steps)) == (4, 0, STEPS)


def test_what_a_run_wrote_in_its_turn_is_seen_before_its_pause(tmp_path: Path) -> None:
    """The launcher's clock could not tell afterwards how much of the pause was before it."""
    seen: list[int] = []

    def watched(name: str, seat: Seat) -> Generator[StartedProcess, None, Ended]:
        steps = taker(tmp_path, name, seat)
        log = tmp_path / f"{name}.log"
        while True:
            try:
                process = next(steps)
            except StopIteration as ended:
                return ended.value
            if name == "1" and seat.waits and log.exists():  # it has none while it imports
                seen.append(len(log.read_text(encoding="utf-8").splitlines()))
            yield process

    deque(run_round(["1", "2"], watched, 0.05), maxlen=0)
    assert seen[:2] == [0, LEAST_STEPS] and seen == sorted(set(seen)) and len(seen) > 2


def test_those_that_do_not_fit_into_memory_follow_in_a_round_of_their_own(tmp_path: Path) -> None:
    one, other, last = ran(tmp_path, "1", "2", "3", free_memory=lambda: 0)
    assert one.steps[-1][1] <= other.steps[0][0] and other.steps[-1][1] <= last.steps[0][0]
    assert all(len(process.steps) == STEPS for process in (one, other, last))


def test_an_error_in_one_ends_all_processes(tmp_path: Path) -> None:
    def failing(name: str, seat: Seat) -> Generator[StartedProcess, None, Ended]:
        if name == "2":
            raise KeyboardInterrupt
        return (yield from taker(tmp_path, name, seat))

    with pytest.raises(KeyboardInterrupt):
        deque(run_round(["1", "2"], failing), maxlen=0)
    begun = (tmp_path / "1.log").read_text(encoding="utf-8")
    time.sleep(10 * STEP_SECONDS)
    assert (tmp_path / "1.log").read_text(encoding="utf-8") == begun


@given(st.integers(1, 9))
def test_each_stands_at_each_place_and_follows_each_other_one_equally_often(number: int) -> None:
    orders = balanced_orders(number)
    places = Counter((place, item) for order in orders for place, item in enumerate(order))
    followers = Counter(pair for order in orders for pair in pairwise(order))
    assert len(places) == number**2 and len(set(places.values())) == 1
    assert len(followers) == number * (number - 1) and len(set(followers.values())) <= 1
