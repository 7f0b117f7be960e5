import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from common.models import architectures, weights
from common.models.architectures import Architecture, BatchNorm, Conv, Dense, Layer, depthwise_conv, no_padding
from common.models.weights import Weights, WeightsError
from tests.support.refusals import refused

DENSE = Dense("dense", 40, 30, bias_initializer="uniform_fan_in")
CONV = Conv("conv", 16, 64, 3, 1, no_padding, bias=True)


def a_model(*layers: Layer) -> Architecture:
    return Architecture("any", 32, 10, layers)


def equal(left: Weights, right: Weights) -> dict[str, bool]:
    return {name: np.array_equal(left[name], right[name]) for name in left.keys() & right.keys()}


# Draws.


@pytest.mark.parametrize("model", ["simple_cnn", "mini_xception"])
def test_a_seed_gives_the_same_float64_values_for_every_parameter_each_time(model: str) -> None:
    architecture = architectures.resolve(model, 10, 32)
    drawn = weights.initial(architecture, 3)
    assert {name: (array.shape, array.dtype) for name, array in drawn.items()} == {
        parameter.name: (parameter.shape, np.float64) for parameter in architecture.parameters()
    }
    assert all(equal(drawn, weights.initial(architecture, 3)).values())
    constant = {parameter.name for parameter in architecture.parameters() if parameter.initializer in ("zeros", "ones")}
    other = equal(drawn, weights.initial(architecture, 2**63 - 1))
    assert {name for name, unchanged in other.items() if unchanged} == constant


def test_a_layer_is_drawn_by_its_name_whatever_stands_around_it() -> None:
    alone, among = a_model(CONV), a_model(DENSE, CONV, replace(CONV, name="twin"))
    drawn = weights.initial(among, 0)
    assert equal(weights.initial(alone, 0), drawn) == {"conv.kernel": True, "conv.bias": True}
    assert not np.isclose(drawn["conv.kernel"], drawn["twin.kernel"]).all()


def test_the_values_of_a_seed_never_change() -> None:
    drawn = weights.initial(a_model(DENSE, replace(CONV, initializer="kaiming_normal_fan_in")), 1)
    assert drawn["dense.kernel"][0, :2] == pytest.approx([-0.18172954528639454, 0.19990279633165636], rel=1e-12)
    assert drawn["dense.bias"][:2] == pytest.approx([0.14705172179975587, 0.08260749391638986], rel=1e-12)
    assert drawn["conv.kernel"][0, 0, 0, :2] == pytest.approx([0.047072318291891214, 0.026738470415963094], rel=1e-12)


# Variances from the papers; fans of the kernels: area * inputs, area * outputs.
@pytest.mark.parametrize(
    ("layer", "variance"),
    [
        (CONV, 2 / (9 * 16 + 9 * 64)),
        (replace(CONV, initializer="kaiming_normal_fan_in"), 2 / (9 * 16)),
        (replace(CONV, initializer="kaiming_normal_fan_out"), 2 / (9 * 64)),
        (replace(CONV, initializer="uniform_fan_in"), 1 / (9 * 16) / 3),
        (Dense("dense", 100, 60), 2 / 160),
        (Dense("dense", 100, 60, initializer="kaiming_normal_fan_out"), 2 / 60),
        (depthwise_conv("depthwise", 600, 3, 1, no_padding), 2 / (9 + 9 * 600)),  # fans as torch counts them
    ],
    ids=lambda value: f"{type(value).__name__}-{value.initializer}" if hasattr(value, "initializer") else "",
)
def test_a_kernel_has_the_distribution_of_its_initialiser(layer: Conv | Dense, variance: float) -> None:
    kernel = weights.initial(a_model(layer), 0)[f"{layer.name}.kernel"].ravel()
    deviation = math.sqrt(variance)
    assert abs(kernel.mean()) < 5 * deviation / math.sqrt(kernel.size)
    assert kernel.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * kernel.size))
    limit = math.sqrt(3) * deviation
    shape = stats.norm(0, deviation) if "normal" in layer.initializer else stats.uniform(-limit, 2 * limit)
    assert stats.kstest(kernel, shape.cdf).pvalue > 1e-3
    assert np.all(abs(kernel) <= limit) == ("uniform" in layer.initializer)


def test_biases_and_batch_norm_start_as_the_identity() -> None:
    drawn = weights.initial(a_model(CONV, BatchNorm("bn", 4)), 0)
    values = {name: np.unique(array).tolist() for name, array in drawn.items() if name != "conv.kernel"}
    assert values == {"conv.bias": [0], "bn.gamma": [1], "bn.beta": [0], "bn.mean": [0], "bn.variance": [1]}


# Digest.


@given(st.data())
def test_the_digest_changes_with_any_value(data: st.DataObject) -> None:
    drawn = dict(weights.initial(a_model(DENSE), 0))
    before = weights.digest(drawn)
    array = drawn[data.draw(st.sampled_from(sorted(drawn)))]
    index = data.draw(st.integers(0, array.size - 1))
    array.flat[index] = np.nextafter(array.flat[index], np.inf)
    assert weights.digest(drawn) != before


def test_the_digest_follows_names_and_shapes_but_not_order_layout_or_precision() -> None:
    one, two = np.arange(6.0).reshape(2, 3), np.ones(4)
    digest = weights.digest({"a": one, "b": two})
    for same in ({"b": two, "a": one}, {"a": np.asfortranarray(one), "b": two}, {"a": one.astype(np.float32), "b": two}):
        assert weights.digest(same) == digest
    for other in ({"a": one, "c": two}, {"a": one.reshape(3, 2), "b": two}, {"a": one}, {"a": two, "b": one}):
        assert weights.digest(other) != digest


# Files.


def test_weights_survive_a_file(tmp_path: Path) -> None:
    architecture = a_model(DENSE, BatchNorm("bn", 4))
    drawn = dict(weights.initial(architecture, 0))
    weights.save(drawn | {"dense.kernel": np.asfortranarray(drawn["dense.kernel"])}, tmp_path / "w", {"model": "any"})
    loaded = safetensors.numpy.load_file(tmp_path / "w")
    weights.check(loaded, architecture, tmp_path / "w")
    assert weights.digest(loaded) == weights.digest(drawn)
    with safetensors.safe_open(tmp_path / "w", "numpy") as file:
        assert file.metadata() == {"model": "any"}


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (replace(DENSE, out_features=31), ["dense.bias", (31,), (30,)]),
        (replace(DENSE, name="other"), ["dense.bias", None, (30,)]),
        (BatchNorm("dense", 30), ["dense.beta", (30,), None]),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, layer: Layer, names: list[object]) -> None:
    with refused(WeightsError, names=["any", *names]):
        weights.check(weights.initial(a_model(layer), 0), a_model(DENSE), tmp_path / "w")
