"""The parts of a step, from trainers whose clock is made up."""

from typing import Any

import numpy as np
import pytest

from common import profiling
from common.training import Batch, Separated

BATCH = Batch(None, None, None, ())


class Replicas:
    """One process whose pieces take as long as they are told, `seconds` long; others' numbers stand in `others`."""

    shard = (0, 1)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float, separated: Any) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.rates: list[float] = []
        self._step, self._separated = step, separated
        monkeypatch.setattr(profiling.time, "perf_counter", lambda: self.now)

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> None:
        self.rates.append(learning_rate)
        self.spend("step", self._step)

    def spend(self, what: str, seconds: float) -> None:
        self.calls.append(what)
        self.now += seconds

    def separate(self, batch: Batch, num_examples: int) -> Any:
        return self._separated(self) if callable(self._separated) else self._separated

    def synchronize(self) -> None:
        pass

    def total(self, values: Any) -> Any:
        self.now += 0.5  # waiting for the others, which no piece is charged for
        return values

    def all_reduce(self, values: Any) -> Any:
        return values


def of(step: float, compute: float, exchange: float, own: list[float] | None = None, fused: str | None = None) -> Any:
    def separated(trainer: Replicas) -> Separated:
        def computing() -> list[float] | None:
            trainer.spend("compute", compute)
            return own

        return Separated(computing, lambda: trainer.spend("exchange", exchange), fused)

    return step, separated


def test_an_exchange_is_exposed_where_the_step_is_longer_than_its_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, *of(1.25, 1.0, 0.75)), BATCH, 8, steps=3)
    assert (parts.steps, parts.step_seconds, parts.compute_seconds) == (3, 1.25, 1.0)
    assert (parts.communication_exposed_seconds, parts.communication_hidden_seconds) == (0.25, 0.5)
    assert (parts.idle_seconds, parts.not_separable) == (0.0, None)


def test_noise_makes_no_part_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, *of(0.75, 1.0, 0.5)), BATCH, 8, steps=2)
    assert (parts.communication_exposed_seconds, parts.communication_hidden_seconds) == (0.0, 0.5)
    parts = profiling.step_parts(Replicas(monkeypatch, *of(2.0, 1.0, 0.5)), BATCH, 8, steps=2)
    assert (parts.communication_exposed_seconds, parts.communication_hidden_seconds) == (1.0, 0.0)


def test_replicas_idle_while_the_slowest_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, *of(1.5, 1.25, 0.25, own=[1.0, 0.5, 0.75])), BATCH, 8, steps=2)
    assert (parts.compute_seconds, parts.idle_seconds) == (1.0, 0.25)
    assert parts.communication_exposed_seconds == 0.5


def test_other_processes_seconds_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Replicas(monkeypatch, *of(1.5, 1.0, 0.25))
    trainer.shard = (1, 2)
    slower = np.array([[0.25], [0.0]])  # rank 0 in whatever is asked
    monkeypatch.setattr(trainer, "all_reduce", lambda values: values + slower)
    parts = profiling.step_parts(trainer, BATCH, 8, steps=2)
    assert (parts.step_seconds, parts.compute_seconds, parts.idle_seconds) == (1.5, 1.0, 0.375)


def test_a_mode_that_cannot_be_taken_apart_says_why_and_gives_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, 1.5, "all in one"), BATCH, 8, steps=2)
    assert (parts.step_seconds, parts.compute_seconds, parts.not_separable) == (1.5, None, "all in one")


def test_a_replica_that_sends_nothing_only_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, 1.5, None), BATCH, 8, steps=2)
    assert (parts.step_seconds, parts.compute_seconds, parts.communication_exposed_seconds) == (1.5, 1.5, 0.0)
    assert (parts.communication_hidden_seconds, parts.idle_seconds, parts.not_separable) == (0.0, 0.0, None)


def test_replicas_of_one_graph_have_no_idle_time_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, *of(1.5, 1.0, 0.25, fused="one graph")), BATCH, 8, steps=2)
    assert (parts.compute_seconds, parts.idle_seconds, parts.not_separable) == (1.0, None, "one graph")


def test_pieces_take_turns_after_one_of_each_to_warm_up_and_learn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Replicas(monkeypatch, *of(1.5, 1.0, 0.25))
    profiling.step_parts(trainer, BATCH, 8, steps=3)
    assert trainer.calls == ["step", "compute", "exchange"] * 4
    assert set(trainer.rates) == {0.0}
