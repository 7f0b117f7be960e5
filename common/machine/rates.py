"""Matrix rate and copy rate of the machine, as NumPy reaches them, with a number of cores.

`python -m common.machine.rates CORES` measures and prints them as JSON. `measure_in_subprocess` starts it, so nothing else
runs there, and NumPy's library gets its number of threads before it is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pydantic import ValidationError

from common.frozen import Frozen
from common.machine import machine
from common.machine.parent_process import tied_to_parent

MATRIX_SIZE = 1024
COPIED_VALUES = 2**24
"""float64 values per copy, 128 MiB: more than the caches of most processors hold."""
DEVICE_MATRIX_SIZE = 4096
DEVICE_COPIED_BYTES = 2**28
MIN_SECONDS = 0.25
"""Seconds of repetitions for each rate. The fastest repetition counts."""

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_TIMEOUT_SECONDS = 120.0
_CALLS_PER_SYNC = 10
"""Calls of an accelerator's work between two synchronizations."""


class Rates(Frozen):
    """Rates of one machine, with a number of cores."""

    cores: int
    float32_gflops: float
    """Product of two square matrices of MATRIX_SIZE, a multiply-add counted as two."""
    float64_gflops: float
    copy_gb_per_second: float
    """Copy from memory to memory. Read and written bytes count, in units of 1e9."""

    def gflops(self, precision: str) -> float:
        return {"float32": self.float32_gflops, "float64": self.float64_gflops}[precision]


class DeviceRates(Frozen):
    """Rates of one accelerator, as a framework reaches them after training, in the arithmetic of the run."""

    matrix_gflops: float
    """Product of two square matrices of DEVICE_MATRIX_SIZE."""
    copy_gb_per_second: float
    """Copy within the accelerator's memory. Read and written bytes count, in units of 1e9."""


def measure_device(
    multiply: Callable[[], object], copy: Callable[[], object], synchronize: Callable[[], None], size: int, num_bytes: int
) -> DeviceRates:
    """Measure the rates of an accelerator.

    Args:
        multiply: starts the product of two square matrices.
        copy: starts a copy within the accelerator's memory.
        synchronize: waits until all started work is done.
        size: number of rows of each matrix.
        num_bytes: bytes of the copy.
    """

    def seconds(work: Callable[[], object]) -> float:
        def repeated() -> None:  # so that the waiting is a small part of it
            for _ in range(_CALLS_PER_SYNC):
                work()
            synchronize()

        return best_seconds(repeated) / _CALLS_PER_SYNC

    return DeviceRates(matrix_gflops=2e-9 * size**3 / seconds(multiply), copy_gb_per_second=2e-9 * num_bytes / seconds(copy))


def measure_in_subprocess(cores: int, interpreter: str = sys.executable) -> Rates | None:
    """Measure the rates in a fresh process. None: it failed, as it may for lack of memory."""
    threads = dict.fromkeys(_THREADS, str(cores))
    try:
        result = subprocess.run(
            tied_to_parent([interpreter, "-P", "-m", "common.machine.rates", str(cores)], interpreter),
            env={**os.environ, **threads, "PYTHONPATH": str(machine.PROJECT_ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
        return Rates.model_validate_json(result.stdout)
    except (OSError, subprocess.SubprocessError, ValidationError):
        return None


def measure(cores: int) -> Rates:
    """Measure the rates in this process, with the threads that NumPy has. See `measure_in_subprocess`."""
    return Rates(
        cores=cores,
        float32_gflops=_matrix_rate(np.dtype(np.float32)),
        float64_gflops=_matrix_rate(np.dtype(np.float64)),
        copy_gb_per_second=_copy_rate(cores),
    )


def _matrix_rate(dtype: np.dtype[np.floating]) -> float:
    left, right = (np.random.default_rng(seed).random((MATRIX_SIZE, MATRIX_SIZE)).astype(dtype) for seed in (0, 1))
    product = np.empty_like(left)
    return 2e-9 * MATRIX_SIZE**3 / best_seconds(lambda: np.matmul(left, right, out=product))


def _copy_rate(cores: int) -> float:
    """Measure the copy rate with one part per core: one core alone does not saturate the memory's channels."""
    source, target = np.ones(COPIED_VALUES), np.zeros(COPIED_VALUES)
    parts = [*zip(np.array_split(source, cores), np.array_split(target, cores), strict=True)]

    def copy(part: tuple[np.ndarray, np.ndarray]) -> None:
        np.copyto(part[1], part[0])

    with ThreadPoolExecutor(cores) as pool:
        return 2e-9 * source.nbytes / best_seconds(lambda: list(pool.map(copy, parts)))


def best_seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of the fastest of the repetitions that begin within MIN_SECONDS, by a clock in seconds."""
    work()  # threads are started and pages touched
    best, began = float("inf"), clock()
    while clock() - began < MIN_SECONDS:
        start = clock()
        work()
        best = min(best, clock() - start)
    return best


if __name__ == "__main__":
    cores = int(sys.argv[1])
    machine.set_affinity(machine.cpu_budget(cores))
    print(measure(cores).model_dump_json())
