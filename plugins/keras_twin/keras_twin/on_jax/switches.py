"""The switches of Keras on this backend: their values on this machine, and those that are set before its import."""

from __future__ import annotations

from typing import Any

from jax_impl import switches as framework

from common.spec import Spec, resolve_switches
from common.spec.shared_switches import UPDATES

_INHERITED = ("allocator",)
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
    return {
        "values": ["jit", "eager"],
        "default": "jit",
        "sets": {
            "graph": {"jit": "compiled", "eager": "eager"},
            "layout": dict.fromkeys(("jit", "eager"), "NHWC"),
            "update": {"jit": UPDATES["fused"], "eager": UPDATES["loop"]},
        },
        "only": {"eager": {"mode": ["serial"]}},
        "help": "Keras's `train_step`: one program that XLA compiles for each batch size, as Keras chooses, or operation by "
        "operation (`run_eagerly=True`)",
    }
