"""A process that takes turns as a run does, without a framework: each step takes a while and is a line of its log.

So are its import and its build, with begin and end.

python -m tests.compare.twins.taker LOG STEPS STEP_SECONDS [FAULT]
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import psutil

from common.training.timing import Stopwatch
from common.training.trainer import BaseTrainer
from common.training.turns import SOCKET_VARIABLE, Turns


class Alone:
    """The exchange of a run of one process."""

    def all_reduce_world(self, values: Any) -> Any:
        return values


def main(log: str, steps: int, step_seconds: float, fault: str) -> None:
    created, stopwatch = time.monotonic(), Stopwatch(lambda: None)
    turns = Turns(stopwatch)
    if fault == "spins":
        threading.Thread(target=_spin, daemon=True).start()
    if fault == "escapes" and os.fork() == 0:
        os.setsid()
        _spin()
    if fault == "forks" and os.fork() == 0:  # as a rank or an input worker of it does
        os.setpgid(0, 0)
        _spin()
    if fault == "supervises" and (child := os.fork()):
        os.setpgid(child, child)  # before the first turn, whichever of the two comes first
        threading.Thread(target=_watch, args=[child], daemon=True).start()
    elif fault == "supervises":
        os.setpgid(0, 0)
        while os.getppid() != 1:
            time.sleep(0.01)
        os._exit(0)
    if fault == "leaves":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[SOCKET_VARIABLE])
        connection.sendall(b'{"steps_left": 0, "asked_at": 0.0}\n')
        connection.recv(4096)
        connection.sendall(b'{"steps_left": 4, "asked_at": 0.0}\n')
        select.select([connection], [], [])
        os._exit(4)
    if fault == "fails":
        os._exit(5)
    import_begin = time.monotonic()
    if fault == "meets":
        _meet(Path(log))
    import_end = time.monotonic()
    turns.wait_to_build()
    build_begin = time.monotonic()
    time.sleep(10 * step_seconds)
    build_end = time.monotonic()
    done = 0
    with Path(log).open("w", encoding="utf-8") as file:
        while done < steps:
            turn = turns.wait(cast(BaseTrainer, Alone()), steps - done)
            for _ in range(turn.steps):
                begin = time.monotonic()
                time.sleep(step_seconds)
                done += 1
                file.write(f"{done} {begin} {time.monotonic()}\n")
                file.flush()
            if fault == "dies":
                os._exit(3)
        clock_seconds, ended = stopwatch.clock(), time.monotonic()
        file.write(f"import {import_begin} {import_end}\nbuild {build_begin} {build_end}\n")
        file.write(f"life {created} {ended}\nclock {clock_seconds} {ended - created - clock_seconds}\n")


def _meet(log: Path) -> None:
    """Wait until two processes import. One that imports alone ends."""
    log.with_suffix(".imports").touch()
    deadline = time.monotonic() + 60.0
    while len(list(log.parent.glob("*.imports"))) < 2:
        if time.monotonic() > deadline:
            os._exit(7)
        time.sleep(0.001)


def _watch(child: int) -> None:
    """End this process if it ever sees the other one stopped."""
    while True:
        if psutil.Process(child).status() == psutil.STATUS_STOPPED:
            os._exit(6)
        time.sleep(0.0005)


def _spin() -> None:
    until = time.monotonic() + 60.0
    while time.monotonic() < until and os.getppid() != 1:
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
