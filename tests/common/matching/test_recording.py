import re

import numpy as np
import pytest

from common.matching import recording
from common.matching.recording import LayerRecorder
from common.matching.records import Array, Layer, OpenRequest, images
from common.models import user_code
from common.spec import SpecError
from tests.support import comparisons
from tests.support.refusals import refused

IMAGE = np.random.default_rng(0).normal(size=(4, 2, 3, 5))  # NHWC


def flat(order: str) -> Array:
    return (IMAGE if order == "hwc" else IMAGE.transpose(0, 3, 1, 2)).reshape(4, -1)


def recorded(order: str, *, channels_first: bool) -> LayerRecorder:
    recorder = LayerRecorder()
    native = IMAGE.transpose(0, 3, 1, 2) if channels_first else IMAGE
    recorder.add(Layer(name="conv", kind="conv"), native, native, channels_first=channels_first)
    recorder.add(Layer(name="dense", kind="dense"), flat(order), np.ones((4, 7)), channels_first=channels_first)
    return recorder


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("order", ["hwc", "chw"])
def test_a_flattened_image_is_recorded_in_one_order_whatever_the_framework(order: str, channels_first: bool) -> None:
    recorder = recorded(order, channels_first=channels_first)
    assert recorder.layers[1].flattened == order
    assert np.array_equal(recorder.values[0][1], IMAGE)
    assert np.array_equal(recorder.values[1][0], IMAGE.reshape(4, -1))
    kernel = np.random.default_rng(1).normal(size=(30, 7))
    native = recording.to_native(kernel, "kernel", recorder.orders["dense"])
    assert np.allclose(flat(order) @ native, IMAGE.reshape(4, -1) @ kernel)
    assert np.array_equal(recording.to_canonical(native, "kernel", recorder.orders["dense"]), kernel)
    assert np.array_equal(recording.to_native(kernel[0], "bias", recorder.orders["dense"]), kernel[0])


def test_masks_of_dropout_are_the_same_in_every_layout_and_another_at_each_step() -> None:
    masks: dict[bool, list[Array]] = {}
    for first in (True, False):
        recorder = LayerRecorder(keep=False, step=3)
        native = IMAGE.transpose(0, 3, 1, 2) if first else IMAGE
        recorder.add(Layer(name="conv", kind="conv"), native, native, channels_first=first)
        image = recorder.keep_mask(native, native.shape, 0.5, channels_first=first)
        order = "chw" if first else "hwc"
        recorder.add(Layer(name="flatten", kind="flatten"), native, flat(order), channels_first=first)
        flattened = recorder.keep_mask(flat(order), (4, 30), 0.5, channels_first=first)
        masks[first] = [image.transpose(0, 2, 3, 1) if first else image, flattened]
        assert recorder.layers == []
    assert np.array_equal(masks[True][0], masks[False][0])
    assert np.array_equal(masks[True][1].reshape(4, 5, 2, 3).transpose(0, 2, 3, 1).reshape(4, -1), masks[False][1])
    other = LayerRecorder(step=4).keep_mask(IMAGE, (4, 2, 3, 5), 0.5, channels_first=False)
    assert not np.array_equal(masks[False][0], other)


def test_edges_are_found_where_a_layer_takes_what_another_gave() -> None:
    def values(seed: int, channels: int = 4) -> Array:
        return np.random.default_rng(seed).normal(size=(4, 2, 3, channels))

    recorder, (a, b, c) = LayerRecorder(edges=True), (values(1), values(2), values(3))
    calls = [
        ("a", "conv", IMAGE, a),
        ("b", "conv", IMAGE, b),
        ("relu", "activation", b, np.maximum(b, 0)),
        ("join", "concatenate", a, np.concatenate([a, np.maximum(b, 0)], -1)),
        ("c", "conv", np.concatenate([a, np.maximum(b, 0)], -1), c),
        ("sum", "add", c, c + a),
        ("of_functions", "conv", np.maximum(np.concatenate([b, c], -1), 0), values(4)),
        ("beside", "conv", np.maximum(np.concatenate([b, c], -1), 0), values(5)),
        ("dense", "dense", (c + a).reshape(4, -1), np.ones((4, 7))),
        ("unknown", "conv", np.tanh(a), values(6)),
        ("of_unknown", "add", np.tanh(a), np.tanh(a) + b),
    ]
    image = IMAGE + 1  # the model scales it itself
    recorder.set_input(image, image.shape[1:], channels_first=False)
    for name, kind, given, made in calls:
        parameters = {"kernel": [1]} if kind in ("conv", "dense") else {}
        recorder.add(Layer(name=name, kind=kind, parameters=parameters), given, made, channels_first=False)
    assert {each.name: each.fed_by for each in recorder.layers} == {
        "a": ["the image"],
        "b": ["the image"],
        "relu": ["b"],
        "join": ["a", "relu"],
        "c": ["join"],
        "sum": ["c", "a"],
        "of_functions": ["relu", "c"],
        "beside": ["relu", "c"],
        "dense": ["sum"],
        "unknown": [],
        "of_unknown": [],
    }


