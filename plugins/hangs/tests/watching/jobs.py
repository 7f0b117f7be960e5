"""Small jobs of plain Python that are healthy, slow or stuck, and what starts and watches them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from convtwins_hangs.watching.verdict import STUCK, UNKNOWN, Verdict
from convtwins_hangs.watching.watcher import Watcher

PATIENCE = 2.0
INTERVAL = 0.2
LONGEST_SECONDS = 30.0
"""For a verdict, on a machine that has much else to do."""


@contextmanager
def started(code: str, folder: Path, name: str = "train.py", wrapped: Sequence[str] = ()) -> Generator[int]:
    """A job of this code, once it has printed a line; its process. It is ended with all that it started.

    Args:
        wrapped: words before the interpreter's, of a program that becomes it.
    """
    path = folder / name
    path.write_text(textwrap.dedent(code))
    with subprocess.Popen([*wrapped, sys.executable, "-u", path], stdout=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process.pid
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()


def without_numbers(reason: str) -> str:
    """A reason without the number of a process and those of lines, which stand beside their text."""
    return re.sub(r"(\.py):\d+", r"\1:LINE", re.sub(r"process \d+", "process PID", reason))


def watched(
    pids: int | Sequence[int],
    enough: Callable[[Verdict], bool] = lambda found: found.state == STUCK,
    patience: float = PATIENCE,
    longest: float = LONGEST_SECONDS,
) -> Verdict:
    """The first verdict that is enough, or the last one."""
    watcher = Watcher([pids] if isinstance(pids, int) else pids, patience)
    try:
        deadline = time.monotonic() + longest
        while True:
            watcher.look()
            found = watcher.verdict()
            if enough(found) or time.monotonic() > deadline:
                return found
            time.sleep(INTERVAL)
    finally:
        watcher.close()


def verdicts(pid: int, seconds: float) -> list[Verdict]:
    """All that say something within so many seconds."""
    found: list[Verdict] = []
    end = time.monotonic() + seconds

    def enough(verdict: Verdict) -> bool:
        if verdict.state != UNKNOWN:
            found.append(verdict)
        return time.monotonic() > end

    watched(pid, enough)
    return found
