"""Distinguishes stuck processes from slow ones, and finds the one to blame.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import psutil

from common.artifacts import atomic_files
from common.machine import flight, footprint
from common.machine.flight import Flight
from common.machine.heartbeat import LOADING_SECONDS, MARKS_BYTES, SHARED_BYTES, SIGNAL, WATCH_VARIABLE, Marks
from common.watching.judge import Blame, BlameCause, ProcessState, is_idle, judge

_JUDGE_FRACTION = 0.9
"""Fraction of the limit after which a run is judged. The rest is for the stacks and for ending it."""
_CHECKS_PER_LIMIT = 20
"""Number of checks within the limit. Their interval has the bounds below."""
_MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 0.1, 3.0
_VERBS = {BlameCause.ENDED: "has ended", BlameCause.AHEAD: "went on without the others and hangs"}
"""Words for those to blame. All others hang."""
STACKS_SECONDS = 3.0
"""Seconds to wait for requested stacks. On busy cores a process may not get a core within one second."""


class Sample(NamedTuple):
    """State of a process at one moment, as seen from outside."""

    marks: Marks
    stopped: bool
    """Whether a signal, a debugger, or the freezer of its control group has stopped it."""
    cpu_seconds: float | None
    """CPU time of the process with all that it started. None: it made progress since the last sample, so it was not read."""
    active: bool = False
    """Whether one of its threads waits for a core or for the disk, or has the core."""
    silent_seconds: float = 0.0
    """Seconds since the last sign of life. Only for a process on another machine, which sends one regularly."""


class Watchable(Protocol):
    """A process that the watchdog can read."""

    def sample(self) -> Sample | None:
        """Return its state now. None: it has ended."""
        ...

    def marks(self) -> Marks:
        """Return its progress marks, also after its end."""
        ...

    def ask_for_stacks(self) -> None:
        """Request the stacks of its threads."""
        ...

    def stacks(self) -> str:
        """Return the requested stacks, or the reason why there are none."""
        ...

    def flight(self) -> Flight | None:
        """Return its last exchanges with other ranks, also after its end. None: it has none, or they were not sent."""
        ...


class WatchedProcess:
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
        self._last_marks = Marks()
        self._requested_at = time.monotonic()

    def sample(self) -> Sample | None:
        """Return its state now. None: it has ended."""
        try:
            process = psutil.Process(self.pid)
            status = process.status()
            if status == psutil.STATUS_ZOMBIE:
                return None
            stopped = status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            previous, self._last_marks = self._last_marks, self.marks()
            if self._last_marks != previous:
                return Sample(self._last_marks, stopped, None)
            return Sample(self._last_marks, stopped or footprint.is_frozen(process.pid), *_usage(process))
        except psutil.NoSuchProcess:
            return None

    def marks(self) -> Marks:
        """Return its progress marks, also after its end."""
        if self._marks.closed:
            return self._last_marks
        return read_marks(self._marks.fileno())

    def ask_for_stacks(self) -> None:
        """Request the stacks of its threads."""
        self._requested_at = time.monotonic()
        # What it answered before goes: it writes through the same open file, so its place in it is set back too.
        os.ftruncate(self._stacks.fileno(), 0)
        os.lseek(self._stacks.fileno(), 0, os.SEEK_SET)
        if self.pid is not None and self.marks().beats:  # before that the signal would end it
            try:
                os.kill(self.pid, SIGNAL)
            except ProcessLookupError:
                pass

    def stacks(self) -> str:
        """Return the requested stacks, or the reason why there are none."""
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
        """Return its last exchanges with other ranks, also after its end. None: it had no room to record them."""
        return read_flight(self._marks.fileno())

    def close(self) -> None:
        """Close its files. A second call does nothing."""
        self._last_marks = self.marks()
        self._marks.close()
        self._stacks.close()

    def _has_ended(self) -> bool:
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def _settle(self) -> None:
        """Wait until the stacks are complete, or nothing was written for too long."""
        size = 0
        while time.monotonic() < self._requested_at + STACKS_SECONDS:
            previous, size = size, os.fstat(self._stacks.fileno()).st_size
            if (size and size == previous) or self._has_ended():
                return
            time.sleep(0.05)


def read_marks(shared: int) -> Marks:
    """Read the marks in the file that a process shares with its watcher, by its descriptor."""
    # The process may have cut it off.
    return Marks(*map(int, np.frombuffer(os.pread(shared, MARKS_BYTES, 0).ljust(MARKS_BYTES, b"\0"), np.int64)))


def read_flight(shared: int) -> Flight | None:
    """Read the last exchanges in the file that a process shares with its watcher. None: it has no room for them."""
    once, again = (os.pread(shared, flight.BYTES, MARKS_BYTES) for _ in range(2))
    if min(len(once), len(again)) < flight.BYTES:
        return None
    return flight.read(once, again, time.monotonic_ns())


def _usage(process: psutil.Process) -> tuple[float, bool]:
    """Return (CPU seconds, whether one is active now) of a process with all that it started."""
    footprints = footprint.read_tree(process)
    return sum(footprint_read.cpu_seconds for footprint_read in footprints), any(
        footprint_read.is_active for footprint_read in footprints
    )


class Hang(NamedTuple):
    """Processes that are stuck."""

    culprit: int
    """Index of the one to blame, or of the first where it is the fault of all."""
    message: str
    stacks: list[str]
    """Stacks of every process."""


class WatchTarget(NamedTuple):
    """A process under watch."""

    name: str
    process: Watchable
    trains: bool = True
    """Whether it marks its steps. A server does not, and only its CPU time counts."""


class Watchdog:
    """Checks the processes of one run at regular intervals.

    Args:
        members: all processes of the run.
        limit_seconds: seconds within which a hang is found and the processes are ended.
        waiting: regular expression. If a stack frame's file name matches, the rank waits for the others.
        loading_seconds: seconds until a process without its data counts as stuck. None: `LOADING_SECONDS`.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        members: Sequence[WatchTarget],
        limit_seconds: float,
        waiting: str | None = None,
        loading_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loading_seconds = LOADING_SECONDS if loading_seconds is None else loading_seconds
        self._clock = clock
        self._views = [_TargetState(member) for member in members]
        self._limit = limit_seconds
        self._waiting = waiting
        self._interval = min(max(limit_seconds / _CHECKS_PER_LIMIT, _MIN_INTERVAL_SECONDS), _MAX_INTERVAL_SECONDS)
        self._checked_at = clock()
        self._stacks: list[str] = []
        """Stacks of every process, if the last check asked for them."""

    def check(self) -> Hang | None:
        """Check the processes if the interval has passed. Returns a hang, once there is one. Call it often."""
        now = self._clock()
        if now - self._checked_at < self._interval:
            return None
        # This process may have been stopped or starved itself: what it did not see does not count.
        elapsed = min(now - self._checked_at, 2 * self._interval)
        self._checked_at = now
        for view in self._views:
            view.update(elapsed)
        patience = _JUDGE_FRACTION * self._limit
        blame = judge(self._states(patience))
        if blame is None:
            return None
        if blame.cause is BlameCause.HALTED:
            return self._hang(blame, f"no progress for {patience:g} s")
        alone = (
            [view for view in self._views if view.member.name in blame.names]
            if blame.cause is BlameCause.ALONE
            else self._views
        )
        return self._hang(blame, self._reason(alone, patience))

    def halted(self) -> Hang | None:
        """Return a hang if a process is stopped or silent now. Another that noticed it and ended on its own is not to blame."""
        for view in self._views:
            view.update(0.0)
        blame = judge([ProcessState(view.member.name, is_halted=view.halted is not None) for view in self._views])
        return self._hang(blame, "others noticed it") if blame is not None else None

    def stacks(self) -> list[str]:
        """Return the current stacks of every process."""
        for view in self._views:
            view.member.process.ask_for_stacks()
        return [view.member.process.stacks() for view in self._views]

    def _hang(self, blame: Blame, reason: str) -> Hang:
        culprits = [view for view in self._views if view.member.name in blame.names]
        stacks = self._stacks or self.stacks()
        return Hang(self._views.index(culprits[0]), f"{self._describe(culprits, blame.cause, stacks)}: {reason}", stacks)

    def _reason(self, views: Sequence[_TargetState], patience: float) -> str:
        """Describe for how long nothing was done. It may be longer than the limit, until that was certain."""
        quiet_seconds = min(view.quiet_seconds for view in views)
        if quiet_seconds < 1.5 * patience:
            return f"no progress for {patience:g} s"
        return f"no progress for {quiet_seconds:.0f} s, and nothing but waiting in the last {patience:g} s"

    def _states(self, patience: float) -> list[ProcessState]:
        """Return what is known of each process. Stacks are asked for where they decide."""
        self._stacks = []
        states = [
            ProcessState(
                view.member.name,
                is_halted=view.halted_seconds >= patience,
                has_ended=view.ended,
                position=view.marks.position if view.member.trains else None,
            )
            for view in self._views
        ]
        if any(state.is_halted for state in states):
            return states
        if self._do_all_stand_still(patience):
            self._stacks = self.stacks()
            return [
                state._replace(stands_still=True, waits_for_others=self._waits(text))
                for state, text in zip(states, self._stacks, strict=True)
            ]
        return [
            state._replace(stands_still=True, waits_for_others=False) if self._stands_still_alone(view, patience) else state
            for state, view in zip(states, self._views, strict=True)
        ]

    def _stands_still_alone(self, view: _TargetState, patience: float) -> bool:
        """Return whether a rank is idle and in no exchange, while others go on as their mode lets them."""
        training = [view for view in self._views if view.member.trains and not view.ended]
        if self._waiting is None or view not in training or all(view.quiet_seconds >= patience for view in training):
            return False
        if view.marks == view.waited_at or not self._is_idle(view, patience):
            return False
        view.member.process.ask_for_stacks()
        text = view.member.process.stacks()
        is_alone = bool(_main_thread(text)) and not self._waits(text)
        view.waited_at = None if is_alone else view.marks
        return is_alone

    def _is_idle(self, view: _TargetState, patience: float) -> bool:
        return view.is_idle(patience if view.has_data else max(patience, self._loading_seconds))

    def _do_all_stand_still(self, patience: float) -> bool:
        living = [view for view in self._views if not view.ended]
        # That one ends is progress too: what the others waited for may be done only now.
        if not living or min(view.quiet_seconds for view in self._views) < patience:
            return False
        training = [view.marks.position for view in living if view.member.trains]
        slowest = min(training, default=None)
        # Those that are ahead may wait for the slowest with a busy core.
        return all(self._is_idle(view, patience) for view in living if not view.member.trains or view.marks.position == slowest)

    def _waits(self, stacks: str) -> bool:
        return self._waiting is not None and any(re.search(self._waiting, frame.file) for frame in _main_thread(stacks))

    def _describe(self, culprits: list[_TargetState], cause: BlameCause, stacks: list[str]) -> str:
        phrases: list[tuple[bool, str]] = []
        quiet_seconds = min(view.quiet_seconds for view in culprits)
        for view, text in zip(self._views, stacks, strict=True):
            is_progressing = (
                not view.ended and view.quiet_seconds < self._interval and quiet_seconds >= _JUDGE_FRACTION * self._limit / 2
            )
            verb = view.halted or _VERBS.get(cause, "hangs")
            state = verb if view in culprits else "has ended" if view.ended else "goes on" if is_progressing else "waits"
            innermost = next(iter(_main_thread(text)), None)
            location = (
                f" in {innermost.function} ({Path(innermost.file).name}:{innermost.line})" if innermost is not None else ""
            )
            progress = f" after step {view.marks.steps}" if view.member.trains and view.has_data else ""
            phrases.append((view not in culprits, f"{view.member.name} {state}{location}{progress}"))
        return "; ".join(words for _, words in sorted(phrases, key=lambda phrase: phrase[0]))


