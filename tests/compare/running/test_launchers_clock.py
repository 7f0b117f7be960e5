"""The launcher's own clock over the events of a run: what it can tell, and what it cannot."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from common.artifacts import event_log
from common.artifacts.schema import RunResult
from compare.comparison import executor
from compare.results import store
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.launchers_clock import LaunchersClock
from tests.support import comparisons

ALWAYS: Callable[[float], float] = lambda seconds: seconds  # noqa: E731


class Watched:
    """A run that writes an event each second of a made-up time, and a launcher that looks four times a second."""

    def __init__(self, folder: Path, run_clock: Callable[[float], float]) -> None:
        self.now, self.set_by, self.written = 100.0, 0.0, None
        self.late_seconds = 0.0
        """Between what an event says and when it is written."""
        self._folder, self.run_clock = folder, run_clock
        self.clock = LaunchersClock(folder, lambda: self.now, lambda: 1e9 + self.now + self.set_by)

    def run(self, seconds: int, stamped: float | None = None) -> LaunchersClock:
        """Events for so long.

        Args:
            stamped: the file's own time is so many seconds wrong. None: the file system says nothing useful.
        """
        for second in range(seconds):
            clock = self.run_clock(float(second))
            self.now += self.late_seconds
            event_log.append_event(self._folder, "epoch", clock=clock, written=self.written)
            self.written = self.run_clock(second + self.late_seconds)
            at = 0.0 if stamped is None else 1e9 + self.now + self.set_by + stamped
            os.utime(self._folder / event_log.EVENTS_FILE, (at, at))
            for step in (0.15, 0.25, 0.25, 0.25):
                self.now += step
                self.clock.poll()
            self.now += 0.1 - self.late_seconds
        return self.clock


def watched(folder: Path, run_clock: Callable[[float], float], seconds: int, stamped: float | None = 0.0) -> str | None:
    return Watched(folder, run_clock).run(seconds, stamped).disagreement("pytorch")


PLANTED: dict[str, Callable[[float], float]] = {
    "slow": lambda seconds: 0.9 * seconds,
    "a little slow": lambda seconds: 0.97 * seconds,
    "fast": lambda seconds: 1.1 * seconds,
    "jumps ahead": lambda seconds: seconds + 5.0 * (seconds > 10),
    "jumps back": lambda seconds: seconds - 2.0 * (seconds > 10),
    "slow from the middle on": lambda seconds: seconds - 0.1 * max(seconds - 15, 0),
    "slow at the end": lambda seconds: seconds - 0.5 * max(seconds - 26, 0),
    "stands still": lambda seconds: 3.0,
}


FIGURES = re.compile(
    r"clocks that disagree: .* of pytorch, ([\d.]+) s passed by its own clock, and ([\d.]+) s by the launcher's"
)


@pytest.mark.parametrize("name", PLANTED)
def test_a_run_whose_clock_is_planted_is_named_with_both_figures(name: str, tmp_path: Path) -> None:
    assert FIGURES.fullmatch(watched(tmp_path, PLANTED[name], 30) or "")


def test_the_figures_are_those_of_the_whole_span(tmp_path: Path) -> None:
    figures = FIGURES.fullmatch(watched(tmp_path, PLANTED["a little slow"], 10) or "")
    assert figures is not None and figures.groups() == ("6.79", "7.04")


@pytest.mark.parametrize("stamped", [0.0, 0.01, -0.01, 3600.0, -3600.0, None])
def test_an_honest_clock_is_confirmed_whatever_the_file_says_of_its_time(stamped: float | None, tmp_path: Path) -> None:
    clock = Watched(tmp_path, ALWAYS).run(60, stamped)
    assert clock.disagreement("pytorch") is None and clock.confirms()


def test_a_time_of_a_file_that_is_false_hides_no_slow_clock(tmp_path: Path) -> None:
    assert watched(tmp_path, PLANTED["slow"], 30, stamped=-0.2) is not None
    assert watched(tmp_path, PLANTED["slow"], 30, stamped=None) is not None


def test_a_run_that_is_held_while_it_writes_an_event_is_honest(tmp_path: Path) -> None:
    slow_disk = Watched(tmp_path, ALWAYS)
    slow_disk.run(5)
    slow_disk.late_seconds = 0.6
    assert slow_disk.run(1).disagreement("pytorch") is None


def test_an_event_that_is_being_written_lends_its_time_to_no_earlier_one(tmp_path: Path) -> None:
    """The file has its new time already, and not yet its new size."""
    now, path, clocks = 100.0, tmp_path / event_log.EVENTS_FILE, [0.0, 2.0, 2.2]

    def write(number: int) -> None:
        event_log.append_event(tmp_path, "epoch", clock=clocks[number], written=clocks[number - 1] if number else None)
        begin_writing(number)

    def begin_writing(number: int) -> None:
        os.utime(path, (1e9 + 100.0 + clocks[number],) * 2)

    clock = LaunchersClock(tmp_path, lambda: now, lambda: 1e9 + now, sleep=lambda _: write(2))
    write(0)
    now = 100.1
    clock.poll()
    write(1)
    begin_writing(2)
    now = 102.2
    clock.poll()
    if len(event_log.read_events(tmp_path)) < len(clocks):
        write(2)
    now = 102.4
    clock.poll()
    assert clock.disagreement("pytorch") is None


def test_a_system_time_that_is_set_meanwhile_tells_nothing_against_a_run(tmp_path: Path) -> None:
    found = Watched(tmp_path, ALWAYS)
    assert found.run(5).disagreement("pytorch") is None
    found.set_by = 3600.0
    begin = found.now - 100.0
    found.run_clock = begin.__add__
    assert found.run(5).disagreement("pytorch") is None


def test_a_run_that_is_too_short_or_says_nothing_of_its_clock_is_not_judged(tmp_path: Path) -> None:
    short = Watched(tmp_path / "short", ALWAYS)
    (tmp_path / "short").mkdir()
    assert short.run(3).confirms() is False and short.clock.disagreement("pytorch") is None
    silent = LaunchersClock(tmp_path / "silent")
    assert silent.poll() == [] and silent.poll() is None
    (tmp_path / "silent").mkdir()
    for _ in range(9):  # of a twin of another version
        event_log.append_event(tmp_path / "silent", "epoch", epoch=1)
        silent.poll()
    assert silent.confirms() is None and silent.disagreement("pytorch") is None


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, pace: float) -> RunResult:
    monkeypatch.setenv("CONVTWINS_PACE", str(pace))
    monkeypatch.setitem(launch.FRAMEWORKS, "left", "tests.compare.twins.learner_slow")
    left = Contestant.plain("left")
    row = matrix.build_row("serial", left, comparisons.row("left", cores=1).spec.with_fields(epochs=15))
    result = executor.execute(left, row, 0, folder, lambda events: None)
    assert store.load_result(folder, row, 0) == result
    return result


def test_a_process_whose_clocks_are_all_slow_is_found_by_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its process all clocks agree, and its phases add up."""
    slow = trained(tmp_path / "slow", monkeypatch, 0.8)
    assert slow.status == "failed" and len(slow.epochs) == 15
    assert (slow.reason or "").startswith("clocks that disagree: between two events of this run of left, ")


def test_an_honest_process_is_no_defect_to_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = trained(tmp_path / "honest", monkeypatch, 1.0)
    assert (honest.status, honest.reason) == ("ok", None)
    assert honest.clock_confirmed is not None  # whether so short a run can tell is the machine's doing
