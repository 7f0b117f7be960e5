"""Races: two threads use a value without a common lock, and nothing orders them.

Locksets as in Eraser (Savage et al. 1997), happens-before by vector clocks of start, join, queues, events and barriers. Locks
order nothing here, so that a race is found whichever thread came first.
"""

from __future__ import annotations

from typing import NamedTuple

from convtwins_hangs.concurrency.findings import TraceStep, finding_at
from convtwins_hangs.concurrency.state import MemoryLocation, SimulatedThread
from convtwins_hangs.concurrency.values import SyncObject

_MAX_ACCESSES = 24
"""Maximum number of stored accesses of one location."""


class _Access(NamedTuple):
    thread: SimulatedThread
    moment: int
    """The thread's own clock at the access."""
    kind: str
    """Kind of the access: read, write, update (a write of a value read before) or flag (a write of a constant)."""
    locks: frozenset[SyncObject]
    step: TraceStep
    repeated: bool
    trace: tuple[TraceStep, ...]


def access(thread: SimulatedThread, location: MemoryLocation, kind: str, value_name: str, *, repeated: bool) -> None:
    """Record that a thread accesses a location, and report the accesses that it races with.

    Args:
        repeated: whether the access happens in a loop.
    """
    if not thread.execution.has_started_threads:
        return
    step = thread.current_step(f"{ {'read': 'reads', 'update': 'updates'}.get(kind, 'writes') } {value_name}")
    locks = frozenset(lock for lock, _, _ in thread.held_locks)
    current = _Access(thread, thread.clock.get(thread.number, 0), kind, locks, step, repeated, ())
    earlier_accesses = thread.os_process.accesses.setdefault(location, [])
    for earlier in earlier_accesses:
        if (
            earlier.thread is not thread
            and not thread.has_observed(earlier.thread.number, earlier.moment)
            and not (earlier.locks & locks)
        ):
            _judge(earlier, current._replace(trace=tuple(thread.trace)), value_name)
    if len(earlier_accesses) < _MAX_ACCESSES and not any(
        earlier.thread is thread
        and (earlier.kind, earlier.step, earlier.locks, earlier.moment) == (kind, step, locks, current.moment)
        for earlier in earlier_accesses
    ):
        earlier_accesses.append(current._replace(trace=tuple(thread.trace)))


def _judge(earlier: _Access, later: _Access, value_name: str) -> None:
    kinds = {earlier.kind, later.kind}
    if "update" in kinds and kinds <= {"update", "write"}:
        rule, consequence = "race", "so an update can get lost"
    elif kinds == {"read", "write"} and not (earlier.repeated or later.repeated):
        reader, writer = (earlier, later) if earlier.kind == "read" else (later, earlier)
        # Only a thread that was started can be waited for: who starts it reads too early.
        if reader.thread.number > writer.thread.number:
            return
        rule, consequence = "read-before-join", "so the value may not be there yet"
    else:
        return
    first, second = sorted((earlier, later), key=lambda access: (access.kind != "update", access.step))
    paths = [(access.thread.name, [*access.trace[-12:], access.step]) for access in (earlier, later)]
    message = (
        f"{value_name}: {earlier.thread.name} and {later.thread.name} use it without a common lock, "
        f"and nothing orders them, {consequence}."
    )
    later.thread.execution.findings.append(finding_at(rule, first.step, message, paths, [second.step]))
