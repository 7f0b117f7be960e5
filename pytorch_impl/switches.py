"""The framework's switches: their values on this machine, and those that are set before its import."""

from __future__ import annotations

import os
import shutil
from typing import Any

from common.spec import MODES, Spec, resolve_switches
from common.spec.shared_switches import ALLOCATOR, CUDA, ONEDNN, data_switch, set_allocator, thread_switch


def options(kind: str) -> dict[str, Any]:
    """Describe every switch, for `describe`.

    Args:
        kind: kind of this machine's devices, `cuda` or `cpu`.
    """
    on_cuda = kind == "cuda"
    threads = thread_switch()
    updating = list(MODES.names(lambda mode: not mode.has_server))  # a server has its own update rule
    whole_model_modes = list(MODES.names(lambda mode: not mode.divides_model and not mode.has_server))
    # Twin: some switches exist in one framework only, and the other twin lists its own here.
    return {
        "allocator": ALLOCATOR,
        "arithmetic": {
            "values": ["full", "bfloat16", "float16", *(["tf32", "tf32_convolutions"] if on_cuda else [])],
            "default": "full",
            **({"plain": "tf32_convolutions"} if on_cuda else {}),
            "elsewhere": {} if on_cuda else {"tf32": CUDA, "tf32_convolutions": CUDA},
            "only": {
                "bfloat16": {"precision": ["float32"], "mode": whole_model_modes},
                # An overflow must skip the step, and a compressed gradient would hide it or keep it as its error.
                "float16": {"precision": ["float32"], "mode": whole_model_modes, "communication.compression": ["none"]},
                "tf32": {"precision": ["float32"]},
                "tf32_convolutions": {"precision": ["float32"]},
            },
            "reduced": ["bfloat16", "float16", "tf32", "tf32_convolutions"],
            "process": ["tf32", "tf32_convolutions"],
            "help": "what layers compute in, weights and loss being float32: float32 in full, autocast to bfloat16, to float16 "
            "with loss scaling, or tf32 of tensor cores (torch's own default: in convolutions)",
        },
        "memory_format": {
            "values": ["contiguous", "channels_last"],
            "default": "contiguous",
            "closed": "channels_last",
            "sets": {"layout": {"contiguous": "NCHW", "channels_last": "NHWC"}},
            "help": "layout of images and activations in memory: NCHW or NHWC",
        },
        "graph": _graph(on_cuda),
        "optimizer_kernel": {
            "values": ["loop", "foreach", "fused"],
            # Twin: TensorFlow's kernels update a variable in one launch. A loop of operations would need five.
            "default": "fused" if on_cuda else "loop",
            "closed": "fused",
            **({"plain": "foreach"} if on_cuda else {}),
            "only": {"foreach": {"mode": updating}, "fused": {"mode": updating}},
            "help": "the update of one variable after the other, of all at once, or in one kernel; the same rule",
        },
        "onednn": ONEDNN,
        "intra_op_threads": threads | {"help": "threads of one operation; budget: this process's share of the cores"},
        # Twin: only TorchScript uses torch's inter-op pool, so its budget is one thread.
        "inter_op_threads": threads | {"help": "threads for operations side by side; budget: one"},
        "cudnn_autotune": {
            "values": [True, False] if on_cuda else [False],
            "default": on_cuda,
            **({"plain": False} if on_cuda else {}),
            "elsewhere": {} if on_cuda else {"True": CUDA},
            "process": [not on_cuda],
            "help": "whether cuDNN tries its algorithms for each shape and keeps the fastest",
        },
        "pinned_memory": {
            "values": [True, False] if on_cuda else [False],
            "default": on_cuda,
            **({"plain": False} if on_cuda else {}),
            "elsewhere": {} if on_cuda else {"True": CUDA},
            "only": {"False": {"input": ["workers"]}} if on_cuda else {},
            "help": "whether input workers put batches into memory from which the device copies by itself",
        },
        "data_on": data_switch(on_cuda=on_cuda),
    }


def switches_for(spec: Spec, kind: str) -> dict[str, Any]:
    """Return the values of all switches in a run."""
    return resolve_switches(spec, options(kind))


def prepare(spec: Spec) -> str:
    """Set what must be set before the framework's import. Returns a description of the allocator."""
    return set_allocator(spec)


def _graph(on_cuda: bool) -> dict[str, Any]:
    graphs = ["compile", "compile_max_autotune"]
    has_compiler = on_cuda or shutil.which(os.environ.get("CXX", "g++")) is not None
    elsewhere = {} if has_compiler else dict.fromkeys(graphs, "a C++ compiler")
    cuda_graphs = "compile_cuda_graphs"
    # In the other modes a model is a part of one, sends within its own passes, or runs in threads. torch can also compile
    # DistributedDataParallel, but here that is not supported.
    # A graph is of one batch size, and replicas that own their images have several.
    only = {"mode": ["serial", "parameter_server", "model_averaging"], "dask.order": ["global", "chunks"]}
    return {
        "values": ["eager", *(graphs if has_compiler else []), *([cuda_graphs] if on_cuda else [])],
        "default": "eager",
        "sets": {"graph": {"eager": "eager", **dict.fromkeys([*graphs, cuda_graphs], "compiled")}},
        # Threads share what torch.compile keeps: the stance, and how many models of one class it compiles before it gives up.
        "process": [*graphs, cuda_graphs],
        "elsewhere": elsewhere | ({} if on_cuda else {cuda_graphs: CUDA}),
        # The next micro-batch's graph overwrites the memory of the first one's gradients.
        "only": dict.fromkeys(graphs, only) | {cuda_graphs: only | {"accumulation": [1]}},
        "help": "forward and backward of a whole batch: operation by operation, by torch.compile, with its search for the "
        "fastest kernels, or with CUDA graphs (mode reduce-overhead); evaluation and smaller batches stay eager",
    }
