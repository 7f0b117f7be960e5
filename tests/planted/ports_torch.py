"""Small models in PyTorch as users write them, for `match`. Images are 8x8x3, classes 5."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 5
_DRAWS = itertools.count(1)


def draw_others() -> None:
    """Other weights at each call. A match seeds what a model draws."""
    torch.manual_seed(next(_DRAWS))


class Net(nn.Module):
    """Convolutions, pooling, dropout and a dense layer, with functions for what has no weights."""

    def __init__(self, activation: Callable[[Any], Any] = functional.relu, *, norm: bool = False, rate: float = 0.3) -> None:
        super().__init__()
        self.activation = activation
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(rate)
        self.dense = nn.Linear(6 * 2 * 2, CLASSES)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(self.activation(self.norm(self.conv1(x))), 2)
        x = self.activation(self.conv2(x))
        return self.dense(self.dropout(torch.flatten(x, 1)))


class ChannelsLast(Net):
    """Flattens as Keras does, and drops before that."""

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(self.activation(self.norm(self.conv1(x))), 2)
        x = self.activation(self.conv2(x)).permute(0, 2, 3, 1)
        return self.dense(torch.flatten(self.dropout(x), 1))


class Perceptron(nn.Module):
    """Flattens the image itself, before any layer has run, and drops before its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(8 * 8 * 3, 7)
        self.dropout = nn.Dropout(0.2)
        self.dense = nn.Linear(7, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.dropout(x.reshape(len(x), -1))
        return self.dense(torch.relu(self.hidden(x)))


def with_norm() -> nn.Module:
    return Net(norm=True)


def with_gelu_tanh() -> nn.Module:
    return Net(nn.GELU(approximate="tanh"))


def with_gelu() -> nn.Module:
    return Net(nn.GELU())


def with_small_gelu_tanh() -> nn.Module:
    """Values so small that GELU's variants differ by less than a constant in float32 makes."""
    net = Net(nn.GELU(approximate="tanh"))
    with torch.no_grad():
        for parameter in (*net.conv1.parameters(), *net.conv2.parameters()):
            parameter.mul_(0.05)
        net.dense.bias.zero_()
    return net


def with_tanh() -> nn.Module:
    """Values so small that a hard tanh does nothing."""
    net = Net(torch.tanh)
    with torch.no_grad():
        net.conv1.weight.mul_(0.1)
    return net


def with_relu6() -> nn.Module:
    return Net(functional.relu6)


def with_hardswish() -> nn.Module:
    return Net(functional.hardswish)


def with_hardsigmoid() -> nn.Module:
    return Net(functional.hardsigmoid)


def with_softmax_inside() -> nn.Module:
    return Net(lambda x: torch.softmax(x, 1))


def with_relu6_behind_sigmoid() -> nn.Module:
    """What saturates can never see values that are large enough."""
    return Net(lambda x: functional.relu6(torch.sigmoid(x)))


def with_clamped_leaky() -> nn.Module:
    return Net(lambda x: functional.leaky_relu(x).clamp(max=6.0))


class ClampedLogits(Net):
    """Clamps its outputs in inference alone."""

    def forward(self, x: Any) -> Any:
        outputs = super().forward(x)
        return outputs if self.training else outputs.clamp(-3, 3)


class Brightens(Net):
    """Makes dark images brighter."""

    def forward(self, x: Any) -> Any:
        return super().forward(x * 20 if x.max() < 0.05 else x)


class CountsZeros(Net):
    """Takes black pixels for missing ones."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (x != 0).double().mean((1, 2, 3))[:, None]


class GuardsBlack(Net):
    """Divides by the deviation of an image, where it is not zero."""

    def forward(self, x: Any) -> Any:
        deviation = x.std((1, 2, 3), keepdim=True, unbiased=False)
        return super().forward((x - x.mean((1, 2, 3), keepdim=True)) / torch.where(deviation == 0, 1.0, deviation))


class SeesTheBatch(Net):
    """Darkens all images if one of them is much darker than another."""

    def forward(self, x: Any) -> Any:
        brightest = x.amax((1, 2, 3))
        return super().forward(x / 2 if 0 <= brightest.min() < 0.1 * brightest.max() else x)


class Gamma(nn.Module):
    """Flattens what no layer made. Black images fit any order of it."""

    def __init__(self) -> None:
        super().__init__()
        draw_others()
        self.first, self.second = nn.Linear(192, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.second(functional.relu(self.first(torch.flatten(x**0.45, 1))))


class ChecksItsImages(Net):
    """Takes values in 0..1 alone."""

    def forward(self, x: Any) -> Any:
        if x.min() < 0 or x.max() > 1:
            raise ValueError("Images must lie in 0..1.")
        return super().forward(x)


class Overflows(Net):
    """Its values are so large that weights times 8 overflow."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 1e154 * 1e154


def with_leaky() -> nn.Module:
    draw_others()
    return Net(nn.LeakyReLU())


def with_barely_leaky() -> nn.Module:
    """Its outputs differ by less than the tolerance, whatever TensorFlow rounds."""
    net = Net(nn.LeakyReLU())
    with torch.no_grad():
        net.dense.bias.fill_(3.0)
    return net


def norm_twice() -> nn.Module:
    """Biases stand in front of BatchNorm, as `nn.Conv2d` has them."""
    draw_others()

    def block(channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]

    return nn.Sequential(*block(3), *block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def strided_norm_twice() -> nn.Module:
    draw_others()
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    second = [nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * 4 * 4, CLASSES))


def norm_twice_of_zero_biases() -> nn.Module:
    """As torchvision's `vgg*_bn`: what training makes of these biases is rounding alone."""
    net = norm_twice()
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net


def norm_twice_with_a_second_that_keeps_its_variance() -> nn.Module:
    net = norm_twice()
    second = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)][1]
    kept: list[torch.Tensor] = []

    def restore(layer: Any, inputs: Any, outputs: Any) -> None:
        layer.running_var = kept.pop()

    second.register_forward_pre_hook(lambda layer, inputs: kept.append(layer.running_var.clone()))
    second.register_forward_hook(restore)
    return net


