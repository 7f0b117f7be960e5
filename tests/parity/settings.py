"""The small settings that the planted defects are recorded with."""

from typing import Any

from common import spec
from common.spec import Spec

_PROBE: dict[str, Any] = {
    "model": "tests.parity.probe",
    "precision": "float64",
    "steps": 6,
    "global_batch_size": 8,
    "cores": 1,  # several threads of so small a model wait more than they compute
    # The last batch of the epoch has 5 examples, which two replicas share unevenly.
    "data": {"limit": 45},
    "augmentation": {"horizontal_flip": True, "shift_px": 2},
    "schedule": {"name": "cosine", "warmup_steps": 2},
}
_SGD = {"optimizer": {"name": "sgd", "weight_decay": 5e-4}}
# With weight decay over a tiny epsilon, the noise in biases in front of BatchNorm grows fifty-fold a step; here it does not.
_ADAM = {"optimizer": {"name": "adam", "learning_rate": 1e-3, "weight_decay": 5e-4, "epsilon": 1e-5}}
_PARALLEL = {"replicas": 2, "batch_norm_statistics": "synchronised"}
_REAL = {"steps": 3, "data": {"limit": 21}}

_SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": _SGD,
    "adam": _ADAM,
    "float32": {**_SGD, "precision": "float32"},
    "relu_norm": {**_SGD, "model": "tests.parity.relu_norm"},
    "data_parallel": {**_SGD, **_PARALLEL, "mode": "data_parallel"},
    "multi_process": {**_SGD, **_PARALLEL, "mode": "multi_process"},
    "sharded_data_parallel": {
        **_SGD,
        **_PARALLEL,
        "mode": "sharded_data_parallel",
        "communication": {"bucket_mib": 0.01},
    },
    "mini_xception": {**_SGD, **_REAL, "model": "mini_xception"},
    "simple_cnn": {**_ADAM, **_REAL, "model": "simple_cnn"},
    "resnet18_float32": {**_SGD, **_REAL, "model": "resnet18", "precision": "float32"},
}


def setting(name: str) -> Spec:
    return spec.build({**_PROBE, **_SETTINGS[name]})
