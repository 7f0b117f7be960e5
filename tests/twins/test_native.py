"""A matched pair in a trainer: the user's own classes, `ForRun` of tests/planted, under the suite's names and masks."""

from dataclasses import replace

import numpy as np
import pytest

from common.matching import pair
from common.models import architectures
from common.models.architectures import Architecture, Native, Opaque
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


def test_layers_of_one_name_in_two_blocks_are_two_layers(twin: Twin) -> None:
    names = ["0.down", "0.same", "1.down", "1.same", "3"]
    keras = dict(zip(names, ["block/down", "block/same", "block_1/down", "block_1/same", "dense"], strict=True))
    shapes = {name: (3, 3, 3 if name == "0.down" else 4, 4) for name in names[:-1]} | {"3": (16, CLASSES)}
    layers = tuple(
        Native(name, "dense" if name == "3" else "conv", (("kernel", shape), ("bias", shape[-1:])))
        for name, shape in shapes.items()
    )
    sizes = (4, 4, 2, 2)
    model = Opaque("blocks", (8, 8, 3), CLASSES, layers, (*((size, size, 4) for size in sizes), (CLASSES,)))
    side = {
        "pytorch": pair.PairedModel("tests.planted.ports_torch:blocks", {name: name for name in names}, {"3": (2, 2, 4)}),
        "tensorflow": pair.PairedModel("tests.planted.ports_keras:blocks", keras),
    }[twin.framework]
    own = twin.native.build(side, Architecture("blocks", SIZE_PX, CLASSES, (model,)), "float64", None)
    layer = next(each for each in own.layers if hasattr(each, "find")) if twin.framework == "tensorflow" else own
    kernels = [
        getattr(found, "weight", None) if twin.framework == "pytorch" else found.kernel for found in map(layer.find, names)
    ]
    assert len({id(kernel) for kernel in kernels}) == len(names)


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
        (5, 12, r"images of 8x8 pixels\. Received: 12x12\..*data\.image_size=8"),
    ],
)
def test_other_data_than_those_of_the_match_are_refused(classes: int, size: int, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        architectures.resolve(PAIR, classes, size)


def test_a_flattened_image_is_read_channels_first() -> None:
    image = np.arange(24).reshape(2, 3, 4)
    order = pair.PairedModel("net:Net", {}, {"dense": (2, 3, 4)}).order("dense")
    assert np.array_equal(image.transpose(2, 0, 1).reshape(-1)[order], image.reshape(-1))
