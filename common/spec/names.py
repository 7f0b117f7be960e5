"""The words and limits of a spec: models, inputs, levels of switches."""

from __future__ import annotations

from typing import Literal

MODELS = ("simple_cnn", "mini_xception", "resnet18", "resnet34", "resnet50", "vgg16", "vgg16_bn", "two_path_cnn")
INPUTS = ("inline", "workers", "dask")
SCHEDULERS = ("threads", "processes")
"""Schedulers of Dask, besides the address `tcp://host:port` of a running cluster."""
LEVELS = ("plain", "usual", "closed", "best")
"""Levels of switches, see `Spec.switches`."""
MOST_EPOCHS, MOST_STEPS, MOST_IMAGES = 400_000, 10**9, 10**9
MOST_BATCH_SIZE, MOST_REPLICAS, MOST_MICRO_BATCHES = 2**20, 2**12, 2**12
"""Upper limits. They exceed those of any real run: larger numbers are typing errors, or hostile."""
Precision = Literal["float32", "float64"]
Device = Literal["auto", "cpu"]
BatchNormStatistics = Literal["per_replica", "synchronised"]
