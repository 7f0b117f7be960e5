import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common import spec
from common.models import architectures
from common.models.architectures import (
    Architecture,
    AveragePool,
    BatchNorm,
    Concatenation,
    Conv,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    Residual,
    depthwise_conv,
)
from common.spec import SpecError
from tests.support import trees
from tests.support.refusals import refused


def num_values(architecture: Architecture, *, trainable_only: bool = False) -> int:
    return sum(parameter.size for parameter in architecture.parameters() if parameter.trainable or not trainable_only)


TWO_PATHS = 864 + (1_152 + 512) + (2_304 + 1_024) + (9_216 + 4_096) + 1_290


@pytest.mark.parametrize(
    ("model", "num_classes", "image_size", "values", "trainable"),
    [
        ("mini_xception", 10, 32, 96_202, 94_474),
        ("mini_xception", 100, 32, 96_202 + 90 * 65, 94_474 + 90 * 65),
        # torchvision's documented 11,689,512 weights, and per BatchNorm channel a running mean and variance.
        ("resnet18", 1000, 224, 11_689_512 + 2 * 4_800, 11_689_512),
        # Those of the others as torchvision states them in the weights' `num_params`.
        ("resnet34", 1000, 224, 21_797_672 + 2 * 8_512, 21_797_672),
        ("resnet50", 1000, 224, 25_557_032 + 2 * 26_560, 25_557_032),
        ("vgg16", 1000, 224, 138_357_544, 138_357_544),
        ("vgg16_bn", 1000, 224, 138_365_992 + 2 * 4_224, 138_365_992),
        ("resnet18", 10, 32, 11_689_512 + 2 * 4_800 - 990 * 513, 11_689_512 - 990 * 513),
        # A 3x3 stem 3-32. Three blocks of a 3x3 path in four groups and a 1x1 path, each to half of 32, 64 and 128 channels.
        # BatchNorm has four values a channel, two of them learned; dense 128-10 has its biases.
        ("two_path_cnn", 10, 32, TWO_PATHS + 4 * 256, TWO_PATHS + 2 * 256),
        # 3x3 convolutions 3-32-64-128-128, dense 2*2*128-128, dense 128-10, each with its biases.
        ("simple_cnn", 10, 32, *[896 + 18_496 + 73_856 + 147_584 + 65_664 + 1_290] * 2),
    ],
)
def test_each_model_has_as_many_values_as_published(
    model: str, num_classes: int, image_size: int, values: int, trainable: int
) -> None:
    architecture = architectures.resolve(model, num_classes, image_size)
    assert num_values(architecture) == values
    assert num_values(architecture, trainable_only=True) == trainable


@pytest.mark.parametrize(
    ("model", "image_size", "size_to_use"),
    [("simple_cnn", 31, 32), ("mini_xception", 33, 32), ("two_path_cnn", 7, 8), ("resnet18", 8, 32)],
)
def test_an_image_size_that_a_model_does_not_take_is_refused(model: str, image_size: int, size_to_use: int) -> None:
    with refused(SpecError, field="data.image_size", received=image_size, names=[model, size_to_use]):
        architectures.resolve(model, 10, image_size)


@pytest.mark.parametrize("model", spec.MODELS)
def test_the_layers_of_a_model_fit_each_other_have_names_of_their_own_and_give_one_logit_a_class(model: str) -> None:
    for image_size in (32,) if model == "mini_xception" else (9, 257) if model == "two_path_cnn" else (32, 33, 100, 257):
        architecture = architectures.resolve(model, 7, image_size)
        assert architecture.image_size == image_size
        assert walk(architecture.layers, (image_size, image_size, 3)) == (7,)
        assert architectures.output_shape(architecture.layers, (image_size, image_size, 3), model) == (7,)
        for named in (architecture.leaves(), architecture.parameters()):
            assert max(Counter(layer.name for layer in named).values()) == 1


def test_resnet18_keeps_torchvisions_layer_names() -> None:
    names = [layer.name for layer in architectures.resolve("resnet18", 10, 32).leaves()]
    assert names[:4] == ["conv1", "bn1", "relu", "maxpool"]
    assert {"layer2.0.downsample.0", "layer2.0.downsample.1", "layer4.1.conv2", "fc"} <= set(names)
    assert "layer1.0.downsample.0" not in names


