"""Processes that a test starts, and whether they have ended."""

import time
from collections.abc import Sequence

import psutil

from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Failure, Watch, run_members


def run_ranks(command: Sequence[str], environments: Sequence[dict[str, str]], watch: Watch | None = None) -> Failure | None:
    """Run one command in several processes, each with its own additions to the environment; see `run_members`."""
    return run_members([ProcessSpec(f"rank {rank}", command, each) for rank, each in enumerate(environments)], watch or Watch())


def assert_gone(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + 120
    while alive := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f"still running: {alive}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
