"""The processes of one run, each started and ended with all that it starts itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import psutil

from common.processes import watchdog


class ProcessSpec(NamedTuple):
    """One process of a run."""

    name: str
    """As a message names it, e.g. `rank 1`."""
    command: Sequence[str]
    environment: dict[str, str]
    """Additions to this process's."""
    trains: bool = True
    """Whether it is a rank, which makes steps; another serves the ranks, and is ended after them."""
    host: str | None = None
    """Where it runs, see `common.processes.hosts`; None: here."""
    files: dict[str, str] = {}
    """What another host must have in the folder of its own: {name: content}."""


class Running(Protocol):
    """A member at work."""

    @property
    def watched(self) -> watchdog.Watchable:
        """What is looked at."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it works."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it with all that it started."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, or for so long."""
        ...


OF_KERNELS = (
    "OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|ACL|LIBXSMM|NPY"  # threads and kernels of a CPU
    "|CUDNN|CUBLAS|CUBLASLT|TF|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|ATEN|XLA|JAX|KERAS"
)
"""How the names of variables begin that choose kernels, their threads, or how a framework computes."""

COMPUTING = re.compile(f"({OF_KERNELS}|MALLOC)_.*|GLIBC_TUNABLES|CUDA_LAUNCH_BLOCKING|NVIDIA_TF32_OVERRIDE")
"""Names of variables that say how a process computes. They are the same for all ranks."""

# A run's threads and its place among ranks are the spec's to set, never the shell's.
SETTLED = re.compile(
    f"{COMPUTING.pattern}|(TORCHELASTIC|PMI|OMPI)_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK"
    "|MASTER_ADDR|MASTER_PORT|CONVTWINS_(STARTED|COMPANION|RUN_SECRET|PARAMETER_SERVER)|LD_PRELOAD"
)
"""Names of variables that a run does not take from the shell."""

HELD_SECONDS = 10.0
"""How long to wait for a process after SIGKILL. The freezer of a control group, or a disk that does not answer, holds it."""


class Local:
    """A member at work on this machine."""

    def __init__(self, member: ProcessSpec, **streams: Any) -> None:
        self.watched = watchdog.Watched()
        try:
            self._process = subprocess.Popen(
                list(member.command),
                env={**os.environ, **member.environment, **self.watched.environment},
                stdin=subprocess.DEVNULL,
                pass_fds=self.watched.descriptors,
                process_group=0,
                **streams,
            )
        except BaseException:
            self.watched.close()
            raise
        self.pid = self.watched.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it works."""
        if self._process.returncode is None and psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
            self._reap()
        return self._process.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self, seconds: float = HELD_SECONDS) -> None:
        """End it with all that it started, input workers too: a rank that waits for another hears no gentler word.

        Args:
            seconds: how long to wait for its end. If it has not ended by then, another call waits on.
        """
        if self._process.returncode is None:
            self._reap(seconds)
        self.watched.close()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, or for so long."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _reap(self, seconds: float = HELD_SECONDS) -> None:
        # The group first: once the process is reaped, its number may be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of nothing but zombies
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # of one that is held, and ends once it is let go
            self._process.wait(seconds)
