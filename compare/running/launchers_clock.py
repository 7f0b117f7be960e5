"""Check a run's clock against the launcher's own, by the times when the run's events are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common.artifacts import event_log

MAX_RELATIVE_DIFFERENCE = 0.01
"""Largest relative difference of a duration between the two clocks. More is a defect."""
_TICK_SECONDS = 0.02
"""Accuracy in seconds of a file's modification time: two ticks of the kernel."""
_SETTLE_SECONDS = 0.005
"""Wait until a write that has begun has ended. The kernel sets the file's time first, and its size a moment later."""
_MOST_CLOCK_STEP_SECONDS = 0.005
"""Seconds that the system's time may move against a monotonic clock between two polls. More: it was set."""


class _Interval(NamedTuple):
    """A moment that lies between two known ones, or a duration between two bounds. Seconds."""

    earliest: float
    latest: float

    def duration_until(self, later: _Interval) -> _Interval:
        """Return the shortest and the longest duration until a later moment."""
        return _Interval(later.earliest - self.latest, later.latest - self.earliest)

    @property
    def width(self) -> float:
        return self.latest - self.earliest


class LaunchersClock:
    """Observe when a run's events are written, and compare the run's own clock with that.

    Each event records the run's clock before it was written, and the next event records it after that. A poll finds the last
    event that was written since the poll before. The file's modification time says when, if it lies between the two polls.

    Args:
        directory: folder of the run.
        monotonic, wall: return the seconds of the launcher's clock, and those of the system's time.
        paused: returns the seconds that the run has waited for its turns. Neither clock counts them.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        directory: Path,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        paused: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory, self._paused, self._sleep = directory, paused, sleep
        self._monotonic, self._wall = lambda: monotonic() - paused(), lambda: wall() - paused()
        self._size = -1
        self._polled_seconds = self._monotonic()
        self._wall_offset = self._wall() - self._polled_seconds
        self._write_intervals: dict[int, _Interval] = {}
        """{index of an event: when it was written}, by this process's monotonic clock."""
        self._events: list[dict[str, Any]] = []

    def poll(self) -> list[dict[str, Any]] | None:
        """Return the events so far. None: there are no more than at the last poll."""
        path = self._directory / event_log.EVENTS_FILE
        before, size = self._monotonic(), path.stat().st_size if path.exists() else 0
        if size == self._size:
            self._polled_seconds = before
            return None
        events = event_log.read_events(self._directory)
        if events[len(self._events) :]:
            self._write_intervals[len(events) - 1] = self._write_interval(path, size)
        self._size, self._polled_seconds, self._events = size, before, events
        return events

    def _write_interval(self, path: Path, size: int) -> _Interval:
        """Return when the last event was written, by this process's monotonic clock."""
        file, now, wall = path.stat(), self._monotonic(), self._wall()
        since_poll, wall_offset, previous_offset = _Interval(self._polled_seconds, now), wall - now, self._wall_offset
        self._wall_offset = wall_offset
        written = file.st_mtime - self._paused() - wall_offset
        if now - written < _TICK_SECONDS:  # perhaps the time of the next event, which is being written
            self._sleep(_SETTLE_SECONDS)
            file = path.stat()
        if file.st_size != size or abs(wall_offset - previous_offset) > _MOST_CLOCK_STEP_SECONDS:
            return since_poll
        earliest, latest = max(written - _TICK_SECONDS, since_poll.earliest), min(written + _TICK_SECONDS, since_poll.latest)
        return _Interval(earliest, latest) if earliest <= latest else since_poll

    def _spans(self) -> Iterator[tuple[_Interval, _Interval]]:
        """Yield durations (by the run's clock, by this one) from the first event to each, and from each to the next
        and the last.
        """
        moments: list[tuple[_Interval, _Interval]] = []
        for index, write_interval in self._write_intervals.items():
            clock = self._events[index].get("clock") if index < len(self._events) else None
            written = self._events[index + 1].get("written") if index + 1 < len(self._events) else None
            if isinstance(clock, float) and isinstance(written, float):
                moments.append((_Interval(clock, written), write_interval))
        for index, moment in enumerate(moments):
            for other in {0, index - 1} if index else ():
                yield _span_between(moments[other], moment)
            if 0 < index < len(moments) - 1:
                yield _span_between(moment, moments[-1])

    def disagreement(self, framework: str) -> str | None:
        """Describe how the run's clock contradicts this one, with both figures. None: no contradiction is found."""
        for run, launcher in self._spans():
            if run.latest < launcher.earliest * (1 - MAX_RELATIVE_DIFFERENCE) or run.earliest > launcher.latest * (
                1 + MAX_RELATIVE_DIFFERENCE
            ):
                return (
                    f"clocks that disagree: between two events of this run of {framework}, {run.latest:.2f} s passed by its "
                    f"own clock, and {launcher.latest:.2f} s by the launcher's"
                )
        return None

    def confirms(self) -> bool | None:
        """Whether the run lasted long enough to detect a clock that is wrong by 2 * MAX_RELATIVE_DIFFERENCE.

        None: the run records no clock.
        """
        is_precise = [
            run.width + launcher.width <= MAX_RELATIVE_DIFFERENCE * launcher.earliest for run, launcher in self._spans()
        ]
        return any(is_precise) if is_precise else None


def _span_between(one: tuple[_Interval, _Interval], other: tuple[_Interval, _Interval]) -> tuple[_Interval, _Interval]:
    return one[0].duration_until(other[0]), one[1].duration_until(other[1])
