"""The parts, pieces and operations of a step, from trainers whose clock and whose profiler are made up."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import atomic_files, results
from common.training import profiling
from common.training.trainer import Batch, ComputeAndExchange, ProfilerRecording, ProfilerSpan, StepBreakdown

BATCH = Batch(None, None, None, ())


class Replicas:
    """One process whose pieces take as long as they are told, `seconds` long; others' numbers stand in `others`."""

    shard = (0, 1)

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        step: float,
        separated: Any,
        pieces: dict[str, float] | str = "in one",
        **how: Any,
    ) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.rates: list[float] = []
        self._step, self._separated, self._pieces, self._how = step, separated, pieces, how
        monkeypatch.setattr(profiling.time, "perf_counter", lambda: self.now)

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
        return StepBreakdown(**{"optimizer": None, **made}, **self._how)

    def record(self, work: Callable[[], None]) -> ProfilerRecording:
        work()
        return ProfilerRecording([ProfilerSpan("conv", 0, 0.0, 3.0)], b'{"traceEvents": []}')

    def synchronize(self) -> None:
        pass

    def all_reduce_world(self, values: Any) -> Any:
        self.now += 0.5  # waiting for the others, which no piece is charged for
        return values

    def all_reduce_shards(self, values: Any) -> Any:
        return values


def of(step: float, compute: float, exchange: float, own: list[float] | None = None, fused: str | None = None) -> Any:
    def separated(trainer: Replicas) -> ComputeAndExchange:
        def computing() -> list[float] | None:
            trainer.spend("compute", compute)
            return own

        return ComputeAndExchange(computing, lambda: trainer.spend("exchange", exchange), fused)

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
    monkeypatch.setattr(trainer, "all_reduce_shards", lambda values: values + slower)
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


PIECES = {"transfer": 0.125, "forward": 0.25, "backward": 0.5, "optimizer": 0.0625}


def test_pieces_called_one_by_one_take_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Replicas(monkeypatch, 1.5, None, PIECES)
    parts = profiling.step_parts(trainer, BATCH, 8, steps=2)
    assert (parts.transfer_seconds, parts.forward_seconds, parts.backward_seconds) == (0.125, 0.25, 0.5)
    assert parts.optimizer_seconds == 0.0625
    assert parts.pieces == "each by itself, the device waited for before and after"
    assert trainer.calls == ["step"] * 3 + list(PIECES) * 3


def test_pieces_inside_one_another_are_differences_and_one_below_0_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {"transfer": 0.125, "forward": 0.25, "backward": 0.75, "optimizer": 0.625}
    parts = profiling.step_parts(Replicas(monkeypatch, 1.5, None, nested, nested=True), BATCH, 8, steps=2)
    assert (parts.forward_seconds, parts.backward_seconds, parts.optimizer_seconds) == (0.25, 0.5, 0.0)
    assert parts.pieces is not None and parts.pieces.startswith("differences between medians")
    assert parts.pieces.endswith("; optimizer came out below 0 and is reported as 0")


def test_a_piece_that_a_replica_has_not_is_none_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: seconds for name, seconds in PIECES.items() if name != "optimizer"}
    parts = profiling.step_parts(Replicas(monkeypatch, 1.5, None, without, note="the server has it"), BATCH, 8, steps=2)
    assert (parts.backward_seconds, parts.optimizer_seconds) == (0.5, None)
    assert parts.pieces is not None and parts.pieces.endswith("; the server has it")


def test_a_mode_without_pieces_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = profiling.step_parts(Replicas(monkeypatch, 1.5, None, "all in one"), BATCH, 8, steps=2)
    assert (parts.forward_seconds, parts.transfer_seconds, parts.pieces) == (None, None, "all in one")


def test_a_piece_takes_as_long_as_in_the_slowest_process(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Replicas(monkeypatch, 1.5, None, {"transfer": 0.125, "forward": 0.25, "backward": 1.0}, nested=True)
    trainer.shard = (1, 2)
    slower = np.array([[0.5], [0.0]])  # rank 0 in whatever is asked
    monkeypatch.setattr(trainer, "all_reduce_shards", lambda values: values + slower)
    parts = profiling.step_parts(trainer, BATCH, 8, steps=2)
    # Rank 0 goes forward in 0.5 s and back in none.
    assert (parts.transfer_seconds, parts.forward_seconds, parts.backward_seconds) == (0.5, 0.5, 0.75)


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


def test_a_trace_is_written_beside_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = Replicas(monkeypatch, 1.0, None)
    found = profiling.top_operations(trainer, BATCH, 8, 3, tmp_path)
    assert found is not None and (found.trace, found.failure) == (results.TRACE_FILE, None)
    assert gzip.decompress((tmp_path / results.TRACE_FILE).read_bytes()) == b'{"traceEvents": []}'
    assert [(each.name, each.calls, each.share) for each in found.operations] == [("conv", 1 / 3, 1.0)]
    assert (trainer.calls, set(trainer.rates)) == (["step"] * 3, {0.0})


def test_a_process_that_does_not_look_takes_its_part_in_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Replicas(monkeypatch, 1.0, None)
    assert profiling.top_operations(trainer, BATCH, 8, 3, None) is None
    assert trainer.calls == ["step"] * 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_profiler_that_fails_costs_no_step_and_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str) -> None:
    trainer = Replicas(monkeypatch, 1.0, None)

    def record(work: Callable[[], None]) -> ProfilerRecording:
        if when == "after":
            work()
        raise RuntimeError("another profiler is running")

    monkeypatch.setattr(trainer, "record", record)
    found = profiling.top_operations(trainer, BATCH, 8, 3, tmp_path)
    assert found is not None and (found.operations, found.trace) == ([], None)
    assert found.failure == "RuntimeError: another profiler is running"
    assert trainer.calls == ["step"] * 3


def test_a_trace_that_has_no_room_leaves_the_operations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def write(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "write_atomically", write)
    found = profiling.top_operations(Replicas(monkeypatch, 1.0, None), BATCH, 8, 3, tmp_path)
    assert found is not None and len(found.operations) == 1 and found.trace is None
    assert found.failure is not None and "No space left" in found.failure


def test_a_step_that_fails_under_the_profiler_is_no_failure_of_the_profiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = Replicas(monkeypatch, 1.0, None)

    def train_step(*arguments: Any) -> None:
        raise RuntimeError("rank 1 has gone")

    monkeypatch.setattr(trainer, "train_step", train_step)
    with pytest.raises(RuntimeError, match="rank 1 has gone"):
        profiling.top_operations(trainer, BATCH, 8, 3, tmp_path)
