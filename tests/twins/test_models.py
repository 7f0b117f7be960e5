from typing import Any

import numpy as np
import pytest

from common import spec
from common.models import architectures, stages
from common.models.architectures import Architecture, AveragePool, Conv, Flatten, MaxPool, ReLU, no_padding, same_padding
from tests.twins import made, oracles
from tests.twins.adapters import Twin


@pytest.mark.parametrize("model", made.MODELS)
def test_a_model_has_the_parameters_of_its_architecture(twin: Twin, model: str) -> None:
    architecture = made.resolve(model)
    extracted = twin.weights.extract(twin.models.build(architecture, "float32"), architecture)
    assert {name: array.shape for name, array in extracted.items()} == {
        parameter.name: parameter.shape for parameter in architecture.parameters()
    }


@pytest.mark.parametrize(
    ("model", "values", "trainable"),
    [
        ("simple_cnn", 307_786, 307_786),
        ("mini_xception", 96_202, 94_474),
        ("resnet18", 11_191_242, 11_181_642),
        ("two_path_cnn", 21_482, 20_970),
    ],
)
def test_a_summary_counts_the_published_number_of_values(twin: Twin, model: str, values: int, trainable: int) -> None:
    summary = twin.models.summarize(made.resolve(model))
    assert (summary["framework"], summary["model"]) == (twin.framework, model)
    assert (summary["values"], summary["trainable_values"]) == (values, trainable)
    assert sum(layer["values"] for layer in summary["layers"]) == values


@pytest.mark.parametrize("model", ["made", *made.MODELS])
def test_a_summary_lists_every_layer_with_the_shape_that_it_gives(twin: Twin, model: str) -> None:
    architecture = made.network() if model == "made" else made.resolve(model)
    size = architecture.image_size
    forward = oracles.Forward(architecture, made.values(architecture), np.zeros((1, size, size, 3), np.uint8), training=False)
    assert [
        (layer["name"], layer["kind"], layer["output_shape"]) for layer in twin.models.summarize(architecture)["layers"]
    ] == [
        (layer.name, type(layer).__name__, list(forward.outputs[layer.name].shape[1:]))
        for layer in architecture.leaves()
        if not isinstance(layer, ReLU)
    ]


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("made", True),
        ("made", False),
        *(pytest.param(model, True, marks=pytest.mark.slow if model in made.DEEP else ()) for model in spec.MODELS),
        *(pytest.param(model, False, marks=pytest.mark.slow) for model in spec.MODELS),
    ],
)
def test_logits_are_those_of_the_formula(twin: Twin, model: str, training: bool) -> None:
    architecture = made.network() if model == "made" else made.resolve(model)
    images, labels = examples(architecture, 4)
    masks = made.masks(architecture, 4)
    trainer = made.trainer(twin, architecture)
    expected = oracles.Forward(architecture, made.values(architecture), images, masks, training=training).logits
    logits = trainer.logits(twin.batch(images, labels, masks), training=training)
    assert logits.dtype == np.float64
    assert_close(logits, expected, 1e-12)


@pytest.mark.parametrize(
    ("model", "structure"),
    [
        ("resnet18", {"width": 0.25, "depth": 0.5, "dropout": 0.3}),
        ("two_path_cnn", {"width": 0.5, "depth": 2, "dropout": 0.3}),
        ("resnet50", {"width": 1 / 16, "depth": 0.3}),
        ("vgg16_bn", {"width": 1 / 64, "depth": 0.5, "dropout": 0.0}),
    ],
)
def test_a_model_of_another_structure_is_built_so(twin: Twin, model: str, structure: dict[str, float]) -> None:
    architecture = architectures.resolve(model, 10, 64, **structure)
    assert len(architecture.dropouts) == (1 if structure.get("dropout") else 0)
    assert_computes(twin, architecture)


@pytest.mark.parametrize(
    ("model", "number"),
    # The second half cuts layers with branches.
    [*((model, 3) for model in ("made", "simple_cnn", "resnet18")), ("made", 9), ("mini_xception", 4), ("two_path_cnn", 7)],
)
def test_the_stages_of_a_model_one_after_the_other_are_the_model(twin: Twin, model: str, number: int) -> None:
    architecture = made.network() if model == "made" else made.resolve(model)
    images, _ = examples(architecture, 4)
    masks, values = made.masks(architecture, 4), made.values(architecture)
    expected = oracles.Forward(architecture, values, images, masks, training=True)
    handed_on, statistics = images / 255.0, dict[str, Any]()
    for stage in stages.cut(architecture, number):
        part = twin.models.build_stage(stage, "float64")
        twin.weights.load(part, stage.architecture, values)
        handed_on = twin.through_stage(part, handed_on, masks[stage.masks])
        assert handed_on.shape[1:] == stage.output_shape
        statistics |= twin.weights.extract(part, stage.architecture)
    assert_close(handed_on, expected.logits, 1e-12)
    assert statistics.keys() == values.keys()
    for name, array in expected.statistics.items():
        assert_close(statistics[name], array, 1e-12)


@pytest.mark.parametrize("model", ["made", "mini_xception"])
def test_float32_logits_differ_from_the_formula_by_rounding(twin: Twin, model: str) -> None:
    architecture = made.network() if model == "made" else made.resolve(model)
    images, labels = examples(architecture, 4)
    masks = made.masks(architecture, 4)
    trainer = made.trainer(twin, architecture, precision="float32")
    expected = oracles.Forward(architecture, made.values(architecture), images, masks, training=True).logits
    logits = trainer.logits(twin.batch(images, labels, masks), training=True)
    assert logits.dtype == np.float32
    assert_close(logits, expected, 2e-5)


