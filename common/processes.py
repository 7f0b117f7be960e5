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
from types import FrameType
from typing import NamedTuple

from common import machine

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


class Companion(NamedTuple):
    """A process that all ranks need."""

    name: str
    command: Sequence[str]


class Failure(NamedTuple):
    """The rank that ended badly first."""

    rank: int | None
    """None where it was the companion, which must not end before the ranks."""
    code: int
    """Its exit code, negative for the signal that ended it."""
    words: str


def run_ranks(
    command: Sequence[str], environments: Sequence[dict[str, str]], companion: Companion | None = None
) -> Failure | None:
    """Run one command in several processes, each with its own additions to the environment, until all have ended.

    The first that fails ends the others: they would wait for it forever. A companion is started before them and ended after.
    Each leads a process group, so that what it started can be ended even where it was killed itself; Ctrl-C reaches it by
    way of this process.

    Returns:
        None where all ended well.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    beside: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        _end([*ranks, *beside])
        sys.exit(128 + number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if companion is not None:
            beside.append(subprocess.Popen(list(companion.command), stdin=subprocess.DEVNULL, process_group=0))
            # Rank 0 counts what it uses of the machine.
            environments = [{**environments[0], machine.COMPANION_VARIABLE: str(beside[0].pid)}, *environments[1:]]
        for environment in environments:
            ranks.append(
                subprocess.Popen(list(command), env={**os.environ, **environment}, stdin=subprocess.DEVNULL, process_group=0)
            )
        while True:
            failed = [(rank.returncode, index) for index, rank in enumerate(ranks) if rank.poll()]
            if all(rank.returncode == 0 for rank in ranks):
                _dismiss(beside)
                return None
            if companion is not None and (code := beside[0].poll()) is not None:  # before a rank, which it may have ended
                if code >= 0:
                    _wait(ranks)
                return Failure(None, code, f"{companion.name} {_words(code)}")
            if failed:
                code, index = min(failed)  # a signal before an exit code, which it may have caused
                if code > 0:
                    _wait(ranks)  # where all meet the same error, rank 0 still writes down which
                return Failure(index, code, f"rank {index} of {len(ranks)} {_words(code)}")
            time.sleep(0.05)
    finally:
        _end([*ranks, *beside])
        for number, handler in before.items():
            signal.signal(number, handler)


def _dismiss(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    _wait(processes)


def _wait(ranks: list[subprocess.Popen[bytes]], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(max(deadline - time.monotonic(), 0.0))


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Kill what is left of each rank's group, input workers too: a rank that waits for another hears no gentler word."""
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of nothing but zombies
            os.killpg(rank.pid, signal.SIGKILL)
    for rank in ranks:
        rank.wait()


def _words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was ended by signal {-code}"