def large_then_layer_norm() -> nn.Module:
    """Values so large that another epsilon makes about a millionth, behind an activation that TensorFlow rounds."""
    draw_others()
    first = nn.Conv2d(3, 16, 3)
    with torch.no_grad():
        first.weight.mul_(10)
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(first, nn.LeakyReLU(), *pooled, nn.LayerNorm(16, eps=1e-5), nn.Linear(16, CLASSES))


def sgd_with_decay(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)


def sgd_with_a_little_decay(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-5)


def padded_pool() -> nn.Module:
    """PyTorch pads a maximum with what never is one."""
    pool = nn.MaxPool2d(2, 2, padding=1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(), pool, nn.Flatten(), nn.Linear(4 * 4 * 4, CLASSES))


class ReluThenNorm(nn.Module):
    """A bias in front of ReLU and then BatchNorm, which does not take it away."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.dense = nn.Linear(4 * 8 * 8, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.dense(torch.flatten(self.norm(functional.relu(self.conv(x))), 1))


def relu_then_norm_with_a_channel_always_on() -> nn.Module:
    """BatchNorm takes the bias of one channel away, so this part of its gradient is rounding. The others are not."""
    net = ReluThenNorm()
    with torch.no_grad():
        net.conv.bias.copy_(torch.tensor([9.0, 0.0, 0.0, 0.0]))
    return net


def relu_then_norm_of_wrong_gradient() -> nn.Module:
    """The gradient of the bias is 0.5 % too long."""
    net = ReluThenNorm()
    net.conv.register_forward_hook(
        lambda layer, inputs, outputs: outputs + 0.005 * (own := layer.bias[:, None, None]) - 0.005 * own.detach()
    )
    return net


def seeded() -> nn.Module:
    """Weights that a port can draw too."""
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.from_numpy(np.random.default_rng(parameter.numel()).normal(0, 0.3, tuple(parameter.shape))))
    return net


class AlwaysDropping(Net):
    """Forgets `self.training`."""

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.relu(self.conv2(x))
        return self.dense(functional.dropout(torch.flatten(x, 1), 0.3))


class FunctionDropout(Net):
    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.relu(self.conv2(x))
        return self.dense(functional.dropout(torch.flatten(x, 1), 0.3, self.training))


class Residual(nn.Module):
    """A residual block with separable and grouped convolutions, average pooling and a global mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.pointwise = nn.Conv2d(4, 4, 1)
        self.norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.dense = nn.Linear(3, CLASSES)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Any) -> Any:
        x = self.act(self.stem(x))
        x = x + self.act(self.norm(self.pointwise(self.depthwise(x))))
        x = functional.avg_pool2d(x, 2)
        return self.dense(self.up(x).mean((2, 3)))


