"""The breakdown of a step, and what the framework's own profiler says of it."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import results, schema
from common.artifacts.schema import RunResult
from common.training import profiling
from common.training.trainer import Batch
from tests.twins import made
from tests.twins.adapters import Twin
from tests.twins.runs import Run

NETWORK = made.network()
COUNT = 48
DATA = made.dataset(NETWORK, train=COUNT).train
FIELDS: dict[str, Any] = {"global_batch_size": COUNT, "optimizer": {"name": "adam", "learning_rate": 0.01}}
LARGER = made.resolve("simple_cnn")
"""Of milliseconds a step, so that the calls of its functions are not what is timed."""
STEPS, ATTEMPTS = 5, 5
PIECES = ("transfer_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")
IN_PROCESS = ["serial", "data_parallel"]
SERVED = {"mode": "parameter_server", "replicas": 2, "profile_steps": 3}
TRACE_BYTES = 2**20


@pytest.fixture
def batch(twin: Twin) -> Batch:
    return twin.batch(DATA.images, DATA.labels, made.masks(NETWORK, COUNT))


@pytest.fixture
def served(begin: Any, tmp_path: Path) -> Run:
    return begin(tmp_path, SERVED)


@pytest.mark.parametrize("mode", ["serial", pytest.param("data_parallel", marks=pytest.mark.slow)])
def test_the_breakdown_of_a_step_makes_up_its_computing(twin: Twin, mode: str) -> None:
    data = made.dataset(LARGER, train=COUNT)
    trainer = made.trainer(twin, LARGER, data, mode=mode, precision="float32", **FIELDS)
    batch = twin.batch(data.train.images, data.train.labels, made.masks(LARGER, COUNT))
    sums: list[float] = []
    for _ in range(ATTEMPTS):  # on a machine that has other work, medians of a few steps may be far off
        parts = profiling.step_parts(trainer, batch, COUNT, STEPS)
        transfer, forward, backward, optimizer = (getattr(parts, piece) for piece in PIECES)
        assert transfer > 0.0 and forward > 0.0 and backward >= 0.0 and optimizer >= 0.0
        assert parts.compute_seconds is not None
        sums.append((transfer + forward + backward + optimizer) / parts.compute_seconds)
        # The backward pass is more than half of a step: where it is forgotten or counted twice, this does not hold.
        if 0.7 < sums[-1] < 1.3 and backward > 0.5 * forward:
            return
    pytest.fail(f"breakdown over computing: {sums}")


@pytest.mark.parametrize("mode", ["serial", pytest.param("data_parallel", marks=pytest.mark.slow)])
def test_breakdown_and_profiler_learn_nothing(twin: Twin, batch: Batch, tmp_path: Path, mode: str) -> None:
    trainer = made.trainer(twin, NETWORK, mode=mode, **FIELDS)
    trainer.train_step(batch, COUNT, 0.01)
    before = trainer.weights()
    breakdown = trainer.step_breakdown(batch, COUNT)
    for function in (breakdown.transfer, breakdown.forward, breakdown.backward, breakdown.optimizer):
        function()
    profiling.top_operations(trainer, batch, COUNT, 1, tmp_path)
    after = trainer.weights()
    trainable = [parameter.name for parameter in NETWORK.parameters() if parameter.trainable]
    assert all(np.array_equal(after[name], before[name]) for name in trainable)


def test_over_micro_batches_a_step_is_broken_down_where_it_can_be(twin: Twin, batch: Batch) -> None:
    breakdown = made.trainer(twin, NETWORK, accumulation=3, **FIELDS).step_breakdown(batch, COUNT)
    # Twin: TensorFlow's functions are graphs that begin with each other. PyTorch's would have to take turns.
    assert isinstance(breakdown, str) == (twin.framework == "pytorch")


@pytest.mark.parametrize("mode", IN_PROCESS)
def test_the_longest_operations_are_reported_and_a_convolution_is_among_them(
    twin: Twin, batch: Batch, tmp_path: Path, mode: str
) -> None:
    trainer = made.trainer(twin, NETWORK, mode=mode, **FIELDS)
    found = profiling.top_operations(trainer, batch, COUNT, 2, tmp_path)
    assert found is not None and (found.steps, found.failure) == (2, None)
    assert_operations(found.operations)
    events = assert_a_trace(tmp_path / results.TRACE_FILE)
    assert any(_is_convolution(event["name"]) for event in events)


def test_a_profiler_that_has_no_room_leaves_the_run_as_it_is(
    twin: Twin, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    trainer = made.trainer(twin, NETWORK, **FIELDS)
    monkeypatch.setattr(twin.profiler.tempfile, "TemporaryDirectory", full)
    found = profiling.top_operations(trainer, batch, COUNT, 1, tmp_path)
    assert found is not None and "No space left" in (found.failure or "")
    assert (found.operations, found.trace, list(tmp_path.iterdir())) == ([], None, [])


def test_a_step_that_fails_leaves_the_profiler_to_the_next_one(twin: Twin, batch: Batch) -> None:
    trainer = made.trainer(twin, NETWORK, **FIELDS)

    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.record(fails)
    recording = trainer.record(lambda: trainer.train_step(batch, COUNT, 0.0))
    assert any(_is_convolution(span.name) for span in recording.spans)


@pytest.mark.slow
def test_a_worker_of_a_server_has_no_optimizer_and_its_exchange_is_timed_separately(served: Run) -> None:
    result = served.end()
    assert result.status == "ok", served.log
    parts = result.step_parts
    assert parts is not None and parts.not_separable is None
    assert parts.compute_seconds is not None and parts.communication_exposed_seconds is not None
    assert parts.forward_seconds is not None and parts.backward_seconds is not None and parts.optimizer_seconds is None
    assert parts.pieces is not None and parts.pieces.endswith("the server updates the weights")
    assert_profiled(result, served.folder)


def assert_profiled(result: RunResult, folder: Path) -> None:
    """A profiled run reported its longest operations and left a trace."""
    found = result.top_operations
    assert found is not None and (found.trace, found.failure) == (results.TRACE_FILE, None)
    assert_operations(found.operations)
    assert_a_trace(folder / results.TRACE_FILE)


def assert_operations(operations: list[schema.ProfiledOperation]) -> None:
    assert 1 <= len(operations) <= 10
    seconds = [each.self_seconds for each in operations]
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] >= 0.0
    assert 0.0 < sum(each.share for each in operations) <= 1.0 + 1e-9
    assert all(each.calls > 0.0 for each in operations)
    assert any(_is_convolution(each.name) for each in operations), [each.name for each in operations]


def assert_a_trace(path: Path) -> list[dict[str, Any]]:
    """The file is small, and in Chrome's trace event format; its events with a length."""
    assert path.stat().st_size < TRACE_BYTES
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert events
    for event in events:
        assert isinstance(event["name"], str) and {"pid", "tid"} <= event.keys()
        assert math.isfinite(event["ts"]) and math.isfinite(event["dur"]) and event["dur"] >= 0.0
    return events


def _is_convolution(name: str) -> bool:
    return "conv" in name.lower()
