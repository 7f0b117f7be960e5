"""The switches of Keras on this backend: their values on this machine, and those that are set before its import."""

from __future__ import annotations

from typing import Any

from common.spec import Spec, resolve_switches
from common.spec.shared_switches import UPDATES
from pytorch_impl import switches as framework

_INHERITED = ("allocator", "onednn", "intra_op_threads", "inter_op_threads", "pinned_memory")
"""Switches of the framework's own twin that this one has too."""


def options(kind: str) -> dict[str, Any]:
    """Describe every switch, for `describe`.

    Args:
        kind: kind of this machine's devices, `cuda`, `rocm` or `cpu`.
    """
    inherited = framework.options(kind)
    return {name: inherited[name] for name in _INHERITED} | {"graph": _graph(inherited["graph"])}


def switches_for(spec: Spec, kind: str) -> dict[str, Any]:
    """Return the values of all switches in a run."""
    return resolve_switches(spec, options(kind))


def prepare(spec: Spec) -> str:
    """Set what must be set before the framework's import. Returns a description of the allocator."""
    return framework.prepare(spec)


def _graph(framework_graph: dict[str, Any]) -> dict[str, Any]:
    values = "eager", "compile"
    return {
        "values": [value for value in values if value in framework_graph["values"]],
        "default": "eager",
        "sets": {
            "graph": {"eager": "eager", "compile": "compiled"},
            "layout": dict.fromkeys(values, "NHWC"),
            "update": {"eager": UPDATES["loop"], "compile": UPDATES["fused"]},
        },
        # Keras's own optimizers on torch call `torch._foreach_*`. An optimizer of another class updates variable by variable.
        # Compiled, SGD leaves one such call between its fused kernels.
        "sets_native": {"update": {"eager": UPDATES["foreach"], "compile": UPDATES["fused"]}},
        "process": ["compile"],
        "elsewhere": {value: needed for value, needed in framework_graph["elsewhere"].items() if value in values},
        "help": "Keras's `train_step`: operation by operation, as Keras chooses on torch, or by torch.compile (`jit_compile`)",
    }