class InvertedResidual(nn.Module):
    """A residual block as MobileNetV2's: eight layers stand between its two ends."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        expand = [nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)]
        depthwise = [nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)]
        self.conv = nn.Sequential(*expand, *depthwise, nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.head, self.dense = nn.Conv2d(4, 6, 1), nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        return self.dense(self.head(x + self.conv(x)).mean((2, 3)))


def bottleneck() -> nn.Module:
    """The second normalisation sees means that are zero but for rounding: nothing but a kernel stands behind the first."""
    first = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6)]
    return nn.Sequential(*first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES))


def mixed() -> nn.Module:
    """Modules alone: normalisation and dropout of images and of a flattened image."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(0.25),
        nn.Dropout2d(0.2),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(36),
        nn.Linear(36, 6),
        nn.LayerNorm(6),
        nn.Linear(6, CLASSES),
    )


class Twice(nn.Module):
    """Two equal layers on two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3)
        self.after = nn.Conv2d(4, 4, 1)
        self.right = nn.Conv2d(3, 4, 3)
        self.dense = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        paths = [self.after(self.left(x)).tanh().mean((2, 3)), self.right(x).sigmoid().mean((2, 3))]
        return self.dense(torch.cat(paths, 1))


class TwoPaths(Twice):
    def forward(self, x: Any) -> Any:
        return self.dense(torch.cat([self.left(x).tanh().mean((2, 3)), self.right(x).sigmoid().mean((2, 3))], 1))


class Inception(nn.Module):
    """Two blocks of four branches of equal width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList([nn.ModuleDict(_branches(width)) for width in (4, 16)])
        self.dense = nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = torch.relu(torch.cat([branch(x) for branch in block.values()], 1))  # pyright: ignore[reportCallIssue]
        return self.dense(x.mean((2, 3)))


def _branches(inputs: int) -> dict[str, nn.Module]:
    middle = nn.Sequential(nn.Conv2d(inputs, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    large = nn.Sequential(nn.Conv2d(inputs, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 5, padding=2))
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(inputs, 4, 1))
    return {"small": nn.Conv2d(inputs, 4, 1), "middle": middle, "large": large, "pooled": pooled}


class TwoSums(nn.Module):
    """Two branches that nothing but their activations tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 1)) for _ in range(2))
        self.second[1] = nn.Sigmoid()
        self.odd, self.dense = nn.Conv2d(3, 4, 3, bias=False, stride=2), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        summed = (self.first(x) + self.second(x)).mean((2, 3))
        return self.dense(torch.cat([summed, self.odd(x).mean((2, 3))], 1))


class Shared(nn.Module):
    """Two paths through one layer, behind other activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1)
        self.shared = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.dense = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        a = self.shared(functional.elu(self.a(x))).mean((2, 3))
        b = self.shared(functional.hardswish(self.b(x))).mean((2, 3))
        return self.dense(torch.cat([a, b], 1))


class InTurn(nn.Module):
    """Two equal layers, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.dense = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.dense(torch.tanh(self.two(torch.relu(self.one(torch.sigmoid(x))))).mean((2, 3)))


class Block(nn.Module):
    """A convolution with a stride, and one that is called twice. Functions stand between them."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(inputs, 4, 3, stride=2, padding=1)
        self.same = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.down(x))
        return functional.relu(x + self.same(functional.relu(self.same(x))))


def blocks() -> nn.Module:
    return nn.Sequential(Block(3), Block(4), nn.Flatten(), nn.Linear(16, CLASSES))


