"""Turns of a run: it trains a slice of an epoch's steps, hands over, and waits while the runs that it is compared with train.

The first process asks the launcher for each slice over a Unix socket. The other processes wait for it in the exchange that
follows. While a run waits, the launcher has stopped all its processes, and no clock of the run counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from common.machine import heartbeat, placement
from common.machine.interference import Meter
from common.training.timing import RESOLUTION_SECONDS, Stopwatch
from common.training.trainer import BaseTrainer

SOCKET_VARIABLE = "CONVTWINS_TURNS"
"""Environment variable with the path of the launcher's socket. Without it, a run trains without a pause."""


class Turn(NamedTuple):
    """Permission to train a slice."""

    steps: int
    """Number of steps, at least 1 unless none is left."""
    stopped_at: float = 0.0
    """Time when the launcher had stopped the run's processes, in seconds since 1970. 0: it has not."""
    continued_at: float = 0.0
    """Time when it continued them."""


class Turns:
    """The turns of one process of a run.

    Args:
        stopwatch: the run's stopwatch, which does not count the time of waiting.
        path: path of the launcher's socket. None: the one in SOCKET_VARIABLE, if there is one.
    """

    def __init__(self, stopwatch: Stopwatch, path: str | None = None) -> None:
        self._stopwatch = stopwatch
        self._path = os.environ.get(SOCKET_VARIABLE) if path is None else path
        self._socket: socket.socket | None = None

    @classmethod
    def of_parts(cls, device: str) -> Turns:
        """Return the turns of a process that trains nothing, and measures a part of its work in each turn.

        Args:
            device: kind of its device. It takes turns on a CPU alone: all processes would have to share another one's memory.
        """
        turns = cls(Stopwatch(lambda: None))
        if device != "cpu":
            turns._path = None
        return turns

    @property
    def are_taken(self) -> bool:
        return self._path is not None

    def wait_to_build(self) -> None:
        """Wait until this run may build its model, once its first process has imported the framework.

        Runs import at the same time. What follows is timed, so they do it one after the other.
        """
        if self._path is not None and placement.is_first_rank():
            with self._stopwatch.waiting():
                self._ask(self._path, 0)
            heartbeat.count_sync_point()

    def wait(self, trainer: BaseTrainer | None, steps_left: int) -> Turn:
        """Wait for this run's next turn. All processes call it, with the device synchronised.

        Args:
            trainer: this process's trainer. None: the process is the only one.
            steps_left: timed steps that are left of the epoch.
        """
        if self._path is None:
            return Turn(steps_left)
        turn = np.zeros(len(Turn._fields))
        if placement.is_first_rank():
            with self._stopwatch.waiting():
                turn[:] = self._ask(self._path, steps_left)
            heartbeat.count_sync_point()
        steps, stopped_at, continued_at = (turn if trainer is None else trainer.all_reduce_world(turn)).tolist()
        return Turn(round(steps), stopped_at, continued_at)

    def wait_for_part(self, meter: Meter) -> None:
        """Wait for the turn of the next part, see `of_parts`.

        Args:
            meter: measures the use of cores, without this waiting.
        """
        with meter.paused():
            self.wait(None, 1)

    def close(self) -> None:
        """Tell the launcher that this run asks for no more turns."""
        if self._socket is not None:
            self._socket.close()

    def _ask(self, path: str, steps_left: int) -> Turn:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(path)
        self._say(steps_left=steps_left, asked_at=time.monotonic())
        answer = b""
        while not answer.endswith(b"\n"):
            if not (received := self._socket.recv(4096)):
                raise ConnectionError("The launcher has ended, so there is no next turn.")
            answer += received
        self._say(continued_at=time.monotonic())
        return Turn(**json.loads(answer))

    def _say(self, **values: float) -> None:
        assert self._socket is not None
        with contextlib.suppress(BrokenPipeError):  # the launcher has ended, which the next reading says
            self._socket.sendall(json.dumps(values).encode() + b"\n")


def seconds_ahead(turns: Sequence[Turn], begin_times: Sequence[float]) -> float:
    """Return the seconds before its turn at which a batch was begun while the run was stopped. 0: none was.

    Args:
        begin_times: times when the input began to prepare the batches, in seconds since 1970.
    """
    times = np.sort(np.asarray(begin_times, np.float64))
    ahead = [
        turn.continued_at - times[place]
        for turn in turns
        if turn.stopped_at and (place := np.searchsorted(times, turn.stopped_at + RESOLUTION_SECONDS)) < len(times)
    ]
    return float(max(ahead, default=0.0))
