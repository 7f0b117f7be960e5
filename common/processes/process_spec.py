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

from common.machine.parent_process import tied_to_parent
from common.watching import watchdog


class ProcessSpec(NamedTuple):
    """One process of a run."""

    name: str
    """Name in messages, e.g. `rank 1`."""
    command: Sequence[str]
    environment: dict[str, str]
    """Variables in addition to this process's environment."""
    trains: bool = True
    """Whether it is a rank, which makes steps. Any other process serves the ranks, and is ended after them."""
    host: str | None = None
    """Host that runs it, see `common.processes.hosts`. None: this machine."""
    files: dict[str, str] = {}
    """Files that another host gets in its temporary folder: {name: content}."""


class RunningProcess(Protocol):
    """A running process of a run."""

    @property
    def watched(self) -> watchdog.Watchable:
        """The view that the watchdog reads."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended it. None: it is running."""
        ...

    def terminate(self) -> None:
        """Ask the process to end."""
        ...

    def kill(self) -> None:
        """End the process with all that it started."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for its end."""
        ...


KERNEL_VARIABLES = (
    "OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|ACL|LIBXSMM|NPY"  # threads and kernels of a CPU
    "|CUDNN|CUBLAS|CUBLASLT|TF|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|ATEN|XLA|JAX|KERAS"
)
"""Prefixes of variables that choose kernels, their threads, or how a framework computes."""

COMPUTE_VARIABLES = re.compile(f"({KERNEL_VARIABLES}|MALLOC)_.*|GLIBC_TUNABLES|CUDA_LAUNCH_BLOCKING|NVIDIA_TF32_OVERRIDE")
"""Pattern of variables that decide how a process computes. They are equal for all ranks."""

# A run's threads and its place among ranks are the spec's to set, never the shell's.
RESERVED_VARIABLES = re.compile(
    f"{COMPUTE_VARIABLES.pattern}|(TORCHELASTIC|PMI|OMPI)_.*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_RANK"
    "|MASTER_ADDR|MASTER_PORT|CONVTWINS_(STARTED|COMPANION|RUN_SECRET|PARAMETER_SERVER|TURNS)|LD_PRELOAD"
)
"""Pattern of variables that a run does not take from the shell."""

KILL_SECONDS = 10.0
"""Seconds to wait for a process after SIGKILL. The freezer of a control group or a blocked disk may delay its end."""


class LocalProcess:
    """A process of the run on this machine. It ends with this one, even where this one is killed."""

    def __init__(self, member: ProcessSpec, **streams: Any) -> None:
        self.watched = watchdog.WatchedProcess()
        try:
            self._process = subprocess.Popen(
                tied_to_parent(member.command),
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
        """Return the exit code, negative for the signal that ended it. None: it is running."""
        if self._process.returncode is None and psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
            self._reap()
        return self._process.returncode

    def terminate(self) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def kill(self, seconds: float = KILL_SECONDS) -> None:
        """End the process with all that it started, input workers too. A rank that waits for another ignores gentler signals.

        Args:
            seconds: how long to wait for its end. If it has not ended by then, another call waits on.
        """
        if self._process.returncode is None:
            self._reap(seconds)
        self.watched.close()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for its end."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _reap(self, seconds: float = KILL_SECONDS) -> None:
        # The group first: once the process is reaped, its number may be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of nothing but zombies
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # of one that is held, and ends once it is let go
            self._process.wait(seconds)
