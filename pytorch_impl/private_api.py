"""Private names of the framework, all in one place. A new version may change them, so each has a test."""

from __future__ import annotations

import sys
from typing import Any

from torch._C._profiler import _ExperimentalConfig


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
