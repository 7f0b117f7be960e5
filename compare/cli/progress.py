"""Live progress on the terminal: which run, its epoch, loss and accuracy, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.artifacts.schema import RunResult
from compare.cli.wording import clock_words, one_line

_REFRESH_PER_SECOND = 2  # drawing takes CPU time from the runs that are measured


class Terminal(NamedTuple):
    """Progress bars of a display: one for all runs, one for the current step."""

    progress: Progress
    overall: TaskID
    current: TaskID


class Display:
    """One line for the whole comparison and one for its current step.

    Args:
        clock: returns seconds.
    """

    def __init__(self, terminal: Terminal, clock: Callable[[], float]) -> None:
        self.terminal = terminal
        self._progress, self._overall, self._current = terminal
        self.clock = clock
        self._jobs: Sequence[str] = ()
        self._seconds: dict[str, list[float]] = {}
        self._name = self._label = ""
        self._started = clock()
        self._sharing = self._working = 1

    def say(self, text: str) -> None:
        """Show a message about work before or after the runs."""
        self._progress.update(self._current, description=text, total=None, facts="")

    def stage(self, text: str) -> None:
        """Show a message about work that may take minutes. Outside a terminal, print a line that it begins."""
        self.say(text)
        self._line(f"{text} ...")

    def tell(self, text: str) -> None:
        """Show a message about work that has ended. Outside a terminal, print it as a line."""
        self.say(text)
        self._line(text)

    def plan(self, jobs: Sequence[str]) -> None:
        """Set the planned runs, in order, by the name of their row. The repeats of a row take about the same time.

        Empty: nobody knows how many there will be, and nothing is said of those that are left.
        """
        self._jobs = jobs
        self._progress.update(self._overall, total=len(jobs), completed=0, visible=bool(jobs))

    def begin(self, name: str, label: str, seconds: float = 0.0, sharing: int = 1, working: int = 1) -> None:
        """Show that a run starts.

        Args:
            seconds: seconds since it and those that work together with it began.
            sharing: number of runs that share these seconds. Nobody knows what each would have taken alone.
            working: number of them that have not ended, with this one.
        """
        self._name, self._label, self._started = name, label, self.clock() - seconds
        self._sharing, self._working = sharing, working
        self._progress.reset(self._current, description=label, total=None, facts="starting")

    def watch(self, events: list[dict[str, Any]]) -> None:
        """Show the progress of the current run from its events."""
        total = next((float(event["total_epochs"]) for event in events if event.get("event") == "start"), None)
        epochs = [event for event in events if event.get("event") == "epoch"]
        facts = "first step" if events else "starting"
        if epochs and total is not None:
            facts = f"epoch {epochs[-1]['epoch']}/{total:.0f}"
            if train := epochs[-1]["train"]:
                facts += f"  loss {train['loss']:.4f}  accuracy {train['accuracy']:.4f}"
            elapsed = (self.clock() - self._started) / self._sharing
            resumed = next((event["epochs"] for event in events if event.get("event") == "resume"), 0)
            if num_epochs := len(epochs) - resumed:
                seconds = {**self._seconds, self._name: [elapsed * (total - resumed) / num_epochs]}
                self._show_time_left(seconds, self._working * elapsed)
        self._progress.update(self._current, total=total, completed=len(epochs), facts=facts)

    def end(self, result: RunResult | None = None, note: str = "") -> None:
        """Count the current run as ended. Outside a terminal, print a line about it, with a note at its end.

        Tables show its result.
        """
        seconds = (self.clock() - self._started) / self._sharing
        self._seconds.setdefault(self._name, []).append(seconds)
        self._progress.advance(self._overall)
        place = self._jobs.index(self._name) if self._name in self._jobs else 0  # runs that take turns end in any order
        self._jobs = [*self._jobs[:place], *self._jobs[place + 1 :]]
        self._working -= 1
        elapsed = self._working * seconds  # of those that work on
        self._show_time_left(self._seconds, elapsed)
        status = "" if result is None or result.status == "ok" else f", {result.status}"
        if status and result is not None and result.reason:
            status += f" ({one_line(result.reason)})"
        words = clock_words(self._time_left(self._seconds, elapsed))
        left = f"{len(self._jobs)} left, about {words}" if self._jobs else ""
        self._line(f"{self._label}{status}: {'; '.join(filter(None, [clock_words(seconds), left, note]))}.")

    def _line(self, text: str) -> None:
        if self._progress.disable:
            self._progress.console.print(text, markup=False, soft_wrap=True)

    def _show_time_left(self, seconds: dict[str, list[float]], elapsed: float) -> None:
        self._progress.update(self._overall, facts=f"about {clock_words(self._time_left(seconds, elapsed))} left")

    def _time_left(self, seconds: dict[str, list[float]], elapsed: float) -> float:
        """Estimate the seconds that are left.

        Args:
            elapsed: seconds that the runs which have not ended have had, each its share.
        """
        return max(time_left(self._jobs, seconds) - elapsed, 0.0)


def time_left(jobs: Sequence[str], seconds: dict[str, list[float]]) -> float:
    """Estimate the seconds that these runs will take: each the mean of its row so far, or of all rows if that has not run."""
    known = [value for values in seconds.values() for value in values]
    if not known:
        return 0.0
    mean = sum(known) / len(known)
    return sum(sum(seconds[job]) / len(seconds[job]) if job in seconds else mean for job in jobs)


@contextmanager
def display(console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Generator[Display]:
    """Show progress on stderr, or on a console, while the block runs. Shows nothing if that is not a terminal.

    Args:
        clock: returns seconds.
    """
    console = console or Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        console=console,
        refresh_per_second=_REFRESH_PER_SECOND,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        overall = progress.add_task("runs", visible=False, facts="")
        current = progress.add_task("starting", total=None, facts="")
        yield Display(Terminal(progress, overall, current), clock)
