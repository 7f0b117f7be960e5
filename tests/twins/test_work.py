"""Operations that the frameworks count themselves, against those counted from the architecture."""

import numpy as np
import pytest

from common.models import work
from tests.twins import made
from tests.twins.adapters import Twin


@pytest.mark.parametrize("model", ["made", *made.MODELS])
def test_the_framework_counts_the_same_operations_forward(twin: Twin, model: str) -> None:
    architecture = made.network() if model == "made" else made.resolve(model)
    size = architecture.image_size
    images = np.zeros((2, size, size, 3), np.float32)
    counted = twin.forward_flops(twin.models.build(architecture, "float32"), images, made.masks(architecture, 2))
    assert counted == 2 * work.count(architecture).forward_flops


@pytest.mark.parametrize("model", ["simple_cnn", "resnet18"])  # of a depthwise gradient PyTorch counts a whole convolution's
def test_the_framework_counts_the_same_operations_forward_and_backward(twin: Twin, model: str) -> None:
    architecture = made.resolve(model)
    images = np.zeros((2, 32, 32, 3), np.float32)
    counted = twin.flops(twin.models.build(architecture, "float32"), images, made.masks(architecture, 2))
    if counted is None:
        pytest.skip(f"{twin.framework} does not count what gradients cost")
    assert counted == 2 * work.count(architecture).flops
