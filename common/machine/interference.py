"""Other work on the machine while something is timed, and how much of a budget of cores it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from common.frozen import Frozen
from common.machine import machine

DISTURBED_FROM = 0.15
"""Cores that other work took from a budget, above which times are unreliable."""

LEAST_TIMED_SECONDS = 0.5
"""Seconds of training below which no number of used cores is reported: the kernel's clocks tick every 10 ms."""


class Usage(Frozen):
    """Wall time, and CPU time of a run and of all other work in it."""

    wall_seconds: float = 0.0
    process_cpu_seconds: float = 0.0
    """CPU time of this process and its descendants. In a run of several ranks, the sum over them."""
    machine_cpu_seconds: float = 0.0
    """CPU time of everything on the machine."""
    budget_cpu_seconds: float = 0.0
    """CPU time of everything on the CPUs of the budget."""
    stolen_cpu_seconds: float = 0.0
    """CPU time that the hypervisor gave to other machines instead of the CPUs of the budget. Part of `budget_cpu_seconds`."""

    @property
    def other_cpu_seconds(self) -> float:
        """CPU time of other work on the machine. Not negative, though the kernel's clocks are coarse."""
        return max(self.machine_cpu_seconds - self.process_cpu_seconds, 0.0)

    @property
    def taken_cpu_seconds(self) -> float:
        """CPU time of other work on the CPUs of the budget."""
        return max(self.budget_cpu_seconds - self.process_cpu_seconds, 0.0)

    def plus(self, other: Usage) -> Usage:
        return Usage(**{name: seconds + getattr(other, name) for name, seconds in self})

    def minus(self, other: Usage) -> Usage:
        return Usage(**{name: seconds - getattr(other, name) for name, seconds in self})


def usage_until_now(cpus: Sequence[int] | None) -> Usage:
    """Return the time of a monotonic clock, and the CPU times until now. `cpus` are those of the budget; None: all."""
    machine_cpu_seconds = machine.busy_cpu_seconds()
    return Usage(
        wall_seconds=time.monotonic(),
        process_cpu_seconds=machine.cpu_seconds(),
        machine_cpu_seconds=machine_cpu_seconds,
        budget_cpu_seconds=machine_cpu_seconds if cpus is None else machine.busy_cpu_seconds(cpus),
        stolen_cpu_seconds=machine.stolen_cpu_seconds(cpus),
    )


class Meter:
    """Measures usage from its construction on.

    Args:
        cpus: the CPUs of the budget. None: all.
        read: returns the usage until now of such a budget.
    """

    def __init__(
        self, cpus: Sequence[int] | None = None, read: Callable[[Sequence[int] | None], Usage] = usage_until_now
    ) -> None:
        self._cpus, self._read = cpus, read
        self._before = self._read(cpus)

    def usage(self) -> Usage:
        return self._read(self._cpus).minus(self._before)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Leave a block out."""
        start = self._read(self._cpus)
        yield
        self._before = self._before.plus(self._read(self._cpus).minus(start))

    def cores_of_others(self) -> float:
        """Return the mean number of cores that other work on the machine used until now. 0 if no time has passed."""
        usage = self.usage()
        return usage.other_cpu_seconds / usage.wall_seconds if usage.wall_seconds else 0.0


def cores_taken(cores_of_others: float, budget: int, description: Mapping[str, Any]) -> float:
    """Return the cores that other work took from a budget, if only its use of the whole machine is known.

    Other work first uses the cores outside the budget. What it uses beyond these counts.

    Args:
        cores_of_others: cores that other work used on the whole machine.
        budget: number of cores in the budget.
        description: `machine.describe` of that machine. If it lacks the number of cores, all use counts.
    """
    return max(cores_of_others - ((description.get("logical_cores") or budget) - budget), 0.0)
