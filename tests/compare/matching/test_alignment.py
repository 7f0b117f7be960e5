import numpy as np
import pytest

from common.matching.records import Layer
from common.spec import SpecError
from compare.matching import formulas
from compare.matching.alignment import align
from compare.proof.referee import layers as referee


def conv(name: str, width: int = 4, kind: str = "conv") -> Layer:
    return Layer(name=name, kind=kind, parameters={"kernel": [3, 3, 3, width], "bias": [width]})


def plain(name: str, kind: str) -> Layer:
    return Layer(name=name, kind=kind)


def test_layers_without_parameters_are_paired_between_those_that_have_some() -> None:
    left = [conv("a"), plain("relu", "activation"), plain("pool", "max_pool"), conv("b", 5), plain("drop", "dropout")]
    right = [plain("pad", "padding"), conv("x"), plain("act", "activation"), plain("mean", "average_pool"), conv("y", 5)]
    found = align(left, right, {})
    assert found.names == {"a": "x", "b": "y"} and found.incompatible == []
    assert found.pairs == [("a", "x"), ("relu", "act"), ("pool", "mean"), ("b", "y")]


def test_names_that_agree_count_more_than_order() -> None:
    found = align([conv("block.one"), conv("block.two")], [conv("block_two"), conv("block_one")], {})
    assert found.names == {"block.one": "block_one", "block.two": "block_two"}


def test_a_layer_of_another_shape_is_incompatible_beside_its_place() -> None:
    found = align([conv("a"), conv("b", 5), conv("c", 6)], [conv("x"), conv("y", 7), conv("z", 6)], {})
    assert found.names == {"a": "x", "c": "z"}
    assert [(one and one.name, other and other.name) for one, other in found.incompatible] == [("b", "y")]
    (missing,) = align([conv("a"), conv("b", 5)], [conv("x")], {}).incompatible
    assert missing == (conv("b", 5), None)


def test_equal_layers_in_another_order_are_told_apart_by_names_of_the_user() -> None:
    left, right = [conv("a"), conv("m", 5), conv("b")], [conv("x"), conv("y"), conv("n", 5)]
    with pytest.raises(SpecError, match="a, b with x, y"):
        align(left, right, {})
    assert align(left, right, {"a": "y"}).names == {"a": "y", "m": "n", "b": "x"}


def test_pairs_are_proposed_by_the_layers_in_front_or_by_names() -> None:
    left = [conv("a", 5), conv("m"), conv("b", 6), conv("n")]
    right = [conv("x", 6), conv("y"), conv("z", 5), conv("v")]
    with pytest.raises(SpecError, match=r"Perhaps --map m=v --map n=y\."):
        align(left, right, {})
    named = [conv("x", 6), conv("r2nm"), conv("r2nn"), conv("z", 5)]
    with pytest.raises(SpecError, match=r"Perhaps --map r2\.nm=r2nm --map skip=r2nn\."):
        align([conv("a", 5), conv("r2.nm"), conv("b", 6), conv("skip")], named, {})


@pytest.mark.parametrize(
    ("given", "said"), [({"q": "x"}, "names no layer"), ({"a": "q"}, "names no layer"), ({"a": "n"}, "other shapes")]
)
def test_a_name_of_the_user_that_does_not_fit_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        align([conv("a"), conv("b", 5)], [conv("x"), conv("n", 5)], given)


def test_the_formulas_agree_with_the_referee() -> None:
    draw = np.random.default_rng(0)
    x, kernel, bias = draw.normal(size=(2, 7, 7, 4)), draw.normal(size=(3, 3, 4, 6)), draw.normal(size=6)
    padding, settings = ((1, 0), (0, 1)), {"stride": [2, 2], "dilation": [1, 1], "groups": 1}
    ours = formulas.convolution(x, kernel, bias, settings, padding, depthwise=False)
    assert formulas.close(ours, referee.convolution(x, kernel, bias, 2, padding)[0])
    depthwise = formulas.convolution(x, kernel[..., :1], None, settings, padding, depthwise=True)
    expected = referee.convolution(x, kernel[..., :1].transpose(0, 1, 3, 2), None, 2, padding, groups=4)[0]
    assert formulas.close(depthwise, expected)
    pooled = formulas.pooling(x, (3, 3), (2, 2), padding, "maximum")
    assert formulas.close(pooled, referee.max_pooling(x, 3, 2, padding)[0])
    parameters = {"gamma": draw.normal(size=4), "beta": draw.normal(size=4)}
    normal = formulas.normalisation("batch_norm", x, parameters, 1e-3, batch=True)
    expected = referee.batch_normalisation(x, parameters["gamma"], parameters["beta"], 1e-3, referee.mean)[0]
    assert formulas.close(normal, expected)
    grouped = formulas.convolution(x, kernel[:, :, :2], None, {**settings, "groups": 2}, padding, depthwise=False)
    assert formulas.close(grouped, referee.convolution(x, kernel[:, :, :2], None, 2, padding, groups=2)[0])
