import re

import numpy as np
import pytest

from common.matching.records import IMAGE, Layer
from common.spec import SpecError
from compare.proof.referee import layers as referee
from compare.tools.matching import formulas
from compare.tools.matching.alignment import align, signature
from compare.tools.matching.paths import Pairing
from tests.support.comparisons import with_fields
from tests.support.refusals import refused


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
    with refused(SpecError, names=["a, b", "x, y"]):
        align(left, right, {})
    assert align(left, right, {"a": "y"}).names == {"a": "y", "m": "n", "b": "x"}


def test_pairs_are_proposed_by_the_layers_in_front_or_by_names() -> None:
    left = [conv("a", 5), conv("m"), conv("b", 6), conv("n")]
    right = [conv("x", 6), conv("y"), conv("z", 5), conv("v")]
    with refused(SpecError, names=["--map m=v --map n=y"]):
        align(left, right, {})
    named = [conv("x", 6), conv("r2nm"), conv("r2nn"), conv("z", 5)]
    with refused(SpecError, names=["--map r2.nm=r2nm --map skip=r2nn"]):
        align([conv("a", 5), conv("r2.nm"), conv("b", 6), conv("skip")], named, {})


def fed(name: str, *by: str, size: int = 1, kind: str = "conv") -> Layer:
    """A layer of a graph. Those without parameters have another kind than `conv`."""
    shape = {"kernel": [size, size, 4, 4]} if kind == "conv" else {}
    return Layer(name=name, kind=kind, parameters=shape, fed_by=list(by or (IMAGE,)))


def inception(order: str, joined: str) -> list[Layer]:
    """Two blocks of the branches s (1x1), m (1x1, 3x3), l (1x1, 5x5) and p (a pool, 1x1), run in one order, joined in another.

    Names tell nothing, but hold what each layer is.
    """
    found = [fed("stem", size=7)]
    last = "stem"
    for block in "12":
        by: dict[str, list[Layer]] = {
            "s": [fed(f"s{block}", last)],
            "m": [fed(f"ma{block}", last), fed(f"mb{block}", f"ma{block}", size=3)],
            "l": [fed(f"la{block}", last), fed(f"lb{block}", f"la{block}", size=5)],
            "p": [fed(f"pool{block}", last, kind="max_pool"), fed(f"p{block}", f"pool{block}")],
        }
        found += [layer for branch in order for layer in by[branch]]
        found.append(fed(f"join{block}", *(by[branch][-1].name for branch in joined), kind="concatenate"))
        last = f"join{block}"
    return [*found, fed("end", last, size=2)]


def renamed(layers: list[Layer]) -> list[Layer]:
    return [
        with_fields(each, name=f"k_{each.name}_", fed_by=[by if by == IMAGE else f"k_{by}_" for by in each.fed_by])
        for each in layers
    ]


@pytest.mark.parametrize("order", ["smlp", "plms", "lspm", "mpsl"])
@pytest.mark.parametrize("joined", ["smlp", "mslp", "plms"])
def test_equal_layers_of_branches_are_paired_by_their_paths_whatever_the_order_they_run_and_are_joined_in(
    order: str, joined: str
) -> None:
    left = inception("smlp", "smlp")
    found = align(left, renamed(inception(order, joined)), {})
    assert found.names == {each.name: f"k_{each.name}_" for each in left if each.parameters}
    assert found.confirmed == found.names.keys() and found.incompatible == []


def test_branches_that_only_their_place_in_a_concatenation_tells_apart_are_paired_by_it() -> None:
    left = [fed("a"), fed("m", size=3), fed("b"), fed("join", "a", "b", "m", kind="concatenate"), fed("end", "join", size=2)]
    right = [fed("x"), fed("y"), fed("n", size=3), fed("join", "y", "x", "n", kind="concatenate"), fed("end", "join", size=2)]
    assert align(left, right, {}).names == {"a": "y", "m": "n", "b": "x", "end": "end"}


def test_a_branch_of_another_width_leaves_the_others_paired_by_their_paths() -> None:
    wide = [
        with_fields(each, parameters={"kernel": [3, 3, 4, 6]}) if each.name == "mb1" else each
        for each in inception("plms", "smlp")
    ]
    found = align(inception("smlp", "smlp"), renamed(wide), {})
    assert [(one and one.name, other and other.name) for one, other in found.incompatible] == [("mb1", "k_mb1_")]
    assert all(other == f"k_{one}_" for one, other in found.names.items()) and len(found.names) == 13


def test_what_nothing_tells_apart_is_refused_once_and_the_command_that_is_proposed_works() -> None:
    def summed(*branches: str) -> list[Layer]:
        both = [layer for each in branches for layer in (fed(f"{each}1"), fed(f"{each}2", f"{each}1", size=3))]
        return [*both, fed("sum", *(f"{each}2" for each in branches), kind="add"), fed("end", "sum", size=2)]

    left, right = [fed("odd", size=5), *summed("a", "b")], [*summed("x", "y"), fed("odd", size=5)]
    with refused(SpecError, names=["a1, b1", "x1, y1", "a2, b2", "x2, y2"]) as caught:
        align(left, right, {})
    maps = dict(re.findall(r"--map (\w+)=(\w+)", str(caught.error)))
    assert {*maps} == {"a1", "a2", "b1", "b2"} and maps["a1"][0] == maps["a2"][0]
    assert align(left, right, maps).names == {**maps, "odd": "odd", "end": "end"}
    for one, other in (("a1", "y1"), ("b2", "x2")):  # one pair tells the rest
        assert align(left, right, {one: other}).names["a2"] == "y2"


def test_a_layer_is_not_alone_where_another_of_its_kind_is_fed_by_nobody_knows_what() -> None:
    def net(*known: str) -> list[Layer]:
        branches = [fed(name, "stem") for name in ("fine", "wide")]
        hidden = [each if each.name in known else with_fields(each, fed_by=[]) for each in branches]
        return [fed("stem", size=7), *hidden, fed("end", "fine", "wide", size=2)]

    found = align(net("fine"), renamed(net("wide")), {})
    assert found.names == {each.name: f"k_{each.name}_" for each in net()} and not {"fine", "wide"} & found.confirmed


def test_an_edge_that_is_not_known_pairs_nothing_wrongly() -> None:
    unknown = [with_fields(each, fed_by=[]) if each.name == "end" else each for each in inception("plms", "smlp")]
    found = Pairing(inception("smlp", "smlp"), renamed(unknown), {}, signature)
    assert not found.complete and all(other == f"k_{one}_" for one, other in found.propagate().items())


@pytest.mark.parametrize(
    ("given", "names"),
    [({"q": "x"}, ["q", "a, b"]), ({"a": "q"}, ["q", "x, n"]), ({"a": "n"}, ["a (conv 3x3x3x4)", "n (conv 3x3x3x5)"])],
)
def test_a_name_of_the_user_that_does_not_fit_is_refused(given: dict[str, str], names: list[str]) -> None:
    with refused(SpecError, field="--map", names=names):
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
