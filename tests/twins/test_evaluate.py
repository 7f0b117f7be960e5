from collections import Counter
from typing import Any

import numpy as np
import pytest

from common.data.sources import DatasetSplit
from common.training import evaluation
from tests.twins import made, oracles
from tests.twins.adapters import Twin

ARCHITECTURE = made.network()
DATA = made.dataset(ARCHITECTURE, validation=7)

LOSSES = ["sparse_categorical_crossentropy", "categorical_crossentropy"]


@pytest.mark.parametrize("mode", ["serial", "data_parallel"])
@pytest.mark.parametrize("batch_size", [3, 4, 7, 100])
def test_evaluation_counts_the_last_partial_batch(twin: Twin, mode: str, batch_size: int) -> None:
    assert_scores_each_example_once(made.trainer(twin, ARCHITECTURE, DATA, mode=mode), DATA.validation, batch_size)


@pytest.mark.parametrize("count", [1, 2])
def test_evaluation_scores_fewer_examples_than_replicas(twin: Twin, count: int) -> None:
    few = DatasetSplit(images=DATA.validation.images[:count], labels=DATA.validation.labels[:count])
    assert_scores_each_example_once(made.trainer(twin, ARCHITECTURE, DATA, mode="data_parallel"), few, 9)


@pytest.mark.parametrize("model", ["simple_cnn", "mini_xception"])
def test_a_replica_without_an_image_takes_no_part_in_a_score_in_float32_either(twin: Twin, model: str) -> None:
    architecture = made.resolve(model)
    data = made.dataset(architecture, validation=7)
    whole = made.trainer(twin, architecture, data, mode="data_parallel", precision="float32")
    loss, predictions = whole.score(data.validation.images[:1], data.validation.labels[:1])
    alone = made.trainer(twin, architecture, data, precision="float32").score(
        data.validation.images[:1], data.validation.labels[:1]
    )
    assert predictions.tolist() == alone[1].tolist() and len(predictions) == 1
    assert float(twin.array(loss)) == pytest.approx(float(twin.array(alone[0])), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_score_is_the_sum_of_the_losses_and_the_likeliest_labels(twin: Twin, loss: str) -> None:
    split = DATA.train
    score, predictions = made.trainer(twin, ARCHITECTURE, DATA, loss=loss)._score_batch(
        twin.tensor(split.images), twin.tensor(split.labels)
    )
    logits = oracle(split)
    assert twin.array(predictions).dtype == np.int64
    assert np.array_equal(twin.array(predictions), logits.argmax(1))
    assert float(twin.array(score)) == pytest.approx(oracles.cross_entropy(logits, split.labels).sum(), rel=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("count", [1, 5])
def test_both_losses_are_the_cross_entropy(twin: Twin, loss: str, count: int) -> None:
    logits, labels = random_logits(count)
    share = twin.train.share_of_loss(twin.tensor(logits), twin.tensor(labels), twin.number(count), loss)
    assert float(twin.array(share)) == pytest.approx(oracles.cross_entropy(logits, labels).mean(), rel=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_large_logits_is_finite(twin: Twin, loss: str) -> None:
    logits, labels = np.array([[1000.0, -1000.0], [-1000.0, 1000.0]]), np.array([0, 0])
    share = twin.train.share_of_loss(twin.tensor(logits), twin.tensor(labels), twin.number(2), loss)
    assert float(twin.array(share)) == 1000.0


@pytest.mark.parametrize("loss", LOSSES)
def test_shares_of_uneven_shards_add_up_to_the_mean_loss(twin: Twin, loss: str) -> None:
    logits, labels = random_logits(8)
    shares = [
        float(twin.array(twin.train.share_of_loss(twin.tensor(logits[part]), twin.tensor(labels[part]), twin.number(8), loss)))
        for part in (slice(0, 5), slice(5, 7), slice(7, 8))
    ]
    assert sum(shares) == pytest.approx(oracles.cross_entropy(logits, labels).mean(), rel=1e-14)


def random_logits(count: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(11)
    return generator.normal(0, 5, (count, 6)), generator.integers(0, 6, count)


def oracle(split: DatasetSplit) -> Any:
    masks = made.masks(ARCHITECTURE, len(split))
    return oracles.Forward(ARCHITECTURE, made.values(ARCHITECTURE), split.images, masks, training=False).logits


def assert_scores_each_example_once(trainer: Any, split: DatasetSplit, batch_size: int) -> None:
    scored: Counter[bytes] = Counter()
    score = trainer.score

    def watched(images: Any, labels: Any) -> Any:
        scored.update(image.tobytes() for image in images)
        return score(images, labels)

    trainer.score = watched
    metrics, predictions = evaluation.evaluate(trainer, split, batch_size)
    logits = oracle(split)
    assert scored == Counter(image.tobytes() for image in split.images)
    assert np.array_equal(predictions, logits.argmax(1))
    assert metrics.num_examples == len(split)
    assert metrics.num_correct == (logits.argmax(1) == split.labels).sum()
    assert metrics.loss == pytest.approx(oracles.cross_entropy(logits, split.labels).mean(), rel=1e-13)
