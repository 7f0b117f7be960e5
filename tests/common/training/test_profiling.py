"""The parts, pieces and operations of a step, from trainers whose clock and whose profiler are made up."""

import errno
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from common.artifacts import results
from common.artifacts.schema import StepParts, TopOperations
from common.training import profiling
from common.training.trainer import BaseTrainer, Batch, ComputeAndExchange, ProfilerRecording, ProfilerSpan, StepBreakdown

BATCH = Batch(None, None, None, ())


class Replicas:
    """One process whose pieces take as long as they are told. `others` is what other processes add to the seconds of all."""

    def __init__(
        self,
        step: float,
        separated: Any,
        pieces: dict[str, Any] | str = "in one",
        shard: tuple[int, int] = (0, 1),
        others: Any = 0.0,
        **how: Any,
    ) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.rates: list[float] = []
        self.shard, self._others = shard, others
        self._step, self._separated, self._pieces, self._how = step, separated, pieces, how

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> None:
        self.rates.append(learning_rate)
        self.spend("step", self._step)

    def spend(self, what: str, seconds: float) -> None:
        self.calls.append(what)
        self.now += seconds

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> Any:
        return self._separated(self) if callable(self._separated) else self._separated

    def step_breakdown(self, batch: Batch, num_examples: int) -> Any:
        if isinstance(self._pieces, str):
            return self._pieces
        made = {name: lambda name=name, seconds=seconds: self.spend(name, seconds) for name, seconds in self._pieces.items()}
        missing = {name: None for name in ("optimizer",) if self._pieces.get(name) is None}
        return StepBreakdown(**{**made, **missing}, **self._how)

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        work()
        return ProfilerRecording([ProfilerSpan("conv", 0, 0.0, 3.0)], b'{"traceEvents": []}')

    def synchronize(self) -> None:
        pass

    def all_reduce_world(self, values: Any) -> Any:
        self.now += 0.5  # waiting for the others, which no piece is charged for
        return values

    def all_reduce_shards(self, values: Any) -> Any:
        return values + self._others

    def parts(self, steps: int = 2) -> StepParts:
        return profiling.step_parts(cast(BaseTrainer, self), BATCH, 8, steps, lambda: self.now)

    def top_operations(self, folder: Path | None) -> TopOperations | None:
        return profiling.top_operations(cast(BaseTrainer, self), BATCH, 8, 3, folder)


def of(step: float, compute: float, exchange: float, own: list[float] | None = None, fused: str | None = None) -> Any:
    def separated(trainer: Replicas) -> ComputeAndExchange:
        def computing() -> list[float] | None:
            trainer.spend("compute", compute)
            return own

        return ComputeAndExchange(computing, lambda: trainer.spend("exchange", exchange), fused)

    return step, separated


NESTED = {"transfer": 0.125, "forward": 0.25, "backward": 1.0}
PIECES = {"transfer": 0.125, "forward": 0.25, "backward": 0.5, "optimizer": 0.0625}
RANK_0_SLOWER = {"shard": (1, 2), "others": np.array([[0.25], [0.0]])}
"""Of two processes this is rank 1, and rank 0 is slower in whatever is asked."""

PARTS: dict[str, tuple[Replicas, list[float | str | None]]] = {
    "exposed where a step is longer than its computing": (Replicas(*of(1.25, 1.0, 0.75)), [1.25, 1.0, 0.25, 0.5, 0.0, None]),
    "noise makes nothing negative": (Replicas(*of(0.75, 1.0, 0.5)), [0.75, 1.0, 0.0, 0.5, 0.0, None]),
    "all of an exchange is exposed": (Replicas(*of(2.0, 1.0, 0.5)), [2.0, 1.0, 1.0, 0.0, 0.0, None]),
    "replicas idle while the slowest computes": (
        Replicas(*of(1.5, 1.25, 0.25, own=[1.0, 0.5, 0.75])),
        [1.5, 1.0, 0.5, 0.0, 0.25, None],
    ),
    "other processes' seconds count": (Replicas(*of(1.5, 1.0, 0.25), **RANK_0_SLOWER), [1.5, 1.0, 0.5, 0.0, 0.375, None]),
    "a mode that cannot be taken apart": (Replicas(1.5, "all in one"), [1.5, None, None, None, None, "all in one"]),
    "a replica that sends nothing": (Replicas(1.5, None), [1.5, 1.5, 0.0, 0.0, 0.0, None]),
    "one graph has no idle time": (Replicas(*of(1.5, 1.0, 0.25, fused="one graph")), [1.5, 1.0, 0.5, 0.0, None, "one graph"]),
}
"""Name: (what is timed, the fields below)."""


@pytest.mark.parametrize("name", PARTS)
def test_a_step_is_computing_and_exchange_hidden_and_exposed(name: str) -> None:
    replicas, expected = PARTS[name]
    parts = replicas.parts(3)
    communication = (parts.communication_exposed_seconds, parts.communication_hidden_seconds)
    found = [parts.step_seconds, parts.compute_seconds, *communication, parts.idle_seconds, parts.not_separable]
    assert parts.steps == 3 and found == expected


def test_pieces_take_turns_after_one_of_each_to_warm_up_and_learn_nothing() -> None:
    trainer = Replicas(*of(1.5, 1.0, 0.25))
    trainer.parts(3)
    assert trainer.calls == ["step", "compute", "exchange"] * 4
    assert set(trainer.rates) == {0.0}
    trainer = Replicas(1.5, None, PIECES)
    trainer.parts()
    assert trainer.calls == ["step"] * 3 + list(PIECES) * 3


