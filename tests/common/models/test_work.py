import pytest

from common import spec
from common.models import work
from common.models.architectures import (
    Architecture,
    BatchNorm,
    Concatenation,
    Conv,
    Dense,
    Flatten,
    GlobalAveragePool,
    MaxPool,
    Native,
    Opaque,
    ReLU,
    Residual,
    depthwise_conv,
    no_padding,
    resolve,
    same_padding,
)

SAME = same_padding(8, 3, 1)


def counted(*layers: object, size: int = 8) -> work.Work:
    return work.count(Architecture("made up", size, 10, layers))  # type: ignore[arg-type]


def test_a_plain_network_counts_as_by_hand() -> None:
    found = counted(
        Conv("conv", 3, 4, 3, 1, SAME, bias=True),  # 8x8x3 to 8x8x4
        ReLU("relu"),
        MaxPool("pool", 2, 2, no_padding),  # to 4x4x4
        Flatten("flatten"),
        Dense("logits", 64, 10),
    )
    conv, dense = 2 * 9 * 3 * (8 * 8 * 4), 2 * 64 * 10
    assert found.forward_flops == conv + dense
    assert found.backward_flops == conv + 2 * dense  # the images need no gradient
    images, first, pooled, logits = 192, 256, 64, 10
    forward = (images + first) + (first + first) + (first + pooled) + (pooled + logits)
    backward = (first + images) + (first + 2 * first) + (pooled + 2 * first) + (logits + 2 * pooled)
    assert found.values_moved == forward + backward
    assert found.weights == (9 * 3 * 4 + 4) + (64 * 10 + 10)


def test_a_depthwise_convolution_counts_each_channel_by_itself() -> None:
    found = counted(
        Conv("first", 3, 4, 1, 1, no_padding, bias=False),
        depthwise_conv("depthwise", 4, 3, 2, same_padding(8, 3, 2)),  # to 4x4x4
        BatchNorm("bn", 4),
        GlobalAveragePool("pool"),
    )
    first, depthwise = 2 * 3 * 256, 2 * 9 * 64
    assert (found.forward_flops, found.backward_flops) == (first + depthwise, first + 2 * depthwise)
    assert found.weights == 12 + 36 + 8  # BatchNorm's statistics are not learned


def test_a_grouped_convolution_counts_the_inputs_of_each_group() -> None:
    found = counted(Conv("grouped", 3, 6, 3, 1, same_padding(8, 3, 1), bias=False, groups=3))
    assert found.forward_flops == 2 * 9 * 1 * (8 * 8 * 6) and found.weights == 9 * 6


def test_a_concatenation_moves_its_output_both_ways_and_sums_gradients_where_its_branches_part() -> None:
    conv = Conv("first", 3, 4, 1, 1, no_padding, bias=False)
    left, right = (Conv(name, 4, 2, 1, 1, no_padding, bias=False) for name in ("left", "right"))
    joined = counted(conv, Concatenation("joined", ((left,), (right,), ())))
    one_by_one = [counted(conv, each) for each in (left, right)]
    first = counted(conv)
    assert joined.flops == sum(each.flops - first.flops for each in one_by_one) + first.flops
    inside = sum(each.values_moved - first.values_moved for each in one_by_one) + first.values_moved
    assert joined.values_moved - inside == 4 * (8 * 8 * 8) + 2 * 3 * (8 * 8 * 4)
    of_images = counted(Concatenation("joined", ((), ())))
    assert (of_images.flops, of_images.values_moved) == (0, 2 * 2 * 192)


def test_a_residual_sum_reads_two_and_writes_one_both_ways() -> None:
    conv = Conv("first", 3, 4, 1, 1, no_padding, bias=False)
    inner = Conv("inner", 4, 4, 1, 1, no_padding, bias=False)
    plain, residual = counted(conv, inner), counted(conv, Residual("block", (inner,)))
    assert residual.flops == plain.flops
    assert residual.values_moved - plain.values_moved == 3 * 256 + 3 * 256
    with_relu = counted(conv, Residual("block", (inner,), relu=True))
    assert with_relu.values_moved == counted(conv, Residual("block", (inner,)), ReLU("relu")).values_moved


def test_both_branches_of_a_residual_block_count() -> None:
    conv = Conv("first", 3, 4, 1, 1, no_padding, bias=False)
    body, shortcut = (Conv(name, 4, 8, 1, 1, no_padding, bias=False) for name in ("body", "shortcut"))
    assert counted(conv, Residual("block", (body,), (shortcut,))).forward_flops == 2 * 3 * 256 + 2 * (2 * 4 * 512)


@pytest.mark.parametrize(
    ("model", "image_size", "classes", "multiply_adds"),
    [
        ("resnet18", 224, 1000, 1.814e9),  # He et al. 2016 write 1.8e9 for it
        # As torchvision 0.15 and later states them in the weights' `_ops`.
        ("resnet34", 224, 1000, 3.664e9),
        ("resnet50", 224, 1000, 4.089e9),
        ("vgg16", 224, 1000, 15.47e9),
        ("vgg16_bn", 224, 1000, 15.47e9),
    ],
)
def test_published_counts_are_met(model: str, image_size: int, classes: int, multiply_adds: float) -> None:
    found = work.count(resolve(model, classes, image_size))
    assert found.forward_flops / 2 == pytest.approx(multiply_adds, rel=1e-3)


def test_weights_are_moved_once_a_step_by_every_copy_of_the_model() -> None:
    found = counted(Flatten("flatten"), Dense("logits", 192, 10))
    one = spec.build({"global_batch_size": 10, "cores": 1})
    assert found.bytes_moved(one) == 4 * (found.values_moved + 8 * 1930 / 10)
    adam = spec.build({"global_batch_size": 10, "cores": 1, "optimizer": {"name": "adam"}, "precision": "float64"})
    assert found.bytes_moved(adam) == 8 * (found.values_moved + 10 * 1930 / 10)
    two = one.with_fields(mode="data_parallel", replicas=2)
    assert found.bytes_moved(two) == 4 * (found.values_moved + 2 * 8 * 1930 / 10)


def test_a_users_own_model_has_the_operations_of_the_same_model_said_as_an_architecture() -> None:
    said = counted(Conv("conv", 3, 4, 3, 1, SAME, bias=True), ReLU("relu"), Flatten("flatten"), Dense("dense", 256, 10))
    kernels = (
        Native("conv", "conv", (("kernel", (3, 3, 3, 4)), ("bias", (4,)))),
        Native("norm", "layer_norm", (("gamma", (4,)), ("beta", (4,)))),
        Native("dense", "dense", (("kernel", (256, 10)), ("bias", (10,)))),
    )
    own = counted(Opaque("own", (8, 8, 3), 10, kernels, ((8, 8, 4), (8, 8, 4), (10,))))
    assert (own.forward_flops, own.backward_flops) == (said.forward_flops, said.backward_flops)
    assert own.weights == said.weights + 8
    assert own.values_moved < said.values_moved