def test_values_that_several_layers_gave_are_no_edge() -> None:
    rng = np.random.default_rng(0)
    normal, zeros = rng.normal(size=(4, 6)), np.zeros((4, 6))
    recorder = LayerRecorder(edges=True)
    calls = {
        "first": ("dense", normal, zeros),  # their weights begin as zeros
        "second": ("dense", normal, zeros),
        "both": ("concatenate", zeros, np.concatenate([zeros, zeros], -1)),
        "of_both": ("dense", np.concatenate([zeros, zeros], -1), normal),
        "one": ("dense", normal, normal + 1),
        "same": ("dense", normal, normal + 1),
        "of_one": ("dense", normal + 1, normal + 2),
        "kept": ("dropout", normal + 2, normal + 2),  # it hands on what it takes
        "of_kept": ("dense", normal + 2, normal),
        "dead": ("dense", normal, -1 - np.abs(normal)),
        "of_dead": ("dense", zeros, normal),  # behind a ReLU that is not recorded
    }
    for name, (kind, given, made) in calls.items():
        layer = Layer(name=name, kind=kind, parameters={"kernel": [1]} if kind == "dense" else {})
        recorder.add(layer, given, made, channels_first=False)
    edges = {each.name: each.fed_by for each in recorder.layers}
    assert [edges[name] for name in ("both", "of_both", "of_one", "of_dead")] == [[], [], [], []]
    assert (edges["kept"], edges["of_kept"]) == (["of_one"], ["kept"])


def test_what_another_layer_takes_is_no_edge_where_outputs_fit() -> None:
    rng = np.random.default_rng(0)
    image, stem, same = (rng.normal(size=(4, 6)) for _ in range(3))
    recorder = LayerRecorder(edges=True)
    calls = [
        ("stem", image, stem),
        ("one", stem, same),
        ("two", stem, same),
        ("of_one", same, stem + 1),
        ("of_two", same, stem + 2),
    ]
    for name, given, made in calls:
        recorder.add(Layer(name=name, kind="dense", parameters={"kernel": [1]}), given, made, channels_first=False)
    assert [each.fed_by for each in recorder.layers[3:]] == [[], []]


@pytest.mark.parametrize("channels_first", [True, False])
def test_an_image_that_a_model_turns_is_followed_through_layers_with_parameters(channels_first: bool) -> None:
    def native(image: Array) -> Array:
        return image.transpose(0, 3, 1, 2) if channels_first else image

    def other(image: Array) -> Array:
        return image if channels_first else image.transpose(0, 3, 1, 2)

    recorder, kernel = LayerRecorder(edges=True), {"kernel": [1]}
    for name, kind, parameters, layout, given, made in [
        ("conv", "conv", kernel, native, IMAGE, IMAGE + 1),
        ("norm", "layer_norm", kernel, other, IMAGE + 1, IMAGE + 2),  # a layer with a forward of its own
        ("relu", "activation", {}, other, IMAGE + 2, IMAGE + 3),
        ("halved", "activation", {}, other, IMAGE / 2, IMAGE + 4),  # what a function gave tells by its shape
        ("sum", "add", {}, native, IMAGE + 1, IMAGE + 5),
        ("earlier", "activation", {}, other, IMAGE + 2, IMAGE + 6),
    ]:
        layer = Layer(name=name, kind=kind, parameters=parameters)
        recorder.add(layer, layout(given), layout(made), channels_first=channels_first)
        assert np.array_equal(recorder.values[-1][0], given) and np.array_equal(recorder.values[-1][1], made), name
    assert {each.name: each.fed_by for each in recorder.layers}["norm"] == ["conv"]


