"""The machine under a run: what it is, and the limits that both frameworks are held to."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import hmac
import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import psutil
from pydantic import AfterValidator

from common.machine import code_version, environment

PROJECT_ROOT = Path(__file__).resolve().parents[2]
"""The folder of the suite's packages: a checkout, or `convtwins/_app` of an installed package."""
INSTALLED = PROJECT_ROOT.name == "_app"
COMMAND = "convtwins" if INSTALLED else ".venv/bin/convtwins"
"""The command line, as a user can paste it."""

COMPANION_VARIABLE = "CONVTWINS_COMPANION"
"""The id of a process that this one counts to its family: a server that all ranks of a run share."""

_CPUS = "/sys/devices/system/cpu"
IDENTITY = ("processor", "cores", "logical_cores", "memory_mib", "gpus", "host")
"""Recorded facts that tell one machine from another."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("processor", "host", "system", "python", "commit", "allocator"), str),
    **dict.fromkeys(("cores", "logical_cores", "physical_cores", "memory_mib"), (int, float)),
    "dirty": bool,
    "cpus": list,
}
_SAME_MEMORY = 0.02
"""Part of it that another kernel may keep for itself."""
_HOST_FILE = Path("/etc/machine-id")

# glibc's mallopt(3) parameters.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_KEEP_BYTES = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep glibc's allocator from giving freed pages back to the kernel.

    A training step frees and asks for the same hundreds of megabytes again; by default every step then pays for them in
    page faults, in one framework more than in the other. Called in every process of every run, before its first tensor.

    Returns:
        Whether it was done: only glibc has the knobs.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    # M_MMAP_THRESHOLD is capped at 32 MiB, less than one activation of a large batch: so no mmap at all.
    # A thread's own arena holds no block above 64 MiB, so that a pool thread would map and unmap it all the same: one arena.
    settings = ((_M_MMAP_MAX, 0), (_M_ARENA_MAX, 1), (_M_TRIM_THRESHOLD, _KEEP_BYTES), (_M_TOP_PAD, 64 * 2**20))
    return all(libc.mallopt(parameter, value) for parameter, value in settings)


def give_freed_memory_back() -> None:
    """Give freed pages back to the kernel now."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def available_cores() -> int:
    """CPU cores that this process may use, by its affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_budget(cores: int) -> list[int]:
    """The CPUs that a run of so many cores is held to, threads of one physical core side by side.

    They are the first of those that this process may use: one of each physical core, before a second thread of any.
    """
    if not hasattr(os, "sched_getaffinity"):
        return list(range(cores))
    threads: dict[int, list[int]] = {}
    turn: dict[int, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        of_its_core = threads.setdefault(_physical_core(cpu), [])
        turn[cpu] = len(of_its_core)
        of_its_core.append(cpu)
    chosen = sorted(turn, key=lambda cpu: turn[cpu])[:cores]
    return [cpu for of_its_core in threads.values() for cpu in of_its_core if cpu in chosen]


def physical_cores(cpus: Sequence[int]) -> int:
    """How many physical cores these CPUs are threads of."""
    return len(set(map(_physical_core, cpus)))


def _physical_core(cpu: int) -> int:
    """The first of the CPUs that are threads of the same core; the CPU itself where the system does not say."""
    try:
        siblings = Path(_CPUS, f"cpu{cpu}", "topology", "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return cpu
    return int(re.split("[,-]", siblings.strip())[0])


def hold_to(cpus: list[int]) -> None:
    """Hold this process, and all that it starts from now on, to these CPUs. Call before a framework is imported."""
    if not hasattr(os, "sched_setaffinity"):
        return
    # Each thread has its own: NumPy's were started when it was imported.
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


def family() -> list[psutil.Process]:
    """This process, its living descendants (input workers), and the run's companion where this process counts it."""
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    if COMPANION_VARIABLE in os.environ:
        with contextlib.suppress(psutil.NoSuchProcess):
            family.append(psutil.Process(int(os.environ[COMPANION_VARIABLE])))
    return family


def clock() -> float:
    """Seconds by a clock that all processes here share: since boot on Linux, where nobody sets it, elsewhere since 1970."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def process_cpu_seconds() -> float:
    """CPU time of this process alone, all its threads together, by the kernel."""
    return time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) if sys.platform != "win32" else time.process_time()


def usable_cpus() -> int:
    """CPUs that some thread of this process may run on."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    found = os.sched_getaffinity(0)
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found |= os.sched_getaffinity(int(thread.name))
    return len(found)


def cpu_seconds() -> float:
    """CPU time of this process and its descendants, those too that have ended and were waited for."""
    total = 0.0
    for process in family():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
    return total


def busy_cpu_seconds(cpus: Sequence[int] | None = None) -> float:
    """CPU time spent on anything, this process or others: of these CPUs, or of the whole machine."""
    return sum(map(_busy, _cpu_times(cpus)))


