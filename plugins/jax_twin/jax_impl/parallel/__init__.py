"""The parallel modes: how replicas share one training step."""

from __future__ import annotations

from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.models.architectures import Architecture
from common.models.weights import ReadOnlyWeights
from common.spec import Spec
from jax_impl.parallel.data_parallel import DataParallel
from jax_impl.parallel.serial import Serial
from jax_impl.parallel.trainer import Trainer

_TRAINERS: dict[str, type[Trainer]] = {"serial": Serial, "data_parallel": DataParallel}


def build(spec: Spec, architecture: Architecture, plan: BatchPlan, dataset: Dataset, weights: ReadOnlyWeights) -> Trainer:
    """Build the trainer of a spec's mode."""
    return _TRAINERS[spec.variant](spec, architecture, plan, dataset, weights)
