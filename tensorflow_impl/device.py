"""Devices, threads and switches of this framework on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.machine import machine, placement
from common.machine.rates import DEVICE_COPIED_BYTES, DEVICE_MATRIX_SIZE, DeviceRates, measure_device
from common.spec import Spec
from common.spec.shared_switches import intra_op_threads, mode_description
from tensorflow_impl import SUPPORTED, rendezvous, switches

_ALL_REDUCE = "a process for each replica, gradients by all-reduce"
_AVERAGES = "a process for each replica, averages by all-reduce"


def graph(function: Callable[..., Any], **options: Any) -> Any:
    """Return a graph of the function, by `tf.function` with these options.

    AutoGraph is off, as in Keras's own `fit`: it rewrites Python's `if` and `for` over tensors. Nothing here has these, and
    rewriting takes up to a second when a run starts.
    """
    # Twin: TensorFlow makes graphs. torch has none unless it compiles.
    return tf.function(function, autograph=False, **options)


def copies(variable: tf.Variable) -> Sequence[tf.Variable]:
    """Return a variable's copy on each replica of this process.

    Copies are read and set in microseconds. A strategy's own variable needs milliseconds, because it starts a context for each.
    """
    # Twin: a strategy's variable stands for all replicas. torch's replicas have tensors of their own.
    return getattr(variable, "values", (variable,))


def kind() -> str:
    """Return `cuda` if there is a GPU, else `cpu`."""
    return "cuda" if gpus() else "cpu"


def gpus() -> list[str]:
    """Return the names of the GPUs that this process sees."""
    return [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]


def describe() -> dict[str, Any]:
    """Describe devices, available modes, switches and versions, JSON-ready, for `common.spec.check_against`."""
    names = gpus()
    cpu_entries = {"on_cpu": _on([])} if names else {}
    build_info = {"versions": versions(), "supported": SUPPORTED, "libraries": libraries()}
    return {"framework": "tensorflow", **build_info, **_on(names), **cpu_entries}


def _on(names: list[str]) -> dict[str, Any]:
    """Return the entries that depend on the GPUs, which are given by name. Without names they describe the CPU."""
    num_gpus = len(names)
    devices = "GPUs" if num_gpus else "logical CPU devices"
    ring = "nccl" if num_gpus else "ring"
    return {
        "devices": [{"name": name, "kind": "cuda"} for name in names] or [{"name": "cpu", "kind": "cpu"}],
        "modes": {
            "serial": mode_description("one replica", None),
            # Twin: the strategy's replicas can sum tensors inside a step on every device.
            "data_parallel": mode_description(f"MirroredStrategy, {devices}", num_gpus, one_process=True),
            "multi_process": mode_description(f"MultiWorkerMirroredStrategy, {ring}", num_gpus, _ALL_REDUCE, hosts=True),
            "sharded_data_parallel": mode_description(
                f"gathered and scattered over {devices} of one graph", num_gpus, one_process=True
            ),
            "parameter_server": mode_description("NumPy server, Dask actor", num_gpus, hosts=True),
            "model_parallel": mode_description(f"layers over {devices} in one graph", num_gpus, one_process=True),
            "tensor_parallel": mode_description(
                f"each layer's channels over {devices} of one graph", num_gpus, one_process=True
            ),
            "pipeline": mode_description(f"micro-batches over {devices} in one graph", num_gpus, one_process=True),
            # Separately trained models keep their own statistics until they are averaged.
            "model_averaging": mode_description(
                f"own optimizers, averages by all-reduce, {ring}", num_gpus, _AVERAGES, hosts=True, synchronised=False
            ),
            "hybrid": mode_description(
                f"data-parallel copies of a model that {devices} of one graph divide", num_gpus, one_process=True
            ),
        },
        "options": switches.options("cuda" if num_gpus else "cpu"),
        "inputs": {"workers": "tf.data threads"},
        "deterministic": os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true"),
    }


def versions() -> dict[str, str]:
    """Return the installed versions of the framework's packages."""
    return machine.versions("tensorflow", "keras")


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that the framework was built with. Unknown ones are left out."""
    build = tf.sysconfig.get_build_info()
    # Twin: each framework has its own record of what it was built with.
    library_versions = {"CUDA": build.get("cuda_version"), "cuDNN": build.get("cudnn_version")}
    return {name: str(version) for name, version in library_versions.items() if version}


def configure(spec: Spec, trials: int = 1) -> None:
    """Set this process's threads and precision, and connect to the other ranks. Call once, before making a tensor.

    Args:
        spec: spec of the run, or of each trial.
        trials: number of runs that this process executes concurrently, each in its own thread.
    """
    # Twin: TensorFlow's replicas are devices of one graph where they can be. torch runs all but data_parallel as processes.
    local_replicas = 1 if spec.traits.processes == "each" else spec.replicas
    switch_values = switches.switches_for(spec, kind())
    # Twin: logical devices share one intra-op pool, and their replicas run on the inter-op pool. 0: TensorFlow chooses.
    intra = {"budget": intra_op_threads(spec) * local_replicas, "default": 0}
    tf.config.threading.set_intra_op_parallelism_threads(
        intra.get(switch_values["intra_op_threads"], switch_values["intra_op_threads"])
    )
    # Twin: a step runs on the inter-op pool, not on the calling thread. With one thread, trials would take turns.
    inter = {"budget": local_replicas * trials, "default": 0}
    tf.config.threading.set_inter_op_parallelism_threads(
        inter.get(switch_values["inter_op_threads"], switch_values["inter_op_threads"])
    )
    if local_replicas > 1 and not gpus():
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * local_replicas)
    # Twin: TensorFlow starts every GPU that it sees, and a worker of a strategy makes a replica on each. torch starts those
    # that it uses.
    if physical_gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices([physical_gpus[index] for index in placement.gpu_indices(local_replicas)], "GPU")
    for gpu in tf.config.get_visible_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    # float32 means float32. The reduced precision of tensor cores is a switch, never a default.
    tf.config.experimental.enable_tensor_float_32_execution(switch_values["arithmetic"] == "tf32")
    if not switch_values["layout_optimizer"]:
        tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    rendezvous.join(spec)


def synchronize() -> None:
    """Wait until the device has finished all queued work."""
    if gpus():
        tf.test.experimental.sync_devices()


def peak_memory_mib() -> list[float]:
    """Return the peak memory so far in MiB of each device that this process sees; empty on a CPU."""
    devices = tf.config.list_logical_devices("GPU") if gpus() else []
    return [tf.config.experimental.get_memory_info(device.name)["peak"] / 2**20 for device in devices]


def rates(spec: Spec) -> DeviceRates | None:
    """Measure the rates of this process's device in the run's arithmetic. None on a CPU, which NumPy measures."""
    return None if kind() == "cpu" else measured_rates(spec, "GPU:0", DEVICE_MATRIX_SIZE, DEVICE_COPIED_BYTES)


def measured_rates(spec: Spec, where: str, size: int, num_bytes: int) -> DeviceRates:
    """Measure the rates of any device.

    Args:
        size: rows and columns of the multiplied matrices.
        num_bytes: number of bytes that are copied.
    """
    reduced_dtypes = {"bfloat16": tf.bfloat16, "float16": tf.float16}
    matrix_dtype = reduced_dtypes.get(switches.switches_for(spec, kind())["arithmetic"], dtype(spec))
    with tf.device(where):
        left, right = (tf.cast(tf.random.uniform((size, size)), matrix_dtype) for _ in range(2))
        source = tf.ones(num_bytes // 4, tf.float32)
        multiply = graph(lambda: tf.linalg.matmul(left, right))
        # Twin: TensorFlow would share the buffer instead of copying it. Negation reads and writes as many bytes.
        copy = graph(lambda: tf.negative(source))
    return measure_device(multiply, copy, synchronize, size, num_bytes)


def dtype(spec: Spec) -> tf.DType:
    """Return the framework's dtype for the spec's precision."""
    return {"float32": tf.float32, "float64": tf.float64}[spec.precision]
