"""Runs of one repeat at nearly the same time: all their processes live, and one run after the other trains a slice of steps.

A burst of other work meets the slices of all runs alike. So their ratio hardly changes. While a run waits, all its processes
are stopped. `common.training.turns` is the side of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import selectors
import signal
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import psutil

from common.machine import footprint
from common.machine.private_folder import PrivateFolder
from common.training.turns import SOCKET_VARIABLE
from compare.running.launch import StartedProcess

TURN_SECONDS = 0.25
"""Seconds of training that a turn aims at, in the median row."""
LEAST_STEPS = 4
"""Least number of steps of a turn, and the number in the first one, when no row's speed is known."""
POLL_SECONDS = 0.25
MAX_STOP_SECONDS, STOP_POLL_SECONDS = 1.0, 0.0002
"""Longest wait until a process has stopped, and the time between two looks."""
MAX_COMPUTED_SECONDS, MAX_COMPUTED_PART = 0.1, 0.01
"""CPU time that a run may use while it waits, in seconds and as part of the waiting: the kernel counts in ticks, and a signal
takes a moment to stop a process."""
MEMORY_RESERVE = 1.5
"""Free memory that a further run needs, as a multiple of the memory of the largest run in this round."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Seat:
    """The place of one run in a round: its socket, its process, and the seconds that it has waited.

    Args:
        path: path of its socket, which no other file has.
        round_id: name of its round, which no other round has.
    """

    def __init__(self, path: str, round_id: str = "") -> None:
        self.round_id = round_id
        self.environment: Mapping[str, str] = {SOCKET_VARIABLE: path}
        """Environment variables for the process of the run."""
        self.computed_seconds = 0.0
        """CPU seconds that its processes used while they had to wait."""
        self.memory_bytes = 0
        self._process: StartedProcess | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._connection: socket.socket | None = None
        self._received = b""
        self._paused_seconds = 0.0
        self._asked_at: float | None = None
        self._answered_at = self._looked_at = 0.0
        self.steps_left = 0
        """Timed steps that were left of the epoch when it asked last."""
        self._stopped_at = 0.0
        self._cpu_seconds = 0.0
        self._slowed = threading.Lock()
        """Held by a thread that slows the run down."""
        self._works = threading.Event()
        """Set while the run is not stopped."""
        self._works.set()

    @contextlib.contextmanager
    def slowing(self) -> Generator[bool]:
        """Wait for the run's turn, at most POLL_SECONDS, to slow it down from another thread. Within the block the turn does
        not end.

        Yields:
            Whether it works: nobody may slow it down, and so continue it, while it waits.
        """
        self._works.wait(POLL_SECONDS)
        with self._slowed:
            yield self._works.is_set()

    @property
    def waits(self) -> bool:
        return self._asked_at is not None

    def defect(self) -> str | None:
        """Describe how the run computed while it had to wait. None: it did not."""
        paused_seconds = self.paused_seconds()
        if self.computed_seconds <= MAX_COMPUTED_SECONDS + MAX_COMPUTED_PART * paused_seconds:
            return None
        return (
            f"computed out of turn: its processes used {self.computed_seconds:.2f} s of CPU time in the {paused_seconds:.2f} s "
            "in which they had to wait"
        )

    def paused_seconds(self) -> float:
        """Return the seconds that the run has waited for its turns until now."""
        current = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        return self._paused_seconds + current

    def listen(self, process: StartedProcess, seconds: float) -> bool:
        """Wait at most these seconds until the run asks for its next turn. Returns whether it does: `stop` stops it."""
        if process is not self._process:  # a restart
            self._process = process
            self._disconnect()
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection or self._listener, selectors.EVENT_READ)
            if not selector.select(seconds):
                self._looked_at = time.monotonic()
                return False
        if self._connection is None:
            self._connection = self._listener.accept()[0]
            return False
        received = b""
        with contextlib.suppress(ConnectionError):  # it has died before it read the answer
            received = self._connection.recv(4096)
        if not received:
            self._disconnect()
            return False
        *lines, self._received = (self._received + received).split(b"\n")
        for message in map(json.loads, lines):
            self._take(message)
        return self.waits

    def _take(self, message: Mapping[str, Any]) -> None:
        """Note what a run says of its waiting, as far as it can be true.

        All processes of a machine share the monotonic clock. On a busy one, this process reads a message long after it was
        sent, and a run is continued long after it was told to. A run of an older revision says no time.
        """
        now = time.monotonic()
        if "continued_at" in message:
            self._paused_seconds += min(max(message["continued_at"], self._answered_at), now) - self._answered_at
        else:
            # It had said nothing when this process looked last.
            self._asked_at = min(max(message.get("asked_at", now), self._answered_at, self._looked_at), now)
            self.steps_left = message["steps_left"]

    def stop(self) -> None:
        """Stop all processes of a run that has asked for its next turn."""
        if self._process is None:
            return
        self._works.clear()
        with self._slowed:  # until nobody slows it down
            pass
        _stop_session(self._process)
        self._stopped_at = time.time()
        tree = footprint.read_tree(psutil.Process(self._process.pid))
        self._cpu_seconds = sum(member.cpu_seconds for member in tree)
        self.memory_bytes = sum(member.resident_bytes for member in tree)

    def start_turn(self, steps: int) -> None:
        """Continue the processes of a run that waits, and let it train this number of steps, or as many as are left."""
        if not self.waits or self._connection is None or self._process is None:
            return
        # A rest of less than half a turn would be a turn of its own.
        steps = self.steps_left if self.steps_left < 1.5 * steps else steps
        used_seconds = sum(process.cpu_seconds for process in footprint.read_tree(psutil.Process(self._process.pid)))
        self.computed_seconds += max(used_seconds - self._cpu_seconds, 0.0)
        continued_at = time.time()
        _continue_session(self._process)
        self._works.set()
        answer = {"steps": steps, "stopped_at": self._stopped_at, "continued_at": continued_at}
        self._paused_seconds, self._asked_at, self._answered_at = self.paused_seconds(), None, time.monotonic()
        with contextlib.suppress(OSError):  # it has died, which its process tells
            self._connection.sendall(json.dumps(answer).encode() + b"\n")

    def release(self) -> None:
        """Continue its processes, so that they can end. None gets a turn."""
        if self._process is not None and self._process.returncode is None:
            _continue_session(self._process)

    def close(self) -> None:
        self._disconnect()
        self._listener.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._asked_at, self._received = None, None, b""


def _stop_session(process: StartedProcess) -> None:
    """Stop all processes of a run. They share its session. Each rank leads a process group there."""
    new, stopped = {process.pid}, set[int]()  # what watches the ranks is stopped first, so it sees none that is
    while new:
        _signal_groups(new, signal.SIGSTOP)
        if not stopped:
            _wait_until_stopped(process)
        stopped |= new
        new = _groups(process) - stopped


def _wait_until_stopped(process: StartedProcess) -> None:
    """Wait until all threads of a process are stopped, or it has ended: one on another core goes on for a moment."""
    deadline = time.monotonic() + MAX_STOP_SECONDS
    with contextlib.suppress(ChildProcessError):  # it has ended, and its status was read
        while time.monotonic() < deadline and not os.waitid(
            os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        ):
            time.sleep(STOP_POLL_SECONDS)


def _continue_session(process: StartedProcess) -> None:
    """Continue all processes of a run, what watches the ranks last."""
    _signal_groups(_groups(process) - {process.pid}, signal.SIGCONT)
    _signal_groups({process.pid}, signal.SIGCONT)


def _signal_groups(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; macOS: nothing but zombies is left
            os.killpg(group, number)


def _groups(process: StartedProcess) -> set[int]:
    """Return the process groups of a run's session."""
    members = psutil.Process(process.pid).children(recursive=True)
    return {group for member in members if (group := _group_in(process.pid, member.pid)) is not None}