def stolen_cpu_seconds(cpus: Sequence[int] | None = None) -> float:
    """CPU time that a hypervisor gave to other machines while these CPUs, or any of this one's, wanted it.

    0 where there is none or it does not say.
    """
    return sum(getattr(times, "steal", 0.0) for times in _cpu_times(cpus))


def _cpu_times(cpus: Sequence[int] | None) -> list[Any]:
    if cpus is None:
        return [psutil.cpu_times()]
    each = psutil.cpu_times(percpu=True)
    return [each[cpu] for cpu in cpus if cpu < len(each)]


def _busy(times: Any) -> float:
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice already
    return sum(times) - idle - guests


def load() -> float | None:
    """Load average of the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def frequency_mhz() -> float | None:
    """Mean clock, now, of the CPUs that this process may use; None where the system does not say."""
    try:
        clocks = [clock.current for clock in psutil.cpu_freq(percpu=True)]
    except (AttributeError, NotImplementedError, OSError):
        return None
    own = [clocks[cpu] for cpu in cpu_budget(len(clocks)) if cpu < len(clocks) and clocks[cpu]]
    return sum(own) / len(own) if own else None


def peak_memory_mib() -> float:
    """Largest resident memory so far of this process and its living descendants, each at its own peak, summed.

    Pages that they share (libraries, a memory-mapped data set) count in each.
    """
    total_kib = 0
    for process in family():
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        total_kib += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return total_kib / 1024


def proportional_memory_mib() -> float | None:
    """Proportional set size (PSS) now of this process and its living descendants, summed; None if the system does not say.

    A page that n processes share counts 1 / n in each. The kernel walks all pages: call it outside timed blocks.
    """
    total_kib = 0
    for process in family():
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            if process.is_running():
                return None
            continue
        except OSError:
            return None
        total_kib += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total_kib / 1024


@cache
def describe() -> dict[str, Any]:
    """Processor, cores, memory, system, Python, and the commit of the code."""
    code = code_version.of(PROJECT_ROOT)
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "logical_cores": psutil.cpu_count() or 0,
        "memory_mib": round(psutil.virtual_memory().total / 2**20),
        "host": _host(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        **{fact: code[fact] for fact in ("commit", "dirty")},
    }


def checked(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a machine, for a stored record that may come from anybody.

    Raises:
        ValueError: one that is known here is of another kind. None is possible for all.
    """
    for name, kind in _KINDS.items():
        value = facts.get(name)
        if value is None:
            continue
        numbers: list[Any] = cast(list[Any], value) if kind is list else [value] if kind is not str else []
        if not isinstance(value, kind) or not all(isinstance(each, int | float) and 0 <= each < 2**63 for each in numbers):
            raise ValueError(f"{name} is no fact of a machine")
    names: Any = facts.get("gpus")
    if names is not None and not (isinstance(names, list) and all(isinstance(each, str) for each in cast(list[Any], names))):
        raise ValueError("gpus is no fact of a machine")
    return facts


Facts = Annotated[dict[str, Any], AfterValidator(checked)]


def processors(facts: Mapping[str, Any]) -> str:
    """`AMD EPYC 7B13`; with GPUs `AMD EPYC 7B13 with 2 x NVIDIA H200`."""
    names = collections.Counter[str](facts.get("gpus") or ())
    counted = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in names.items())
    return f"{facts.get('processor') or 'unknown processor'}{' with ' if counted else ''}{counted}"


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The fields of IDENTITY that differ between two records of a machine. Fields unknown to either are skipped."""

    def differs(fact: str) -> bool:
        ours, theirs = one.get(fact), other.get(fact)
        if ours is None or theirs is None:
            return False
        if fact == "memory_mib":
            return abs(ours - theirs) > _SAME_MEMORY * max(ours, theirs)
        return ours != theirs

    return [fact for fact in IDENTITY if differs(fact)]


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of these distributions, or of their variants for CPUs.

    Raises:
        PackageNotFoundError: one is not installed.
    """
    installed = environment.distributions()
    return {package: environment.version(package, installed) or importlib.metadata.version(package) for package in packages}


def code_digest(folders: Sequence[Path]) -> str:
    """SHA-256 over the names and contents of all Python files in these folders. A folder may be one file."""
    sha256 = hashlib.sha256()
    for folder in folders:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
            sha256.update(f"{folder.name}/{path.relative_to(folder)}".encode() + path.read_bytes())
    return sha256.hexdigest()


def _host() -> str | None:
    """An id of this machine: a keyed digest, because the id itself must stay secret (machine-id(5))."""
    try:
        identity = _HOST_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return hmac.new(identity.encode(), b"convtwins", "sha256").hexdigest()[:16] if identity else None


def cpu_flags() -> list[str]:
    """Instruction sets of the processor (`avx512f`, `amx_bf16` ...), by which libraries choose their kernels.

    Empty where the system does not say.
    """
    return sorted((_cpuinfo("flags") or _cpuinfo("Features") or "").split())


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor()


def _cpuinfo(field: str) -> str | None:
    """A field of the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.partition(":")[0].strip() == field), None)