class ForRun(nn.Module):
    """What `run` takes of a matched pair: a residual sum, normalisations, a separable convolution, dropouts."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False))
        self.point = nn.Conv2d(4, 4, 1)
        self.norm = nn.GroupNorm(2, 4)
        self.drop = nn.ModuleList([nn.Dropout2d(0.2), nn.Dropout(0.1), nn.Dropout(0.3)])
        self.hidden = nn.Linear(64, 6, bias=False)
        self.scale = nn.LayerNorm(6)
        self.dense = nn.Linear(6, num_classes)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = self.drop[1](self.drop[0](x + self.norm(self.point(self.block(x)))))
        x = self.drop[2](functional.avg_pool2d(x, 2).flatten(1))
        return self.dense(self.scale(self.hidden(x)).sigmoid())


one_for_run = ForRun(CLASSES)


def frozen_for_run() -> nn.Module:
    net = ForRun(CLASSES)
    net.stem.requires_grad_(False)
    return net


class Resized(nn.Module):
    """Doubles a feature map between two convolutions."""

    def __init__(self, larger: Callable[[Any], Any]) -> None:
        super().__init__()
        self.one, self.two, self.dense = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Linear(5, CLASSES)
        self.larger = larger

    def forward(self, x: Any) -> Any:
        return self.dense(torch.tanh(self.two(self.larger(torch.relu(self.one(x))))).mean((2, 3)))


def resized_to_the_nearest() -> nn.Module:
    return Resized(nn.Upsample(scale_factor=2))


def resized_with_aligned_corners() -> nn.Module:
    return Resized(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True))


def resized_by_a_function() -> nn.Module:
    return Resized(lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"))


class Transposed(nn.Module):
    """Doubles a feature map by a transposed convolution that PyTorch cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 2, 2), nn.ConvTranspose2d(4, 6, 5, stride=2, padding=2, output_padding=1)
        self.dense = nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.dense(torch.relu(self.up(torch.relu(self.down(x)))).amax((2, 3)))


def reflecting() -> nn.Module:
    """Pads by reflection."""
    first = nn.Conv2d(3, 4, 5, padding=2, padding_mode="reflect")
    return nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


class Attends(nn.Module):
    """Attention of two heads between 16 patches, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, 2)
        self.query, self.key, self.value, self.project = (nn.Linear(8, 8) for _ in range(4))
        self.dense = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        x = 3 * self.patches(x).flatten(2).transpose(1, 2)
        query, key, value = (each(x).unflatten(2, (2, 4)).transpose(1, 2) for each in (self.query, self.key, self.value))
        x = functional.softmax(query @ key.transpose(2, 3) / 2, -1) @ value
        return self.dense(self.project(x.transpose(1, 2).flatten(2)).mean(1))


class AttendsAtOnce(nn.Module):
    """The same by PyTorch's function, of one layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.three, self.project = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 24), nn.Linear(8, 8)
        self.dense = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        three = self.three(3 * self.patches(x).flatten(2).transpose(1, 2)).chunk(3, -1)
        x = functional.scaled_dot_product_attention(*(each.unflatten(2, (2, 4)).transpose(1, 2) for each in three))
        return self.dense(self.project(x.transpose(1, 2).flatten(2)).mean(1))


class NormFirst(nn.Module):
    """A residual block that normalises what its branch takes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3), nn.LayerNorm(6)
        self.one, self.two, self.dense = nn.Linear(6, 7), nn.Linear(7, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).mean((2, 3))
        return self.dense(x + self.two(torch.relu(self.one(self.norm(x)))))


class NormThenActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.dense = nn.Linear(192, 6), nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.dense(torch.tanh(self.norm(self.hidden(x.flatten(1)))))


class NormOfChannels(nn.LayerNorm):
    """Takes channels first, as a layer of its own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TurnsInside(nn.Module):
    """A block as ConvNeXt's: dense layers run on channels last. All axes of its images are as long as each other."""

    def __init__(self) -> None:
        super().__init__()
        draw_others()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1), NormOfChannels(8)
        self.depthwise, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.up, self.dropout, self.down = nn.Linear(8, 12), nn.Dropout(0.2), nn.Linear(12, 8)
        self.smaller, self.scale = nn.Conv2d(8, 6, 2, stride=2), nn.Linear(6, 6)
        self.dense = nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.stem_norm(self.stem(x))
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(self.dropout(functional.relu(self.up(y))))
        x = self.smaller(x + y.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = x + functional.silu(self.scale(x * 0.5))  # all of it channels last
        return self.dense(x.mean((1, 2)))


class Upsampled(nn.Module):
    """The end of a U-Net, which resizes an image and joins it to an earlier one."""

    def __init__(self) -> None:
        super().__init__()
        draw_others()
        self.before, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 2, stride=2)
        self.after = nn.Conv2d(10, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.dense = nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.before(x))
        y = functional.interpolate(torch.relu(self.deep(x)), scale_factor=2, mode="bilinear", align_corners=False)
        x = torch.relu(self.norm(self.after(torch.cat([y, x], 1))))
        return self.dense(x.mean((2, 3)))


