"""The clock of real runs: no batch is free, every shape is built before it is timed, and all ranks are waited for."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data.batches import BatchPlan
from common.training import timing
from common.training.loop import TrainingRun
from common.training.timing import ClockError, Stopwatch
from tests.planted import clock
from tests.twins import made, runs
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
DATA = made.dataset(ARCHITECTURE, train=40)
"""Four batches of 9, and one of 4."""
PAUSE_SECONDS = 0.5
MODES: list[dict[str, Any]] = [
    {"mode": "serial"},
    {"mode": "serial", "optimizer": {"name": "adam"}},
    {"mode": "serial", "optimizer": {"name": "sgd", "native": True}},
    {"mode": "data_parallel", "communication": {"compression": "top_k"}, "replicas": made.REPLICAS},
    {"mode": "data_parallel", "batch_norm_statistics": "synchronised", "replicas": made.REPLICAS},
    {"mode": "serial", "framework_options": {"graph": "eager"}},
    {"mode": "serial", "precision": "float32", "framework_options": {"arithmetic": "float16"}},
]


def trained(twin: Twin, folder: Path, change: Any = lambda trainer: None, **fields: Any) -> TrainingRun:
    spec = made.settings(**fields)
    trainer = made.trainer(twin, ARCHITECTURE, DATA, **fields)
    change(trainer)
    run = TrainingRun(twin.framework, spec, {}, folder, 0, Stopwatch(twin.device.synchronize))
    run.train(trainer, BatchPlan(spec, ARCHITECTURE, len(DATA.train)), DATA)
    return run


@pytest.mark.parametrize("fields", [{}, {"input": "workers", "workers": 2}, {"input": "dask", "workers": 1}])
def test_a_queue_is_empty_when_an_epoch_starts_whatever_passed_before(twin: Twin, fields: dict[str, Any]) -> None:
    trainer = made.trainer(twin, ARCHITECTURE, DATA, epochs=2, **fields)
    feed = trainer.feed()
    list(feed(1, [0, 0]))  # starts the workers
    for epoch in (1, 2):
        batches = feed(epoch, range(1, 5))
        time.sleep(PAUSE_SECONDS)  # as long as an evaluation
        asked = time.time()
        begun, waits = list[float](), list[float]()
        for batch in batches:
            begun.append(float(batch.begin_time))
            waits.append(time.time() - asked - sum(waits))
        print(f"waits of epoch {epoch}: {', '.join(f'{1e3 * wait:.0f}' for wait in waits)} ms")
        assert len(begun) == 4
        assert min(begun) >= asked - timing.RESOLUTION_SECONDS


@pytest.mark.parametrize("accumulation", [1, 3])
def test_every_batch_shape_is_built_before_it_is_timed(twin: Twin, accumulation: int, tmp_path: Path) -> None:
    result = trained(twin, tmp_path, accumulation=accumulation, epochs=2).result("ok")
    assert [record.steps for record in result.epochs] == [5, 5]
    assert result.phases is not None and result.phases.compile_seconds > 0.0
    timed = ", ".join(f"{record.timed_seconds:.3f} s for {record.timed_steps} steps" for record in result.epochs)
    print(f"compile {result.phases.compile_seconds:.3f} s, first step {result.phases.first_step_seconds:.3f} s, epochs {timed}")
    # Twin: torch builds no graph for a batch of another size.
    if twin.framework == "tensorflow" and accumulation == 3:
        assert result.phases.compile_seconds > 0.05 * result.phases.first_step_seconds


@pytest.mark.parametrize(
    "fields", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in ({"accumulation": 3}, {"mode": "data_parallel"}))]
)
def test_every_batch_size_has_run_twice_before_it_is_timed_in_both_frameworks(
    twin: Twin, fields: dict[str, Any], tmp_path: Path
) -> None:
    """Kernels and plans are built in the first run of a shape, CUDA graphs in its second."""
    runs, updates = list[int](), list[int]()

    def watched(trainer: Any) -> None:
        run_step = trainer._run_step

        def step(batch: Any, num_examples: int, learning_rate: float) -> Any:
            runs.append(len(batch.labels))
            updates.append(trainer.updates)
            return run_step(batch, num_examples, learning_rate)

        trainer._run_step = step

    trained(twin, tmp_path, watched, epochs=2, **fields)
    assert runs == [9, 9, 4, 4, 9, 9, 9, 4, 9, 9, 9, 9, 4]
    assert updates == [1, 1, 1, 1, *range(2, 11)]


@pytest.mark.parametrize("fields", [MODES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in MODES[1:])])
def test_building_other_shapes_changes_no_training_state(twin: Twin, fields: dict[str, Any]) -> None:
    fields = {"accumulation": 3, "global_batch_size": 9, **fields}
    one, other = (made.trainer(twin, ARCHITECTURE, DATA, **fields) for _ in range(2))
    first, *others = list(one.batches())
    for trainer in (one, other):
        trainer.train_step(first, 9, 0.05)
    random_state = twin.random_state()
    one.compile([9, 2 * made.REPLICAS - 1, 4], [7, 2])
    assert twin.random_state() == random_state
    assert one.updates == other.updates == 1
    for batch in others[:2]:
        (loss, _), (same, _) = (trainer.train_step(batch, 9, 0.05) for trainer in (one, other))
        assert one.fetch([loss])[0] == other.fetch([same])[0]
    kept, same = one.state(), other.state()
    assert all(np.array_equal(array, same[name]) for name, array in kept.items())


def test_a_shape_that_is_built_in_the_timed_steps_is_named(twin: Twin, tmp_path: Path) -> None:
    def unprepared(trainer: Any) -> None:
        trainer.compile = lambda step_sizes, score_sizes: None

    with pytest.raises(ClockError, match=r"^compile inside the clock: "):
        trained(twin, tmp_path, unprepared, accumulation=3)


def test_a_graph_that_is_traced_in_the_timed_steps_is_named(twin: Twin, tmp_path: Path) -> None:
    """Planted: batch sizes are not counted, and each number of micro-batches is traced when its turn comes."""
    if twin.framework == "pytorch":
        pytest.skip("torch traces no graph for a batch of another size")

    def unprepared(trainer: Any) -> None:
        trainer.compile = lambda step_sizes, score_sizes: None
        trainer._shapes = _Uncounted()

    with pytest.raises(ClockError, match=r"^compile inside the clock: "):
        trained(twin, tmp_path, unprepared, accumulation=3)


class _Uncounted(set[Any]):
    def __len__(self) -> int:
        return 0


def test_a_queue_of_the_framework_that_is_filled_during_evaluation_is_named(twin: Twin, tmp_path: Path) -> None:
    def ahead(trainer: Any) -> None:
        feed = trainer.feed()

        def early(epoch: int, steps: Any) -> Any:
            batches = feed(epoch, steps)
            first = next(batches)
            time.sleep(0.1)
            return iter([first, *batches])

        trainer.feed = lambda: early

    with pytest.raises(ClockError, match=r"^queue filled off the clock: "):
        trained(twin, tmp_path, ahead, input="workers", workers=2)


def test_a_step_that_is_done_twice_is_named(twin: Twin, tmp_path: Path) -> None:
    def doubled(trainer: Any) -> None:
        train_step = trainer.train_step
        trainer.train_step = lambda *arguments: (train_step(*arguments), train_step(*arguments))[1]

    with pytest.raises(ClockError, match=r"^doubled step: \+5 updates"):
        trained(twin, tmp_path, doubled)


# Runs of two ranks, each in a process of its own.

ASYNCHRONOUS: list[dict[str, Any]] = [
    {"mode": "parameter_server", "parameter_server": {"updates": "asynchronous"}},
    {"mode": "model_averaging", "averaging": {"every_steps": None}},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", ASYNCHRONOUS)
def test_a_slow_rank_shows_in_the_images_per_second_of_a_mode_whose_ranks_do_not_meet(
    framework: str, tmp_path: Path, fields: dict[str, Any]
) -> None:
    result = planted(framework, tmp_path, "slow_rank", fields)
    assert result.status == "ok", result.reason
    memory = f"RSS {result.peak_memory_mib:.0f} MiB, PSS {result.peak_memory_pss_mib:.0f} MiB"
    print(f"{', '.join(f'{record.images_per_second:.0f}' for record in result.epochs)} images/s, {memory}")
    for record in result.epochs:
        assert record.timed_seconds >= record.timed_steps * clock.SLOW_SECONDS


@pytest.mark.slow
def test_a_rank_that_is_late_at_the_end_shows_in_an_asynchronous_pipeline(framework: str, tmp_path: Path) -> None:
    """The first stage has all gradients before the last one has ended its step. A clock of rank 0 misses its last pause."""
    if framework == "tensorflow":
        pytest.skip("its stages are devices of one process")
    result = planted(framework, tmp_path, "late_rank", {"mode": "pipeline", "pipeline": {"schedule": "asynchronous"}})
    assert result.status == "ok", result.reason
    for record in result.epochs:
        assert record.timed_seconds >= record.timed_steps * clock.SLOW_SECONDS


@pytest.mark.shared
def test_ranks_that_are_not_waited_for_and_averages_made_in_evaluation_are_named(framework: str, tmp_path: Path) -> None:
    result = planted(framework, tmp_path, "evaluation_waits", ASYNCHRONOUS[1])
    assert result.status == "failed"
    assert "slow rank: rank 1 trained for " in result.reason
    assert "work moved into evaluation: parameters changed " in result.reason


@pytest.mark.slow
def test_ranks_whose_clocks_differ_are_named(framework: str, tmp_path: Path) -> None:
    result = planted(framework, tmp_path, "other_clock", {"mode": "multi_process"})
    assert result.status == "failed"
    assert "ranks without a common clock: the clock ran 360" in result.reason


def test_a_rank_whose_clock_is_slow_is_named(framework: str, tmp_path: Path) -> None:
    result = planted(framework, tmp_path, "slow_clock", {"mode": "multi_process"})
    assert result.status == "failed"
    # On a busy machine the part in which it is seen first may be a longer one than the timed steps.
    assert re.search(f"clocks that disagree: .+ of rank 1 of {framework}: by the run's own clock it lasted ", result.reason)


OTHERS: list[dict[str, Any]] = [
    {"mode": "multi_process"},
    {"mode": "multi_process", "communication": {"compression": "int8"}},
    {"mode": "multi_process", "batch_norm_statistics": "synchronised"},
    {"mode": "sharded_data_parallel"},
    {"mode": "parameter_server"},
    {"mode": "model_averaging"},
    {"mode": "model_parallel"},
    {"mode": "tensor_parallel"},
    {"mode": "pipeline"},
    {"mode": "pipeline", "pipeline": {"schedule": "asynchronous"}},
    {"mode": "hybrid", "replicas": 4, "hybrid": {"inner_replicas": 2}},
    {"mode": "hybrid", "replicas": 4, "hybrid": {"inner": "pipeline", "inner_replicas": 2}},
]


@pytest.mark.parametrize("fields", [pytest.param(each, marks=pytest.mark.slow) for each in OTHERS])
def test_building_shapes_changes_no_result_in_the_last_digit(framework: str, tmp_path: Path, fields: dict[str, Any]) -> None:
    plain, built = (planted(framework, tmp_path / plant, plant, fields) for plant in ("unprepared", "nothing"))
    assert (plain.status, built.status) == ("ok", "ok"), (plain.reason, built.reason)
    assert plain.phases.compile_seconds < built.phases.compile_seconds
    assert plain.step_losses == built.step_losses and len({*plain.step_losses}) > 2
    assert (plain.predictions_hash, plain.test) == (built.predictions_hash, built.test)
    assert [(each.train, each.validation) for each in plain.epochs] == [(each.train, each.validation) for each in built.epochs]


def planted(framework: str, folder: Path, plant: str, fields: dict[str, Any]) -> Any:
    data = {"image_size": 12, "limit": 160}
    common = {"model": "tests.planted.clock", "replicas": 2, "cores": 2, "epochs": 2, "data": data}
    with runs.Run(framework, folder, {**common, **fields}, CONVTWINS_PLANTED=plant) as run:
        return run.end()
