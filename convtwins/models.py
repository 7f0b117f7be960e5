"""The stable address of all that a model of your own imports: architectures, layers, and BatchNorm of each framework.

These names stay where they are. What stands elsewhere in the suite may move in any version. No framework is imported before a
builder of it is called.
"""

from __future__ import annotations

from typing import Any

import convtwins

convtwins.add_suite_to_path()

# ruff: noqa: E402
from common.matching.pair import PairedModel, pair_architecture
from common.models.architectures import (
    Architecture,
    AveragePool,
    BatchNorm,
    Concatenation,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Initializer,
    Layer,
    MaxPool,
    Native,
    Opaque,
    Padding,
    ReLU,
    Residual,
    depthwise_conv,
    no_padding,
    resolve,
    same_padding,
)

__all__ = [
    "Architecture",
    "AveragePool",
    "BatchNorm",
    "Concatenation",
    "Conv",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalAveragePool",
    "Initializer",
    "Layer",
    "MaxPool",
    "Native",
    "Opaque",
    "Padding",
    "PairedModel",
    "ReLU",
    "Residual",
    "batch_norm_pytorch",
    "batch_norm_tensorflow",
    "build_pair_pytorch",
    "build_pair_tensorflow",
    "depthwise_conv",
    "no_padding",
    "pair_architecture",
    "resolve",
    "same_padding",
]


def batch_norm_pytorch(layer: BatchNorm, group: Any) -> Any:
    """Build BatchNorm in PyTorch. `group` is that of `build_pytorch`: its replicas may share statistics."""
    from pytorch_impl import batch_norm

    return batch_norm.build(layer, group)


def batch_norm_tensorflow(layer: BatchNorm, group: Any) -> Any:
    """Build BatchNorm in TensorFlow. `group` is that of `build_tensorflow`: its replicas may share statistics."""
    from tensorflow_impl import batch_norm

    return batch_norm.build(layer, group)


def build_pair_pytorch(model: PairedModel, architecture: Architecture, precision: str, group: Any) -> Any:
    """Build PyTorch's model of a pair that `convtwins match --write` has written."""
    from pytorch_impl import native

    return native.build(model, architecture, precision, group)


def build_pair_tensorflow(model: PairedModel, architecture: Architecture, precision: str, group: Any) -> Any:
    """Build TensorFlow's model of a pair that `convtwins match --write` has written."""
    from tensorflow_impl import native

    return native.build(model, architecture, precision, group)
