"""A cluster whose workers die when a test wants it."""

import os
import signal
from dataclasses import dataclass
from typing import Any

import distributed


@dataclass(frozen=True)
class Cluster:
    client: distributed.Client

    @property
    def address(self) -> str:
        return self.client.scheduler_info()["address"]

    @property
    def allowed_failures(self) -> int:
        allowed: Any = self.client.run_on_scheduler(_allowed_failures)
        return allowed

    def workers(self) -> dict[str, int]:
        """The pid of each worker by its address, once there are two, as they come back a while after they were killed."""
        self.client.wait_for_workers(2, timeout=300)
        pids: Any = self.client.run(os.getpid, on_error="ignore")
        return pids

    def allow_failures(self, count: int) -> None:
        """Set how many workers may die during one task."""
        self.client.run_on_scheduler(_allow_failures, count=count)

    def kill(self, count: int) -> None:
        for pid in list(self.workers().values())[:count]:
            os.kill(pid, signal.SIGKILL)


def _allow_failures(count: int, dask_scheduler: Any = None) -> None:
    dask_scheduler.allowed_failures = count


def _allowed_failures(dask_scheduler: Any = None) -> int:
    return dask_scheduler.allowed_failures