BROKEN_DOWN: dict[str, tuple[Replicas, list[float | None]]] = {
    "called one by one": (Replicas(1.5, None, PIECES), [0.125, 0.25, 0.5, 0.0625]),
    "inside one another, one below 0": (
        Replicas(1.5, None, NESTED | {"backward": 0.75, "optimizer": 0.625}, nested=True),
        [0.125, 0.25, 0.5, 0.0],
    ),
    "without an optimizer": (
        Replicas(1.5, None, {**PIECES, "optimizer": None}, note="the server has it"),
        [0.125, 0.25, 0.5, None],
    ),
    "without pieces": (Replicas(1.5, None, "all in one"), [None, None, None, None]),
    # Rank 0 goes forward in 0.5 s and back in none.
    "as in the slowest process": (
        Replicas(1.5, None, NESTED, nested=True, shard=(1, 2), others=np.array([[0.5], [0.0]])),
        [0.5, 0.5, 0.75, None],
    ),
}
"""Name: (what is timed, seconds of transfer, forward, backward and optimizer)."""


@pytest.mark.parametrize("name", BROKEN_DOWN)
def test_a_piece_has_its_seconds_or_none_and_the_way_it_was_timed(name: str, snapshot: SnapshotAssertion) -> None:
    replicas, expected = BROKEN_DOWN[name]
    parts = replicas.parts()
    found = [parts.transfer_seconds, parts.forward_seconds, parts.backward_seconds, parts.optimizer_seconds]
    assert found == expected
    assert parts.pieces == snapshot


def test_self_time_is_without_what_is_inside_and_lanes_are_apart() -> None:
    spans = [
        ProfilerSpan("relu", 0, 5.0, 1.0),
        ProfilerSpan("conv", 0, 0.0, 4.0),
        ProfilerSpan("copy", 0, 0.5, 1.0),  # inside conv
        ProfilerSpan("im2col", 0, 2.0, 2.0),  # inside conv, to its end
        ProfilerSpan("copy", 0, 2.5, 0.5),  # inside im2col
        ProfilerSpan("conv", 1, 0.5, 3.0),  # on another thread, inside nothing
    ]
    found = profiling.longest_operations(spans, steps=2)
    assert [(each.name, each.calls, each.self_seconds) for each in found] == [
        ("conv", 1.0, 2.0), ("copy", 1.0, 0.75), ("im2col", 0.5, 0.75), ("relu", 0.5, 0.5),
    ]  # fmt: skip
    assert [each.share for each in found] == [0.5, 0.1875, 0.1875, 0.125]


def test_no_more_than_ten_operations_are_told_and_none_of_nothing() -> None:
    spans = [ProfilerSpan(f"op {number}", 0, float(number), 0.01 * number) for number in range(1, 21)]
    found = profiling.longest_operations(spans, steps=1)
    assert [each.name for each in found] == [f"op {number}" for number in range(20, 10, -1)]
    assert 0.0 < sum(each.share for each in found) < 1.0
    assert profiling.longest_operations([], steps=1) == []


def test_a_trace_is_written_beside_the_result(tmp_path: Path) -> None:
    trainer = Replicas(1.0, None)
    found = trainer.top_operations(tmp_path)
    assert found is not None and (found.trace, found.failure) == (results.TRACE_FILE, None)
    assert gzip.decompress((tmp_path / results.TRACE_FILE).read_bytes()) == b'{"traceEvents": []}'
    assert [(each.name, each.calls, each.share) for each in found.operations] == [("conv", 1 / 3, 1.0)]
    assert (trainer.calls, set(trainer.rates)) == (["step"] * 3, {0.0})


def test_a_process_that_does_not_look_takes_its_part_in_the_steps() -> None:
    trainer = Replicas(1.0, None)
    assert trainer.top_operations(None) is None
    assert trainer.calls == ["step"] * 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_profiler_that_fails_costs_no_step_and_no_run(tmp_path: Path, when: str) -> None:
    trainer = Replicas(1.0, None)

    def record(work: Callable[[], None]) -> ProfilerRecording:
        if when == "after":
            work()
        raise RuntimeError("another profiler is running")

    trainer.record = record
    found = trainer.top_operations(tmp_path)
    assert found is not None and (found.operations, found.trace) == ([], None)
    assert found.failure == "RuntimeError: another profiler is running"
    assert trainer.calls == ["step"] * 3


def test_a_trace_that_cannot_be_written_leaves_the_operations(tmp_path: Path) -> None:
    (tmp_path / results.TRACE_FILE).mkdir()
    found = Replicas(1.0, None).top_operations(tmp_path)
    assert found is not None and len(found.operations) == 1 and found.trace is None
    assert f"[Errno {errno.EEXIST}]" in str(found.failure)


def test_a_step_that_fails_under_the_profiler_is_no_failure_of_the_profiler(tmp_path: Path) -> None:
    trainer = Replicas(1.0, None)

    def train_step(*arguments: Any) -> None:
        raise RuntimeError("rank 1 has gone")

    trainer.train_step = train_step
    with pytest.raises(RuntimeError, match="rank 1"):
        trainer.top_operations(tmp_path)
