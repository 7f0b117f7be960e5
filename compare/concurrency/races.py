"""Races: two threads use a value without a common lock, and nothing orders them.

Locksets as in Eraser (Savage et al. 1997), happens-before by vector clocks of start, join, queues, events and barriers. Locks
order nothing here, so that a race is found whichever thread came first.
"""

from __future__ import annotations

from typing import NamedTuple

from compare.concurrency.findings import ConcurrencyFinding, TraceStep
from compare.concurrency.state import MemoryLocation, SimulatedThread, ExecutionState
from compare.concurrency.values import SyncObject

_MOST_KEPT = 24
"""Accesses of one value."""


class _Access(NamedTuple):
    process: SimulatedThread
    moment: int
    """The process's own clock."""
    kind: str
    """read, write, update (a write of what was read before) or flag (a write of a constant)."""
    locks: frozenset[SyncObject]
    step: TraceStep
    repeated: bool
    trace: tuple[TraceStep, ...]


def access(
    state: ExecutionState, process: SimulatedThread, place: MemoryLocation, kind: str, says: str, *, repeated: bool
) -> None:
    """Record that a process uses a value, and report what this races with.

    Args:
        repeated: whether this happens in a loop.
    """
    if not state.has_started_threads:
        return
    step = process.current_step(f"{ {'read': 'reads', 'update': 'updates'}.get(kind, 'writes') } {says}")
    locks = frozenset(lock for lock, _, _ in process.held_locks)
    now = _Access(process, process.clock.get(process.number, 0), kind, locks, step, repeated, ())
    before = process.os_process.accesses.setdefault(place, [])
    for each in before:
        if (
            each.process is not process
            and not process.has_observed(each.process.number, each.moment)
            and not (each.locks & locks)
        ):
            _judge(state, each, now._replace(trace=tuple(process.trace)), says)
    if len(before) < _MOST_KEPT and not any(
        one.process is process and (one.kind, one.step, one.locks, one.moment) == (kind, step, locks, now.moment)
        for one in before
    ):
        before.append(now._replace(trace=tuple(process.trace)))


def _judge(state: ExecutionState, before: _Access, now: _Access, says: str) -> None:
    kinds = {before.kind, now.kind}
    if "update" in kinds and kinds <= {"update", "write"}:
        rule, what = "race", "so an update can get lost"
    elif kinds == {"read", "write"} and not (before.repeated or now.repeated):
        reader, writer = (before, now) if before.kind == "read" else (now, before)
        # Only a thread that was started can be waited for: who starts it reads too early.
        if reader.process.number > writer.process.number:
            return
        rule, what = "read-before-join", "so the value may not be there yet"
    else:
        return
    first, second = sorted((before, now), key=lambda each: (each.kind != "update", each.step))
    paths = [(each.process.name, [*each.trace[-12:], each.step]) for each in (before, now)]
    state.findings.append(
        ConcurrencyFinding(
            rule,
            first.step.file,
            first.step.line,
            f"{says}: {before.process.name} and {now.process.name} use it without a common lock, and nothing orders them, "
            f"{what}.",
            paths,
            frozenset({(second.step.file, second.step.line)}),
        )
    )
