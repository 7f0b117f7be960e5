"""NVTX ranges, which Nsight Systems shows above the kernels: steps, the wait for input, exchanges with other ranks.

They exist only in a process that such a profiler has started, where the package `nvtx` is installed.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from common.machine import flight

PROFILER_VARIABLE = "NVTX_INJECTION64_PATH"
"""Variable that a profiler sets for the processes that it starts."""

_nvtx: Any = None


def attach() -> None:
    """Mark ranges from now on if a profiler is there to see them, and none if not."""
    global _nvtx
    _nvtx = _import_nvtx() if os.environ.get(PROFILER_VARIABLE) else None
    flight.observe(_ExchangeRanges(_nvtx) if _nvtx else None)


def _import_nvtx() -> Any:
    """Return the package, or None where it is not installed."""
    try:
        import nvtx  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return nvtx


def annotate(name: str) -> AbstractContextManager[Any]:
    """Return a context that is one range of this name. Without a profiler it does nothing."""
    return nullcontext() if _nvtx is None else _nvtx.annotate(name)


class _ExchangeRanges:
    """A range for every exchange from its begin to its end. Exchanges of several threads overlap."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx
        self._open: dict[int, Any] = {}

    def begin(self, number: int, kind: str) -> None:
        self._open[number] = self._nvtx.start_range(kind)

    def end(self, number: int) -> None:
        if (handle := self._open.pop(number, None)) is not None:
            self._nvtx.end_range(handle)
