"""What all twins describe alike: switches, modes, and the threads and memory of a process."""

from __future__ import annotations

from typing import Any

from common.machine import machine, placement
from common.spec.schema import Spec
from common.spec.switches import resolved

CUDA = "a CUDA device"
"""What a switch needs that is not for CPUs."""

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


def data_on(*, on_cuda: bool) -> dict[str, Any]:
    """The switch that puts the training images on the device."""
    return {
        "values": ["host", "device"] if on_cuda else ["host"],
        "default": "host",
        "elsewhere": {} if on_cuda else {"device": CUDA},
        "only": {"device": {"mode": ["serial"], "input": ["inline"], "data.loading": ["cached"]}},
        "help": "where the training images are, and where batches are gathered and augmented",
    }


def thread_choices() -> dict[str, Any]:
    """The entry in `describe` of a switch that is a number of threads. The twin adds its `help`."""
    most = machine.available_cores()
    numbers = sorted({*(2**power for power in range(most.bit_length())), most})
    return {
        "values": ["budget", "default", *numbers],
        "default": "budget",
        "plain": "default",
        "process": ["default", *numbers],
        "found_for": ["cores", "mode"],
    }


def described_mode(
    implementation: str,
    found: int | None,
    mechanism: str | None = None,
    *,
    hosts: bool = False,
    synchronised: bool = True,
    compression: bool = True,
    one_process: bool = False,
) -> dict[str, Any]:
    """The entry in `describe` of a mode.

    Args:
        found: number of GPUs. 0: replicas run on CPU cores. None: one device is enough.
        mechanism: equal in two twins if their replicas run and exchange alike. None: the implementation names it.
        hosts: whether it runs over several hosts, so that one GPU on each is enough.
        synchronised: whether BatchNorm can use the statistics of the global batch.
        compression: whether gradients can be compressed.
        one_process: whether one process runs all replicas.
    """
    lacking = found == 1 and not hosts
    return {
        "available": not lacking,
        "reason": "needs 2 CUDA devices, found 1" if lacking else None,
        "max_replicas": 1 if found is None else found or None,
        "resource": "device" if found is None else "CUDA devices",
        "implementation": implementation,
        "mechanism": mechanism or implementation,
        "batch_norm_statistics": ["per_replica", *(["synchronised"] if synchronised else [])],
        "compression": compression,
        "one_process": one_process,
    }


def set_allocator(spec: Spec) -> str:
    """Set this process's allocator, before the framework's import. Returns a description of it."""
    keeps = resolved(spec, {"allocator": ALLOCATOR})["allocator"] == "keeping" and machine.keep_freed_memory()
    return "keeps freed pages" if keeps else "the system's default"


def intra_op_threads(spec: Spec) -> int:
    """Threads that one operation may use. All replicas together stay within the core budget."""
    return max(min(placement.cores_of_replica(spec.cores, spec.replicas, spec.hosts), machine.available_cores()), 1)
