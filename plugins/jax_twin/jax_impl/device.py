"""Devices, threads and switches of this framework on this machine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from common.machine import environment, machine
from common.machine.rates import DEVICE_COPIED_BYTES, DEVICE_MATRIX_SIZE, DeviceRates, measure_device
from common.spec import Spec
from common.spec.shared_switches import mode_description
from jax_impl import SUPPORTED, switches

# Twin: JAX makes float32 of float64 unless it is told once, before the first array.
jax.config.update("jax_enable_x64", True)


_LIBRARIES = {"nvidia-cuda-runtime": "CUDA", "nvidia-cudnn": "cuDNN", "nvidia-nccl": "NCCL"}
"""Distributions of NVIDIA's libraries, without the version of CUDA in some of their names."""


def kind() -> str:
    """Return `cuda` if there is a GPU, `rocm` if it is AMD's, else `cpu`."""
    # Twin: to JAX each of them is a `gpu`.
    platform_versions = [device.client.platform_version for device in jax.local_devices() if device.platform == "gpu"]
    return "cpu" if not platform_versions else "rocm" if "rocm" in platform_versions[0].lower() else "cuda"


def gpus() -> list[str]:
    """Return the names of the GPUs that this process sees."""
    return [device.device_kind for device in jax.local_devices() if device.platform == "gpu"]


def describe() -> dict[str, Any]:
    """Describe devices, available modes, switches and versions, JSON-ready, for `common.spec.check_against`."""
    names = gpus()
    cpu_entries = {"on_cpu": _on([])} if names else {}
    build_info = {"versions": versions(), "supported": SUPPORTED, "libraries": libraries()}
    return {"framework": "jax", **build_info, **_on(names), **cpu_entries}


def _on(names: list[str]) -> dict[str, Any]:
    """Return the entries that depend on the GPUs, which are given by name. Without names they describe the CPU."""
    num_gpus = len(names)
    mesh = f"shard_map over {'GPUs' if num_gpus else 'CPU devices'} of one program"
    # Twin: the other modes are left out, and are `not available`.
    return {
        "devices": [{"name": name, "kind": kind()} for name in names] or [{"name": "cpu", "kind": "cpu"}],
        "modes": {
            "serial": mode_description("one replica", None),
            "data_parallel": mode_description(mesh, num_gpus, compression=False),
        },
        "options": switches.options(kind() if num_gpus else "cpu"),
        "inputs": {"workers": "threads of NumPy"},
        "deterministic": False,
    }


def versions() -> dict[str, str]:
    """Return the installed versions of the framework's packages."""
    return machine.versions("jax", "jaxlib")


def libraries() -> dict[str, str]:
    """Versions of the NVIDIA libraries beside the framework. It does not name those that it was built with, nor its oneDNN."""
    installed = environment.distributions().items()
    return {library: version for name, version in installed if (library := _LIBRARIES.get(name.partition("-cu1")[0]))}


def configure(spec: Spec, trials: int = 1) -> None:
    """Set this process's precision. Call once, before making an array."""
    # float32 means float32. The reduced precision of tensor cores is a switch, never a default.
    reduced = switches.switches_for(spec, kind())["arithmetic"] == "tf32"
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if reduced else "highest")


def synchronize() -> None:
    """Wait until the device has finished all queued work."""
    # Twin: JAX waits for arrays, not for devices. Every result that anyone still holds is among these.
    jax.block_until_ready(jax.live_arrays())


def peak_memory_mib() -> list[float]:
    """Return the peak memory so far in MiB of each device that this process sees; empty on a CPU."""
    devices = jax.local_devices() if gpus() else []
    return [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**20 for device in devices]


def rates(spec: Spec, size: int = DEVICE_MATRIX_SIZE, num_bytes: int = DEVICE_COPIED_BYTES) -> DeviceRates | None:
    """Measure the rates of this process's device in the run's arithmetic. None on a CPU, which NumPy measures."""
    if kind() == "cpu":
        return None
    matrix_dtype = jnp.bfloat16 if switches.switches_for(spec, kind())["arithmetic"] == "bfloat16" else spec.precision
    left, right = (jax.random.uniform(jax.random.key(seed), (size, size)).astype(matrix_dtype) for seed in (0, 1))
    source = jnp.zeros(num_bytes, jnp.uint8)
    multiply, copy = jax.jit(jnp.matmul), jax.jit(jnp.copy)
    results: dict[str, jax.Array] = {}  # Twin: `synchronize` waits for what is held
    return measure_device(
        lambda: results.update(product=multiply(left, right)),
        lambda: results.update(copy=copy(source)),
        synchronize,
        size,
        num_bytes,
    )
