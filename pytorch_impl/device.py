"""Devices, threads and switches of this framework on this machine."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import torch
from torch.cuda import nccl

from common.machine import machine
from common.machine.rates import DEVICE_COPIED_BYTES, DEVICE_MATRIX_SIZE, DeviceRates, measure_device
from common.machine.worker_processes import why_no_worker_processes
from common.spec import Spec
from common.spec.shared_switches import intra_op_threads, mode_description
from pytorch_impl import SUPPORTED, rendezvous, switches

_ALL_REDUCE = "a process for each replica, gradients by all-reduce"
_AVERAGES = "a process for each replica, averages by all-reduce"


def kind() -> str:
    """Return `cuda` if there is a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def gpus() -> list[str]:
    """Return the names of the GPUs that this process sees."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def describe() -> dict[str, Any]:
    """Describe devices, available modes, switches and versions, JSON-ready, for `common.spec.check_against`."""
    names = gpus()
    cpu_entries = {"on_cpu": _on([])} if names else {}
    build_info = {"versions": versions(), "supported": SUPPORTED, "libraries": libraries()}
    # Twin: TensorFlow's input workers are threads.
    missing = {} if (reason := why_no_worker_processes()) is None else {"inputs_not_available": {"workers": reason}}
    return {"framework": "pytorch", **build_info, **_on(names), **cpu_entries, **missing}


def _on(names: list[str]) -> dict[str, Any]:
    """Return the entries that depend on the GPUs, which are given by name. Without names they describe the CPU."""
    num_gpus = len(names)
    backend = "nccl" if num_gpus else "gloo"
    return {
        "devices": [{"name": name, "kind": "cuda"} for name in names] or [{"name": "cpu", "kind": "cpu"}],
        "modes": {
            "serial": mode_description("one replica", None),
            "data_parallel": mode_description(
                "nn.DataParallel" if num_gpus else "replicas in CPU threads",
                num_gpus,
                None if num_gpus else "Python threads of this suite, not nn.DataParallel",
                # Twin: nn.DataParallel copies the model at every forward pass and sums gradients inside the backward pass. It
                # has no synchronised BatchNorm.
                synchronised=not num_gpus,
                compression=not num_gpus,
                one_process=True,
            ),
            "multi_process": mode_description(f"DistributedDataParallel, {backend}", num_gpus, _ALL_REDUCE, hosts=True),
            "sharded_data_parallel": mode_description(f"torch.distributed.fsdp.fully_shard, {backend}", num_gpus),
            "parameter_server": mode_description("NumPy server, Dask actor", num_gpus, hosts=True),
            "model_parallel": mode_description(f"torch.distributed.pipelining, {backend}", num_gpus),
            "tensor_parallel": mode_description(f"each layer's channels over ranks, {backend}", num_gpus),
            "pipeline": mode_description(f"torch.distributed.pipelining, {backend}", num_gpus),
            # Separately trained models keep their own statistics until they are averaged.
            "model_averaging": mode_description(
                f"own optimizers, averages by all-reduce, {backend}", num_gpus, _AVERAGES, hosts=True, synchronised=False
            ),
            "hybrid": mode_description(f"data-parallel copies of a model that ranks divide, {backend}", num_gpus),
        },
        "options": switches.options("cuda" if num_gpus else "cpu"),
        "inputs": {"workers": "worker processes"},
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def versions() -> dict[str, str]:
    """Return the installed versions of the framework's packages."""
    return machine.versions("torch", "torchvision")


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that the framework was built with. Unknown ones are left out."""
    build = re.search(r"(?:oneDNN|MKL-DNN) v([\d.]+)", torch.__config__.show())
    # Twin: each framework has its own record of what it was built with.
    library_versions = {"CUDA": torch.version.cuda, "oneDNN": build[1] if build else None}
    if torch.version.cuda:
        with contextlib.suppress(RuntimeError):  # another cuDNN is there than the one it was built with: no matter on a CPU
            cudnn = torch.backends.cudnn.version() or 0
            library_versions["cuDNN"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
        with contextlib.suppress(AttributeError, RuntimeError):  # a build without NCCL
            library_versions["NCCL"] = ".".join(map(str, nccl.version()))
    return {name: version for name, version in library_versions.items() if version}


def configure(spec: Spec, trials: int = 1) -> None:
    """Set this process's threads and precision, and connect to the other ranks. Call once, before making a tensor.

    Args:
        spec: spec of the run, or of each trial.
        trials: number of runs that this process executes concurrently, each in its own thread.
    """
    switch_values = switches.switches_for(spec, kind())
    if switch_values["intra_op_threads"] != "default":
        torch.set_num_threads(
            {"budget": intra_op_threads(spec)}.get(switch_values["intra_op_threads"]) or switch_values["intra_op_threads"]
        )
    if switch_values["inter_op_threads"] != "default":
        torch.set_num_interop_threads({"budget": 1}.get(switch_values["inter_op_threads"]) or switch_values["inter_op_threads"])
    # float32 means float32. The reduced precision of tensor cores is a switch, never a default. These are the older names:
    # torch.compile still reads one of them, and that fails where `fp32_precision` was set to tf32.
    torch.backends.cuda.matmul.allow_tf32 = switch_values["arithmetic"] == "tf32"
    torch.backends.cudnn.allow_tf32 = switch_values["arithmetic"] in ("tf32", "tf32_convolutions")
    torch.backends.cudnn.benchmark = switch_values["cudnn_autotune"]
    torch.backends.mkldnn.enabled = switch_values["onednn"]
    rendezvous.join(spec)


def synchronize() -> None:
    """Wait until the device has finished all queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the current device: nn.DataParallel collects there what the others compute


def peak_memory_mib() -> list[float]:
    """Return the peak memory so far in MiB of each device that this process sees; empty on a CPU."""
    return [torch.cuda.max_memory_allocated(index) / 2**20 for index in range(torch.cuda.device_count())]


def rates(spec: Spec) -> DeviceRates | None:
    """Measure the rates of this process's device in the run's arithmetic. None on a CPU, which NumPy measures."""
    return None if kind() == "cpu" else measured_rates(spec, "cuda", DEVICE_MATRIX_SIZE, DEVICE_COPIED_BYTES)


def measured_rates(spec: Spec, where: str, size: int, num_bytes: int) -> DeviceRates:
    """Measure the rates of any device.

    Args:
        size: rows and columns of the multiplied matrices.
        num_bytes: number of bytes that are copied.
    """
    reduced_dtypes = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    matrix_dtype = reduced_dtypes.get(switches.switches_for(spec, kind())["arithmetic"], dtype(spec))
    left, right = (torch.rand(size, size, device=where).to(matrix_dtype) for _ in range(2))
    product = torch.empty_like(left)
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=where) for _ in range(2))
    return measure_device(
        lambda: torch.matmul(left, right, out=product), lambda: target.copy_(source), synchronize, size, num_bytes
    )


def dtype(spec: Spec) -> torch.dtype:
    """Return the framework's dtype for the spec's precision."""
    return {"float32": torch.float32, "float64": torch.float64}[spec.precision]