def _group_in(session: int, pid: int) -> int | None:
    """Return the process group of a process. None: it has ended, or has left the session."""
    try:
        return os.getpgid(pid) if os.getsid(pid) == session else None
    except OSError:
        return None


class _TurnTaker(Generic[_Item, _Result]):
    """One run of a round.

    Args:
        place: its place among the items.
        steps: runs the item, one look at its process for each step of the generator.
    """

    def __init__(self, place: int, seat: Seat, steps: Generator[StartedProcess, None, _Result]) -> None:
        self.place = place
        self.seat = seat
        self.waits = False
        """Whether it waits for its next turn, with its processes stopped."""
        self.has_ended = False
        self.step_seconds: float | None = None
        """Seconds of a step in its first turn."""
        self._steps = steps

    def advance(self, steps: int) -> Generator[tuple[int, _Result]]:
        """Let the run work until it asks for its next turn, or has ended. Yields its place and its result if it has."""
        started, left = time.monotonic(), self.seat.steps_left
        self.seat.start_turn(steps)
        self.waits = False
        while not (self.waits or self.has_ended):
            yield from self.look(POLL_SECONDS)
        if self.step_seconds is None and steps and left - self.seat.steps_left == steps:
            self.step_seconds = (time.monotonic() - started) / steps

    def look(self, seconds: float) -> Generator[tuple[int, _Result]]:
        """Wait at most these seconds until the run asks for its next turn, and stop it then. Yields as `advance` does."""
        try:
            # The second look reads what the run wrote in this turn: after the pause, nothing tells when it was written.
            if self.seat.listen(process := next(self._steps), seconds) and next(self._steps) is process:
                self.seat.stop()
                self.waits = True
        except StopIteration as ended:
            self.has_ended = True
            yield self.place, ended.value

    def close(self) -> None:
        """End the run, if it has not ended."""
        self.seat.release()
        self._steps.close()


