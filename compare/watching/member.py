"""One rank of a job over time: what it used, and what it waits in."""

from __future__ import annotations

import math
import os
import stat
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from common.machine import footprint, heartbeat
from common.machine.flight import Flight
from common.machine.footprint import Footprint
from common.machine.heartbeat import Marks
from common.processes import watchdog
from compare.watching import stacks, waits
from compare.watching.connections import Connection
from compare.watching.job import Group
from compare.watching.stacks import Dump
from compare.watching.waits import Wait

IDLE_CORES, IDLE_WANTING, IDLE_BYTES = watchdog.IDLE_CPU, watchdog.IDLE_WANTING, 4096.0
"""An idle rank uses fewer cores, wants one in a smaller part of the looks, and moves fewer bytes a second on connections."""
_LEAST_SAMPLES = 4
"""A busy rank asks again and again if so many samples of its stacks show it."""
LEAST_TOGETHER = 8
"""Samples that are kept of a rank at least. So many that were taken together show which rank keeps the others waiting."""
MOST_TOGETHER = 16
"""Ranks whose stacks are taken together."""
_MOST_DUMPED = 8
"""Processes of one rank whose stacks are taken."""
_BLAME = {
    waits.LOCK: (waits.LOCK,),
    waits.MESSAGE: (waits.LOCK,),
    waits.INSIDE: (waits.LOCK, waits.EXCHANGE, waits.CALL, waits.MESSAGE, waits.FILE, waits.POLL, waits.SLEEP, waits.INSIDE),
}
"""By what the main thread waits in: waits of its other threads and processes that explain it, the most telling first."""


class Look(NamedTuple):
    """What a rank did between two looks."""

    seconds: float
    cpu_seconds: float
    helpers_cpu_seconds: float
    """Of all its processes but the first Python program, and of that one's threads that Python does not know."""
    core_wait_seconds: float
    throttled_seconds: float
    """Kept from running by a quota."""
    wants: bool
    """At the second look: a thread has a core, waits for one, or waits for the disk."""
    disk_waits: bool
    network_bytes: float
    disk_bytes: float
    minor_faults: float
    major_faults: float
    voluntary_switches: float
    involuntary_switches: float


_SEEN = ("wants", "disk_waits")
"""In a look or not."""
AMOUNTS = tuple(field for field in Look._fields if field not in ("seconds", *_SEEN))


class Standing(NamedTuple):
    """What a rank waits in."""

    kind: str
    words: str
    exchange: str
    """`waits in all_reduce`, where that is it."""
    where: str
    missing: str
    """Why there are no stacks."""


