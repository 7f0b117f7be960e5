"""The framework's switches: their values on this machine, and those that are set before its import."""

from __future__ import annotations

import os
from typing import Any

from common.spec import Spec, resolve_switches
from common.spec.shared_switches import ALLOCATOR, CUDA, set_allocator


def options(kind: str) -> dict[str, Any]:
    """Describe every switch, for `describe`.

    Args:
        kind: kind of this machine's devices, `cuda`, `rocm` or `cpu`.
    """
    on_cuda = kind == "cuda"
    # Twin: JAX has no switch for threads. XLA's pool has one for each CPU that the process is held to.
    return {
        "allocator": ALLOCATOR,
        "arithmetic": {
            "values": ["full", "bfloat16", *(["tf32"] if on_cuda else [])],
            "default": "full",
            **({"plain": "tf32"} if on_cuda else {}),
            "elsewhere": {} if on_cuda else {"tf32": CUDA},
            "only": {"bfloat16": {"precision": ["float32"]}, "tf32": {"precision": ["float32"]}},
            "reduced": ["bfloat16", "tf32"],
            "process": ["tf32"],
            "help": "what layers compute in, weights and loss being float32: float32 in full, bfloat16, or tf32 of tensor "
            "cores (JAX's own default on a GPU)",
        },
        "graph": {
            "values": ["jit"],
            "default": "jit",
            "sets": {"graph": {"jit": "compiled"}, "layout": {"jit": "NHWC"}},
            "help": "the training step: one program that XLA compiles for each batch size",
        },
        "depthwise": {
            "values": ["grouped", "products"],
            "default": "grouped",
            "help": "a depthwise convolution: XLA's grouped convolution, or a sum of products of shifted images",
        },
    }


def switches_for(spec: Spec, kind: str) -> dict[str, Any]:
    """Return the values of all switches in a run."""
    return resolve_switches(spec, options(kind))


def prepare(spec: Spec) -> str:
    """Set what must be set before the framework's import. Returns a description of the allocator."""
    if spec.replicas > 1:
        # Twin: JAX counts the devices of the CPU once, when it first looks for devices.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={spec.replicas}".strip()
    # Twin: JAX takes three quarters of a GPU's memory in advance. The others take what they need.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return set_allocator(spec)