def test_mini_xception_has_four_residual_blocks_around_two_separable_convolutions() -> None:
    blocks = [layer for layer in architectures.resolve("mini_xception", 10, 32).layers if isinstance(layer, Residual)]
    assert len(blocks) == 4
    for block in blocks:
        assert [type(layer).__name__ for layer in block.body] == [
            *("Conv", "Conv", "BatchNorm", "ReLU"),
            *("Conv", "Conv", "BatchNorm"),
        ]
        assert [layer.groups for layer in block.body if isinstance(layer, Conv)] == [64, 1, 64, 1]
        assert block.shortcut == ()
        assert not block.relu


def test_some_models_drop_out_and_most_normalise() -> None:
    models = {model: architectures.resolve(model, 10, 32) for model in spec.MODELS}
    dropouts = {model: len(architecture.dropouts) for model, architecture in models.items()}
    assert dropouts == dict.fromkeys(models, 0) | {"simple_cnn": 1, "vgg16": 2, "vgg16_bn": 2}
    assert {model for model, made in models.items() if not made.has_batch_norm} == {"simple_cnn", "vgg16"}


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (
            Conv("c", 3, 8, 5, 1, architectures.no_padding, bias=True),
            [("c.kernel", (5, 5, 3, 8), "glorot_uniform", 75, True), ("c.bias", (8,), "zeros", 75, True)],
        ),
        (
            Conv("c", 3, 8, 1, 1, architectures.no_padding, bias=False, initializer="kaiming_normal_fan_out"),
            [("c.kernel", (1, 1, 3, 8), "kaiming_normal_fan_out", 3, True)],
        ),
        (
            Conv("g", 6, 8, 3, 1, architectures.no_padding, bias=True, groups=2),
            [("g.kernel", (3, 3, 3, 8), "glorot_uniform", 27, True), ("g.bias", (8,), "zeros", 27, True)],
        ),
        (depthwise_conv("d", 6, 3, 1, architectures.no_padding), [("d.kernel", (3, 3, 1, 6), "glorot_uniform", 9, True)]),
        (
            BatchNorm("b", 4),
            [
                ("b.gamma", (4,), "ones", 0, True),
                ("b.beta", (4,), "zeros", 0, True),
                ("b.mean", (4,), "zeros", 0, False),
                ("b.variance", (4,), "ones", 0, False),
            ],
        ),
        (
            Dense("l", 5, 2, initializer="uniform_fan_in", bias_initializer="uniform_fan_in"),
            [("l.kernel", (5, 2), "uniform_fan_in", 5, True), ("l.bias", (2,), "uniform_fan_in", 5, True)],
        ),
        (Dropout("o", 0.5, 9), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layer_lists_its_parameters_in_the_canonical_layout(layer: architectures.Layer, expected: list[object]) -> None:
    parameters = Architecture("any", 32, 10, (layer,)).parameters()
    assert [dataclasses.astuple(parameter) for parameter in parameters] == expected


@pytest.mark.parametrize("model", spec.MODELS)
@pytest.mark.parametrize(("width", "depth"), [(1 / 64, 0.1), (0.3, 1), (1, 1.7), (2, 3)])
def test_a_model_of_any_width_and_depth_fits_and_drops_out_before_its_classifier(
    model: str, width: float, depth: float
) -> None:
    architecture = architectures.resolve(model, 7, 32, width=width, depth=depth, dropout=0.25)
    assert walk(architecture.layers, (32, 32, 3)) == (7,)
    assert max(Counter(layer.name for layer in architecture.leaves()).values()) == 1
    dropout, classifier = architecture.layers[-2:]
    assert isinstance(dropout, Dropout) and isinstance(classifier, Dense)
    assert (dropout.rate, dropout.units) == (0.25, classifier.in_features)
    assert not architectures.resolve(model, 7, 32, width=width, dropout=0.0).dropouts


def test_width_scales_channels_and_depth_blocks() -> None:
    def blocks(model: str, **structure: float) -> list[int]:
        made = architectures.resolve(model, 10, 64, **structure)
        stages = [layer.name.split(".")[0] for layer in made.layers if isinstance(layer, Residual)]
        return [stages.count(f"layer{stage}") for stage in (1, 2, 3, 4)]

    assert blocks("resnet34") == [3, 4, 6, 3] and blocks("resnet34", depth=0.5) == [2, 2, 3, 2]
    convs = [layer for layer in architectures.resolve("vgg16", 10, 32, width=0.5).leaves() if isinstance(layer, Conv)]
    assert [conv.out_channels for conv in convs] == [32] * 2 + [64] * 2 + [128] * 3 + [256] * 6
    deep = architectures.resolve("simple_cnn", 10, 32, depth=2)
    assert [layer.name for layer in deep.leaves()][:6] == ["conv1", "relu1", "conv1_2", "relu1_2", "pool1", "conv2"]


def test_branches_come_in_order_and_the_body_of_a_residual_before_its_shortcut() -> None:
    residual = Residual("r", (BatchNorm("body", 1),), (BatchNorm("shortcut", 1),))
    joined = Concatenation("c", ((BatchNorm("first", 1), residual), (), (BatchNorm("last", 1),)))
    leaves = Architecture("any", 32, 10, (joined, BatchNorm("after", 1))).leaves()
    assert [layer.name for layer in leaves] == ["first", "body", "shortcut", "last", "after"]


@given(st.integers(1, 300), st.integers(1, 11), st.integers(1, 5))
@example(32, 3, 2)
@example(32, 4, 1)
def test_same_padding_is_the_least_that_gives_every_stride_an_output_and_the_odd_pixel_is_at_the_end(
    size: int, kernel_size: int, stride: int
) -> None:
    (before, after), columns = architectures.same_padding(size, kernel_size, stride)
    assert columns == (before, after)
    assert after - before in (0, 1)
    wanted = math.ceil(size / stride)
    # A kernel shorter than the stride leaves pixels over rather than padding negatively.
    assert (size + before + after - kernel_size) // stride + 1 == wanted
    if before + after:
        assert (size + before + after - 1 - kernel_size) // stride + 1 < wanted


# A user's own model.

Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()

    def write(source: str) -> str:
        (tmp_path / "mine" / "net.py").write_text(source, encoding="utf-8")
        for name in ("mine.net", "mine.blocks", "mine"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return "mine.net"

    return write


HEAD = "from convtwins.models import Architecture, Conv, Dense, Flatten, GlobalAveragePool, ReLU, no_padding\n"


def test_a_users_architecture_is_taken(module: Module) -> None:
    name = module(
        HEAD + "def architecture(num_classes, image_size):\n"
        "    layers = (GlobalAveragePool('pool'), Dense('logits', 3, num_classes))\n"
        "    return Architecture('mine.net', image_size, num_classes, layers)\n"
    )
    assert num_values(architectures.resolve(name, 5, 48)) == 20


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 1", ["mine.net", "define", "architecture(num_classes, image_size)"]),
        ("architecture = 3", ["mine.net", "define", "architecture"]),
        ("def architecture(num_classes, image_size): return [1]", ["Architecture", "Received: list"]),
        (
            HEAD + "def architecture(n, s): return Architecture('mine.net', s, n, (ReLU('a'), Flatten('b'), ReLU('a')))",
            ["layer names", "twice: a"],
        ),
        ("import a_library_that_is_not_there", ["mine.net", "imported", "a_library_that_is_not_there"]),
    ],
)
def test_a_users_module_that_breaks_the_contract_is_refused(module: Module, source: str, names: list[str]) -> None:
    name = module(source)
    with refused(SpecError, names=names):
        architectures.resolve(name, 10, 32)


