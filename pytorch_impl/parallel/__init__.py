"""The modes: how the replicas of one training step work together."""

from __future__ import annotations

from common.architectures import Architecture
from common.batches import Plan
from common.datasets import Dataset
from common.spec import Spec
from common.weights import Weights
from pytorch_impl.parallel.data_parallel import DataParallel
from pytorch_impl.parallel.model_averaging import ModelAveraging
from pytorch_impl.parallel.multi_process import MultiProcess
from pytorch_impl.parallel.parameter_server import ParameterServer
from pytorch_impl.parallel.serial import Serial


def build(spec: Spec, architecture: Architecture, plan: Plan, dataset: Dataset, weights: Weights) -> Serial:
    """The Trainer of a spec's mode, its model set to the initial weights."""
    modes = {
        "serial": Serial,
        "data_parallel": DataParallel,
        "multi_process": MultiProcess,
        "parameter_server": ParameterServer,
        "model_averaging": ModelAveraging,
    }
    return modes[spec.mode](spec, architecture, plan, dataset, weights)
