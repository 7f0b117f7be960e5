"""Data and a network made up by hand: small, and with every kind of layer and of padding."""

from typing import Any

import numpy as np
import pytest

from common import spec
from common.data.batches import BatchPlan
from common.data.sources import Dataset, DatasetSplit
from common.models import architectures, weights
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
    ReLU,
    Residual,
    depthwise_conv,
    no_padding,
    same_padding,
)
from common.models.weights import Weights
from common.spec import Spec, build
from tests.twins.adapters import Twin

CLASSES = 4
SIZE_PX = 12
REPLICAS = 3
"""Of data_parallel in the tests' own process: TensorFlow's collectives know one number of devices a process. The runs of
`test_command_line` have two."""


def network(name: str = "made", image_size: int = SIZE_PX, num_classes: int = CLASSES) -> Architecture:
    """Lopsided padding under a stride (12 to 6, and 3 to 2), symmetric padding under a stride (6 to 3), all layers."""
    body = (
        depthwise_conv("block.depthwise", 18, 3, 2, ((1, 1), (1, 1))),
        Conv("block.pointwise", 18, 5, 1, 1, no_padding, bias=True),
        BatchNorm("block.bn", 5, momentum=0.3, epsilon=1e-3),
    )
    shortcut = (Conv("block.shortcut", 18, 5, 1, 2, no_padding, bias=False, initializer="kaiming_normal_fan_out"),)
    joined = (
        (Conv("joined.grouped", 6, 6, 3, 1, ((2, 0), (1, 1)), bias=True, groups=3),),
        (AveragePool("joined.symmetric", 3, 1, ((1, 1), (1, 1))), AveragePool("joined.average", 3, 1, ((1, 1), (0, 2)))),
        (),
    )
    layers = (
        Conv("conv", 3, 6, 3, 2, same_padding(image_size, 3, 2), bias=True),
        BatchNorm("bn", 6),
        ReLU("relu"),
        Concatenation("joined", joined),
        Residual("block", body, shortcut, relu=True),
        MaxPool("pool", 2, 2, same_padding(3, 2, 2)),
        Flatten("flatten"),
        Dense("dense", 20, 6),
        ReLU("dense_relu"),
        Dropout("dropout", 0.4, 6),
        Dense("logits", 6, num_classes, initializer="uniform_fan_in", bias_initializer="uniform_fan_in"),
    )
    return Architecture(name, image_size, num_classes, layers)


def dataset(architecture: Architecture, train: int = 22, validation: int = 7, test: int = 5) -> Dataset:
    """Noise, in which a network still finds something to learn by heart."""
    size, classes = architecture.image_size, architecture.num_classes

    def split(key: int, count: int) -> DatasetSplit:
        generator = np.random.default_rng(key)
        images = generator.integers(0, 256, (count, size, size, 3), np.uint8)
        return DatasetSplit(images=images, labels=generator.integers(0, classes, count))

    return Dataset(
        name="noise",
        class_names=tuple(str(label) for label in range(classes)),
        train=split(1, train),
        validation=split(2, validation),
        test=split(3, test),
        content_hash="noise",
        image_size=size,
        notes=(),
    )


def settings(**fields: Any) -> Spec:
    """A spec of one core, whose model and data the caller brings."""
    if fields.get("mode") == "data_parallel":
        fields = {"replicas": REPLICAS, **fields}
    return build({"cores": 1, "precision": "float64", "global_batch_size": 9, "epochs": 1, **fields})


def values(architecture: Architecture, key: int = 5) -> Weights:
    """Weights of which no two are alike, statistics too, so that none can stand in for another."""
    generator = np.random.default_rng(key)
    drawn: Weights = dict(weights.initial(architecture, key))
    for name, array in drawn.items():
        if name.endswith(("gamma", "variance")):
            drawn[name] = generator.uniform(0.5, 1.5, array.shape)
        elif not name.endswith("kernel"):
            drawn[name] = generator.normal(0.0, 0.3, array.shape)
    return drawn


def trainer(twin: Twin, architecture: Architecture, data: Dataset | None = None, **fields: Any) -> Any:
    """The Trainer of a mode with the weights of `values`."""
    data = data or dataset(architecture)
    run = settings(**fields)
    plan = BatchPlan(run, architecture, len(data.train.labels))
    return twin.parallel.build(run, architecture, plan, data, values(architecture))


def masks(architecture: Architecture, count: int, key: int = 7) -> tuple[Any, ...]:
    """One bool [count, units] for each dropout."""
    generator = np.random.default_rng(key)
    return tuple(generator.random((count, layer.units)) >= layer.rate for layer in architecture.dropouts)


DEEP = ("resnet34", "resnet50", "vgg16", "vgg16_bn")
"""Models whose tests are slow."""
MODELS = [pytest.param(model, marks=pytest.mark.slow) if model in DEEP else model for model in spec.MODELS]


def resolve(model: str) -> Architecture:
    """A model of the suite for ten classes at 32 px. A deep one has an eighth of its width, and 64 px."""
    if model in DEEP:
        return architectures.resolve(model, 10, 64, width=1 / 8)
    return architectures.resolve(model, 10, 32)
