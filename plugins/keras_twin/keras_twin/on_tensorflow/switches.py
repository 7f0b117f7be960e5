"""The switches of Keras on this backend: their values on this machine, and those that are set before its import."""

from __future__ import annotations

from typing import Any

from common.spec import Spec, resolve_switches
from common.spec.shared_switches import UPDATES
from tensorflow_impl import switches as framework

_INHERITED = ("allocator", "onednn", "cudnn_autotune", "intra_op_threads", "inter_op_threads")
"""Switches of the framework's own twin that this one has too."""


def options(kind: str) -> dict[str, Any]:
    """Describe every switch, for `describe`.

    Args:
        kind: kind of this machine's devices, `cuda`, `rocm` or `cpu`.
    """
    inherited = framework.options(kind)
    return {name: inherited[name] for name in _INHERITED} | {"graph": _graph()}


def switches_for(spec: Spec, kind: str) -> dict[str, Any]:
    """Return the values of all switches in a run."""
    return resolve_switches(spec, options(kind))


def prepare(spec: Spec) -> str:
    """Set what must be set before the framework's import. Returns a description of the allocator."""
    return framework.prepare(spec)


def _graph() -> dict[str, Any]:
    values = {"function": "graph", "eager": "eager", "xla": "compiled"}
    return {
        "values": list(values),
        "default": "function",
        "closed": "eager",
        "sets": {
            "graph": values,
            "layout": dict.fromkeys(values, "NHWC"),
            # Keras's optimizers assign: they use none of TensorFlow's fused kernels.
            "update": {"function": UPDATES["loop"], "eager": UPDATES["loop"], "xla": UPDATES["fused"]},
        },
        "only": {"eager": {"mode": ["serial"]}, "xla": {"mode": ["serial"]}},
        "help": "Keras's `train_step`: by tf.function, operation by operation (`run_eagerly`), or compiled with XLA for each "
        "batch size (`jit_compile`)",
    }