class Member:
    """One rank, looked at again and again."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ended = False
        self.frozen = False
        """By the freezer of its control group."""
        self.footprints: dict[int, Footprint] = {}
        self.connections: list[Connection] = []
        self.looks: deque[Look] = deque()
        self.dumps: dict[int, Dump] = {}
        """The last stacks, by process."""
        self.marks: Marks | None = None
        """Of a run of this suite: how far it has come."""
        self.first_marks: Marks | None = None
        self._counted: dict[int, Footprint] = {}
        """By process, with the last footprints of those that have ended and that nobody has taken over yet."""
        self._quiet_seconds = 0.0
        self._loops: deque[tuple[float, frozenset[tuple[str, int]]]] = deque()
        """(when, loops that all threads that do not wait only asked in) of the last samples."""
        self.samples: deque[tuple[float, Standing]] = deque()
        """(when, what it waited in) of the last samples. Those of one look have the same time."""
        self._main = group.pids[0]
        """Whose stacks are taken: its first process that is a Python program. A shell may have started that."""
        self._exchanged: dict[int, int] = {}
        self._throttled = 0.0
        self._stopped_looks = 0
        self._dumped = 0.0
        self._shared = _shared(group)

    @property
    def main(self) -> int:
        """The process that is looked into: the first, or the first Python program behind it."""
        return self._main

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def stopped(self) -> bool:
        """In two looks: a debugger or profiler may stop a process for a moment."""
        return self._stopped_looks >= 2

    def look(self, group: Group, connections: Mapping[int, Connection], held: set[int], seconds: float, keep: float) -> None:
        """Look at it once.

        Args:
            group: its processes now.
            connections: all of the machine, by inode.
            held: the inodes of its own.
            seconds: since the last look. 0: this is the first.
            keep: seconds of looks that are kept.
        """
        if group.environment != self.group.environment:
            self.close()
            self._shared = _shared(group)
        self.group = group
        if self._main not in group.pids:
            self._main = group.pids[0]
        before = self._counted
        self.footprints = _read(group.pids)
        ended = [pid for pid in group.pids if pid in before and pid not in self.footprints]
        if not all(map(psutil.pid_exists, ended)):  # who started it has taken over its time, perhaps since it was read
            self.footprints = _read(group.pids)
        self._counted = {pid: before[pid] for pid in ended if psutil.pid_exists(pid)} | self.footprints
        main = self.footprints.get(self._main)
        self.frozen = footprint.is_frozen(self._main)
        is_stopped = main is not None and (main.is_stopped or self.frozen)
        self._stopped_looks = self._stopped_looks + 1 if is_stopped else 0
        own = {inode: connections[inode] for inode in held if inode in connections}
        self.connections = list(own.values())
        counts = {inode: each.received_bytes + each.acknowledged_bytes for inode, each in own.items()}
        throttled = footprint.throttled_seconds(group.pids[0])
        marks = self._read_marks()
        if seconds:
            self.looks.append(
                Look(
                    seconds,
                    self._since(before, "cpu_seconds"),
                    self._since(before, "cpu_seconds", [pid for pid in group.pids if pid != self._main])
                    + self._native_since(before),
                    self._since(before, "core_wait_seconds"),
                    max(throttled - self._throttled, 0.0),
                    any(each.is_active for each in self.footprints.values()),
                    any(thread.state == footprint.DISK for each in self.footprints.values() for thread in each.threads),
                    sum(max(count - self._exchanged.get(inode, count), 0) for inode, count in counts.items()),
                    *(
                        self._since(before, field)
                        for field in (
                            "disk_bytes",
                            "minor_faults",
                            "major_faults",
                            "voluntary_switches",
                            "involuntary_switches",
                        )
                    ),
                )
            )
            while len(self.looks) > 1 and sum(look.seconds for look in self.looks) - self.looks[0].seconds >= keep:
                self.looks.popleft()
        self._quiet_seconds = 0.0 if marks != self.marks else self._quiet_seconds + seconds
        self.marks, self._exchanged, self._throttled = marks, counts, throttled
        if self.first_marks is None:
            self.first_marks = marks

    def sample(self, now: float, keep: float) -> None:
        """Take the stacks of its first Python program.

        Args:
            now: seconds of any clock.
            keep: seconds of samples that are kept.
        """
        self.dumps |= self._dump_main()
        found = self._waits(self._main)
        idle = [wait for _, wait in found if wait.kind in (waits.POLL, waits.INSIDE, waits.LOCK, waits.TASK, waits.MESSAGE)]
        loops = frozenset(wait.loop for wait in idle if wait.loop is not None) if len(idle) == len(found) else frozenset()
        self._loops.append((now, loops))
        while len(self._loops) > _LEAST_SAMPLES and now - self._loops[1][0] >= keep:
            self._loops.popleft()
        standing = self._standing([])
        if standing.exchange == waits.IN_TENSORFLOW and self._computes_inside():
            standing = standing._replace(kind=waits.WORK, words=f"computes {standing.where}", exchange="")
        self.samples.append((now, standing))
        while len(self.samples) > LEAST_TOGETHER and now - self.samples[1][0] >= keep:
            self.samples.popleft()

    @property
    def is_busy(self) -> bool:
        """In the last look."""
        return bool(self.looks) and rate(self.looks, "cpu_seconds", 0.001) >= IDLE_CORES

    @property
    def asked(self) -> bool:
        """Whether in the last sample its threads only waited, or asked in a loop."""
        return bool(self._loops) and bool(self._loops[-1][1])

    @property
    def mostly_waits(self) -> bool:
        """Whether half of the last few samples show it in an exchange."""
        last = list(self.samples)[-_LEAST_SAMPLES:]
        return bool(last) and 2 * sum(each.kind in waits.FOR_OTHERS for _, each in last) >= len(last)

    @property
    def quiet_seconds(self) -> float | None:
        """Since its last mark of progress. None: it leaves none."""
        return None if self.marks is None else self._quiet_seconds

    def over(self, field: str, seconds: float = math.inf) -> float:
        """Of a field of the last looks: how much of it a second. Of what was seen or not: in which part of the time."""
        return rate(self.looks, field, seconds)

    def watched_seconds(self) -> float:
        return sum(look.seconds for look in self.looks)

    def is_idle(self, seconds: float) -> bool:
        """Whether for so long it has done nothing to speak of."""
        if self.watched_seconds() < seconds or (self.marks is not None and self._quiet_seconds < seconds):
            return False
        return (
            self.over("cpu_seconds", seconds) < IDLE_CORES
            and self.over("wants", seconds) < IDLE_WANTING
            and self.over("network_bytes", seconds) < IDLE_BYTES
        )

    def is_asking(self, seconds: float) -> bool:
        """Whether for so long its threads only waited, or asked again and again in the same loop."""
        if self.marks is not None and self._quiet_seconds < seconds:
            return False
        if len(self._loops) < _LEAST_SAMPLES or self._loops[-1][0] - self._loops[0][0] < seconds:
            return False
        if self.over("helpers_cpu_seconds", seconds) >= IDLE_CORES:
            return False
        if max(self.over("network_bytes", seconds), self.over("disk_bytes", seconds)) >= IDLE_BYTES:
            return False
        return bool(frozenset.intersection(*(loops for _, loops in self._loops)))

    def take_stacks(self, age_seconds: float = 0.0) -> None:
        """Take those of its first Python program. Those of what it started follow if it waits in what they may explain.

        Stacks of at most that age are good enough, since nothing has happened.
        """
        if time.monotonic() - self._dumped < age_seconds:
            return
        self._dumped = time.monotonic()
        self.dumps = self._dump_main()
        if self.dumps[self._main].stacks and self._waits(self._main)[0][1].kind in _BLAME:
            others = self.group.pids[self.group.pids.index(self._main) + 1 :][: _MOST_DUMPED - 1]
            self.dumps |= {pid: stacks.dump(pid) for pid in others}

    def standing(self) -> Standing:
        """What it waits in, by the stacks last taken."""
        return self._standing([pid for pid in self.dumps if pid != self._main])

    def _standing(self, started: Sequence[int]) -> Standing:
        """What it waits in.

        Args:
            started: processes that it has started, whose stacks may explain it.
        """
        first = self._main
        dump = self.dumps.get(first, Dump([], "they were not taken"))
        if not dump.stacks:
            return Standing(waits.CALL, "does nothing", "", "", dump.missing)
        (_, main), *others = self._waits(first)
        # Libraries keep threads that wait inside all the time. They explain nothing.
        are_own = [not all(map(waits.is_library, stack.frames)) for stack in dump.stacks[1:]]
        threads = zip(others, are_own, strict=True)
        inner = [(self._thread_words(name), wait) for (name, wait), own in threads if own or wait.kind != waits.INSIDE]
        for pid in started:
            inner += [(f"its process {pid}", wait) for _, wait in self._waits(pid)[:1]]
        words, kind, exchange = main.words, main.kind, main.what if main.kind == waits.EXCHANGE else ""
        blame = next((each for each in _BLAME.get(kind, ()) if any(wait.kind == each for _, wait in inner)), None)
        more = [each for each in inner if each[1].kind == blame][:2]
        if blame is not None:
            kind, exchange = blame, more[0][1].what if blame == waits.EXCHANGE else ""
        words += "".join(f", and {name} {wait.words}" for name, wait in more)
        return Standing(kind, words, exchange, main.place, "")

    def flight(self) -> Flight | None:
        """Its last exchanges, if it is a rank of a run of this suite."""
        return watchdog.read_flight(self._shared) if self._shared is not None else None

    def close(self) -> None:
        if self._shared is not None:
            os.close(self._shared)

    def _dump_main(self) -> dict[int, Dump]:
        """The stacks of its first process. If that is no Python program, of the first one below it that is."""
        self._main = self.group.pids[0]
        found = first = stacks.dump(self._main)
        for pid in self.group.pids[1:_MOST_DUMPED]:
            if found.is_python:
                return {self._main: found}
            self._main, found = pid, stacks.dump(pid)
        if not found.is_python:
            self._main, found = self.group.pids[0], first
        return {self._main: found}

    def _waits(self, pid: int) -> list[tuple[str, Wait]]:
        """(name, wait) of each thread that Python knows, the main thread first."""
        states = {thread.number: thread.state for each in self.footprints.values() for thread in each.threads}
        found: list[tuple[str, Wait]] = []
        for stack in self.dumps[pid].stacks:
            sleeps = states.get(stack.thread) == footprint.SLEEPING
            blocked = (footprint.blocked_in(pid, stack.thread) or "not known") if sleeps else ""
            found.append((stack.name, waits.wait(stack.frames, blocked, self.dumps[pid].reader)))
        return found

    @staticmethod
    def _thread_words(name: str) -> str:
        return f"its thread {name}" if name else "another of its threads"

    def _since(self, before: Mapping[int, Footprint], field: str, pids: Sequence[int] | None = None) -> float:
        """How much a count of its processes has grown since the last look.

        Args:
            pids: of some of them. None: of all, with those that have ended. Who started a process takes over its CPU time.
        """
        counted: Sequence[int] = list({**before, **self._counted}) if pids is None else pids
        return max(sum(_count(self._counted.get(pid), field) - _count(before.get(pid), field) for pid in counted), 0.0)

    def _native_since(self, before: Mapping[int, Footprint]) -> float:
        """CPU time since the last look of the threads that Python does not know, such as gloo's."""
        first = self._main
        if first not in before or first not in self.footprints or not self.dumps.get(first, Dump([], "")).stacks:
            return 0.0
        known = {stack.thread for stack in self.dumps[first].stacks}
        earlier = {thread.number: thread.cpu_seconds for thread in before[first].threads}
        now = [thread for thread in self.footprints[first].threads if thread.number not in known]
        return sum(thread.cpu_seconds - earlier.get(thread.number, thread.cpu_seconds) for thread in now)

    def _computes_inside(self) -> bool:
        """Whether one of the threads that TensorFlow computes with had a core in the last look, or waited for one."""
        found = self.footprints.get(self._main)
        threads = found.threads if found is not None else []
        return any(each.state == footprint.RUNNING and waits.COMPUTES_INSIDE.match(each.name) for each in threads)

    def _read_marks(self) -> Marks | None:
        return watchdog.read_marks(self._shared) if self._shared is not None else None