def test_a_layer_along_the_last_axis_is_recorded_as_what_it_takes() -> None:
    """Its channels are the last axis of whatever it is given: an image that should have been turned is another one."""
    recorder = LayerRecorder()
    recorder.add(Layer(name="conv", kind="conv", parameters={"kernel": [1]}), IMAGE, IMAGE, channels_first=False)
    for turned in (IMAGE, IMAGE.transpose(0, 3, 1, 2)):
        recorder.add(Layer(name="dense", kind="dense", parameters={"kernel": [1]}), turned, turned + 1, channels_first=None)
        assert all(np.array_equal(*pair) for pair in zip(recorder.values[-1], (turned, turned + 1), strict=True))


def test_a_layer_that_is_called_again_gets_a_number() -> None:
    recorder = LayerRecorder()
    for _ in range(3):
        recorder.add(Layer(name="relu", kind="activation"), IMAGE, IMAGE, channels_first=False)
    assert [layer.name for layer in recorder.layers] == ["relu", "relu#2", "relu#3"]


@pytest.mark.parametrize(
    ("given", "expected"), [((8, 3, 2), (0, 1)), ((7, 3, 2), (1, 1)), ((8, 3, 1), (1, 1)), ((4, 3, 1, 2), (2, 2))]
)
def test_same_padding_is_tensorflows(given: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert recording.same_padding(*given) == expected


def test_both_sides_draw_the_same_images_and_large_ones_are_few() -> None:
    ask = OpenRequest(model="a:b", image=(8, 8, 3), classes=5)
    assert np.array_equal(images(ask)[0], images(comparisons.with_fields(ask, model="c:d"))[0])
    assert not np.array_equal(images(ask, 1)[0], images(ask)[0])
    assert images(comparisons.with_fields(ask, prepare="a:p"))[0].dtype == np.uint8
    assert len(images(comparisons.with_fields(ask, image=(224, 224, 3)))[1]) == 4


def test_a_line_of_the_user_is_named() -> None:
    class Made:
        def __init__(self) -> None:
            self.value = 1

    with user_code.record_lines(Made) as lines:
        made = Made()
    where = lines[id(made)]
    assert where is not None and "test_recording.py:" in where
    with (
        refused(SpecError, field="a:b", names=["ZeroDivisionError", "division by zero", "test_recording.py"]) as caught,
        user_code.report_errors("a:b"),
    ):
        _ = 1 / 0
    assert re.search(r"test_recording\.py:\d+", str(caught.error))


class Named:
    def __init__(self, name: str, *held: "Named") -> None:
        self.name, self.held = name, held


def test_layers_of_one_name_get_those_around_them_and_a_shared_layer_has_one() -> None:
    shared = Named("shared")
    first, second = Named("conv"), Named("conv")
    model = Named("net", Named("a", first, Named("dense"), shared), Named("b", second, shared, Named("x"), Named("x")))
    names = recording.unique_names(model, lambda layer: layer.held)
    assert list(names.values()) == ["a", "a/conv", "dense", "shared", "b", "b/conv", "b/x", "b/x~2"]
    assert (names[id(first)], names[id(second)]) == ("a/conv", "b/conv")


def test_an_image_whose_channels_are_moved_before_it_is_flattened_is_flattened_channels_first() -> None:
    """As Keras's Permute((3, 1, 2)) in front of Flatten, in a port that keeps torch's order of weights."""
    image = np.random.default_rng(0).standard_normal((2, 4, 5, 3))
    turned = image.transpose(0, 3, 1, 2)
    recorder = LayerRecorder()
    recorder.add(Layer(name="conv", kind="conv", parameters={"kernel": [3, 3, 3, 3]}), image, image, channels_first=False)
    recorder.add(Layer(name="permute", kind="other"), image, turned, channels_first=False)
    recorder.add(Layer(name="flatten", kind="flatten"), turned, turned.reshape(2, -1), channels_first=False)
    assert [(layer.name, layer.flattened) for layer in recorder.layers] == [("conv", None), ("flatten", "chw")]
    taken, given = recorder.values[-1]
    assert np.array_equal(taken, image) and np.array_equal(given, image.reshape(2, -1))
