"""Private names of the framework, all in one place. A new version may change them, so each has a test."""

from __future__ import annotations

import sys
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.nn import functional


def compilation_count() -> int:
    """Return a number that grows whenever the framework builds a graph in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported here: that takes a second
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


def profiler_of_all_threads() -> Any:
    """Return the profiler's configuration that records all threads. By default it records the calling thread alone."""
    return _ExperimentalConfig(profile_all_threads=True)


def fsdp_collectives() -> tuple[type[Any], type[Any]]:
    """Return the classes of the all-gather and the reduce-scatter that `fully_shard` uses by default."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # here: importing it brings SymPy

    return _fsdp_collectives.DefaultAllGather, _fsdp_collectives.DefaultReduceScatter


def bucket_bytes(model: Any) -> list[int]:
    """Return the bytes of each bucket of a DistributedDataParallel, cut in its first step and known from its third."""
    sizes = model._get_ddp_logging_data()
    return [int(size) for size in (sizes.get("rebuilt_bucket_sizes") or sizes["bucket_sizes"]).split(",")]


def with_signature(name: str, function: Any) -> Any:
    """Return the function that has the signature of one of `torch.nn.functional`. Some choose between two, and have none."""
    return getattr(functional, f"_{name}", function)
