"""Telling processes that are stuck from those that are slow, and which of them is to blame.

A process under watch writes marks of its progress into a few bytes that its watcher maps too. That costs it a store to
memory and no synchronisation. If the marks stand still for long, CPU time and state decide. A process that computes is slow.
A process that is stopped, or that waits without using the CPU, is stuck. Then each is asked for its stacks.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import psutil

from common.artifacts import atomic_files
from common.machine import flight, footprint
from common.machine.flight import Flight
from common.machine.heartbeat import LOADING_SECONDS, MARKS_BYTES, SHARED_BYTES, SIGNAL, WATCH_VARIABLE, Marks

_PATIENCE = 0.9
"""The part of the limit after which a run is judged; the rest is for the stacks and for ending it."""
_LOOKS = 20
"""In the limit, and in no less than ..."""
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 3.0
IDLE_CPU = 0.05
"""CPU seconds a second that threads may use which only wait and poll."""
IDLE_WANTING = 0.5
"""A stuck process wants the core in less than this part of the looks. A busy one wants it always, even if it gets little."""
STACKS_SECONDS = 3.0
"""For which a process that was asked for its stacks is waited for. On busy cores it may not get a core within one."""


class Sample(NamedTuple):
    """A process from outside, at one moment."""

    marks: Marks
    stopped: bool
    """By a signal, a debugger, or the freezer of its control group."""
    cpu_seconds: float | None
    """Of it with all that it started. None: it made progress since it was last looked at, and nothing more was read."""
    wanting: bool = False
    """Whether one of its threads waits for a core or for the disk, or has the core."""
    silent_seconds: float = 0.0
    """How long it has sent no sign of life. Only for a process on another machine, which sends one regularly."""


class Watchable(Protocol):
    """A process that can be looked at."""

    def sample(self) -> Sample | None:
        """As it is now; None where it has ended."""
        ...

    def marks(self) -> Marks:
        """How far it has come, also after its end."""
        ...

    def ask_for_stacks(self) -> None:
        """Ask it to write down what its threads are doing."""
        ...

    def stacks(self) -> str:
        """What it has written; where it cannot write, why."""
        ...

    def flight(self) -> Flight | None:
        """Its last exchanges with other ranks, also after its end. None: it has none, or they were not sent."""
        ...


class Watched:
    """A process of this machine. Start it with `environment` and `descriptors`, then set its `pid`."""

    def __init__(self) -> None:
        # Files without a name, which are gone with the processes that hold them.
        self._marks, self._stacks = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  see close
        try:
            os.ftruncate(self._marks.fileno(), SHARED_BYTES)
        except OSError:  # no file may be that large here
            with atomic_files.name_file_in_errors(Path(tempfile.gettempdir())):
                os.ftruncate(self._marks.fileno(), MARKS_BYTES)
        self.descriptors = self._marks.fileno(), self._stacks.fileno()
        self.environment = {WATCH_VARIABLE: ",".join(map(str, self.descriptors))}
        self.pid: int | None = None
        self._seen = Marks()
        self._asked = time.monotonic()

    def sample(self) -> Sample | None:
        """As it is now; None where it has ended."""
        try:
            process = psutil.Process(self.pid)
            status = process.status()
            if status == psutil.STATUS_ZOMBIE:
                return None
            stopped = status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            before, self._seen = self._seen, self.marks()
            if self._seen != before:
                return Sample(self._seen, stopped, None)
            return Sample(self._seen, stopped or footprint.is_frozen(process.pid), *_work(process))
        except psutil.NoSuchProcess:
            return None

    def marks(self) -> Marks:
        """How far it has come, also after its end."""
        if self._marks.closed:
            return self._seen
        return read_marks(self._marks.fileno())

    def ask_for_stacks(self) -> None:
        """Ask it to write down what its threads are doing."""
        self._asked = time.monotonic()
        # What it answered before goes: it writes through the same open file, so its place in it is set back too.
        os.ftruncate(self._stacks.fileno(), 0)
        os.lseek(self._stacks.fileno(), 0, os.SEEK_SET)
        if self.pid is not None and self.marks().beats:  # before that the signal would end it
            try:
                os.kill(self.pid, SIGNAL)
            except ProcessLookupError:
                pass

    def stacks(self) -> str:
        """What it has written; where it cannot write, why."""
        sample = self.sample()
        if sample is None:
            return "It has ended.\n"
        if sample.stopped:
            return "It is stopped, and a stopped process cannot write its stacks.\n"
        if not sample.marks.beats:
            return "It had not begun to answer yet: no stacks.\n"
        self._settle()
        size = os.fstat(self._stacks.fileno()).st_size
        written = os.pread(self._stacks.fileno(), size, 0).decode(errors="replace")
        if written:
            return written
        # Its end takes long where it has much memory, and it answers nothing meanwhile.
        return "It has ended.\n" if self._has_ended() else f"It did not answer in {STACKS_SECONDS:g} s: no stacks.\n"

    def flight(self) -> Flight | None:
        """Its last exchanges with other ranks, also after its end. None: it had no room to record them."""
        return read_flight(self._marks.fileno())

    def close(self) -> None:
        """Let go of its files. A second call does nothing."""
        self._seen = self.marks()
        self._marks.close()
        self._stacks.close()

    def _has_ended(self) -> bool:
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def _settle(self) -> None:
        """Wait until it has written all, or nothing for too long."""
        size = 0
        while time.monotonic() < self._asked + STACKS_SECONDS:
            before, size = size, os.fstat(self._stacks.fileno()).st_size
            if (size and size == before) or self._has_ended():
                return
            time.sleep(0.05)


def read_marks(shared: int) -> Marks:
    """The marks in the file that a process shares with its watcher, by its descriptor."""
    # The process may have cut it off.
    return Marks(*map(int, np.frombuffer(os.pread(shared, MARKS_BYTES, 0).ljust(MARKS_BYTES, b"\0"), np.int64)))


def read_flight(shared: int) -> Flight | None:
    """The last exchanges in the same file. None: it has no room for them."""
    once, again = (os.pread(shared, flight.BYTES, MARKS_BYTES) for _ in range(2))
    if min(len(once), len(again)) < flight.BYTES:
        return None
    return flight.read(once, again, time.monotonic_ns())


def _work(process: psutil.Process) -> tuple[float, bool]:
    """(CPU seconds, whether more is wanted now) of a process with all that it started."""
    found = footprint.read_tree(process)
    return sum(each.cpu_seconds for each in found), any(each.is_active for each in found)


class Hang(NamedTuple):
    """Processes that are stuck."""

    culprit: int
    """Index of the one to blame, or of the first where it is the fault of all."""
    words: str
    stacks: list[str]
    """Of every process."""


class Member(NamedTuple):
    """A process under watch."""

    name: str
    process: Watchable
    trains: bool = True
    """Whether it leaves marks of steps; a server leaves none, and only its CPU time counts."""


class Watchdog:
    """Looks at the processes of one run again and again.

    Args:
        members: all of them.
        limit_seconds: within which a hang is to be found, and the processes ended.
        waiting: regular expression. If a stack frame's file name matches, the rank waits for the others.
    """

    def __init__(self, members: Sequence[Member], limit_seconds: float, waiting: str | None = None) -> None:
        self._views = [_View(member) for member in members]
        self._limit = limit_seconds
        self._waiting = waiting
        self._interval = min(max(limit_seconds / _LOOKS, _LEAST_SECONDS), _MOST_SECONDS)
        self._looked = time.monotonic()

    def look(self) -> Hang | None:
        """Call often; it looks now and then. A hang, once there is one."""
        now = time.monotonic()
        if now - self._looked < self._interval:
            return None
        # This process may have been stopped or starved itself: what it did not see does not count.
        elapsed = min(now - self._looked, 2 * self._interval)
        self._looked = now
        for view in self._views:
            view.look(elapsed)
        patience = _PATIENCE * self._limit
        halted = [view for view in self._views if view.halted_seconds >= patience]
        found = halted or self._left_behind(patience)
        if not found and not self._stuck(patience):
            return None
        return self._hang(found, f"no progress for {patience:g} s" if halted else self._why(found or self._views, patience))

    def halted(self) -> Hang | None:
        """A process that is stopped or silent now. Another that noticed it, and ended on its own, is not to blame."""
        for view in self._views:
            view.look(0.0)
        halted = [view for view in self._views if view.halted is not None]
        return self._hang(halted, "others noticed it") if halted else None

    def stacks(self) -> list[str]:
        """What every process is doing now."""
        for view in self._views:
            view.member.process.ask_for_stacks()
        return [view.member.process.stacks() for view in self._views]

    def _hang(self, found: list[_View], why: str) -> Hang:
        stacks = self.stacks()
        blamed, verb = (found, "hangs") if found else self._blamed(stacks)
        return Hang(self._views.index(blamed[0]), f"{self._words(blamed, verb, stacks)}: {why}", stacks)

    def _why(self, found: Sequence[_View], patience: float) -> str:
        """That nothing was done for as long as the limit asks for. If it took longer until that was sure, how long it took."""
        quiet = min(view.quiet_seconds for view in found)
        if quiet < 1.5 * patience:
            return f"no progress for {patience:g} s"
        return f"no progress for {quiet:.0f} s, and nothing but waiting in the last {patience:g} s"

    def _left_behind(self, patience: float) -> list[_View]:
        """Those that do nothing, and do not wait for others either, while others go on as their mode lets them."""
        training = [view for view in self._views if view.member.trains and not view.ended]
        if self._waiting is None or all(view.quiet_seconds >= patience for view in training):
            return []
        found: list[_View] = []
        for view in training:
            if view.marks != view.excused and self._is_idle(view, patience):
                view.member.process.ask_for_stacks()
                text = view.member.process.stacks()
                if _main_thread(text) and not self._waits(text):
                    found.append(view)
                view.excused = view.marks
        return found

    def _is_idle(self, view: _View, patience: float) -> bool:
        return view.is_idle(patience if view.begun else max(patience, LOADING_SECONDS))

    def _stuck(self, patience: float) -> bool:
        living = [view for view in self._views if not view.ended]
        # That one ends is progress too: what the others waited for may be done only now.
        if not living or min(view.quiet_seconds for view in self._views) < patience:
            return False
        training = [view.marks.position for view in living if view.member.trains]
        slowest = min(training, default=None)
        # Those that are ahead may wait for the slowest with a busy core.
        return all(self._is_idle(view, patience) for view in living if not view.member.trains or view.marks.position == slowest)

    def _blamed(self, stacks: list[str]) -> tuple[list[_View], str]:
        """Who does not wait for others; where all do, who went on without them; else who is behind."""
        alone = [view for view, text in zip(self._views, stacks, strict=True) if not self._waits(text)]
        if alone and len(alone) < len(self._views):
            return alone, "has ended" if all(view.ended for view in alone) else "hangs"
        training = [view for view in self._views if view.member.trains]
        positions = [view.marks.position for view in training]
        if len(set(positions)) > 1:
            chosen, verb = (min(positions), "hangs") if alone else (max(positions), "went on without the others and hangs")
            return [view for view in training if view.marks.position == chosen], verb
        return self._views, "hangs"

    def _waits(self, stacks: str) -> bool:
        return self._waiting is not None and any(re.search(self._waiting, frame.file) for frame in _main_thread(stacks))

    def _words(self, blamed: list[_View], verb: str, stacks: list[str]) -> str:
        described: list[tuple[bool, str]] = []
        silence = min(view.quiet_seconds for view in blamed)
        for view, text in zip(self._views, stacks, strict=True):
            goes_on = not view.ended and view.quiet_seconds < self._interval and silence >= _PATIENCE * self._limit / 2
            what = (view.halted or verb) if view in blamed else "goes on" if goes_on else "waits"
            innermost = next(iter(_main_thread(text)), None)
            where = f" in {innermost.function} ({Path(innermost.file).name}:{innermost.line})" if innermost is not None else ""
            after = f" after step {view.marks.steps}" if view.member.trains and view.begun else ""
            described.append((view not in blamed, f"{view.member.name} {what}{where}{after}"))
        return "; ".join(words for _, words in sorted(described, key=lambda each: each[0]))


class _View:
    """What has been seen of one process."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.marks = Marks()
        self.ended = False
        self.quiet_seconds = 0.0
        self.halted: str | None = None
        """Why it cannot go on, in words."""
        self.halted_seconds = 0.0
        self.excused: Marks | None = None
        """How far it had come when it was found to wait for others."""
        self._cpu_seconds: float | None = None
        self._work: deque[tuple[float, float, bool]] = deque()
        """(seconds, CPU seconds used in them, whether more was wanted at their end), since the last progress."""

    @property
    def begun(self) -> bool:
        return not self.member.trains or self.marks.sync_points > 0

    def look(self, elapsed: float) -> None:
        sample = self.member.process.sample()
        if sample is None:
            self.quiet_seconds = self.quiet_seconds + elapsed if self.ended else 0.0
            self.ended, self.halted, self.halted_seconds = True, None, 0.0
            return
        self.halted = "is stopped" if sample.stopped else "is not heard of" if sample.silent_seconds else None
        self.halted_seconds = max(self.halted_seconds + elapsed, sample.silent_seconds) if self.halted is not None else 0.0
        if sample.marks != self.marks:
            self.marks, self.quiet_seconds, self._cpu_seconds = sample.marks, 0.0, None
            self._work.clear()
        else:
            self.quiet_seconds += elapsed
        if self._cpu_seconds is not None and sample.cpu_seconds is not None:
            self._work.append((elapsed, max(sample.cpu_seconds - self._cpu_seconds, 0.0), sample.wanting))
        self._cpu_seconds = sample.cpu_seconds

    def is_idle(self, seconds: float) -> bool:
        """Whether for so long it has done nothing, and used no CPU to speak of."""
        if self.quiet_seconds < seconds:
            return False
        used = wanted = past = 0.0
        for elapsed, work, wanting in reversed(self._work):
            if past >= seconds:
                break
            past += elapsed
            used += work
            wanted += elapsed * wanting
        return used < IDLE_CPU * seconds and wanted < IDLE_WANTING * seconds


def save_stacks(stacks: Sequence[str], names: Sequence[str], folder: Path) -> list[Path]:
    """Write `stacks-<name>.txt` of every process; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"stacks-{name.replace(' ', '')}.txt" for name in names]
    for path, text in zip(paths, stacks, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


def _main_thread(stacks: str) -> list[_Frame]:
    """Its frames, the innermost first: faulthandler writes the oldest thread last."""
    block = re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE)[-1]
    found = re.findall(r'^  File "(.+?)", line (\d+) in (.+)$', block, flags=re.MULTILINE)
    return [_Frame(file, int(line), function) for file, line, function in found]