@pytest.mark.parametrize("size", [5, 6, 7, 8])
@pytest.mark.parametrize("kernel_size", [2, 3, 5])
def test_same_padding_under_a_stride_puts_the_odd_pixel_last(twin: Twin, size: int, kernel_size: int) -> None:
    same = same_padding(size, kernel_size, 2)
    conv = Conv("conv", 3, 2, kernel_size, 2, same, bias=True)
    pool = MaxPool("pool", kernel_size, 2, same_padding(-(-size // 2), kernel_size, 2))
    assert_computes(twin, Architecture("made", size, 2, (conv, pool, Flatten("flatten"))))


@pytest.mark.parametrize("padding", [((0, 1), (0, 1)), ((1, 0), (1, 0)), ((1, 1), (1, 1)), ((0, 2), (1, 0)), no_padding])
def test_the_padding_of_a_max_pool_never_wins(twin: Twin, padding: Any) -> None:
    architecture = Architecture(
        "made", 6, 2, (Conv("conv", 3, 2, 1, 1, no_padding, bias=True), MaxPool("pool", 3, 2, padding), Flatten("flatten"))
    )
    images, labels = examples(architecture, 3)
    trainer = made.trainer(twin, architecture)
    below_zero = made.values(architecture) | {"conv.bias": np.array([-100.0, -200.0])}
    trainer.load_weights(below_zero)
    logits = trainer.logits(twin.batch(images, labels), training=False)
    assert (logits < -90).all()
    assert_close(logits, oracles.Forward(architecture, below_zero, images, training=False).logits, 1e-14)


@pytest.mark.parametrize("padding", [((0, 1), (0, 1)), ((1, 0), (2, 0)), ((1, 1), (1, 1)), ((2, 2), (2, 2)), no_padding])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_padding_of_an_average_pool_does_not_count(twin: Twin, padding: Any, stride: int) -> None:
    conv = Conv("conv", 3, 2, 1, 1, no_padding, bias=True)
    assert_computes(twin, Architecture("made", 6, 2, (conv, AveragePool("pool", 3, stride, padding), Flatten("flatten"))))


@pytest.mark.parametrize("channels", [(3, 3), (3, 6), (6, 4), (4, 4)])
def test_a_grouped_convolution_sees_the_channels_of_its_group(twin: Twin, channels: tuple[int, int]) -> None:
    """Depthwise, with a multiplier, in groups of several channels."""
    inputs, outputs = channels
    grouped = Conv("grouped", inputs, outputs, 3, 2, ((1, 1), (0, 1)), bias=True, groups=3 if inputs == 3 else 2)
    widen = Conv("widen", 3, inputs, 1, 1, no_padding, bias=False)
    assert_computes(twin, Architecture("made", 6, 2, (widen, grouped, Flatten("flatten"))))


@pytest.mark.parametrize("padding", [((2, 0), (0, 1)), ((1, 1), (2, 2)), ((0, 0), (3, 1))])
def test_a_convolution_pads_each_side_as_told(twin: Twin, padding: Any) -> None:
    conv = Conv("conv", 3, 2, 3, 2, padding, bias=False)
    assert_computes(twin, Architecture("made", 6, 2, (conv, Flatten("flatten"))))


def test_flattening_keeps_rows_before_columns_before_channels(twin: Twin) -> None:
    layers = (Conv("conv", 3, 3, 1, 1, no_padding, bias=False), Flatten("flatten"))
    trainer = made.trainer(twin, Architecture("made", 4, 48, layers))
    trainer.load_weights({"conv.kernel": np.eye(3).reshape(1, 1, 3, 3)})
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    logits = trainer.logits(twin.batch(images, np.zeros(2, np.int64)), training=False)
    assert np.array_equal(np.rint(logits * 255), images.reshape(2, 48))


def test_dropout_keeps_what_its_mask_keeps_and_scales_it(twin: Twin) -> None:
    architecture = made.network()
    images, labels = examples(architecture, 3)
    trainer = made.trainer(twin, architecture)
    values = made.values(architecture)

    def logits(mask: Any) -> Any:
        return trainer.logits(twin.batch(images, labels, [mask]), training=True)

    nothing = logits(np.zeros((3, 6), bool))
    assert np.array_equal(nothing, np.tile(values["logits.bias"], (3, 1)))
    mixed = np.array([[True] * 6, [False] * 6, [True, False] * 3])
    everything, some = logits(np.ones((3, 6), bool)), logits(mixed)
    assert np.array_equal(some[0], everything[0])
    assert np.array_equal(some[1], nothing[1])
    assert_close(some, oracles.Forward(architecture, values, images, [mixed], training=True).logits, 1e-12)


def test_dropout_is_the_identity_in_evaluation_mode(twin: Twin) -> None:
    architecture = made.network()
    images, labels = examples(architecture, 3)
    trainer = made.trainer(twin, architecture)
    kept, dropped = (
        trainer.logits(twin.batch(images, labels, [np.full((3, 6), keep)]), training=False) for keep in (True, False)
    )
    assert np.array_equal(kept, dropped)


def examples(architecture: Architecture, count: int) -> tuple[Any, Any]:
    split = made.dataset(architecture, train=count).train
    return split.images, split.labels


def assert_close(received: Any, expected: Any, tolerance: float) -> None:
    assert received.shape == expected.shape
    assert np.abs(received - expected).max() <= tolerance * np.abs(expected).max()


def assert_computes(twin: Twin, architecture: Architecture) -> None:
    images, labels = examples(architecture, 3)
    logits = made.trainer(twin, architecture).logits(twin.batch(images, labels), training=False)
    assert_close(logits, oracles.Forward(architecture, made.values(architecture), images, training=False).logits, 1e-14)
