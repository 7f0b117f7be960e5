"""The launcher's own clock, over the events of a run that it sees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common.artifacts import event_log

APART = 0.01
"""Part of a span by which the two clocks may differ. More is a defect."""
_TICK_SECONDS = 0.02
"""To which the kernel knows when a file was written: two of its ticks."""
_SAME_SECONDS = 0.005
"""By which the system's time may move against a monotonic clock between two looks. More: it was set."""


class _Between(NamedTuple):
    """A moment that lies between two."""

    earliest: float
    latest: float

    def until(self, later: _Between) -> _Between:
        """How long it was until a later moment: at least and at most."""
        return _Between(later.earliest - self.latest, later.latest - self.earliest)

    @property
    def width(self) -> float:
        return self.latest - self.earliest


class LaunchersClock:
    """Sees when a run's events are written, and holds the run's own clock against it.

    Each event says what the run's clock showed before it was written, and the next one what it showed after that. A look finds
    the last event that was written since the look before. The file's own time says when, where it agrees with that.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._size = -1
        self._looked = time.monotonic()
        self._ahead = time.time() - self._looked
        self._seen: dict[int, _Between] = {}
        """When an event was written, by its place."""
        self._events: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]] | None:
        """The events so far. None: there are no more than at the last look."""
        path = self._directory / event_log.EVENTS_FILE
        before, size = time.monotonic(), path.stat().st_size if path.exists() else 0
        if size == self._size:
            self._looked = before
            return None
        events = event_log.read_events(self._directory)
        if events[len(self._events) :]:
            self._seen[len(events) - 1] = self._written(path, size)
        self._size, self._looked, self._events = size, before, events
        return events

    def _written(self, path: Path, size: int) -> _Between:
        """When the last event was written, by this process's monotonic clock."""
        file, now, wall = path.stat(), time.monotonic(), time.time()
        between, ahead, was_ahead = _Between(self._looked, now), wall - now, self._ahead
        self._ahead = ahead
        written = file.st_mtime - ahead
        if file.st_size != size or abs(ahead - was_ahead) > _SAME_SECONDS:
            return between
        earliest, latest = max(written - _TICK_SECONDS, between.earliest), min(written + _TICK_SECONDS, between.latest)
        return _Between(earliest, latest) if earliest <= latest else between

    def _spans(self) -> Iterator[tuple[_Between, _Between]]:
        """(by the run's clock, by this one): from the first event to each, from each to the next and to the last."""
        moments: list[tuple[_Between, _Between]] = []
        for place, seen in self._seen.items():
            clock = self._events[place].get("clock") if place < len(self._events) else None
            written = self._events[place + 1].get("written") if place + 1 < len(self._events) else None
            if isinstance(clock, float) and isinstance(written, float):
                moments.append((_Between(clock, written), seen))
        for place, moment in enumerate(moments):
            for other in {0, place - 1} if place else ():
                yield _span(moments[other], moment)
            if 0 < place < len(moments) - 1:
                yield _span(moment, moments[-1])

    def disagreement(self, framework: str) -> str | None:
        """How the run's clock contradicts this one, with both figures. None: it does not, as far as can be told."""
        for run, seen in self._spans():
            if run.latest < seen.earliest * (1 - APART) or run.earliest > seen.latest * (1 + APART):
                return (
                    f"clocks that disagree: between two events of this run of {framework}, {run.latest:.2f} s passed by its "
                    f"own clock, and {seen.latest:.2f} s by the launcher's"
                )
        return None

    def confirms(self) -> bool | None:
        """Whether the run lasted long enough to tell a clock that is wrong by 2 * APART. None: it says nothing of its clock."""
        found = [run.width + seen.width <= APART * seen.earliest for run, seen in self._spans()]
        return any(found) if found else None


def _span(one: tuple[_Between, _Between], other: tuple[_Between, _Between]) -> tuple[_Between, _Between]:
    return one[0].until(other[0]), one[1].until(other[1])
