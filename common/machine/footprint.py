"""The resources that a process uses, read from outside. The process is not asked, signalled or stopped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil

RUNNING, SLEEPING, DISK, STOPPED, TRACED, ENDED = "R", "S", "D", "T", "t", "Z"
"""States of a thread, as Linux writes them. Running: it has a core or waits for one."""

_STATES = {
    psutil.STATUS_RUNNING: RUNNING,
    psutil.STATUS_DISK_SLEEP: DISK,
    psutil.STATUS_STOPPED: STOPPED,
    psutil.STATUS_TRACING_STOP: TRACED,
    psutil.STATUS_ZOMBIE: ENDED,
}
"""States of psutil. All others sleep."""


class Thread(NamedTuple):
    """One thread. Times and counts are since its start."""

    number: int
    """Thread id of the operating system. The main thread has the id of its process."""
    name: str
    state: str
    cpu_seconds: float
    core_wait_seconds: float
    """Seconds when it was runnable, but others had the cores or a quota was used up. 0 where the kernel does not count."""
    voluntary_switches: int
    """Context switches because the thread had to wait."""
    involuntary_switches: int
    """Context switches because the core was taken from it."""


class Footprint(NamedTuple):
    """One process. Times and counts are since its start."""

    pid: int
    cpu_seconds: float
    """CPU time of the process and of its children that have ended."""
    threads: list[Thread]
    minor_faults: int
    major_faults: int
    """Page faults that read from the disk or from swap."""
    disk_bytes: int | None
    """Bytes read from and written to disks. None: not known of another user's process."""
    resident_bytes: int
    shared_bytes: int
    """Resident bytes in shared memory."""
    swap_bytes: int

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process."""
        return self.threads[0].state in (STOPPED, TRACED)

    @property
    def is_active(self) -> bool:
        """Whether a thread has a core, waits for one, or waits for the disk."""
        return any(thread.state in (RUNNING, DISK) for thread in self.threads)

    def total(self, field: str) -> float:
        """Return the sum of a field over all threads."""
        return sum(getattr(thread, field) for thread in self.threads)


def read(pid: int) -> Footprint | None:
    """Read a process now. None: it has ended.

    Off Linux, a process has one thread, and only its CPU time, state, switches and memory are known.
    """
    try:
        footprint = _read_linux(pid) if sys.platform == "linux" else _read_with_psutil(psutil.Process(pid))
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None
    return footprint if footprint.threads and footprint.threads[0].state != ENDED else None


def read_tree(process: psutil.Process) -> list[Footprint]:
    """Read a process and its living descendants."""
    try:
        processes = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [footprint for member in processes if (footprint := read(member.pid)) is not None]


def status(pid: int, thread: int | None = None) -> dict[str, str]:
    """Return `/proc/PID/status` of a process or one of its threads. Empty: it has ended, or there is no such file."""
    return dict(_fields(_text(f"/proc/{pid}/status" if thread is None else f"/proc/{pid}/task/{thread}/status")))


def stack_start(pid: int) -> str:
    """Return the address of a process's first stack, which an exec moves. Empty: not known."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[25] if fields else ""


def blocked_in(pid: int, thread: int) -> str:
    """Return the kernel function that a thread sleeps in, e.g. `futex_do_wait`. Empty: none, or it may not be read."""
    name = _text(f"/proc/{pid}/task/{thread}/wchan")
    return "" if name == "0" else name


def throttled_seconds(pid: int) -> float:
    """Return the seconds when a process's control group had used up its quota. 0: no quota, or not known."""
    for group in _control_groups(pid, "cpu"):
        counts = dict(line.split() for line in _text(f"{group}/cpu.stat").splitlines())
        if "throttled_usec" in counts or "throttled_time" in counts:
            return int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return 0.0


def is_frozen(pid: int) -> bool:
    """Return whether the freezer of its control group stops a process. Its threads then seem to sleep or wait for the disk."""
    return any(
        _text(f"{group}/freezer.state") == "FROZEN" or "frozen 1" in _text(f"{group}/cgroup.events")
        for group in _control_groups(pid, "freezer")
    )


def _control_groups(pid: int, controller: str) -> Iterator[str]:
    """Yield the folders of a process's control groups (versions 1 and 2) that may have this controller."""
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield f"/sys/fs/cgroup/{controllers}{path.rstrip('/')}"
        elif not controllers:
            yield f"/sys/fs/cgroup{path.rstrip('/')}"
            yield f"/sys/fs/cgroup/unified{path.rstrip('/')}"  # beside groups of version 1


def _read_linux(pid: int) -> Footprint:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123  many a second: Path takes twice as long
        fields = file.read().rpartition(")")[2].split()
    faults, times = (int(fields[7]), int(fields[9])), sum(map(int, fields[11:15]))
    memory = status(pid)
    disk = dict(_fields(_text(f"/proc/{pid}/io")))
    return Footprint(
        pid,
        times / os.sysconf("SC_CLK_TCK"),
        sorted(_threads(pid), key=lambda thread: thread.number != pid),
        *faults,
        int(disk["read_bytes"]) + int(disk["write_bytes"]) if "write_bytes" in disk else None,
        *(1024 * int((memory.get(name, "").split() or ["0"])[0]) for name in ("VmRSS", "RssShmem", "VmSwap")),
    )


def _threads(pid: int) -> Iterator[Thread]:
    for number in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  as above
        fields = status(pid, int(number))
        if "State" not in fields:  # it has ended since
            continue
        ran, waited, *_ = (*map(int, _text(f"/proc/{pid}/task/{number}/schedstat").split()), 0, 0)
        switches = (int(fields.get(f"{kind}voluntary_ctxt_switches", 0)) for kind in ("", "non"))
        yield Thread(int(number), fields.get("Name", ""), fields["State"][0], ran / 1e9, waited / 1e9, *switches)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):  # a process may have any other separator in its name
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip(" \t")


def _text(path: str) -> str:
    """Read a file. Empty: there is no such file, or it may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:  # noqa: PTH123  as above
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _read_with_psutil(process: psutil.Process) -> Footprint:
    with process.oneshot():
        times = sum(process.cpu_times()[:4])
        state = _STATES.get(process.status(), SLEEPING)
        thread = Thread(process.pid, process.name(), state, times, 0.0, *process.num_ctx_switches()[:2])
        return Footprint(process.pid, times, [thread], 0, 0, None, process.memory_info().rss, 0, 0)
