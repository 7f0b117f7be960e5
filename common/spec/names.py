"""The words and limits of a spec: models, modes and their variants, inputs, levels of switches."""

from __future__ import annotations

from typing import Any, Literal

MODELS = ("simple_cnn", "mini_xception", "resnet18", "resnet34", "resnet50", "vgg16", "vgg16_bn", "two_path_cnn")
MODES = (
    "serial",
    "data_parallel",
    "multi_process",
    "sharded_data_parallel",
    "parameter_server",
    "model_parallel",
    "tensor_parallel",
    "pipeline",
    "hybrid",
    "model_averaging",
)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{mode: (mode, {}) for mode in MODES if mode != "hybrid"},
    "parameter_server": (
        "parameter_server",
        {"parameter_server.updates": "synchronous", "parameter_server.staleness": None},
    ),
    "pipeline": ("pipeline", {"pipeline.schedule": "gpipe"}),
    "parameter_server_async": ("parameter_server", {"parameter_server.updates": "asynchronous"}),
    "pipeline_1f1b": ("pipeline", {"pipeline.schedule": "1f1b"}),
    "pipeline_async": ("pipeline", {"pipeline.schedule": "asynchronous"}),
    "hybrid_tensor": ("hybrid", {"hybrid.inner": "tensor_parallel"}),
    "hybrid_pipeline": ("hybrid", {"hybrid.inner": "pipeline"}),
}
"""The words of `--modes`: each is a mode, and the fields that make the variant of it. See `Spec.variant`."""
HOST_MODES = ("multi_process", "parameter_server", "model_averaging")
"""Modes whose replicas may be on several machines."""
COMPRESSING_VARIANTS = ("serial", "data_parallel", "multi_process", "parameter_server")
"""Variants whose replicas can send compressed gradients. Serial sends none, but may be asked for together with them."""
WHOLE_BATCH_MODES = ("serial", "model_parallel", "tensor_parallel", "pipeline")
"""Modes whose replicas work on the same examples. They divide the model, not the batch."""
DIVIDING_MODES = (*(mode for mode in WHOLE_BATCH_MODES if mode != "serial"), "sharded_data_parallel", "hybrid")
"""Modes that divide a model, or the arrays of each layer. They must know how its layers are connected."""
RESUMABLE_MODES = ("serial", "data_parallel", "multi_process", "sharded_data_parallel")
"""Modes whose rank 0 holds or gathers everything that a resumed run needs."""
ELASTIC_MODES = ("multi_process", "sharded_data_parallel")
"""Modes of several processes whose checkpoint does not depend on the number of replicas, so that fewer can resume from it."""
OWNING_MODES = ("serial", "multi_process", "parameter_server", "model_averaging")
"""Modes in which each replica can train on images of its own: in both frameworks it is a process with a whole model."""
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