class _Look(NamedTuple):
    """The resource use of a process between two checks."""

    seconds: float
    cpu_seconds: float
    wants: bool


class _TargetState:
    """The watchdog's state of one process."""

    def __init__(self, member: WatchTarget) -> None:
        self.member = member
        self.marks = Marks()
        self.ended = False
        self.quiet_seconds = 0.0
        self.halted: str | None = None
        """Reason why it cannot go on, for messages."""
        self.halted_seconds = 0.0
        self.waited_at: Marks | None = None
        """Marks where it was found to wait for others."""
        self._cpu_seconds: float | None = None
        self._looks: deque[_Look] = deque()
        """Resource use since the last progress."""

    @property
    def has_data(self) -> bool:
        return not self.member.trains or self.marks.sync_points > 0

    def update(self, elapsed: float) -> None:
        sample = self.member.process.sample()
        if sample is None:
            self.quiet_seconds = self.quiet_seconds + elapsed if self.ended else 0.0
            self.ended, self.halted, self.halted_seconds = True, None, 0.0
            return
        self.halted = "is stopped" if sample.stopped else "is not heard of" if sample.silent_seconds else None
        self.halted_seconds = max(self.halted_seconds + elapsed, sample.silent_seconds) if self.halted is not None else 0.0
        if sample.marks != self.marks:
            self.marks, self.quiet_seconds, self._cpu_seconds = sample.marks, 0.0, None
            self._looks.clear()
        else:
            self.quiet_seconds += elapsed
        if self._cpu_seconds is not None and sample.cpu_seconds is not None:
            self._looks.append(_Look(elapsed, max(sample.cpu_seconds - self._cpu_seconds, 0.0), sample.active))
        self._cpu_seconds = sample.cpu_seconds

    def is_idle(self, seconds: float) -> bool:
        """Return whether it made no progress and used hardly any CPU for `seconds`."""
        return self.quiet_seconds >= seconds and is_idle(self._looks, seconds)


def save_stacks(stacks: Sequence[str], names: Sequence[str], folder: Path) -> list[Path]:
    """Write `stacks-<name>.txt` of every process. Returns the paths."""
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
    """Return the main thread's frames, the innermost first. faulthandler writes the oldest thread last."""
    block = re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE)[-1]
    matches = re.findall(r'^  File "(.+?)", line (\d+) in (.+)$', block, flags=re.MULTILINE)
    return [_Frame(file, int(line), function) for file, line, function in matches]
