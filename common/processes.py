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

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it is gone, so that a kill leaves no orphan."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended in between
        sys.exit(128 + signal.SIGTERM)


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback interface that nobody listens on now."""
    with contextlib.ExitStack() as open_sockets:
        listeners = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def run_ranks(command: Sequence[str], environments: Sequence[dict[str, str]]) -> str | None:
    """Run one command in several processes, each with its own additions to the environment, until all have ended.

    The first that fails ends the others: they would wait for it forever.

    Returns:
        None where all ended well, else which rank ended how.
    """
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        _end(ranks)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    try:
        for environment in environments:
            ranks.append(subprocess.Popen(list(command), env={**os.environ, **environment}, stdin=subprocess.DEVNULL))
        while True:
            codes = [rank.poll() for rank in ranks]
            for index, code in enumerate(codes):
                if code:
                    return f"rank {index} of {len(ranks)} {_words(code)}"
            if all(code == 0 for code in codes):
                return None
            time.sleep(0.05)
    finally:
        _end(ranks)


def _end(processes: list[subprocess.Popen[bytes]], grace_seconds: float = 3.0) -> None:
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.terminate()
    deadline = time.monotonic() + grace_seconds
    for process in alive:
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _words(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