@pytest.mark.parametrize(
    ("own", "source", "imported"),
    [
        ("common/blocks.py", "from common.blocks import WIDTH", "common.blocks"),
        ("common/blocks.py", "from common import blocks", "common"),
        ("common/blocks.py", "from common import WIDTH", "common"),
        ("common/spec/__init__.py", "import common.spec", "common.spec"),  # both have it: the suite's would be taken
        ("compare/layers/own.py", "def f():\n    from compare.layers import own", "compare.layers"),
        ("common/blocks.py", "", None),
        ("common/blocks.py", "from common.spec import Spec", None),  # the suite's alone
        ("common/blocks.py", "from . import blocks", None),
        ("uncommon/blocks.py", "from uncommon import blocks", None),
    ],
)
def test_a_module_whose_own_package_is_named_like_one_of_the_suite_works_or_is_refused_by_name(
    module: Module, tmp_path: Path, own: str, source: str, imported: str | None
) -> None:
    trees.write(tmp_path, dict.fromkeys((own, "mine/blocks.py"), "WIDTH = 8\n"))
    name = module(f"{HEAD}{source}\narchitecture = 3")
    package = tmp_path / own.partition("/")[0]
    names = ["define"] if imported is None else ["imports", imported, package]
    with refused(SpecError, field="mine.net", names=names):
        architectures.resolve(name, 10, 32)


