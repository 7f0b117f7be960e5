"""The run that both twins share, with an input made up by hand."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from common import spec
from common.artifacts.schema import EpochRecord, Metrics, RunResult
from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset
from common.machine.interference import LEAST_TIMED_SECONDS, Meter, Usage
from common.machine.rates import DeviceRates
from common.models.architectures import resolve
from common.spec import Spec
from common.training import observers
from common.training.loop import TrainingRun
from common.training.timing import Stopwatch
from common.training.trainer import BaseTrainer, Batch
from tests.support.refusals import refused

PAUSE_SECONDS = 0.01


class Fed:
    """A trainer whose input makes one batch in a while."""

    implementation = "made up"
    updates = 0

    def __init__(self) -> None:
        self.devices = ["cpu"]
        self.threads: dict[str, int] = {}

    def feed(self) -> Feed[Batch]:
        def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
            for _ in steps:
                time.sleep(PAUSE_SECONDS)
                yield Batch(ids=np.zeros(0, np.int64), images=None, labels=None, masks=())

        return start

    def compilations(self) -> int:
        return 0

    def all_reduce_world(self, values: Any) -> Any:
        return values

    def synchronize(self) -> None: ...

    def memory_by_device(self) -> dict[str, float]:
        return {}


LONG_ENOUGH = 1 + round(LEAST_TIMED_SECONDS / (5 * PAUSE_SECONDS))
"""Epochs after which the number of used cores is reported."""


def fed(folder: Path, epochs: int, cpus: Sequence[int] | None = None, meter: Any = Meter, **fields: Any) -> TrainingRun:
    """A run of the input alone, 5 batches an epoch."""
    wanted = spec.build({"part": "input", "epochs": epochs, "global_batch_size": 10, **fields})
    run = TrainingRun("made up", wanted, {}, folder, 0, Stopwatch(lambda: None), cpus, meter=meter)
    run.train(cast(BaseTrainer, Fed()), BatchPlan(wanted, resolve("simple_cnn", 10, 32), 50), cast(Dataset, None))
    return run


def test_device_memory_is_kept_by_rank_and_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of two, whose neighbour has one device and has used all of it."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    theirs = iter([np.array([1, 0]), np.array([[7.0, 0.0], [0.0, 0.0]])])
    ranks = cast(BaseTrainer, type("Ranks", (Fed,), {"all_reduce_world": lambda self, values: values + next(theirs)})())
    run = TrainingRun("pytorch", spec.build({}), {}, tmp_path, 0, Stopwatch(lambda: None))
    run.memory.measure_devices(ranks, [0.0, 3.0])
    assert run.result("ok").peak_memory_by_device_mib == {"rank 0 GPU 0": 7.0, "rank 1 GPU 1": 3.0}
    assert run.result("ok").device_peak_memory_mib == 10.0


def test_paces_of_processes_are_of_all_timed_epochs_and_left_out_if_nothing_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 of two, whose neighbour has a pace of 2."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    theirs = np.array([2.0, 0.0])
    ranks = cast(BaseTrainer, type("Ranks", (Fed,), {"all_reduce_world": lambda self, values: values + theirs})())
    run = TrainingRun("pytorch", spec.build({}), {}, tmp_path, 0, Stopwatch(lambda: None))
    speeds = observers.Speeds(run.record)
    speeds.add(ranks, 0, 1e-6)  # the only step was the first, which is not timed
    assert run.result("ok").images_per_second_by_process == []
    speeds.add(ranks, 30, 3.0)
    speeds.add(ranks, 10, 5.0)
    speeds.add(ranks, 0, 1e-6)
    assert run.result("ok").images_per_second_by_process == [2.0, 5.0]


def test_a_cpu_has_no_device_memory(tmp_path: Path) -> None:
    run = TrainingRun("pytorch", spec.build({}), {}, tmp_path, 0, Stopwatch(lambda: None))
    run.memory.measure_devices(cast(BaseTrainer, Fed()), [])
    assert run.result("ok").device_peak_memory_mib is None and run.result("ok").peak_memory_by_device_mib == {}


@pytest.mark.parametrize(("workers", "epochs", "timed"), [(0, 2, [4, 5]), (1, 2, [4, 5]), (2, 3, [4, 5, 5]), (4, 2, [4, 5])])
def test_no_batch_of_the_input_alone_is_free(workers: int, epochs: int, timed: list[int], tmp_path: Path) -> None:
    source = {"input": "workers", "workers": workers} if workers else {}
    result = fed(tmp_path, epochs, **source).result("ok")
    assert [record.timed_steps for record in result.epochs] == timed
    assert [record.timed_images for record in result.epochs] == [10 * steps for steps in timed]
    assert [record.images for record in result.epochs] == [50] * epochs
    for record in result.epochs:
        assert record.timed_seconds >= record.timed_steps * PAUSE_SECONDS  # no batch was free
    assert result.phases is not None
    assert result.phases.training_seconds >= sum(record.timed_seconds for record in result.epochs)


@pytest.mark.parametrize("here", [1, 2])
def test_what_others_used_is_known_where_all_ranks_are_on_one_machine(
    here: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    result = fed(tmp_path, LONG_ENOUGH).result("ok")
    assert result.cores_used is not None
    assert (result.cores_of_others is not None) == (here == 2)


def test_what_others_took_of_the_run_is_what_was_done_on_its_own_cpus(tmp_path: Path) -> None:
    cores = {"process": 0.25, "budget": 1.0, "stolen": 0.125, "machine": 3.0}

    def read(cpus: Sequence[int] | None) -> Usage:
        assert cpus == [3]
        now = time.monotonic()
        return Usage(wall_seconds=now, **{f"{name}_cpu_seconds": number * now for name, number in cores.items()})

    result = fed(tmp_path, LONG_ENOUGH, [3], meter=lambda cpus: Meter(cpus, read)).result("ok")
    assert result.noise is not None
    assert result.noise.cores_taken == pytest.approx(0.75, rel=0.2)
    assert result.noise.cores_stolen == pytest.approx(0.125, rel=0.2)
    assert result.cores_of_others == pytest.approx(2.75, rel=0.2)


def test_a_device_is_rated_when_the_wall_time_has_ended_and_may_fail(tmp_path: Path) -> None:
    ended = list[RunResult]()

    def on_a_cpu(asked: Spec) -> None:
        return None

    def on_a_gpu(asked: Spec) -> DeviceRates:
        time.sleep(2.0)
        return DeviceRates(matrix_gflops=1.0, copy_gb_per_second=2.0)

    def on_a_full_one(asked: Spec) -> DeviceRates:
        raise MemoryError

    for rates in (on_a_cpu, on_a_gpu, on_a_full_one):
        run = fed(tmp_path, epochs=1)
        before = run.result("ok").phases
        run.measure_device_rates(rates)
        ended.append(run.result("ok"))
        after = ended[-1].phases
        assert before is not None and after is not None
        assert after.wall_seconds - before.wall_seconds < 2.0
    assert [result.device_rates is not None for result in ended] == [False, True, False]


def scored(epoch: int, num_correct: int, loss: float) -> EpochRecord:
    score = Metrics(loss=loss, accuracy=num_correct / 10, num_correct=num_correct, num_examples=10)
    return EpochRecord(
        epoch=epoch, steps=1, images=1, epoch_images=1, learning_rate=0.1, train=score, validation=score, timed_seconds=1.0,
        timed_steps=1, timed_images=1, input_wait_seconds=0.0, evaluation_seconds=0.0,
    )  # fmt: skip


def test_of_equal_epochs_the_earliest_is_the_best() -> None:
    epochs = [scored(1, 4, 0.9), scored(2, 7, 0.8), scored(3, 7, 0.5), scored(4, 6, 0.5)]
    assert observers.best_epoch(epochs, "accuracy") == 2
    assert observers.best_epoch(epochs, "loss") == 3
    assert observers.best_epoch(epochs[:1], "loss") == 1


def test_a_part_of_the_training_has_no_best_epoch() -> None:
    for best in ({"keep": True}, {"patience": 2}):
        with refused(spec.SpecError, field="best_epoch"):
            spec.build({"part": "input", "best_epoch": best})
