"""The parallel modes: how replicas share one training step."""

from __future__ import annotations

from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights
from common.spec import Spec, SpecError
from pytorch_impl.parallel.data_parallel import DataParallel
from pytorch_impl.parallel.hybrid_pipeline import HybridPipeline
from pytorch_impl.parallel.hybrid_tensor import HybridTensor
from pytorch_impl.parallel.model_averaging import ModelAveraging
from pytorch_impl.parallel.multi_process import MultiProcess
from pytorch_impl.parallel.parameter_server import ParameterServer
from pytorch_impl.parallel.pipeline import Pipeline
from pytorch_impl.parallel.pipeline_async import PipelineAsync
from pytorch_impl.parallel.serial import Serial
from pytorch_impl.parallel.sharded_data_parallel import ShardedDataParallel
from pytorch_impl.parallel.tensor_parallel import TensorParallel
from pytorch_impl.parallel.trainer import Trainer

_TRAINERS: dict[str, type[Trainer]] = {
    "serial": Serial,
    "data_parallel": DataParallel,
    "multi_process": MultiProcess,
    "sharded_data_parallel": ShardedDataParallel,
    "parameter_server": ParameterServer,
    "parameter_server_async": ParameterServer,
    "model_parallel": Pipeline,  # of one micro-batch
    "tensor_parallel": TensorParallel,
    "pipeline": Pipeline,
    "pipeline_1f1b": Pipeline,
    "pipeline_async": PipelineAsync,
    "hybrid_tensor": HybridTensor,
    "hybrid_pipeline": HybridPipeline,
    "model_averaging": ModelAveraging,
}


def build(spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, weights: ReadOnlyWeights) -> Trainer:
    """Build the trainer of a spec's mode.

    Args:
        spec: the run's spec; `spec.variant` selects the mode.
        dataset: the training and test splits.
        weights: initial values by canonical name, in the canonical layout.

    Returns:
        The trainer. Its model has the initial weights.
    """
    if spec.variant not in _TRAINERS:
        raise SpecError(f"not available: pytorch has no trainer of mode {spec.variant} in pytorch_impl/parallel.")
    return _TRAINERS[spec.variant](spec, architecture, plan, dataset, weights)