class Gated(nn.Module):
    """A sum of what a gate lets pass and a branch of its own, which runs later."""

    def __init__(self) -> None:
        super().__init__()
        draw_others()
        self.stem, self.main, self.branch = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1), nn.Conv2d(4, 5, 1)
        self.gate, self.dense = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        y = self.main(x)
        y = y * torch.sigmoid(self.gate(y.mean((2, 3))))[:, :, None, None]
        return self.dense(functional.silu(y + self.branch(x)).mean((2, 3)))


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 1, 1)
        self.dense = nn.Linear(192, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.dense(self.conv(x[:, None]).flatten(1))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(7, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.dense(x.flatten(1))


def cross_entropy(outputs: Any, labels: Any) -> Any:
    return functional.cross_entropy(outputs, labels)


def cross_entropy_of_weighted_classes(outputs: Any, labels: Any) -> Any:
    """PyTorch divides by the sum of the weights."""
    return functional.cross_entropy(outputs, labels, torch.tensor([1.0, 2.0, 0.5, 4.0, 3.0], dtype=torch.float64))


def rmsprop(parameters: Iterable[Any]) -> Any:
    return torch.optim.RMSprop(parameters, 0.01, alpha=0.9, eps=0.1, momentum=0.5)


class BelowTheRoot(torch.optim.Optimizer):
    """RMSprop as Keras has it."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__(parameters, {"lr": 0.01, "alpha": 0.9, "eps": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for each in self.param_groups[0]["params"]:
            square = self.state[each].setdefault("square", torch.zeros_like(each))
            square.mul_(0.9).addcmul_(each.grad, each.grad, value=1 - 0.9)
            each.sub_(0.01 * each.grad / (square + 0.1).sqrt())


def adam(parameters: Iterable[Any]) -> Any:
    return torch.optim.Adam(parameters, 1e-3)


def adam_with_decay(parameters: Iterable[Any]) -> Any:
    return torch.optim.Adam(parameters, 1e-3, weight_decay=0.01)


def adagrad(parameters: Iterable[Any]) -> Any:
    return torch.optim.Adagrad(parameters, 0.01)


def sgd(parameters: Iterable[Any]) -> Any:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def prepare(images: Any) -> Any:
    return torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255


class ScaledPerceptron(Perceptron):
    """Scales the pixels itself, and flattens them before any layer has run."""

    def forward(self, x: Any) -> Any:
        return super().forward(x / 2 - 0.125)


class Heads(nn.Module):
    """Two dense layers take one flattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8 * 8 * 3, 7), nn.Linear(8 * 8 * 3, 6)
        self.dense = nn.Linear(13, CLASSES)

    def forward(self, x: Any) -> Any:
        x = x.flatten(1)
        return self.dense(torch.cat([torch.relu(self.one(x)), torch.tanh(self.other(x))], 1))


class TwoRounded(nn.Module):
    """A leaky ReLU and, behind it, an exact GELU. TensorFlow rounds constants of both."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.leaky = nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.01)
        self.conv2, self.gelu = nn.Conv2d(8, 8, 3), nn.GELU()
        self.hidden, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.dense = nn.Linear(16, CLASSES)
        with torch.no_grad():
            self.conv1.bias.fill_(0.7)  # so that few values of the leaky ReLU are negative
            self.hidden.weight.mul_(20)

    def forward(self, x: Any) -> Any:
        x = self.gelu(self.conv2(self.leaky(self.conv1(x)))).mean((2, 3))
        return self.dense(self.norm(self.hidden(x)))


class Scaled(Net):
    """Scales and shifts the pixels itself, each channel by its own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x * 0.3 - torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)[:, None, None])


class Standardised(Net):
    """Standardises the pixels itself."""

    def forward(self, x: Any) -> Any:
        return super().forward((x - 0.485) / 0.23)


class Centred(Net):
    """Keeps what it takes from the pixels as a buffer."""

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=persistent)

    def forward(self, x: Any) -> Any:
        return super().forward(x - self.mean)


def with_buffers() -> nn.Module:
    return Centred()


def with_buffers_that_are_not_saved() -> nn.Module:
    return Centred(persistent=False)


class Counting(Centred):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x)


def channels_last(images: Any) -> torch.Tensor:
    """Keeps the order height, width, channels, for a model that flattens them."""
    return torch.from_numpy(images / 255)


def tiny(outputs: Any, labels: Any) -> Any:
    """A loss of outputs that are too large for any other."""
    return (outputs / 1e154 / 1e154).square().mean()
