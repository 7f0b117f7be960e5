"""Seconds of one training step of each twin, for history (`make bench`); a verdict between the twins needs `compare run`."""

import importlib
from functools import cache
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from common import spec
from common.data import sources
from common.data.batches import BatchPlan
from common.models import architectures, weights


@cache  # once a process, whichever model comes first
def settle_threads(framework: str) -> None:
    importlib.import_module(f"{framework}_impl.device").configure(spec.build({}))


@pytest.mark.parametrize("model", ["simple_cnn", "mini_xception", "resnet18"])
def test_seconds_of_a_serial_training_step(benchmark: BenchmarkFixture, framework: str, model: str) -> None:
    what = spec.build({"model": model, "global_batch_size": 64, "steps": 1})
    dataset = sources.load(what.data, seed=what.seed)
    architecture = architectures.resolve(model, len(dataset.class_names), dataset.image_size)
    plan = BatchPlan(what, architecture, len(dataset.train))
    settle_threads(framework)
    trainer = importlib.import_module(f"{framework}_impl.parallel").build(
        what, architecture, plan, dataset, weights.initial(architecture, what.seed)
    )
    batch = next(trainer.batches())

    def step() -> Any:
        loss, _ = trainer.train_step(batch, what.global_batch_size, what.optimizer.learning_rate)
        return trainer.fetch([loss])  # waits for the device

    loss = benchmark.pedantic(step, rounds=10, warmup_rounds=3)
    assert loss > 0.0
