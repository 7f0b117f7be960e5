"""A matched pair in a trainer: the user's own classes, `ForRun` of tests/planted, under the suite's names and masks."""

from dataclasses import replace

import numpy as np
import pytest

from common.matching import pair
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import SpecError
from tests.planted import pair_for_run
from tests.twins import made
from tests.twins.adapters import Twin

PAIR = "tests.planted.pair_for_run"
CLASSES, SIZE_PX = 5, 8


@pytest.fixture
def architecture() -> Architecture:
    return architectures.resolve(PAIR, CLASSES, SIZE_PX)


def test_every_array_of_a_users_model_is_loaded_and_read_back(twin: Twin, architecture: Architecture) -> None:
    trainer = made.trainer(twin, architecture)
    values = made.values(architecture)
    trainer.load_weights(values)
    found = trainer.weights()
    assert found.keys() == values.keys()
    assert all(np.array_equal(found[name], values[name]) for name in values)
    assert trainer.num_values()[0] == sum(array.size for array in values.values())


def test_every_mask_of_the_batch_reaches_its_dropout(twin: Twin, architecture: Architecture) -> None:
    trainer, split = made.trainer(twin, architecture), made.dataset(architecture, train=5).train
    masks = [np.ones((5, each.units), np.bool_) for each in architecture.dropouts]

    def logits() -> np.ndarray:
        return trainer.logits(twin.batch(split.images, split.labels, masks), training=True)

    kept = logits()
    for mask in masks:
        mask[0, 0] = False
        assert np.abs(logits() - kept)[0].max() > 1e-9
        mask[0, 0] = True
    assert np.array_equal(logits(), kept)


def test_a_users_model_trains_in_replicas_as_it_does_in_one(twin: Twin, architecture: Architecture) -> None:
    data = made.dataset(architecture, train=6)
    masks = made.masks(architecture, 6)
    batch, losses, weights = twin.batch(data.train.images, data.train.labels, masks), {}, {}
    for mode in ("serial", "data_parallel"):
        trainer = made.trainer(twin, architecture, data, mode=mode, batch_norm_statistics="synchronised")
        losses[mode] = trainer.fetch([trainer.train_step(batch, 6, 0.1)[0] for _ in range(3)])
        weights[mode] = trainer.weights()
    assert np.abs(losses["serial"] - losses["data_parallel"]).max() < 1e-12
    assert losses["serial"][2] < losses["serial"][0]
    apart = {name: np.abs(array - weights["data_parallel"][name]).max() for name, array in weights["serial"].items()}
    assert max(apart.values()) < 1e-12, apart


def test_the_running_variance_is_the_unbiased_one(twin: Twin, architecture: Architecture) -> None:
    data = made.dataset(architecture, train=6)
    batch = twin.batch(data.train.images, data.train.labels, made.masks(architecture, 6))
    trainer, grouped = (
        made.trainer(twin, architecture, data, mode=mode, global_batch_size=6, **fields)
        for mode, fields in (("serial", {}), ("data_parallel", {"batch_norm_statistics": "synchronised"}))
    )
    before = trainer.weights()
    kernel, bias = before["stem.kernel"], before["stem.bias"]
    images = np.pad(data.train.images / 255, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), (1, 2))
    variance = (np.einsum("nhwcij,ijco->nhwo", windows, kernel) + bias).var((0, 1, 2), ddof=1)
    expected = 0.9 * before["block.0.variance"] + 0.1 * variance
    for each in (trainer, grouped):
        each.train_step(batch, 6, 0.0)
        assert np.abs(each.weights()["block.0.variance"] - expected).max() < 1e-12


@pytest.mark.parametrize(("name", "said"), [("ONE", "is one model, and a run needs several"), ("frozen", "Freeze no layer")])
def test_a_model_that_cannot_be_trained_as_matched_is_refused(
    twin: Twin, architecture: Architecture, name: str, said: str
) -> None:
    side = {"pytorch": pair_for_run.PYTORCH, "tensorflow": pair_for_run.TENSORFLOW}[twin.framework]
    other = replace(side, model=f"{side.model.partition(':')[0]}:{'one_for_run' if name == 'ONE' else 'frozen_for_run'}")
    with pytest.raises(SpecError, match=said):
        twin.native.build(other, architecture, "float32", None)


@pytest.mark.parametrize(
    ("classes", "size", "said"),
    [
        (4, 8, "matched with 5 classes. Received: data with 4"),
        (5, 12, "images of 8x8 pixels. Received: 12x12. Use --image-size 8"),
    ],
)
def test_other_data_than_those_of_the_match_are_refused(classes: int, size: int, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        architectures.resolve(PAIR, classes, size)


def test_a_flattened_image_is_read_channels_first() -> None:
    image = np.arange(24).reshape(2, 3, 4)
    order = pair.Side("net:Net", {}, {"dense": (2, 3, 4)}).order("dense")
    assert np.array_equal(image.transpose(2, 0, 1).reshape(-1)[order], image.reshape(-1))