def run_round(
    items: Sequence[_Item],
    run: Callable[[_Item, Seat], Generator[StartedProcess, None, _Result]],
    turn_seconds: float = TURN_SECONDS,
    importing: int = 1,
    free_memory: Callable[[], int] = lambda: psutil.virtual_memory().available,
) -> Generator[tuple[int, _Result]]:
    """Run all items in turns. Yields the place of each item and its result when it ends.

    Their processes import their frameworks, some at the same time. Then they build, do their first step and compile one after
    the other, for these are timed. Then they train in turns. Runs that do not fit into the memory together follow in a round of
    their own.

    Args:
        items: in the order of starting.
        run: runs an item with a seat, one look at its process for each step of the generator.
        turn_seconds: seconds of training that a turn aims at.
        importing: number of runs that import at the same time.
        free_memory: returns the bytes of memory that further processes can have.
    """
    planned, imported = deque(enumerate(items)), deque[_TurnTaker[_Item, _Result]]()
    round_id = secrets.token_hex(8)
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(PrivateFolder())

        def start(place: int, item: _Item) -> _TurnTaker[_Item, _Result]:
            seat = Seat(str(folder.path / str(place)), round_id)
            closing.callback(seat.close)  # after its run: one whose launcher has gone would call that its own failure
            taker = _TurnTaker[_Item, _Result](place, seat, run(item, seat))
            closing.callback(taker.close)
            return taker

        runs: list[_TurnTaker[_Item, _Result]] = []

        def fits(number: int) -> bool:
            """Whether so many further runs fit into the memory, as far as their size is known."""
            return free_memory() >= number * MEMORY_RESERVE * max((taker.seat.memory_bytes for taker in runs), default=0)

        while planned or imported:
            runs.clear()
            while planned or imported:
                if runs and not fits(1):
                    break
                if not imported:
                    while planned and len(imported) < importing and (not imported or fits(len(imported) + 1)):
                        imported.append(start(*planned.popleft()))
                    yield from _import(imported)
                runs.append(imported.popleft())
                yield from runs[-1].advance(0)
            yield from _take_turns(runs, turn_seconds)


def importing_at_once(number: int, cores: int) -> int:
    """Return how many of so many runs import at the same time: as many as have a core each, and as divide them.

    So each imports beside as many others.
    """
    return max((count for count in range(1, cores + 1) if number % count == 0), default=1)


def _import(runs: Collection[_TurnTaker[_Item, _Result]]) -> Generator[tuple[int, _Result]]:
    """Let runs work at the same time until each asks to build its model, or has ended."""
    while importing := [taker for taker in runs if not (taker.waits or taker.has_ended)]:
        for taker in importing:
            yield from taker.look(POLL_SECONDS / len(importing))


def _take_turns(runs: Sequence[_TurnTaker[_Item, _Result]], turn_seconds: float) -> Generator[tuple[int, _Result]]:
    steps = LEAST_STEPS
    for number, order in enumerate(itertools.cycle(balanced_orders(len(runs)))):
        training = [runs[place] for place in order if runs[place].waits]
        if not training:
            return
        for taker in training:
            yield from taker.advance(steps)
        if number == 0 and (known := [taker.step_seconds for taker in runs if taker.step_seconds]):
            steps = max(round(turn_seconds / statistics.median(known)), LEAST_STEPS)


def balanced_orders(number: int) -> list[list[int]]:
    """Return orders of items in which each stands at each place, and follows each other one, equally often: a Williams design.

    Two items stand in the orders [0, 1] and [1, 0].
    """
    first = [0]
    for step in range(1, number):
        first.append((number - (step // 2) if step % 2 == 0 else (step + 1) // 2) % number)
    orders = [[(place + shift) % number for place in first] for shift in range(number)]
    return orders if number % 2 == 0 else [*orders, *(order[::-1] for order in orders)]
