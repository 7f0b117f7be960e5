"""The modes: how the replicas of one training step work together."""

from __future__ import annotations

from common.architectures import Architecture
from common.batches import Plan
from common.datasets import Dataset
from common.spec import Spec
from common.weights import Weights
from pytorch_impl.parallel.data_parallel import DataParallel
from pytorch_impl.parallel.hybrid_tensor import HybridTensor
from pytorch_impl.parallel.multi_process import MultiProcess
from pytorch_impl.parallel.serial import Serial
from pytorch_impl.parallel.tensor_parallel import TensorParallel

_TRAINERS: dict[str, type[Serial]] = {
    "serial": Serial,
    "data_parallel": DataParallel,
    "multi_process": MultiProcess,
    "tensor_parallel": TensorParallel,
    "hybrid_tensor": HybridTensor,
}


def build(spec: Spec, architecture: Architecture, plan: Plan, dataset: Dataset, weights: Weights) -> Serial:
    """The Trainer of a spec's mode, its model set to the initial weights."""
    return _TRAINERS[spec.variant](spec, architecture, plan, dataset, weights)
