"""A network of one BatchNorm behind a 1x1 convolution shows the layer itself."""

from typing import Any

import numpy as np
import pytest

from common.models.architectures import Architecture, BatchNorm, Conv, Flatten, no_padding
from common.models.sharding import shard
from tests.twins import made, oracles
from tests.twins.adapters import Twin

COUNT = 7

ROUNDING = {"float64": 1e-13, "float32": 1e-5}


def norm(momentum: float = 0.1, epsilon: float = 1e-5) -> Architecture:
    conv = Conv("conv", 3, 4, 1, 1, no_padding, bias=True)
    return Architecture("made", 5, 100, (conv, BatchNorm("bn", 4, momentum, epsilon), Flatten("flatten")))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("momentum", "epsilon"), [(0.1, 1e-5), (0.7, 0.3)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_batch_norm_is_the_formula(twin: Twin, precision: str, momentum: float, epsilon: float, training: bool) -> None:
    architecture = norm(momentum, epsilon)
    trainer, batch, images = one_batch(twin, architecture, precision=precision)
    expected = oracles.Forward(architecture, made.values(architecture), images, training=training)
    logits = trainer.logits(batch, training=training)
    assert np.abs(logits - expected.logits).max() <= ROUNDING[precision] * np.abs(expected.logits).max()
    assert_statistics(trainer, expected.statistics, ROUNDING[precision])


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_evaluation_leaves_the_statistics_as_they_are(twin: Twin, precision: str) -> None:
    architecture = norm()
    trainer, batch, images = one_batch(twin, architecture, precision=precision)
    before = trainer.weights()
    trainer.logits(batch, training=False)
    trainer.score(images, np.zeros(COUNT, np.int64))
    assert all(np.array_equal(array, before[name]) for name, array in trainer.weights().items())


def test_the_variance_is_no_difference_of_large_numbers(twin: Twin) -> None:
    architecture = norm()
    trainer, batch, images = one_batch(twin, architecture)
    far_off = made.values(architecture) | {"conv.bias": np.full(4, 1e6)}
    trainer.load_weights(far_off)
    expected = oracles.Forward(architecture, far_off, images, training=True).logits
    # 1e6 keeps ten digits behind the point; the square of it would keep four.
    assert np.abs(trainer.logits(batch, training=True) - expected).max() < 1e-8


def test_per_replica_statistics_are_those_of_replica_0(twin: Twin) -> None:
    architecture = made.network()
    trainer, batch, images = one_batch(twin, architecture, mode="data_parallel")
    trainer.train_step(batch, COUNT, 0.05)
    trainer.broadcast_statistics()
    first = slice(*shard(COUNT, made.REPLICAS, 0))
    masks = [mask[first] for mask in made.masks(architecture, COUNT)]
    expected = oracles.Forward(architecture, made.values(architecture), images[first], masks, training=True).statistics
    assert_statistics(trainer, expected, 1e-13)


def test_every_replica_scores_with_the_shared_statistics(twin: Twin) -> None:
    architecture = made.network()
    trainer, batch, images = one_batch(twin, architecture, mode="data_parallel")
    labels = np.arange(COUNT) % made.CLASSES
    trainer.train_step(batch, COUNT, 0.05)
    trainer.broadcast_statistics()
    logits = oracles.Forward(architecture, trainer.weights(), images, training=False).logits
    loss, predictions = trainer.score(images, labels)
    assert np.array_equal(predictions, logits.argmax(1))
    assert trainer.fetch([loss])[0] == pytest.approx(oracles.cross_entropy(logits, labels).sum(), rel=1e-13)


def one_batch(twin: Twin, architecture: Architecture, **fields: Any) -> tuple[Any, Any, Any]:
    data = made.dataset(architecture, train=COUNT)
    masks = made.masks(architecture, COUNT)
    trainer = made.trainer(twin, architecture, data, **fields)
    return trainer, twin.batch(data.train.images, data.train.labels, masks), data.train.images


def assert_statistics(trainer: Any, expected: Any, tolerance: float) -> None:
    weights = trainer.weights()
    assert expected
    for name, array in expected.items():
        assert np.abs(weights[name] - array).max() <= tolerance * np.abs(array).max(), name
