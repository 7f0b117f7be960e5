import numpy as np
import pytest

from common.models.architectures import Architecture, Flatten, depthwise_conv
from tests.twins import made
from tests.twins.adapters import Twin


@pytest.mark.parametrize("model", ["made", *made.MODELS])
def test_float64_weights_come_back_to_the_bit(twin: Twin, model: str) -> None:
    architecture = made.network() if model == "made" else made.resolve(model)
    built, values = twin.models.build(architecture, "float64"), made.values(architecture)
    twin.weights.load(built, architecture, values)
    extracted = twin.weights.extract(built, architecture)
    assert list(extracted) == list(values)
    for name, array in values.items():
        assert extracted[name].dtype == np.float64
        assert np.array_equal(extracted[name], array), name


def test_float32_weights_are_the_drawn_ones_rounded(twin: Twin) -> None:
    architecture = made.resolve("mini_xception")
    built, values = twin.models.build(architecture, "float32"), made.values(architecture)
    twin.weights.load(built, architecture, values)
    for name, array in twin.weights.extract(built, architecture).items():
        assert array.dtype == np.float32
        assert np.array_equal(array, values[name].astype(np.float32)), name


def test_a_depthwise_kernel_keeps_each_channels_window(twin: Twin) -> None:
    depthwise = depthwise_conv("depthwise", 3, 3, 1, ((1, 1), (1, 1)))
    architecture = Architecture("made", 3, 27, (depthwise, Flatten("flatten")))
    kernel = np.arange(27.0).reshape(3, 3, 1, 3)
    trainer = made.trainer(twin, architecture)
    trainer.load_weights({"depthwise.kernel": kernel})
    # A single bright pixel in the middle shows the kernel itself, mirrored in both directions.
    images = np.zeros((1, 3, 3, 3), np.uint8)
    images[0, 1, 1] = 255
    logits = trainer.logits(twin.batch(images, np.zeros(1, np.int64)), training=False)
    assert np.abs(logits.reshape(3, 3, 3) - kernel[::-1, ::-1, 0]).max() < 1e-13
    assert np.array_equal(trainer.weights()["depthwise.kernel"], kernel)


def test_extracted_weights_are_a_copy(twin: Twin) -> None:
    architecture = made.network()
    trainer = made.trainer(twin, architecture)
    before = trainer.weights()
    trainer.load_weights(made.values(architecture, key=6))
    for name, array in made.values(architecture).items():
        assert np.array_equal(before[name], array), name


def test_gradients_come_by_canonical_name_in_the_canonical_layout(twin: Twin) -> None:
    architecture = made.network()
    data = made.dataset(architecture)
    batch = twin.batch(data.train.images[:3], data.train.labels[:3], made.masks(architecture, 3))
    gradients = made.trainer(twin, architecture).gradients(batch, 3)
    assert {name: array.shape for name, array in gradients.items()} == {
        parameter.name: parameter.shape for parameter in architecture.parameters() if parameter.trainable
    }
