"""A run that takes turns: its slices, its clock, and the faults that end it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.artifacts import contradictions, event_log
from common.artifacts.schema import RunResult
from common.models.architectures import resolve
from common.spec import build
from common.training import inference, layers, turns
from common.training.timing import ClockError
from common.training.turns import Turn
from tests.common.training.test_clock import STEPS, Counting, run

WAIT_SECONDS = 0.05
COLD_SECONDS = 0.3
"""Seconds that a first step after a pause takes longer."""


@contextmanager
def launcher(steps: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *, stops: bool = True) -> Generator[list[int]]:
    """Give turns of this number of steps to one run. Yields the numbers of steps that it had left each time it asked."""
    listener, asked = socket.socket(socket.AF_UNIX), list[int]()
    path = folder / "socket"
    listener.bind(str(path))
    listener.listen(1)
    monkeypatch.setenv(turns.SOCKET_VARIABLE, str(path))

    def serve() -> None:
        connection = listener.accept()[0]
        for line in connection.makefile():
            message = json.loads(line)
            if "continued_at" in message:
                continue
            stopped_at = time.time()
            asked.append(message["steps_left"])
            time.sleep(WAIT_SECONDS)
            answer = {"steps": steps, "stopped_at": stopped_at if stops else 0.0, "continued_at": time.time()}
            connection.sendall(json.dumps(answer).encode() + b"\n")
        connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        listener.close()


def numbers(result: RunResult) -> list[list[tuple[int, int]]]:
    return [[(slice_.first_step, slice_.steps) for slice_ in epoch.slices] for epoch in result.epochs]


def test_an_epoch_is_cut_into_slices_and_its_seconds_are_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launcher(2, tmp_path, monkeypatch) as asked:
        started = time.monotonic()
        result = run(tmp_path / "run")
        elapsed_seconds = time.monotonic() - started
    first, second = numbers(result)
    assert [first_step for first_step, _ in first] == list(range(2, STEPS + 1, 2))  # the first step of all is not timed
    assert [first_step for first_step, _ in second] == list(range(1, STEPS + 1, 2))
    assert sum(steps for _, steps in first) == STEPS - 1 and sum(steps for _, steps in second) == STEPS
    assert asked == [*range(STEPS - 1, 0, -2), *range(STEPS, 0, -2)]
    for epoch in result.epochs:
        assert sum(slice_.seconds for slice_ in epoch.slices) == pytest.approx(epoch.timed_seconds)
    assert result.phases is not None
    assert elapsed_seconds - result.phases.wall_seconds >= len(asked) * WAIT_SECONDS, "the clock has counted the waiting"


def slow_after_a_pause(trainer: Counting, asked: list[int]) -> None:
    """The first step of each turn waits for caches and threads that the pause has left cold."""
    train_step, turns_taken = trainer.train_step, 0

    def slow(*arguments: Any) -> Any:
        nonlocal turns_taken
        if len(asked) > turns_taken:
            turns_taken = len(asked)
            time.sleep(COLD_SECONDS)
        return train_step(*arguments)

    trainer.train_step = slow


def test_the_first_step_of_a_turn_is_not_timed_so_what_a_pause_costs_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launcher(2, tmp_path, monkeypatch) as asked:
        started = time.monotonic()
        result = run(tmp_path / "run", lambda trainer: slow_after_a_pause(trainer, asked))
        elapsed_seconds = time.monotonic() - started
    for epoch in result.epochs:
        assert epoch.left_out == [slice_.first_step for slice_ in epoch.slices] and len(epoch.left_out) > 1
        assert epoch.timed_steps == epoch.steps - len(epoch.left_out) - (epoch.epoch == 1)
    timed_seconds = sum(epoch.timed_seconds for epoch in result.epochs)
    waited_seconds = len(asked) * (COLD_SECONDS + WAIT_SECONDS)
    assert timed_seconds + waited_seconds <= elapsed_seconds, "the clock has counted what the pauses cost"
    assert contradictions.find_contradictions(result, event_log.read_events(tmp_path / "run")) == []


def test_turns_change_nothing_but_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run(tmp_path / "alone")
    with launcher(3, tmp_path, monkeypatch):
        in_turns = run(tmp_path / "in-turns")
    assert numbers(alone) == [[], []]
    for field in ("order_hash", "final_weights_hash", "step_losses", "test"):
        assert getattr(alone, field) == getattr(in_turns, field)


def ahead(trainer: Counting) -> None:
    """The input begins each batch while the run waits."""
    made = trainer.made
    trainer.made = lambda ids: made(ids)._replace(begin_time=time.time() - WAIT_SECONDS / 2)


@pytest.mark.parametrize("stops", [True, False])
def test_a_batch_that_was_begun_while_the_run_was_stopped_ends_it(
    stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launcher(2, tmp_path, monkeypatch, stops=stops), pytest.raises(ClockError, match=r"^queue filled off the clock"):
        run(tmp_path / "run", ahead)


def test_only_what_was_begun_between_stop_and_continuation_is_ahead() -> None:
    given = [Turn(2), Turn(2, stopped_at=10.0, continued_at=20.0), Turn(2, stopped_at=30.0, continued_at=40.0)]
    assert turns.seconds_ahead(given, [9.0, 9.9, 20.0, 29.5, 40.5]) == 0.0
    assert turns.seconds_ahead(given, [9.0, 19.0, 33.0, 41.0]) == 7.0
    assert turns.seconds_ahead(given, []) == 0.0


def test_a_run_whose_launcher_has_ended_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, path = socket.socket(socket.AF_UNIX), tmp_path / "socket"
    listener.bind(str(path))
    listener.listen(1)
    monkeypatch.setenv(turns.SOCKET_VARIABLE, str(path))
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    with pytest.raises(ConnectionError):
        run(tmp_path / "run")
    listener.close()


class Answers:
    """A trained model whose calls take some milliseconds, the first one after a pause ten times as long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.is_cold = False
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1
        self.is_cold = True

    def logits(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        time.sleep(self._seconds * (10 if self.is_cold else 1))
        self.is_cold = False
        return np.zeros((len(images), 2))


def test_each_batch_size_has_as_many_turns_in_every_process_and_the_first_call_of_each_is_not_timed() -> None:
    quick, slow = Answers(0.001), Answers(0.03)
    numbers = inference.turns_of_a_size(calls=64, seconds=1.0)
    for model in (quick, slow):
        times = inference.measure(model, 4, 1, calls=64, seconds=1.0, warm_up_seconds=0.0, wait=model.wait)
        assert model.waits == 1 + numbers == 1 + len(times.turns) and sum(times.turns) == len(times.seconds)
        assert times.warm_up_calls >= inference.WARM_UP_CALLS + numbers
    assert numbers == 4 and len(times.seconds) < 64, "the slow one runs out of time"
    alone = Answers(0.001)
    assert inference.measure(alone, 4, 1, calls=20, seconds=1.0, warm_up_seconds=0.0).turns == [] and not alone.waits


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_each_layer_has_a_turn_on_a_cpu(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launcher(1, tmp_path, monkeypatch) as asked:
        architecture = resolve("simple_cnn", 10, 32)
        made = layers.measure(
            build({}), architecture, lambda *_: lambda: time.sleep(0.003), lambda: None, 1, device=device, versions={}
        )
    assert asked == ([0] + [1] * (len(made.seconds) + 1) if device == "cpu" else [])
