"""Whether a job is stuck, and who is to blame. One judge for runs of this suite (`watchdog`) and for anybody's job (`watch`).

Both look at processes in their own way, and describe each as a `ProcessState`. Numbers and names come out, no sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

MAX_IDLE_CORES = 0.05
"""Maximum cores that threads use which only wait and poll."""
MAX_IDLE_ACTIVE_FRACTION = 0.5
"""Maximum fraction of the time when a stuck process is active. A busy one is always active, even if it gets few cores."""


class ResourceUse(Protocol):
    """The resource use of a process between two looks."""

    @property
    def seconds(self) -> float:
        """Seconds between the two looks."""
        ...

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process with all that it started."""
        ...

    @property
    def wants(self) -> bool:
        """Whether at the second look a thread has a core, waits for one, or waits for the disk."""
        ...


def is_idle(looks: Sequence[ResourceUse], seconds: float) -> bool:
    """Return whether a process used hardly a core in the last `seconds`, and mostly wanted none.

    Args:
        looks: looks in order of time.
        seconds: the last looks that cover so many seconds count.
    """
    cpu_seconds = active_seconds = covered_seconds = 0.0
    for look in reversed(looks):
        if covered_seconds >= seconds:
            break
        covered_seconds += look.seconds
        cpu_seconds += look.cpu_seconds
        active_seconds += look.seconds * look.wants
    # The looks may cover a little more or less. What they saw is held against the time asked for.
    return cpu_seconds < MAX_IDLE_CORES * seconds and active_seconds < MAX_IDLE_ACTIVE_FRACTION * seconds


class ProcessState(NamedTuple):
    """The state of a process at one moment, if it is known."""

    name: str
    is_halted: bool = False
    """Whether something from outside keeps it from going on: a signal, a debugger, a freezer, a host that is silent."""
    has_ended: bool = False
    stands_still: bool = False
    """Whether it made no progress for the patience, and was idle or only waited."""
    waits_for_others: bool | None = None
    """Whether its stack is inside an exchange. None: it cannot be told, or it may wait for a working process."""
    is_missing: bool = False
    """Whether it has not come to an exchange that others wait in, by the records of the exchanges."""
    unanswered_peer: str = ""
    """Address of a connection whose other end does not answer. Empty: there is none."""
    position: tuple[int, int] | None = None
    """How far its training has come. None: it does not train, or does not say."""


class BlameCause(Enum):
    """Why processes are to blame. The first that applies decides."""

    HALTED = auto()
    """They are stopped, frozen or silent."""
    ALONE = auto()
    """They stand still and do not wait for others, while others go on."""
    NOT_WAITING = auto()
    """They are in no exchange that others wait in."""
    ENDED = auto()
    """They have ended, and all others wait in an exchange."""
    UNANSWERED = auto()
    """All wait in an exchange, and their connections are not answered."""
    MISSING = auto()
    """All wait in an exchange, these in a later one or in none that the others wait in."""
    AHEAD = auto()
    """All wait in an exchange, and these went on without the others."""
    BEHIND = auto()
    """No stack tells more, and these are behind."""
    ALL = auto()
    """All stand still alike."""


class Blame(NamedTuple):
    """The processes that keep a job from going on."""

    cause: BlameCause
    names: tuple[str, ...]


def judge(states: Sequence[ProcessState]) -> Blame | None:
    """Return who keeps a job from going on. None: it goes on."""
    if halted := [state for state in states if state.is_halted]:
        return _blame(BlameCause.HALTED, halted)
    living = [state for state in states if not state.has_ended]
    if living and all(state.stands_still for state in living):
        return _blame_standing(states)
    alone = [state for state in living if state.stands_still and state.waits_for_others is False]
    return _blame(BlameCause.ALONE, alone) if alone else None


def _blame_standing(states: Sequence[ProcessState]) -> Blame:
    """Return who is to blame where all stand still."""
    free = [state for state in states if not state.waits_for_others]
    living = [state for state in free if not state.has_ended]
    missing = [state for state in living or states if state.is_missing]
    some_wait = len(free) < len(states)
    if free and some_wait and not living:
        return _blame(BlameCause.ENDED, free)
    if free and (missing or some_wait):
        return _blame(BlameCause.NOT_WAITING, missing or living)
    if unanswered := [state for state in states if state.unanswered_peer and not free]:
        return _blame(BlameCause.UNANSWERED, unanswered)
    if len(missing) not in (0, len(states)):
        return _blame(BlameCause.MISSING, missing)
    positions = [state.position for state in states if state.position is not None]
    if len(set(positions)) > 1:
        cause, position = (BlameCause.BEHIND, min(positions)) if free else (BlameCause.AHEAD, max(positions))
        return _blame(cause, [state for state in states if state.position == position])
    return _blame(BlameCause.ALL, states)


def _blame(cause: BlameCause, states: Sequence[ProcessState]) -> Blame:
    return Blame(cause, tuple(state.name for state in states))
