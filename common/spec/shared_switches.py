"""Descriptions that all twins share: switches, modes, and the threads and memory of a process."""

from __future__ import annotations

from typing import Any

from common.machine import machine, placement
from common.spec.schema import Spec
from common.spec.switches import resolve_switches

CUDA = "a CUDA device"
"""Requirement of a switch that CPUs do not have."""

ALLOCATOR: dict[str, Any] = {
    "values": ["keeping", "system"],
    "default": "keeping",
    "plain": "system",
    "process": ["system"],
    "help": "whether glibc keeps freed memory for the next step, or gives it back to the system, as it does by default",
}

ONEDNN: dict[str, Any] = {
    "values": [True, False],
    "default": True,
    "process": [False],
    "help": "whether oneDNN computes convolutions and dense layers on the CPU",
}


UPDATES = {"loop": "an operation at a time", "foreach": "all variables at once", "fused": "fused"}
"""Words for the kernels of an update, by the values of `optimizer_kernel`. A twin without that switch uses them in `sets`."""


def data_switch(*, on_cuda: bool) -> dict[str, Any]:
    """Describe the switch that puts the training images on the device."""
    return {
        "values": ["host", "device"] if on_cuda else ["host"],
        "default": "host",
        "elsewhere": {} if on_cuda else {"device": CUDA},
        "only": {"device": {"mode": ["serial"], "input": ["inline"], "data.loading": ["cached"]}},
        "help": "where the training images are, and where batches are gathered and augmented",
    }


def thread_switch() -> dict[str, Any]:
    """Return the entry in `describe` of a switch for a number of threads. The twin adds its `help`."""
    max_threads = machine.available_cores()
    numbers = sorted({*(2**power for power in range(max_threads.bit_length())), max_threads})
    return {
        "values": ["budget", "default", *numbers],
        "default": "budget",
        "plain": "default",
        "process": ["default", *numbers],
        "found_for": ["cores", "mode"],
    }


def mode_description(
    implementation: str,
    num_gpus: int | None,
    mechanism: str | None = None,
    *,
    hosts: bool = False,
    synchronised: bool = True,
    compression: bool = True,
    accumulation: bool = True,
    one_process: bool = False,
) -> dict[str, Any]:
    """Return the entry in `describe` of a mode.

    Args:
        num_gpus: number of GPUs. 0: replicas run on CPU cores. None: one device is enough.
        mechanism: equal in two twins if their replicas run and exchange alike. None: the implementation names it.
        hosts: whether it runs over several hosts, so that one GPU on each is enough.
        synchronised: whether BatchNorm can use the statistics of the global batch.
        compression: whether gradients can be compressed.
        accumulation: whether replicas can cut a batch, and add up the gradients of its parts.
        one_process: whether one process runs all replicas.
    """
    lacks_gpus = num_gpus == 1 and not hosts
    return {
        "available": not lacks_gpus,
        "reason": "needs 2 CUDA devices, found 1" if lacks_gpus else None,
        "max_replicas": 1 if num_gpus is None else num_gpus or None,
        "resource": "device" if num_gpus is None else "CUDA devices",
        "implementation": implementation,
        "mechanism": mechanism or implementation,
        "batch_norm_statistics": ["per_replica", *(["synchronised"] if synchronised else [])],
        "compression": compression,
        "accumulation": accumulation,
        "one_process": one_process,
    }


def set_allocator(spec: Spec) -> str:
    """Set this process's allocator, before the framework's import. Returns a description of it."""
    keeps = resolve_switches(spec, {"allocator": ALLOCATOR})["allocator"] == "keeping" and machine.keep_freed_memory()
    return "keeps freed pages" if keeps else "the system's default"


def intra_op_threads(spec: Spec) -> int:
    """Return the number of threads that one operation may use. All replicas together stay within the core budget."""
    return max(min(placement.cores_of_replica(spec.cores, spec.replicas, spec.hosts), machine.available_cores()), 1)