def rate(looks: Sequence[Look], field: str, seconds: float = math.inf) -> float:
    """See `Member.over`.

    Args:
        looks: the last one last.
    """
    total = past = 0.0
    for look in reversed(looks):
        if past >= seconds:
            break
        past += look.seconds
        total += getattr(look, field) * (look.seconds if field in _SEEN else 1.0)
    return total / past if past else 0.0


def _read(pids: Sequence[int]) -> dict[int, Footprint]:
    return {pid: found for pid in pids if (found := footprint.read(pid)) is not None}


def _count(found: Footprint | None, field: str) -> float:
    if found is None:
        return 0.0
    value = getattr(found, field) if field in Footprint._fields else found.total(field)
    return value or 0.0


def _shared(group: Group) -> int | None:
    """What a rank of a run of this suite shares with its own watcher: a descriptor of the same file.

    The job names it, and may name anything. So it is opened without waiting, and must be a plain file of the right size.
    """
    passed = group.environment.get(heartbeat.WATCH_VARIABLE, "")
    if not passed or not group.is_rank:
        return None
    try:
        number = int(passed.split(",")[0][:9])
        shared = os.open(Path(f"/proc/{group.pids[0]}/fd/{number}"), os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    found = os.fstat(shared)
    if stat.S_ISREG(found.st_mode) and found.st_size in (heartbeat.MARKS_BYTES, heartbeat.SHARED_BYTES):
        return shared
    os.close(shared)
    return None
