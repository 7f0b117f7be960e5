"""The framework's switches: their values on this machine, and those that are set before its import."""

from __future__ import annotations

import os
from typing import Any

from common.spec import MODES, Spec, resolve_switches
from common.spec.shared_switches import ALLOCATOR, CUDA, ONEDNN, UPDATES, data_switch, set_allocator, thread_switch

_BEFORE_IMPORT: dict[str, Any] = {
    # Twin: TensorFlow reads its environment at import. torch has calls for both.
    "onednn": ONEDNN,
    "cudnn_autotune": {
        "values": [True, False],
        "default": True,
        "process": [False],
        "help": "whether cuDNN tries its algorithms for each shape and keeps the fastest",
    },
}


def options(kind: str) -> dict[str, Any]:
    """Describe every switch, for `describe`.

    Args:
        kind: kind of this machine's devices, `cuda` or `cpu`.
    """
    on_cuda = kind == "cuda"
    threads = thread_switch()
    whole_model_modes = list(MODES.names(lambda mode: not mode.divides_model and not mode.has_server))
    autotune = {} if on_cuda else {"values": [True], "elsewhere": {"False": CUDA}}
    # Twin: some switches exist in one framework only, and the other twin lists its own here. TensorFlow's own update
    # kernels are fused, and it pins batches by itself.
    return {
        "allocator": ALLOCATOR,
        **_BEFORE_IMPORT,
        "cudnn_autotune": _BEFORE_IMPORT["cudnn_autotune"] | autotune,
        "arithmetic": {
            "values": ["full", "bfloat16", "float16", *(["tf32"] if on_cuda else [])],
            "default": "full",
            **({"plain": "tf32"} if on_cuda else {}),
            "elsewhere": {} if on_cuda else {"tf32": CUDA},
            "only": {
                "bfloat16": {"precision": ["float32"], "mode": whole_model_modes},
                # Inside a graph, a strategy's replicas cannot skip a step together.
                "float16": {"precision": ["float32"], "mode": ["serial"]},
                "tf32": {"precision": ["float32"]},
            },
            "reduced": ["bfloat16", "float16", "tf32"],
            "process": ["tf32"],
            "help": "what layers compute in, weights and loss being float32: float32 in full, Keras' mixed_bfloat16 policy, "
            "mixed_float16 with loss scaling, or tf32 of tensor cores (TensorFlow's own default)",
        },
        "layout_optimizer": {
            "values": [True, False] if on_cuda else [True],
            "default": True,
            "closed": not on_cuda,
            "sets": {"layout": {"True": "as its optimizer turns NHWC" if on_cuda else "NHWC", "False": "NHWC"}},
            "elsewhere": {} if on_cuda else {"False": CUDA},
            "process": [False],
            "help": "whether the graph's activations are turned from NHWC to the layout that suits the device",
        },
        "graph": {
            "values": ["function", "eager", "xla"],
            "default": "function",
            "closed": "eager",
            "sets": {"graph": {"function": "graph", "eager": "eager", "xla": "compiled"}},
            # Twin: Keras's optimizers update by assignments, and not by fused kernels. XLA fuses them.
            "sets_native": {"update": {"function": UPDATES["loop"], "eager": UPDATES["loop"], "xla": UPDATES["fused"]}},
            "only": {
                "eager": {"mode": ["serial"]},
                # XLA compiles for one device and no ring. The other modes' graphs have several devices or a ring.
                # A graph is of one batch size, and replicas that own their images have several.
                "xla": {"mode": ["serial", "parameter_server", "model_averaging"], "dask.order": ["global", "chunks"]},
            },
            "help": "the training step: by tf.function, operation by operation, or compiled with XLA; evaluation is a function",
        },
        "intra_op_threads": threads | {"help": "threads of one process's operations; budget: its share of the cores"},
        "inter_op_threads": threads | {"help": "threads for operations side by side; budget: one for each replica"},
        "data_on": data_switch(on_cuda=on_cuda),
    }


def switches_for(spec: Spec, kind: str) -> dict[str, Any]:
    """Return the values of all switches in a run."""
    return resolve_switches(spec, options(kind))


def prepare(spec: Spec) -> str:
    """Set what must be set before the framework's import. Returns a description of the allocator."""
    switch_values = resolve_switches(spec, _BEFORE_IMPORT)
    if not switch_values["onednn"]:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    if not switch_values["cudnn_autotune"]:
        os.environ["TF_CUDNN_USE_AUTOTUNE"] = "0"
    return set_allocator(spec)
