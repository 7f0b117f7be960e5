"""Seconds of a step of every mode, and of a batch of every input, as a whole short run tells them (`make bench`).

Modes of several ranks cannot be stepped inside one pytest process, and threads and devices are settled once a process: so each
benchmark here starts `python -m <twin> run` once and enters what the sealed result says, a round an epoch. pytest-benchmark
reads them off a clock that stands still but for them.
"""

from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from common import spec
from common.artifacts.schema import RunResult
from common.machine import machine
from compare.running.twins import Twins
from tests.benchmarks.sealed import Runs

STEPS_EPOCHS, INPUT_EPOCHS = 7, 30
"""The first epoch of each is warm-up."""


class Clock:
    """Stands where it was put."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("mode", spec.MODES)
def test_seconds_of_a_step_in_a_whole_run(benchmark: BenchmarkFixture, framework: str, mode: str, tmp_path: Path) -> None:
    # With the default learning rate the stale weights of pipeline_async diverge.
    fields = {"epochs": STEPS_EPOCHS, "cores": min(2, machine.available_cores()), "optimizer": {"learning_rate": 0.01}}
    values = spec.with_variant(fields, mode, replicas=2)
    enter(benchmark, sealed(framework, values, tmp_path))


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("fed", spec.INPUTS)
def test_seconds_of_a_batch_of_the_input_in_a_whole_run(
    benchmark: BenchmarkFixture, framework: str, fed: str, tmp_path: Path
) -> None:
    workers = 0 if fed == "inline" else 1
    augmentation = {"shift_px": 1, "rotation_degrees": 10.0}
    values = {"part": "input", "input": fed, "workers": workers, "epochs": INPUT_EPOCHS, "augmentation": augmentation}
    enter(benchmark, sealed(framework, values, tmp_path))


def sealed(framework: str, values: dict[str, Any], folder: Path) -> RunResult:
    """The result of a run, or a skipped test where this machine cannot do it."""
    what = spec.build(values)
    if (lacking := spec.check_against(what, Twins([framework]).describe(framework))) is not None:
        pytest.skip(lacking)
    return Runs(folder).ran(framework, what)


def enter(benchmark: BenchmarkFixture, result: RunResult) -> None:
    """Give a benchmark the mean seconds of the steps of each epoch but the first."""
    rounds = [epoch.timed_seconds / epoch.timed_steps for epoch in result.epochs[1:]]
    left = iter(rounds)

    def pass_on() -> None:
        CLOCK.now += next(left)

    benchmark.extra_info.update({"status": result.status, "implementation": result.implementation})
    benchmark.pedantic(pass_on, rounds=len(rounds))
    assert benchmark.stats.stats.data == pytest.approx(rounds)
