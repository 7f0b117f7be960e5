"""Starting the ranks of one run on this machine, and ending them together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common import watchdog

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it is gone, so that a kill leaves no orphan."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    # Not SIGTERM: TensorFlow takes that over once its processes have met, and then only makes a note of it.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        sys.exit(128 + signal.SIGTERM)


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback interface that nobody listens on now."""
    with contextlib.ExitStack() as open_sockets:
        listeners = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


class Member(NamedTuple):
    """One process of a run."""

    name: str
    """As a message names it, e.g. `rank 1`."""
    command: Sequence[str]
    environment: dict[str, str]
    """Additions to this process's."""
    trains: bool = True
    """Whether it is a rank, which makes steps; a server makes none."""


class Watch(NamedTuple):
    """How the members of a run are watched, see `common.watchdog`."""

    hang_seconds: float = watchdog.HANG_SECONDS
    """Within which a run that hangs is ended."""
    folder: Path | None = None
    """Gets the stacks of a run that hung."""
    waiting: str | None = None
    """Matches the file names of the frames in which a rank waits for the others."""


class Failure(NamedTuple):
    """The member that ended badly first, or that made the run hang."""

    rank: int
    """Its index among the members."""
    code: int | None
    """Its exit code, negative for the signal that ended it; None where the run hung."""
    words: str


_UNLESS_TOLD = Watch()


def run_ranks(command: Sequence[str], environments: Sequence[dict[str, str]], watch: Watch = _UNLESS_TOLD) -> Failure | None:
    """Run one command in several processes, each with its own additions to the environment; see `run_members`."""
    return run_members([Member(f"rank {rank}", command, each) for rank, each in enumerate(environments)], watch)


def run_members(members: Sequence[Member], watch: Watch) -> Failure | None:
    """Run several processes until all have ended.

    The first that fails, or that hangs, ends the others: they would wait for it forever. Each leads a process group, so
    that what it started can be ended even where it was killed itself; Ctrl-C reaches it by way of this process.

    Returns:
        None where all ended well.
    """
    running: list[_Running] = []

    def forward(number: int, frame: FrameType | None) -> None:
        _end(running)
        sys.exit(128 + number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for member in members:
            running.append(_Running(member))
        dog = watchdog.Watchdog(
            [watchdog.Member(_name(members, index), each.watched, each.trains) for index, each in enumerate(running)],
            watch.hang_seconds,
            watch.waiting,
        )
        watchdog.reached()
        while True:
            watchdog.beat()  # who watches this process need not watch the members too
            failed = [(each.process.returncode, index) for index, each in enumerate(running) if each.process.poll()]
            if failed:
                code, index = min(failed)  # a signal before an exit code, which it may have caused
                if code > 0 and (hang := dog.stopped()) is not None:
                    words = f"{hang.words}, and {_name(members, index)} {_words(code)}"
                    return Failure(hang.culprit, None, words + _saved(hang, members, watch.folder))
                if code > 0:
                    _wait(running)  # where all meet the same error, rank 0 still writes down which
                return Failure(index, code, f"{_name(members, index)} {_words(code)}")
            if all(each.process.returncode == 0 for each in running):
                return None
            if (hang := dog.look()) is not None:
                return Failure(hang.culprit, None, hang.words + _saved(hang, members, watch.folder))
            time.sleep(0.05)
    finally:
        _end(running)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Running:
    """A member at work."""

    def __init__(self, member: Member) -> None:
        self.trains = member.trains
        self.watched = watchdog.Watched()
        try:
            self.process = subprocess.Popen(
                list(member.command),
                env={**os.environ, **member.environment, **self.watched.environment},
                stdin=subprocess.DEVNULL,
                pass_fds=self.watched.descriptors,
                process_group=0,
            )
        except BaseException:
            self.watched.close()
            raise
        self.watched.pid = self.process.pid


def _name(members: Sequence[Member], index: int) -> str:
    ranks = sum(member.trains for member in members)
    return f"{members[index].name} of {ranks}" if members[index].trains else members[index].name


def _saved(hang: watchdog.Hang, members: Sequence[Member], folder: Path | None) -> str:
    if folder is None:
        return ""
    paths = watchdog.save_stacks(hang, [member.name for member in members], folder)
    return f"; see {', '.join(path.name for path in paths)}"


def _wait(running: list[_Running], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    for each in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.process.wait(max(deadline - time.monotonic(), 0.0))


def _end(running: list[_Running]) -> None:
    """Kill what is left of each one's group, input workers too: a rank that waits for another hears no gentler word."""
    for each in running:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of nothing but zombies
            os.killpg(each.process.pid, signal.SIGKILL)
    for each in running:
        each.process.wait()
        each.watched.close()


def _words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-code}"
