"""What a process uses of the machine, read from outside. It is not asked, signalled or stopped."""

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
"""Of psutil. All others sleep."""


class Thread(NamedTuple):
    """One thread. Times and counts are since its start."""

    number: int
    """The operating system's. The main thread has the number of its process."""
    name: str
    state: str
    cpu_seconds: float
    core_wait_seconds: float
    """It could have run, and others had the cores or a quota was used up. 0 where the kernel does not count it."""
    voluntary_switches: int
    """It gave the core away, because it had to wait."""
    involuntary_switches: int
    """The core was taken from it."""


class Footprint(NamedTuple):
    """One process. Times and counts are since its start."""

    pid: int
    cpu_seconds: float
    """Also of its children that have ended."""
    threads: list[Thread]
    minor_faults: int
    major_faults: int
    """Pages that had to be read from the disk or from swap."""
    disk_bytes: int | None
    """Read from and written to disks. None: another user's process does not say."""
    resident_bytes: int
    shared_bytes: int
    """Resident, in shared memory."""
    swap_bytes: int

    @property
    def is_stopped(self) -> bool:
        """By a signal or a debugger."""
        return self.threads[0].state in (STOPPED, TRACED)

    @property
    def wants(self) -> bool:
        """Whether a thread has a core, waits for one, or waits for the disk."""
        return any(thread.state in (RUNNING, DISK) for thread in self.threads)

    def total(self, field: str) -> float:
        """Of a field of all its threads."""
        return sum(getattr(thread, field) for thread in self.threads)


def read(pid: int) -> Footprint | None:
    """A process now. None: it has ended.

    Off Linux, a process has one thread, and only its CPU time, state, switches and memory are known.
    """
    try:
        found = _read_linux(pid) if sys.platform == "linux" else _read_elsewhere(psutil.Process(pid))
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None
    return found if found.threads and found.threads[0].state != ENDED else None


def read_tree(process: psutil.Process) -> list[Footprint]:
    """A process, and all that it started and that still lives."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [found for each in family if (found := read(each.pid)) is not None]


def status(pid: int, thread: int | None = None) -> dict[str, str]:
    """Fields of `/proc/PID/status`, of the process or one of its threads. Empty: it has ended, or there is no such file."""
    return dict(_fields(_text(f"/proc/{pid}/status" if thread is None else f"/proc/{pid}/task/{thread}/status")))


def program(pid: int) -> str:
    """Where its first stack lies: exec puts it elsewhere. Empty: not known."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[25] if fields else ""


def blocked_in(pid: int, thread: int) -> str:
    """The function of the kernel that a thread sleeps in, e.g. `futex_do_wait`. Empty: none, or it may not be read."""
    name = _text(f"/proc/{pid}/task/{thread}/wchan")
    return "" if name == "0" else name


def throttled_seconds(pid: int) -> float:
    """How long the quota of its control group has kept a process from running. 0: there is no quota, or it is not known."""
    for group in _control_groups(pid, "cpu"):
        counts = dict(each.split() for each in _text(f"{group}/cpu.stat").splitlines())
        if "throttled_usec" in counts or "throttled_time" in counts:
            return int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return 0.0


def is_frozen(pid: int) -> bool:
    """Whether the freezer of its control group stops a process. Its threads then seem to sleep, or to wait for the disk."""
    return any(
        _text(f"{group}/freezer.state") == "FROZEN" or "frozen 1" in _text(f"{group}/cgroup.events")
        for group in _control_groups(pid, "freezer")
    )


def _control_groups(pid: int, controller: str) -> Iterator[str]:
    """The folders of a process's control groups that may have this controller: of version 1, and of version 2."""
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
        said = status(pid, int(number))
        if "State" not in said:  # it has ended since
            continue
        ran, waited, *_ = (*map(int, _text(f"/proc/{pid}/task/{number}/schedstat").split()), 0, 0)
        switches = (int(said.get(f"{kind}voluntary_ctxt_switches", 0)) for kind in ("", "non"))
        yield Thread(int(number), said.get("Name", ""), said["State"][0], ran / 1e9, waited / 1e9, *switches)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):  # a process may have any other separator in its name
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip(" \t")


def _text(path: str) -> str:
    """Empty: there is no such file, or it may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:  # noqa: PTH123  as above
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _read_elsewhere(process: psutil.Process) -> Footprint:
    with process.oneshot():
        times = sum(process.cpu_times()[:4])
        state = _STATES.get(process.status(), SLEEPING)
        thread = Thread(process.pid, process.name(), state, times, 0.0, *process.num_ctx_switches()[:2])
        return Footprint(process.pid, times, [thread], 0, 0, None, process.memory_info().rss, 0, 0)