def test_a_module_that_is_not_there_is_refused() -> None:
    with refused(SpecError, field="nowhere.net", fix=[*spec.MODELS, "module"], names=["imported"]):
        architectures.resolve("nowhere.net", 10, 32)


Shape = tuple[int, ...]


def walk(layers: tuple[architectures.Layer, ...], shape: Shape) -> Shape:
    """The shape after these layers of one image, an independent reading of what each layer says of itself."""
    for layer in layers:
        if isinstance(layer, Conv | MaxPool | AveragePool):
            height, width, channels = shape
            if isinstance(layer, Conv):
                assert channels == layer.in_channels
                assert channels % layer.groups == layer.out_channels % layer.groups == 0
            height, width = (
                (size + sum(padding) - layer.kernel_size) // layer.stride + 1
                for size, padding in zip((height, width), layer.padding, strict=True)
            )
            assert min(height, width) >= 1
            shape = (height, width, layer.out_channels if isinstance(layer, Conv) else channels)
        elif isinstance(layer, BatchNorm):
            assert layer.channels == shape[-1]
        elif isinstance(layer, architectures.GlobalAveragePool):
            shape = shape[-1:]
        elif isinstance(layer, Flatten):
            shape = (math.prod(shape),)
        elif isinstance(layer, Dense):
            assert shape == (layer.in_features,)
            shape = (layer.out_features,)
        elif isinstance(layer, Dropout):
            assert shape == (layer.units,)
        elif isinstance(layer, Residual):
            body = walk(layer.body, shape)
            assert body == walk(layer.shortcut, shape)
            shape = body
        elif isinstance(layer, Concatenation):
            parts = [walk(branch, shape) for branch in layer.branches]
            assert len({part[:-1] for part in parts}) == 1
            shape = (*parts[0][:-1], sum(part[-1] for part in parts))
    return shape


UNPADDED = ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ([architectures.GlobalAveragePool("pool"), Dense("d", 7, 10)], ["d", 7, [3]]),
        ([BatchNorm("norm", 4)], ["norm", 4, [12, 12, 3]]),
        ([Dense("d", 3, 10)], ["d", 3, [12, 12, 3]]),
        ([Residual("r", (Conv("c", 3, 5, 1, 1, UNPADDED, bias=True),))], ["r", (12, 12, 5), (12, 12, 3)]),
        ([Concatenation("c", ((), (MaxPool("p", 2, 2, UNPADDED),)))], ["c", (12, 12, 3), (6, 6, 3)]),
        ([Concatenation("c", ())], ["c", "no branch"]),
        ([Conv("g", 3, 4, 1, 1, UNPADDED, bias=False, groups=2)], ["groups of g", "2 groups", "3 and 4"]),
        ([AveragePool("a", 2, 1, ((0, 2), (0, 0)))], ["padding of a", "window"]),
    ],
)
def test_layers_that_do_not_fit_are_refused_by_name(layers: list[architectures.Layer], names: list[object]) -> None:
    with refused(SpecError, names=names):
        architectures.output_shape(tuple(layers), (12, 12, 3), "own.model")


def test_a_users_module_that_fails_is_refused_with_its_line(module: Module) -> None:
    failing = module("def architecture(num_classes, image_size):\n    return 1 / 0\n")
    with refused(SpecError, names=["architecture()", "ZeroDivisionError", "line 2"]):
        architectures.resolve(failing, 10, 32)
    with refused(SpecError, names=["imported", "SyntaxError"]):
        architectures.resolve(module("def architecture(:\n"), 10, 32)


def test_a_pair_matched_with_other_classes_is_refused_by_the_name_that_was_typed() -> None:
    with refused(SpecError, field="tests.planted.pair_for_run", received="data with 77", names=["matched"]):
        architectures.resolve("tests.planted.pair_for_run", 77, 8)
